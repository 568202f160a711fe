"""CIFAR-10 and CIFAR-100: the binary version, and the one for Python, whose pickles are read as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from fedpbc.core.schema import Context, PositiveInt
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.component import loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.formats.common import folder_with, image_pool, opened, read_exactly, refuse
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import BadOption
from fedpbc.io import plainpickle

PIXELS = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
INSIDE = ("cifar-10-batches-*", "cifar-100-*", "CIFAR*")
Labels = Literal["fine", "coarse"]
Pair = tuple[np.ndarray, np.ndarray]


@loader
def cifar(
    context: Context,
    path: Path,
    *,
    labels: Labels = "fine",
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """A folder of CIFAR-10 or CIFAR-100, the binary version or the one for Python: images [32, 32, 3].

    ``labels``: of CIFAR-100, its 100 classes or the 20 that they belong to. Images are kept as bytes, in [0, 1] where
    they are used. Pickles are read by a reader that runs nothing.
    """
    return deal(context, read_cifar(path, labels, normalise), partition, test_share, max_rows)


def read_cifar(path: Path, labels: str = "fine", normalise: bool = False) -> Pool:
    """The pool of a folder. Raises BadOption."""
    patterns = ("data_batch_1.bin", "train.bin", "data_batch_1", "train")
    folder = folder_with(path, "CIFAR (data_batch_1.bin, train.bin, ...)", INSIDE, *patterns)
    first = next(name for name in patterns if (folder / name).exists())
    hundred = first.startswith("train")
    if labels == "coarse" and not hundred:
        raise BadOption("labels", labels, "CIFAR-10 has one kind of label")
    ending = ".bin" if first.endswith(".bin") else ""
    read = _binary if ending else _pickled
    names = [f"{name}{ending}" for name in (("train",) if hundred else BATCHES)]
    there = [folder / name for name in names if (folder / name).is_file()]
    absent = [name for name in names if not (folder / name).is_file()]
    train = _joined((read(path, file, hundred, labels) for file in there), len(there))
    test = folder / f"{'test' if hundred else 'test_batch'}{ending}"
    notes = (f"without {', '.join(absent)}, which is not there",) if absent else ()
    tested = read(path, test, hundred, labels) if test.is_file() else None
    return image_pool(train, tested, normalise, classes=_names(path, folder, hundred, labels), notes=notes)


def _joined(parts: Iterator[Pair], count: int) -> Pair:
    """Batches, each let go when it is copied: they are of one size, and room is made for all with the first."""
    pixels, labels = next(parts)
    if count == 1:
        return pixels, labels
    images, numbers, n = np.empty((count * len(labels), 32, 32, 3), np.uint8), [labels], len(labels)
    images[:n] = pixels
    for pixels, labels in parts:
        if n + len(labels) > len(images):
            images = np.concatenate([images[:n], np.empty_like(pixels)])
        images[n : n + len(labels)] = pixels
        n += len(labels)
        numbers.append(labels)
    return images[:n], np.concatenate(numbers)


def _binary(path: Path, file: Path, hundred: bool, wanted: str) -> Pair:
    """Rows of one label (CIFAR-100: coarse, fine) and 3072 pixels, channel after channel."""
    width = PIXELS + 1 + hundred
    size = file.stat().st_size
    if size == 0 or size % width:
        other = "; a row of the other CIFAR would fit" if size and size % (PIXELS + 2 - hundred) == 0 else ""
        what = f"{size:,} bytes are no whole number of rows of {width:,} bytes: truncated, or no CIFAR{other}"
        raise refuse(path, file, what)
    rows = np.empty((size // width, width), np.uint8)
    with opened(path, file) as stream:
        read_exactly(path, file, stream, rows)
    labels = rows[:, 1 if hundred and wanted == "fine" else 0].copy()
    return _upright(rows[:, 1 + hundred :]), _checked(path, file, labels, hundred, wanted)


def _pickled(path: Path, file: Path, hundred: bool, wanted: str) -> Pair:
    """A dict of ``data`` [n, 3072] and ``labels`` (CIFAR-100: coarse_labels, fine_labels)."""
    found = _unpickled(path, file)
    name = f"{wanted}_labels" if hundred else "labels"
    pixels, labels = found.get("data"), found.get(name)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise refuse(path, file, "has no data, uint8[n, 3072]")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise refuse(path, file, f"has no {name}, a list of integers")
    if len(labels) != len(pixels) or not labels:
        raise refuse(path, file, f"{len(pixels):,} images, but {len(labels):,} labels")
    return _upright(pixels), _checked(path, file, np.array(labels, np.uint8), hundred, wanted)


def _unpickled(path: Path, file: Path) -> dict[str, object]:
    with opened(path, file) as stream:
        data = stream.read()
    try:
        found = plainpickle.load(data, arrays=True)
    except plainpickle.PickleError as error:
        raise refuse(path, file, str(error)) from None
    if not isinstance(found, dict):
        raise refuse(path, file, f"holds a {type(found).__name__}, must hold a dict of data and labels")
    return {str(key): value for key, value in found.items()}


def _upright(rows: np.ndarray) -> np.ndarray:
    """[n, 3072], channel after channel, to [n, 32, 32, 3]."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _checked(path: Path, file: Path, labels: np.ndarray, hundred: bool, wanted: str) -> np.ndarray:
    classes = (100 if wanted == "fine" else 20) if hundred else 10
    if labels.max() >= classes:
        what = f"label {labels.max()} of image {int(np.argmax(labels >= classes))}, must be below {classes}"
        raise refuse(path, file, f"{what}: truncated, or of another data set")
    return labels


def _names(path: Path, folder: Path, hundred: bool, wanted: str) -> np.ndarray | None:
    """What the classes are called, where a file beside the images says so."""
    text = folder / (f"{wanted}_label_names.txt" if hundred else "batches.meta.txt")
    meta = folder / ("meta" if hundred else "batches.meta")
    names: object = None
    if text.is_file():
        names = [line.strip() for line in text.read_text("utf-8", "replace").splitlines() if line.strip()]
    elif meta.is_file():
        names = _unpickled(path, meta).get(f"{wanted}_label_names" if hundred else "label_names")
    classes = (100 if wanted == "fine" else 20) if hundred else 10
    fits = isinstance(names, list) and len(names) == classes and all(isinstance(name, str) for name in names)
    return np.array(names) if fits else None
