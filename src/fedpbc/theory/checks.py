"""What the public functions ask of their arguments. Every refusal is a ValueError that names argument and value."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from fedpbc.errors import shorten


def number(name: str, value: Any, interval: str) -> float:
    """``value`` as a float. Raises ValueError unless it is a real number in ``interval``, such as "[0, 1)".

    >>> number("rho", 0.5, "[0, 1)")
    0.5
    """
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    scalar = _scalar(value)
    above = low <= scalar if interval[0] == "[" else low < scalar
    below = scalar <= high if interval[-1] == "]" else scalar < high
    if not (above and below):
        raise ValueError(f"{name} = {_shown(value)}: must be a number in {interval}")
    return scalar


def count(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int. Raises ValueError unless it is a whole number of at least ``least``.

    >>> count("local_steps", 2.0)
    2
    """
    scalar = _scalar(value)
    if not (least <= scalar < np.inf and scalar == int(scalar)):
        raise ValueError(f"{name} = {_shown(value)}: must be a whole number >= {least}")
    return int(scalar)


def flag(name: str, value: Any) -> bool:
    """``value`` as a bool. Raises ValueError unless it is one.

    >>> flag("independent", True)
    True
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} = {_shown(value)}: must be True or False")
    return bool(value)


def numbers_of(name: str, value: Any) -> np.ndarray:
    """``value`` as float64: lists, arrays, pandas Series. Raises ValueError unless it is an array of real numbers.

    A masked array is refused because its mask would be ignored, text because it would be parsed.

    >>> numbers_of("p", [1, 0.5])
    array([1. , 0.5])
    """
    parts = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise ValueError(f"{name} is a masked array and its mask would be ignored: leave the masked entries out")
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} must be an array of numbers: its rows differ in length") from None
    if array.dtype.kind == "O":
        for index, entry in np.ndenumerate(array):
            if not isinstance(entry, numbers.Real):
                where = name if array.ndim == 0 else at(name, index)
                raise ValueError(f"{where} = {shorten(entry)}: must be a real number")
    elif array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be an array of real numbers, holds {array.dtype}")
    return array.astype(np.float64, copy=False)


def matrix(name: str, value: Any, rows: int | None = None) -> np.ndarray:
    """``value`` as float64 [rows, d]. Raises ValueError unless it is a matrix of finite numbers, one row per client.

    >>> matrix("centers", [[1, 2]]).shape
    (1, 2)
    """
    array = numbers_of(name, value)
    if array.ndim != 2 or array.size == 0 or (rows is not None and len(array) != rows):
        wanted = "(m, d)" if rows is None else f"({rows}, d), a row per client"
        raise ValueError(f"{name} must have shape {wanted}, has {array.shape}")
    refuse(name, array, ~np.isfinite(array), "must be finite")
    return array


def refuse(name: str, array: np.ndarray, bad: np.ndarray, problem: str) -> None:
    """Raise ValueError with index and value of the first ``bad`` entry, if there is one."""
    if np.any(bad):
        index = np.unravel_index(int(np.argmax(bad)), bad.shape)
        more = f" ({int(bad.sum())} entries in all)" if bad.sum() > 1 else ""
        raise ValueError(f"{at(name, index)} = {float(array[index]):.10g}: {problem}{more}")


def at(name: str, index: tuple[Any, ...]) -> str:
    """``name[3]`` or ``name[3, 1]``."""
    return f"{name}[{', '.join(str(int(i)) for i in index)}]"


def _shown(value: Any) -> str:
    return shorten(value.item() if isinstance(value, np.generic) else value)


def _scalar(value: Any) -> float:
    """``value`` as a float, NaN for what is no real number."""
    if isinstance(value, (bool, np.bool_, np.ma.MaskedArray)):
        return float("nan")
    try:
        array = np.asarray(value)
        fits = array.ndim == 0 and (array.dtype.kind in "iuf" or isinstance(value, numbers.Real))
        return float(value) if fits else float("nan")
    except (ValueError, TypeError, OverflowError):
        return float("nan")
