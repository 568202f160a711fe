"""Options of strategies, checked one by one: one clear line names the key, the value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

from fedpbc.errors import ConfigError, shorten


def positive(key: str, value: Any) -> float:
    """A finite number > 0. Raises ConfigError."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    require(key, value, good, "a number > 0")
    return float(value)


def whole(key: str, value: Any, least: int = 0) -> int:
    """An integer that is not too small. Raises ConfigError."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(key, value, good, f"an integer >= {least}")
    return int(value)


def one_of(key: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of the words. Raises ConfigError."""
    require(key, value, value in allowed, " or ".join(f'"{word}"' for word in allowed))
    return str(value)


def require(key: str, value: Any, good: bool, allowed: str) -> None:
    """Raise ConfigError unless ``good``."""
    if not good:
        raise ConfigError(f"{key} = {shorten(value)}: must be {allowed}")
