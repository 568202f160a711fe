"""SVHN, cropped digits, as MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpbc.core.schema import Context, PositiveInt
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.component import loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.formats.common import folder_with, image_pool, refuse
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import first_line, optional


@loader
def svhn(
    context: Context,
    path: Path,
    *,
    extra: bool = False,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """A folder with train_32x32.mat and, where it is there, test_32x32.mat: images [32, 32, 3] of digits.

    ``extra``: the 531 131 images of extra_32x32.mat are training samples too. Label 10 is digit 0. Images are kept as
    bytes, in [0, 1] where they are used. Needs SciPy.
    """
    return deal(context, read_svhn(path, extra, normalise), partition, test_share, max_rows)


def read_svhn(path: Path, extra: bool = False, normalise: bool = False) -> Pool:
    """The pool of a folder. Raises BadOption, MissingPackage."""
    folder = folder_with(path, "SVHN (train_32x32.mat, test_32x32.mat)", ("*SVHN*", "svhn"), "train_32x32.mat")
    train = _read(path, folder / "train_32x32.mat")
    if extra:
        more = _read(path, folder / "extra_32x32.mat")
        train = np.concatenate([train[0], more[0]]), np.concatenate([train[1], more[1]])
    test = folder / "test_32x32.mat"
    pair = _read(path, test) if test.is_file() else None
    return image_pool(train, pair, normalise, notes=("label 10 is digit 0",))


def _read(path: Path, file: Path) -> tuple[np.ndarray, np.ndarray]:
    """``X`` [32, 32, 3, n] and ``y`` [n, 1] of a .mat."""
    if not file.is_file():
        raise refuse(path, file, "no such file")
    try:
        found = optional("scipy.io", "data svhn").loadmat(file, variable_names=["X", "y"])
    except ModuleNotFoundError:
        raise
    except Exception as error:  # the reader of a damaged file raises whatever it stumbles on
        raise refuse(path, file, f"is no MATLAB file, or a damaged one ({first_line(error)})") from None
    for name in ("X", "y"):
        if name not in found:
            raise refuse(path, file, f"has no variable {name}: must have X, the images, and y, the labels")
    images, labels = found["X"], found["y"]
    if images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8:
        raise refuse(path, file, f"X is {images.dtype}{list(images.shape)}, must be uint8[height, width, 3, n]")
    if labels.size != images.shape[3]:
        raise refuse(path, file, f"{images.shape[3]:,} images, but {labels.size:,} labels")
    if labels.size == 0 or labels.min() < 0 or labels.max() > 10:
        raise refuse(path, file, "y must be labels from 1 to 10")
    return np.ascontiguousarray(np.moveaxis(images, 3, 0)), (labels.reshape(-1) % 10).astype(np.uint8)
