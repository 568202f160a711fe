"""IDX: MNIST, Fashion-MNIST, KMNIST and EMNIST as their authors publish them, also gzipped."""

from __future__ import annotations

import re
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

NAME = re.compile(r"(?:emnist-(\w+)-)?(train|t10k|test)-(images|labels)[-.]idx[13]-ubyte(?:\.gz)?")
"""train-images-idx3-ubyte, t10k-labels.idx1-ubyte.gz, emnist-balanced-test-images-idx3-ubyte.gz, ..."""
INSIDE = ("raw", "*/raw", "gzip", "*MNIST*")
"""Where downloads of others keep the files."""
_DIGITS, _CAPITALS, _SMALL = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
CLASSES = {
    "byclass": _DIGITS + _CAPITALS + _SMALL,
    "bymerge": _DIGITS + _CAPITALS + "abdefghnqrt",
    "balanced": _DIGITS + _CAPITALS + "abdefghnqrt",
    "letters": _SMALL,
    "digits": _DIGITS,
    "mnist": _DIGITS,
}
"""The characters of EMNIST's splits (Cohen et al. 2017), in the order of their labels."""
Split = Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]


@loader
def mnist(
    context: Context,
    path: Path,
    *,
    split: Split | None = None,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """A folder of IDX files, also .gz: MNIST, Fashion-MNIST, KMNIST, or a ``split`` of EMNIST, which is turned upright.

    Images [28, 28, 1], kept as bytes, in [0, 1] where they are used; ``normalise``: mean 0 and standard deviation 1.
    Files of the training set, and where they are there, of the test set (t10k or test).
    """
    return deal(context, read_mnist(path, split, normalise), partition, test_share, max_rows)


def read_mnist(path: Path, split: str | None = None, normalise: bool = False) -> Pool:
    """The pool of a folder. Raises BadOption."""
    folder = folder_with(path, "IDX files (train-images-idx3-ubyte, ...)", INSIDE, "*idx?-ubyte", "*idx?-ubyte.gz")
    files: dict[str, dict[tuple[str, str], Path]] = {}
    for file in sorted(folder.iterdir(), reverse=True):  # an unpacked file comes before its .gz
        match = NAME.fullmatch(file.name)
        if match:
            part = "train" if match[2] == "train" else "test"
            files.setdefault(match[1] or "", {})[part, match[3]] = file
    if not files:
        raise BadOption(
            "path", path, "its IDX files are not called train-images-idx3-ubyte, t10k-labels-idx1-ubyte, ..."
        )
    if split is not None and split not in files:
        raise BadOption("split", split, f"is not in the folder, which holds {', '.join(files) or 'one without a name'}")
    if split is None and len(files) > 1:
        raise BadOption(
            "split", "none", f"the folder holds several, choose one: {', '.join(name or 'none' for name in files)}"
        )
    name = next(iter(files)) if split is None else split
    found = files[name]
    train, test = (_part(path, found, part) for part in ("train", "test"))
    if train is None:
        raise BadOption("path", path, "the training images are missing (train-images-idx3-ubyte)")
    notes: tuple[str, ...] = ()
    if name:  # EMNIST
        train, test = _upright(train), None if test is None else _upright(test)
        notes = (f"EMNIST {name}: images are turned upright, rows and columns swapped",)
    if name == "letters":
        for _, labels in (train, *([test] if test else [])):
            labels -= 1
        notes = (*notes, "labels 1 to 26 become 0 to 25")
    classes = np.array(list(CLASSES[name])) if name in CLASSES else None
    return image_pool(train, test, normalise, classes=classes, notes=notes)


def _upright(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.ascontiguousarray(pair[0].swapaxes(1, 2)), pair[1]


def _part(path: Path, files: dict[tuple[str, str], Path], part: str) -> tuple[np.ndarray, np.ndarray] | None:
    images, labels = files.get((part, "images")), files.get((part, "labels"))
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        there = images or labels
        lacking = "labels" if labels is None else "images"
        raise refuse(path, there or path, f"there is no file of the {lacking} that belong to it")
    pictures, numbers = _read(path, images, 3), _read(path, labels, 1)
    if len(pictures) != len(numbers):
        raise refuse(path, images, f"{len(pictures):,} images, but {len(numbers):,} labels in {labels.name}")
    if len(pictures) == 0:
        raise refuse(path, images, "holds no image")
    return pictures[..., None], numbers


def _read(path: Path, file: Path, ndim: int) -> np.ndarray:
    """An IDX file of bytes: 0, 0, 8, the number of axes, their lengths in 32 bits big-endian, the data."""
    wanted = "images, [n, height, width]" if ndim == 3 else "labels, [n]"
    with opened(path, file) as stream:
        magic = stream.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0":
            raise refuse(
                path, file, f"is no IDX file: it begins with {magic.hex(' ') or 'nothing'}, not 00 00 08 0{ndim}"
            )
        if magic[2] != 8:
            raise refuse(path, file, f"holds numbers of type 0x{magic[2]:02x}, must be bytes, 0x08")
        header = stream.read(4 * magic[3])
        if len(header) < 4 * magic[3]:
            raise refuse(path, file, "is truncated: it ends within its header")
        shape = tuple(np.frombuffer(header, ">u4").tolist())
        if magic[3] != ndim:
            holds = "labels" if magic[3] == 1 else "images" if magic[3] == 3 else f"{magic[3]} axes"
            raise refuse(path, file, f"holds {holds}, {list(shape)}, must hold {wanted}: are files swapped?")
        if int(np.prod(shape, dtype=np.float64)) > 2**36:
            raise refuse(path, file, f"says that it holds {list(shape)}: its header is damaged")
        array = np.empty(shape, np.uint8)
        read_exactly(path, file, stream, array)
    return array
