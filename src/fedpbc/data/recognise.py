"""Which loader reads a file or folder: told from what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpbc.data.component import Data
from fedpbc.data.formats.huggingface import is_saved, partitions_of
from fedpbc.data.formats.idx import INSIDE as IDX_INSIDE
from fedpbc.data.formats.images import ENDINGS, parts_of
from fedpbc.data.formats.leaf import json_files
from fedpbc.data.registry import DATA
from fedpbc.errors import BadOption

CIFAR_INSIDE = ("cifar-10-batches-*", "cifar-100-*", "CIFAR*")
BUNDLED = ("digits", "wine", "breast_cancer", "diabetes", "mnist_5k")
"""Loaders that need no path."""


def load(path: str | Path, **options: Any) -> Data:
    """The data of a file or folder of any format that is known, or a name like "digits" of data that need no file.

    The format is told from the content: .npz, IDX (MNIST), CIFAR, SVHN, class folders of images, LEAF, CSV, Parquet,
    a saved Hugging Face data set, saved partitions of Flower Datasets. ``options``: of that loader. Raises ConfigError.
    """
    if str(path) in BUNDLED and not Path(path).exists():
        return DATA.registry[str(path)](**options)  # type: ignore[return-value]
    return DATA.registry[recognise(Path(path))](Path(path), **options)  # type: ignore[return-value]


def recognise(path: Path) -> str:
    """The name of the loader that reads a file or folder. Raises BadOption where it is of no format that is known."""
    if not path.exists():
        raise BadOption("path", path, f"no such file or folder; without a file there are {', '.join(BUNDLED)}")
    if path.is_file():
        return _of_file(path)
    for name, fits in FOLDERS.items():
        if fits(path):
            return name
    what = "holds nothing that is known: IDX files, CIFAR batches, train_32x32.mat, class folders of images, LEAF's "
    raise BadOption("path", path, f"{what}JSON, a saved Hugging Face data set or saved partitions of one")


def _any(path: Path, inside: tuple[str, ...], *patterns: str) -> bool:
    folders = [path, *(found for name in inside for found in path.glob(name))]
    return any(next(folder.glob(pattern), None) for folder in folders if folder.is_dir() for pattern in patterns)


def _is_leaf(path: Path) -> bool:
    files = json_files(path, "train")
    return bool(files) and _has_users(files[0])


def _has_users(file: Path) -> bool:
    """The table of a JSON file has ``users`` and ``user_data``: told from its text, which may be of gigabytes."""
    with file.open("rb") as stream:
        head = stream.read(2**16)
    if head.lstrip()[:1] != b"{":
        return False
    if b'"user_data"' in head or b'"users"' in head:
        return True
    try:
        return {"users", "user_data"} <= json.loads(file.read_bytes()).keys()
    except ValueError:
        return False


def _has_classes(path: Path) -> bool:
    return any(
        picture.suffix.lower() in ENDINGS
        for folder in parts_of(path)["train"].iterdir() if folder.is_dir()
        for picture in folder.iterdir()
    )  # fmt: skip


FOLDERS: dict[str, Callable[[Path], bool]] = {
    "huggingface": is_saved,
    "flower_datasets": lambda path: bool(partitions_of(path)),
    "mnist": lambda path: _any(path, IDX_INSIDE, "*idx?-ubyte", "*idx?-ubyte.gz"),
    "cifar": lambda path: (
        _any(path, CIFAR_INSIDE, "data_batch_1", "data_batch_1.bin", "train.bin")
        or any(
            (folder / "train").is_file() and (folder / "meta").is_file() for folder in (path, *path.glob("cifar-100-*"))
        )
    ),
    "svhn": lambda path: _any(path, ("*SVHN*", "svhn"), "train_32x32.mat"),
    "leaf": _is_leaf,
    "images": _has_classes,
}
"""In this order: what is most sure comes first."""


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(4096)
    if not head:
        raise BadOption("path", path, "is empty")
    if head[:4] == b"PAR1":
        return "table"
    if head[:4] == b"PK\x03\x04":
        return "npz"
    for begins, what in SINGLE.items():
        if head.startswith(begins):
            raise BadOption("path", path, what)
    if head.lstrip()[:1] == b"{":
        if _has_users(path):
            return "leaf"
        raise BadOption("path", path, "is JSON, but not LEAF's: it has no users and user_data")
    if path.name.endswith((".csv", ".csv.gz", ".tsv")) or (_is_text(head) and b"," in head.splitlines()[0]):
        return "table"
    what = "is of no format that is known: .npz, .csv, .parquet, LEAF's .json, or a folder of other formats"
    raise BadOption("path", path, what)


SINGLE = {
    b"\0\0\x08": "is a single IDX file; give its folder, with images and labels",
    b"MATLAB": "is a MATLAB file; give its folder, with train_32x32.mat and test_32x32.mat",
    b"\x93NUMPY": "is one array, .npy; np.savez writes train.0 and train.1 as an .npz",
    b"\x89PNG": "is a single image; give the folder that has a folder of images for each class",
    b"\xff\xd8\xff": "is a single image; give the folder that has a folder of images for each class",
    b"\xff\xff\xff\xff": "is an Arrow file; give the folder that the data set was saved to",
    b"ARROW1": "is an Arrow file of its own; save the data set with save_to_disk and give that folder",
    b"\x80": "is a pickle, which is never run; of CIFAR, give its folder",
    b"\x89HDF": "is an HDF5 file, which no loader reads; np.savez writes train.0 and train.1 as an .npz",
}
"""How a file begins that is only a part of a data set -> what to give instead."""


def _is_text(head: bytes) -> bool:
    try:
        head[:-3].decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    return b"\0" not in head
