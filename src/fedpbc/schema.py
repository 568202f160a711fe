"""From a TOML table to a checked call of a factory: the factory's keyword-only arguments ARE the schema.

A factory is ``def bernoulli(context, *, prob: Prob, varying: Varying = None)``. ``bind`` checks a table
against that signature and gives a ``Component``; ``Component.build(context)`` calls the factory. A mistake
raises ConfigError, which names the key, the value and what is allowed.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedpbc.errors import BadOption, ConfigError, shorten, suggest, unknown_key

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


@dataclass(frozen=True, eq=False)
class Kind:
    """One of a registry of factories, e.g. a base probability, with shorthands for plain values."""

    noun: str
    registry: Mapping[str, Callable[..., Any]]
    shorthand: Callable[[Any], dict[str, Any] | None] = lambda value: None
    allowed: str = "a table with a name"
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Names that somebody may look for here -> how it is written."""


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


@dataclass(frozen=True)
class Context:
    """What a factory may know beside its own options."""

    seed: int
    dtype: Any
    num_rounds: int
    seeds: tuple[int, ...] = ()
    """All seeds of the run: seeds whose data differ in length are filled up to one length."""
    problem: Any = None
    """The fedpbc.types.Problem, once it is built: links and algorithms see it, the problem does not."""

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


@dataclass(frozen=True)
class Component:
    """A factory and its checked options; ``key`` is where it stood in the file."""

    name: str
    factory: Callable[..., Any]
    options: dict[str, Any]
    key: str = field(default="", compare=False)
    plain: bool = field(default=False, compare=False)
    """Written as a plain value, ``prob = 0.5``: then there is no key below ``key``."""
    label: str = field(default="", compare=False)

    def build(self, context: Context) -> Any:
        """Call the factory. Raises ConfigError with the full key of a refused option."""
        built = {k: v.build(context) if isinstance(v, Component) else v for k, v in self.options.items()}
        try:
            return self.factory(context, **built)
        except BadOption as error:
            key = self.key if self.plain else f"{self.key}.{error.option}"
            raise ConfigError(f"{key} = {shorten(error.value)}: {error.problem}") from None

    def table(self) -> dict[str, Any]:
        """The TOML table with every default filled in."""
        return {"name": self.name, **_to_toml(self.options)}

    def describe(self) -> str:
        """A short label made from the settings that differ from the defaults."""
        defaults = {k: p.default for k, p in options_of(self.factory).items()}
        shown = {k: v for k, v in self.options.items() if v != defaults[k]}
        inside = ", ".join(f"{k}={_brief(v)}" for k, v in shown.items())
        return f"{self.name}({inside})" if inside else self.name

    def paths(self) -> dict[str, Path]:
        """Every file this component reads: full key -> path."""
        found: dict[str, Path] = {}
        for name, value in self.options.items():
            if isinstance(value, Path):
                found[f"{self.key}.{name}"] = value
            elif isinstance(value, Component):
                found |= value.paths()
        return found


def _brief(value: Any) -> str:
    if isinstance(value, Component):
        plain = value.name in ("constant", "vector", "file")
        return _brief(next(iter(value.options.values()))) if plain else value.describe()
    if isinstance(value, Path):
        return value.name
    return shorten(value, 30)


def _to_toml(options: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Component):
            plain[name] = value.table()
        elif value is not None:
            plain[name] = str(value) if isinstance(value, Path) else value
    return plain


def options_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters, with their annotations resolved."""
    hints = typing.get_type_hints(factory, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def bind(
    factory: Callable[..., Any], table: Mapping[str, Any], key: str, base: Path, plain: bool = False
) -> dict[str, Any]:
    """Check ``table`` against ``factory``'s options and return the keyword arguments, defaults included.

    ``key`` is the prefix for messages ("" at the top), or with ``plain`` the whole key; ``base`` is the folder
    relative paths start from.
    """
    options = options_of(factory)
    for name in table:
        if name not in options:
            raise unknown_key(_join(key, name), name, options)
    checked: dict[str, Any] = {}
    for name, parameter in options.items():
        if name in table:
            here = key if plain else _join(key, name)
            checked[name] = check(parameter.annotation, table[name], here, base)
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"missing key {_join(key, name)}: {allowed(parameter.annotation)}")
        else:
            checked[name] = parameter.default
    return checked


def bind_component(kind: Kind, value: Any, key: str, base: Path) -> Component:
    """Check one component (a table with a ``name``, or a shorthand of its kind)."""
    table = value if isinstance(value, Mapping) else kind.shorthand(value)
    if table is None:
        raise ConfigError(f"{key} = {shorten(value)}: must be {kind.allowed}")
    if "name" not in table:
        raise ConfigError(f"missing key {key}.name: one of {', '.join(sorted(kind.registry))}")
    name = table["name"]
    if not isinstance(name, str) or name not in kind.registry:
        known = ", ".join(sorted(kind.registry))
        hint = ""
        if isinstance(name, str):
            written = kind.elsewhere.get(name.lower())
            hint = f" ({written})" if written else suggest(name, kind.registry)
        raise ConfigError(f"{key}.name = {shorten(name)}: unknown {kind.noun}{hint}; allowed: {known}")
    factory = kind.registry[name]
    rest = {k: v for k, v in table.items() if k != "name"}
    plain = not isinstance(value, Mapping)
    return Component(name, factory, bind(factory, rest, key, base, plain), key, plain)


def check(annotation: Any, value: Any, key: str, base: Path) -> Any:
    """``value`` as the annotation wants it. Raises ConfigError otherwise."""
    kind, extra = _unwrap(annotation)
    if isinstance(extra, Kind):
        return bind_component(extra, value, key, base)
    if typing.get_origin(kind) is list:
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}")
        (item,) = typing.get_args(kind)
        return [check(item, v, f"{key}[{i}]", base) for i, v in enumerate(value)]
    if kind is Path and isinstance(value, str | Path) and str(value):
        try:
            return Path(getattr(value, "base", base) / value).resolve()
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"{key} = {shorten(str(value))}: is no usable path: {error}") from None
    if typing.get_origin(kind) is Literal:
        if isinstance(value, str) and value in typing.get_args(kind):
            return str(value)
        hint = suggest(value, typing.get_args(kind)) if isinstance(value, str) else ""
        raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}{hint}")
    if _is_plain(kind, value) and (extra is None or value in extra):
        return float(value) if kind is float else kind(value)
    raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}")


def _is_plain(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max and math.isfinite(value)
    return type(value) is kind or (kind is str and isinstance(value, str))


def _unwrap(annotation: Any) -> tuple[Any, Any]:
    """``Annotated[int, Range]`` -> (int, Range); ``X | None`` -> X."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
    if typing.get_origin(annotation) is Annotated:
        kind, extra = typing.get_args(annotation)[:2]
        return kind, extra
    return annotation, None


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The values of an option that has a few; else none."""
    kind, _ = _unwrap(annotation)
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def allowed(annotation: Any) -> str:
    """What an annotation allows, in words."""
    kind, extra = _unwrap(annotation)
    if isinstance(extra, Kind):
        return extra.allowed
    if typing.get_origin(kind) is list:
        return f"a non-empty list, each {allowed(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(kind))
    words = {int: "an integer", float: "a finite number", str: "a string", bool: "true or false"}
    return words.get(kind, "the path of a file") + (str(extra) if extra is not None else "")


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
