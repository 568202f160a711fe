"""Options of strategies, checked one by one: one clear line names the key, the value and what is allowed."""

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


def whole(key: str, value: Any, least: int = 0) -> int:
    """An integer of 31 bits that is not too small. Raises ConfigError."""
    good = isinstance(value, Integral) and _is_number(value) and least <= int(value) < 2**31
    require(key, value, good, f"an integer >= {least} and < 2^31")
    return int(value)


def check_flowers(options: dict[str, Any]) -> None:
    """Options of Flower's FedAvg, which takes them as they come. Raises ConfigError."""
    fraction = options.get("fraction_train", 1.0)
    require("fraction_train", fraction, fraction == 1.0, "1.0: every client is asked every round")
    for key in ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes"):
        whole(key, options.get(key, 0))
    share("fraction_evaluate", options.get("fraction_evaluate", 1.0))
    for key in ("weighted_by_key", "arrayrecord_key", "configrecord_key"):
        value = options.get(key, key)
        require(key, value, isinstance(value, str) and value != "", "a word")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


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
