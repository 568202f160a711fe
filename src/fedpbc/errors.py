"""Errors that are the user's to mend: one clear line, no traceback at the command line."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class FedpbcError(Exception):
    """Base of every error that the command line prints as one message."""


class ConfigError(FedpbcError):
    """Bad input: the message names the key, the value and what is allowed."""


class BadOption(ConfigError):
    """A factory refuses the value of one of its options; whoever built it knows the full key.

    Raised as ``BadOption("p0", 1.5, "a number in [0, 1]")``.
    """

    def __init__(self, option: str, value: Any, problem: str) -> None:
        super().__init__(f"{option} = {shorten(value)}: {problem}")
        self.option, self.value, self.problem = option, value, problem


class UnknownName(ConfigError, KeyError):
    """A name that is not among those there; also a KeyError."""

    __str__ = Exception.__str__  # that of KeyError is in quotes


def unknown_name(what: str, name: Any, known: Iterable[Any]) -> UnknownName:
    """The error of a name that is not there, with one that is near: ``what`` is "metric", "model", ..."""
    names = list(known)
    hint = suggest(name, [one for one in names if isinstance(one, str)]) if isinstance(name, str) else ""
    return UnknownName(f"no {what} {shorten(name)}{hint}; there are {', '.join(map(str, names)) or 'none'}")


EXTRAS = {
    "jax": "simulation",
    "jaxlib": "simulation",
    "matplotlib": "simulation",
    "scipy": "audit",
    "pyarrow": "audit",
    "openpyxl": "audit",
    "flwr": "flower",
    "sklearn": "data",
    "mlxtend": "data",
    "PIL": "data",
    "tensorboardX": "tensorboard",
    "mlflow": "mlflow",
}
"""Package -> the extra that brings it."""


class MissingPackage(FedpbcError, ModuleNotFoundError):
    """Something optional is not installed: the message says what for, and how to install it."""

    def __init__(self, what: str, package: str) -> None:
        extra = EXTRAS.get(package)
        how = f"install fedpbc with its extra, pip install -e '.[{extra}]'" if extra else f"pip install {package}"
        super().__init__(f"{what} needs {package}: {how}")
        self.name = package


def optional(module: str, what: str) -> Any:
    """A module of an optional package, which ``what`` needs. Raises MissingPackage."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackage(what, (error.name or module).partition(".")[0]) from None


def called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result; an error of a user's function becomes one line. Raises ConfigError."""
    try:
        return function(*arguments)
    except FedpbcError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} fails: {first_line(error)}") from error


def shorten(value: Any, limit: int = 60) -> str:
    """``repr`` in TOML's words, cut to ``limit`` characters; a path is shown whole."""
    if isinstance(value, Path):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value) if not isinstance(value, str) else '"' + value + '"'
    except ValueError:  # an integer with thousands of digits
        text = "a huge number"
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: 4 * limit])
    return text if len(text) <= limit else text[: limit - 3] + "..."


_HINTS = {
    "TracerBoolConversionError": "a Python if, and or while needs a value that is known only later: use jnp.where",
    "TracerArrayConversionError": "a NumPy function was given an array of JAX: use jax.numpy",
    "TracerIntegerConversionError": "a Python integer is needed where the value is known only later: use jax.lax, jnp",
    "ConcretizationTypeError": "a Python number is needed where the value is known only later: use jnp",
    "NonConcreteBooleanIndexError": "a mask as an index makes a shape that is known only later: use jnp.where",
}
"""What JAX's errors mean for who wrote the function."""


def first_line(error: BaseException) -> str:
    """The type of an error, and the first line of what it says, or what it means."""
    lines = str(error).strip().splitlines()
    said = _HINTS.get(type(error).__name__) or (lines[0] if lines else "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def unknown_key(key: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error of a key that nobody knows; ``key`` is the whole of it, ``name`` its last part."""
    shown = key if key.isprintable() and len(key) <= 60 else shorten(key)
    return ConfigError(f"unknown key {shown}{suggest(name, known)}; allowed: {', '.join(known) or 'none'}")


def suggest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean "x"?)`` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {shorten(close[0])}?)" if close else ""
