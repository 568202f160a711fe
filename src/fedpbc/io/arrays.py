"""Matrices and vectors from the user's files, one clear line when something is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedpbc.errors import BadOption


def read_matrix(option: str, path: Path) -> np.ndarray:
    """A numeric matrix [rows, columns] from .npy, or from .csv without header; float64, finite.

    Raises BadOption naming ``option`` when the file is missing, unreadable, ragged or not finite.
    """
    values = np.atleast_1d(_load(option, path, lambda: _load_csv(path)))
    if values.dtype.kind not in "fiub":
        raise BadOption(option, path, f"must hold numbers, not {values.dtype}")
    if values.size == 0:
        raise BadOption(option, path, "the file is empty")
    values = values.astype(np.float64)
    if not np.all(np.isfinite(values)):
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise BadOption(option, path, f"row {row} holds a value that is not finite")
    return values


def _load_csv(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file without a number is an error of ours, not a warning of NumPy's
        return np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8-sig")


def read_vector(option: str, path: Path) -> np.ndarray:
    """A vector [n] from .npy, or from .csv without header as one row or one column."""
    values = read_matrix(option, path)
    if values.ndim > 2 or (values.ndim == 2 and min(values.shape) != 1):
        raise BadOption(option, path, f"must be one row or one column, has shape {values.shape}")
    return values.ravel()


def _load(option: str, path: Path, load_csv: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        if not path.is_file():
            raise BadOption(option, path, "no such file")
        if path.suffix not in (".csv", ".npy"):
            raise BadOption(option, path, "must end in .csv or .npy")
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("it is an archive of arrays, not one array")
            return array
        if path.stat().st_size == 0:
            raise ValueError("the file is empty")
        return load_csv()
    except BadOption:
        raise
    except Exception as error:  # a damaged .npy header raises whatever the parser of its text raises
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadOption(option, path, f"cannot be read: {first_line}") from None
