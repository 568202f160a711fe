"""Values that the app gives, checked one by one: one clear line names the key, the value and what is allowed."""

from __future__ import annotations

import math
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from fedpbc.errors import ConfigError, shorten


def positive(key: str, value: Any) -> float:
    """A finite number > 0. Raises ConfigError."""
    good = _is_number(value) and math.isfinite(value) and value > 0
    require(key, value, good, "a number > 0")
    return float(value)


def share(key: str, value: Any) -> float:
    """A number in [0, 1]. Raises ConfigError."""
    require(key, value, _is_number(value) and 0 <= value <= 1, "a number in [0, 1]")
    return float(value)


def count_or_share(key: str, value: Any) -> int | float:
    """How many, an integer >= 1, or which share, a float in (0, 1]. Raises ConfigError."""
    counts = isinstance(value, Integral) and _is_number(value) and 1 <= int(value) < 2**31
    shares = not isinstance(value, Integral) and _is_number(value) and 0 < value <= 1
    require(key, value, counts or shares, "an integer >= 1 (so many), or a float > 0 and <= 1.0 (a share)")
    return int(value) if counts else float(value)


def whole(key: str, value: Any, least: int = 0) -> int:
    """An integer of 31 bits that is not too small. Raises ConfigError."""
    good = isinstance(value, Integral) and _is_number(value) and least <= int(value) < 2**31
    require(key, value, good, f"an integer >= {least} and < 2^31")
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def intervals_may_end(cutoff: int, fraction_train: float) -> None:
    """Raise ConfigError where no client is asked often enough for its interval to end before ``cutoff`` cuts it."""
    least = f"0, or more than 1/fraction_train = {1 / fraction_train:g}: no interval would end by itself"
    require("cutoff", cutoff, not cutoff or fraction_train == 1 or cutoff * fraction_train > 1, least)


def switch(key: str, value: Any) -> bool:
    """True or False. Raises ConfigError."""
    require(key, value, isinstance(value, bool), "True or False")
    return bool(value)


def folder(key: str, value: Any) -> Path | None:
    """A path, or None. Raises ConfigError."""
    good = value is None or isinstance(value, Path) or (isinstance(value, str) and value.strip() != "")
    require(key, value, good, "a path, or None")
    return None if value is None else Path(value)


def one_of(key: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of the words. Raises ConfigError."""
    require(key, value, value in allowed, " or ".join(f'"{word}"' for word in allowed))
    return str(value)


def require(key: str, value: Any, good: bool, allowed: str) -> None:
    """Raise ConfigError unless ``good``."""
    if not good:
        raise ConfigError(f"{key} = {shorten(value)}: must be {allowed}")


def word(key: str, value: Any) -> str:
    """A text that is not empty. Raises ConfigError."""
    require(key, value, isinstance(value, str) and value != "", "a word")
    return str(value)


def given(method: str, num_clients: Any) -> None:
    """Raise ConfigError unless m is known."""
    require("num_clients", num_clients, num_clients is not None, f"given: {method} divides by it")
