"""Folders of images, a folder for each class: CINIC-10, Tiny ImageNet's training set, your own photographs."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.schema import Context, PositiveInt
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.component import loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.formats.common import image_pool, refuse, require_folder
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import BadOption, optional

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
PARTS = {"train": ("train", "training"), "valid": ("valid", "val", "validation"), "test": ("test", "testing")}
Pair = tuple[np.ndarray, np.ndarray]


@loader
def images(
    context: Context,
    path: Path,
    *,
    size: PositiveInt | None = None,
    grey: bool = False,
    use_valid: bool = False,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """Folders of PNG or JPEG images, one for each class, in path/, or in its train/, test/ and valid/ (CINIC-10).

    Images must be of one size, or ``size`` makes them size x size pixels; ``grey``: one channel instead of three.
    ``use_valid``: path/valid belongs to the training samples, else it is left out. Images are kept as bytes, in [0, 1]
    where they are used. Needs Pillow.
    """
    pool = read_images(path, size, grey, use_valid, normalise)
    return deal(context, pool, partition, test_share, max_rows)


def read_images(
    path: Path, size: int | None = None, grey: bool = False, use_valid: bool = False, normalise: bool = False
) -> Pool:
    """The pool of a folder. Raises BadOption, MissingPackage."""
    require_folder(path, "class folders of images")
    folders = parts_of(path)
    notes: list[str] = []
    train = [folders["train"]]
    if "valid" in folders:
        if use_valid:
            train.append(folders["valid"])
        else:
            notes.append(f"{folders['valid'].name}/ is left out; use_valid = true trains on it too")
    names = sorted({name for folder in train for name in _class_names(folder)})
    if not names:
        raise BadOption("path", path, "holds no folders with images, one for each class (.png, .jpg, ...)")
    files, labels = _listed(path, train, names)
    decode = Decoder(path, size, grey)
    pair = decode.all(files), labels
    test = None
    if "test" in folders:
        test_files, test_labels = _listed(path, [folders["test"]], names)
        if test_files:
            test = decode.all(test_files), test_labels
    if size is not None:
        notes.append(f"images are made {size} x {size} pixels")
    return image_pool(pair, test, normalise, classes=np.array(names), notes=tuple(notes))


def parts_of(path: Path) -> dict[str, Path]:
    """train, valid and test below ``path``, or ``path`` itself as train."""
    found = {part: path / name for part, names in PARTS.items() for name in names if (path / name).is_dir()}
    return found if "train" in found else {"train": path}


def _class_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir() and _pictures(Path(entry.path))]


def _pictures(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.path for e in entries if e.name.lower().endswith(ENDINGS) and not e.name.startswith("."))


def _listed(path: Path, folders: Sequence[Path], names: list[str]) -> tuple[list[str], np.ndarray]:
    files: list[str] = []
    labels: list[int] = []
    for folder in folders:
        for name in _class_names(folder):
            if name not in names:
                raise refuse(
                    path, folder / name, f"is a class that the training images lack; they have {', '.join(names[:8])}"
                )
        for label, name in enumerate(names):
            found = _pictures(folder / name) if (folder / name).is_dir() else []
            files += found
            labels += [label] * len(found)
    return files, np.array(labels, np.uint8 if len(names) <= 256 else np.int32)


class Decoder:
    """Image files, or their bytes, into one array of bytes [n, height, width, channels]."""

    def __init__(self, path: Path, size: int | None = None, grey: bool | None = None) -> None:
        self.path, self.size, self.grey = path, size, grey
        self._image = optional("PIL.Image", "images")
        self._shape: tuple[int, ...] = ()
        self._first = ""

    def all(self, sources: Sequence[Any], names: Sequence[str] = ()) -> np.ndarray:
        """Each source decoded, side by side; the first one says of which size all are. Raises BadOption."""
        names = names or [str(Path(source).relative_to(self.path)) for source in sources]
        first = self._decoded(sources[0], names[0])
        if not self._shape:
            self._shape, self._first = first.shape, names[0]
        array = np.empty((len(sources), *self._shape), np.uint8)

        def one(i: int) -> None:
            pixels = self._decoded(sources[i], names[i])
            if pixels.shape != self._shape:
                (h, w), (height, width) = pixels.shape[:2], self._shape[:2]
                what = (
                    f"is {w} x {h} pixels, {self._first} is {width} x {height}; size = {min(height, width)} scales all"
                )
                raise BadOption("path", self.path, f"{names[i]}: {what}")
            array[i] = pixels

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as workers:
            for _ in workers.map(one, range(len(sources))):
                pass
        return array

    def _decoded(self, source: Any, name: str) -> np.ndarray:
        try:
            with self._image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                if self.grey is None:  # as the first image is
                    self.grey = image.mode in ("1", "L", "I", "I;16", "F")
                picture = image.convert("L" if self.grey else "RGB")
                if self.size is not None and picture.size != (self.size, self.size):
                    picture = picture.resize((self.size, self.size), self._image.Resampling.BILINEAR)
                pixels = np.asarray(picture)
        except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error, ... of a damaged file
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            what = "cannot be identified" if "cannot identify" in reason else reason
            raise BadOption("path", self.path, f"{name}: is no image, or a damaged one ({what})") from None
        return pixels[..., None] if pixels.ndim == 2 else pixels
