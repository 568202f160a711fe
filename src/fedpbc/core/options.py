"""What options are: ranges, the types that factories annotate with, and what a factory may know beside them."""

from __future__ import annotations

import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from fedpbc.errors import BadOption

if TYPE_CHECKING:
    from fedpbc.core.schema import Factory

INT_MAX = 2**31 - 1
"""The largest integer of any key: rounds, clients and samples are counted in 32 bits on the device."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number; ``above`` is an open lower bound."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f" in [{self.low:g}, {self.high:g}]" if self.high < INT_MAX else f" >= {self.low:g} and < 2^31"
        if self.above is not None:
            return f" > {self.above:g}" + ("" if self.high is None else f" and <= {self.high:g}")
        return f" >= {self.low:g}" if self.low is not None else ""


@dataclass(frozen=True)
class NumberOrWord(Range):
    """A number within bounds, or one of some words: ``Annotated[float | str, NumberOrWord(0, 1, words=("none",))]``."""

    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return super().__str__() + "".join(f' or "{word}"' for word in self.words)


PositiveInt = Annotated[int, Range(1, INT_MAX)]
NonNegativeInt = Annotated[int, Range(0, INT_MAX)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(low=0)]
Fraction = Annotated[float, Range(0, 1)]


class LocatedStr(str):
    """A string of the command line: as a path it is relative to ``base``, not to the experiment file."""

    base: Path

    def __new__(cls, text: str, base: Path) -> LocatedStr:
        """``text``, remembering ``base``."""
        located = super().__new__(cls, text)
        located.base = base
        return located


class Stored(typing.Protocol):
    """Data that an option may hold instead of a path: it is written to a file of the run directory."""

    def digest(self) -> str:
        """A hash of the content."""
        ...

    def write(self, path: Path) -> None:
        """Write it to ``path``, from which the option reads it."""
        ...


@dataclass(frozen=True)
class Context:
    """What a factory may know beside its own options."""

    seed: int
    dtype: Any
    num_rounds: int
    seeds: tuple[int, ...] = ()
    """All seeds of the run: seeds whose data differ in length are filled up to one length."""
    problem: Any = None
    """The fedpbc.core.types.Problem, once it is built: links and algorithms see it, the problem does not."""

    def number(self, option: str, value: float) -> np.ndarray:
        """A positive option in the precision of the run. Raises BadOption when it is infinite there, 0 or nearly so.

        Numbers below the smallest normal one count as 0: compilers flush them.
        """
        with np.errstate(all="ignore"):
            cast = np.asarray(value, self.dtype)
        if not (np.isfinite(cast) and cast >= np.finfo(self.dtype).tiny):
            raise BadOption(option, value, f"is {cast} in {self.dtype}")
        return cast

    def rng(self, purpose: str, seed: int | None = None) -> np.random.Generator:
        """A NumPy generator of this (or another) seed for one purpose; different purposes are independent."""
        return np.random.default_rng([self.seed if seed is None else seed, *purpose.encode()])


@dataclass(frozen=True, eq=False)
class Kind:
    """One of a registry of factories, e.g. a base probability, with shorthands for plain values."""

    noun: str
    registry: typing.MutableMapping[str, Factory[..., Any]]
    gives: type | None = None
    """What the factories make, where that alone tells the kind."""
    shorthand: Callable[[Any], dict[str, Any] | None] = lambda value: None
    allowed: str = "a table with a name"
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Names that somebody may look for here -> how it is written."""


def is_plain(kind: Any, value: Any) -> bool:
    """Whether ``value`` is an int, a finite number, a string or a truth value, as ``kind`` says."""
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max and math.isfinite(value)
    return type(value) is kind or (kind is str and isinstance(value, str))


def unwrap(annotation: Any) -> tuple[Any, Any]:
    """``Annotated[int, Range]`` -> (int, Range); ``X | None`` -> X."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        rest = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(rest) > 1:
            return Any, None
        (annotation,) = rest
    if typing.get_origin(annotation) is Annotated:
        kind, extra = typing.get_args(annotation)[:2]
        return kind, extra
    return annotation, None


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The values of an option that has a few; else none."""
    kind, extra = unwrap(annotation)
    if isinstance(extra, NumberOrWord):
        return (*extra.words, f"a number{Range.__str__(extra)}")
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def is_scalar(annotation: Any) -> bool:
    """An option that is one number, word or truth value, so that a list of them can only be a sweep."""
    kind, extra = unwrap(annotation)
    if isinstance(extra, NumberOrWord):
        return True
    return not isinstance(extra, Kind) and (kind in (int, float, str, bool) or typing.get_origin(kind) is Literal)


def _each(entry: Any, noun: str = "") -> str:
    """What is allowed of the entries of a list or a table; nothing where they are checked later."""
    return "" if entry is Any else f", each{noun} {allowed(entry)}"


def allowed(annotation: Any) -> str:
    """What an annotation allows, in words."""
    kind, extra = unwrap(annotation)
    if isinstance(extra, Kind):
        return extra.allowed
    if isinstance(extra, NumberOrWord):
        return f"a finite number{extra}"
    origin = typing.get_origin(kind)
    if origin in (list, Sequence):
        return "a non-empty list" + _each(typing.get_args(kind)[0])
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(kind))
    if origin is Callable:
        return 'a function, in a file "module:function" or "file.py:function"'
    if origin is Mapping:
        return "a table" + _each(typing.get_args(kind)[1], " entry")
    words = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false"}
    return words.get(kind, "the path of a file") + (str(extra) if extra is not None else "")
