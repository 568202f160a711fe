"""What loaders share: mistakes as one line, images as bytes, columns made comparable."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedpbc.data.arrays import Pool, Scaling
from fedpbc.errors import BadOption


def refuse(path: Path, file: Path | str, problem: str) -> BadOption:
    """The error of ``file``, which is ``path`` or lies below it."""
    if isinstance(file, Path):
        file = "" if file == path else str(file.relative_to(path)) if file.is_relative_to(path) else file.name
    return BadOption("path", path, f"{file}: {problem}" if file else problem)


def require_folder(path: Path, what: str) -> None:
    """Raise BadOption unless ``path`` is a folder, of ``what``."""
    if not path.exists():
        raise BadOption("path", path, "no such file or folder")
    if not path.is_dir():
        raise BadOption("path", path, f"is a file; give the folder of {what}")


def folder_with(path: Path, what: str, inside: tuple[str, ...], *patterns: str) -> Path:
    """``path`` or, where the files are not there, the first of the folders ``inside`` it that has a file of a pattern.

    Raises BadOption.
    """
    require_folder(path, what)
    for folder in (path, *(found for name in inside for found in sorted(path.glob(name)))):
        if folder.is_dir() and any(next(folder.glob(pattern), None) for pattern in patterns):
            return folder
    raise BadOption("path", path, f"holds no {what}; looked for {', '.join(patterns)}")


@contextmanager
def opened(path: Path, file: Path) -> Iterator[BinaryIO]:
    """A file to read, unpacked where it ends in .gz. Raises BadOption when it is missing or damaged."""
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb") as stream:
            yield stream  # type: ignore[misc]
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise refuse(path, file, f"is no whole gzip file ({error})") from None
    except OSError as error:
        raise refuse(path, file, f"cannot be read: {error.strerror or error}") from None


def read_exactly(path: Path, file: Path, stream: BinaryIO, array: np.ndarray) -> None:
    """The rest of a file into ``array``, byte for byte. Raises BadOption when it holds fewer bytes or more."""
    wanted, view, done = array.nbytes, memoryview(array.reshape(-1).view(np.uint8).data), 0
    while done < wanted:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise refuse(path, file, f"is truncated: {done:,} of {wanted:,} bytes of data")
        done += count
    if stream.read(1):
        raise refuse(path, file, f"has more than the {wanted:,} bytes of data it says")


def image_pool(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray] | None, normalise: bool, **rest: Any
) -> Pool:
    """A pool of images of bytes, [n, h, w, c], learnt from as numbers in [0, 1] or ``normalise``d."""
    return Pool(train, test, scaling=bytes_scaling(train[0], normalise), **rest)


def bytes_scaling(images: np.ndarray, normalise: bool, top: float = 255.0) -> Scaling:
    """0 .. ``top`` to [0, 1]; with ``normalise`` to mean 0 and standard deviation 1 in each channel of ``images``."""
    if not normalise:
        return Scaling((1 / top,))
    factors, shifts = [], []
    for channel in range(images.shape[-1]):
        counts = np.zeros(256, np.int64)
        for first in range(0, len(images), 1024):
            counts += np.bincount(images[first : first + 1024, ..., channel].reshape(-1), minlength=256)
        share, values = counts / counts.sum(), np.arange(256.0)
        mean = float(share @ values)
        deviation = float(np.sqrt(share @ (values - mean) ** 2)) or 1.0
        factors.append(1 / deviation)
        shifts.append(-mean / deviation)
    return Scaling(tuple(factors), tuple(shifts))


def standardised(train: np.ndarray, test: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Columns of mean 0 and standard deviation 1 over the training samples, float32; a constant one becomes 0."""
    mean, deviation = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    deviation[deviation <= 1e-12 * np.maximum(np.abs(mean), 1)] = 1

    def of(array: np.ndarray) -> np.ndarray:
        return ((array - mean) / deviation).astype(np.float32)

    return of(train), None if test is None else of(test)
