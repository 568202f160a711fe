"""From options to a checked call of a factory: the factory's own parameters ARE the schema.

A factory is ``def bernoulli(context, *, prob: Prob, varying: Varying | None = None)`` under ``@component``. Called
without a context, ``bernoulli(prob=0.2)``, it checks its options and gives a ``Component``; a TOML table is checked by
the same ``bind``. ``Component.build(context)`` calls the function. A mistake raises ConfigError, which names the key,
the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

import numpy as np

from fedpbc.core.options import (
    Context,
    Fraction,
    Kind,
    LocatedStr,
    NonNegative,
    NonNegativeInt,
    NumberOrWord,
    Positive,
    PositiveInt,
    Range,
    Stored,
    allowed,
    choices_of,
    is_plain,
    is_scalar,
    unwrap,
)
from fedpbc.core.outside import Source, load_name, name_of, source_of
from fedpbc.errors import BadOption, ConfigError, FedpbcError, first_line, shorten, suggest, unknown_key

__all__ = [
    "Component",
    "Context",
    "Factory",
    "Fraction",
    "Kind",
    "LocatedStr",
    "NonNegative",
    "NonNegativeInt",
    "Positive",
    "PositiveInt",
    "Range",
    "Stored",
    "allowed",
    "bind",
    "bind_component",
    "check",
    "choices_of",
    "component",
    "is_scalar",
    "options_of",
]

P = ParamSpec("P")
T = TypeVar("T")


class Factory(Generic[P, T]):
    """A function of a context and options; called with the options alone it gives a ``Component``."""

    def __init__(self, function: Callable[Concatenate[Context, P], T], name: str | None = None) -> None:
        self.function, self.name = function, name or function.__name__
        functools.update_wrapper(self, function)
        signature = inspect.signature(function)
        self.__signature__ = signature.replace(
            parameters=list(signature.parameters.values())[1:], return_annotation=Component
        )
        self.source: Source | None = None if function.__module__.startswith("fedpbc.") else source_of(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Component[T]:
        """The component with these options, checked. Raises ConfigError."""
        try:
            given = self.__signature__.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            known = list(options_of(self))
            unknown = [name for name in kwargs if name not in known]
            if unknown:
                raise unknown_key(f"{self.name}.{unknown[0]}", unknown[0], known) from None
            raise ConfigError(f"{self.name}: {error}") from None
        return Component(self.name, self, bind(self, given, self.name, Path.cwd()), self.name)

    @property
    def from_outside(self) -> bool:
        """It is not the package's own: what it makes is checked."""
        return self.source is not None or self.function.__qualname__.endswith("<locals>.given")

    @property
    def gives(self) -> Any:
        """The return annotation, or None."""
        return _hints(self.function).get("return")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factory) and other.function == self.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return f"<factory {self.name}>"


def component(function: Callable[Concatenate[Context, P], T]) -> Factory[P, T]:
    """Make ``function(context, *, options)`` a factory: called with the options alone, it gives a Component."""
    return Factory(function)


@dataclass(frozen=True)
class Component(Generic[T]):
    """A factory and its checked options; ``key`` is where it stood in the file."""

    name: str
    factory: Factory[..., T]
    options: dict[str, Any]
    key: str = field(default="", compare=False)
    plain: bool = field(default=False, compare=False)
    """Written as a plain value, ``prob = 0.5``: then there is no key below ``key``."""
    label: str = field(default="", compare=False)
    settings: dict[str, Any] = field(default_factory=dict)
    """Keys of the experiment that this method has its own value of."""
    gives: type | None = field(default=None, compare=False)
    """What it must make, where it stands for a kind that says so."""

    def using(self, *, label: str | None = None, **settings: Any) -> Component[T]:
        """A copy with a label for tables and figures, and with values of its own for the experiment's keys.

        ``settings``: learning_rate, local_steps, batch_size, for algorithms; a list of values is a sweep. They are
        checked by the experiment that takes the component.
        """
        return dataclasses.replace(self, label=label or self.label, settings={**self.settings, **settings})

    def build(self, context: Context) -> T:
        """Call the factory. Raises ConfigError with the full key of a refused option.

        A factory from outside that fails, or gives something else than it should, is a ConfigError too.
        """
        built = {k: _built(v, context) for k, v in self.options.items()}
        try:
            made = self.factory.function(context, **built)
        except BadOption as error:
            key = self.key if self.plain else f"{self.key}.{error.option}"
            raise ConfigError(f"{key} = {shorten(error.value)}: {error.problem}") from None
        except FedpbcError:
            raise
        except Exception as error:
            if self.factory.source is None:
                raise
            raise ConfigError(f"{self.key}: {self.factory.name} fails: {first_line(error)}") from error
        if self.gives is not None and not isinstance(made, self.gives):
            given, wanted = article(type(made).__name__), article(self.gives.__name__)
            raise ConfigError(f"{self.key}: {self.factory.name} gave {given}, must give {wanted}")
        return made

    @property
    def from_outside(self) -> bool:
        """It, or something it is made of, is not the package's own: what it makes is checked."""
        values = [v for o in self.options.values() for v in (o.values() if isinstance(o, Mapping) else [o])]
        inside = any(v.from_outside if isinstance(v, Component) else callable(v) for v in values)
        return inside or self.factory.from_outside

    def at(self, key: str) -> Component[T]:
        """The same component under another key, for messages."""
        options = {k: v.at(f"{key}.{k}") if isinstance(v, Component) else v for k, v in self.options.items()}
        return dataclasses.replace(self, key=key, options=options)

    def table(self, written: Callable[[Any], str] = str) -> dict[str, Any]:
        """The TOML table with every default filled in; ``written`` names a file, stored data or a source."""
        source = self.factory.source
        name = self.name if source is None else name_of(self.factory.function, written)
        return {"name": name, **_to_toml(self.options, written)}

    def __str__(self) -> str:
        return self.describe()

    def describe(self, always: Sequence[str] = ()) -> str:
        """A short label made from the settings that differ from the defaults, and those that are ``always`` shown."""
        defaults = {k: p.default for k, p in options_of(self.factory).items()}
        shown = {k: v for k, v in self.options.items() if k in always or not _same(v, defaults[k])}
        shown |= self.settings
        inside = ", ".join(f"{k}={_brief(v)}" for k, v in shown.items())
        name = self.factory.name
        return f"{name}({inside})" if inside else name

    def files(self) -> dict[str, Any]:
        """Every file, stored data and source this component reads: full key -> Path, Stored or Source."""
        found: dict[str, Any] = {} if self.factory.source is None else {f"{self.key}.name": self.factory.source}
        for name, value in self.options.items():
            if isinstance(value, Component):
                found |= value.files()
            elif isinstance(value, Path) or hasattr(value, "digest"):
                found[f"{self.key}.{name}"] = value
            elif callable(value):
                found[f"{self.key}.{name}"] = source_of(value)
            elif isinstance(value, Mapping):
                found |= {f"{self.key}.{name}.{k}": source_of(v) for k, v in value.items() if callable(v)}
        return found


def _built(value: Any, context: Context) -> Any:
    return value.build(context) if isinstance(value, Component) else value


def _same(value: Any, default: Any) -> bool:
    try:
        return bool(value == default)
    except ValueError:  # arrays
        return False


def _brief(value: Any) -> str:
    if isinstance(value, Component):
        plain = value.name in ("constant", "vector", "file")
        return _brief(next(iter(value.options.values()))) if plain else value.describe()
    if isinstance(value, Path):
        return value.name
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    if hasattr(value, "digest"):
        return "arrays"
    return shorten(value, 30)


def _to_toml(options: Mapping[str, Any], written: Callable[[Any], str]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Component):
            plain[name] = value.table(written)
        elif isinstance(value, Path) or hasattr(value, "digest"):
            plain[name] = written(value)
        elif callable(value):
            plain[name] = name_of(value, written)
        elif isinstance(value, Mapping):
            plain[name] = {k: _entry_to_toml(v, written) for k, v in value.items()}
        elif value is not None:
            plain[name] = value
    return plain


def _entry_to_toml(value: Any, written: Callable[[Any], str]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return name_of(value, written) if callable(value) else value


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:  # an annotation of a stranger's that stands under TYPE_CHECKING
        return {}


def options_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters but the context, with their annotations resolved."""
    function = factory.function if isinstance(factory, Factory) else factory
    hints = _hints(function)
    parameters = inspect.signature(function).parameters
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for i, (name, parameter) in enumerate(parameters.items())
        if not (i == 0 and (name == "context" or isinstance(factory, Factory)))
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
        if name in table and not (table[name] is None and parameter.default is None):
            here = key if plain else _join(key, name)
            checked[name] = check(parameter.annotation, table[name], here, base)
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"missing key {_join(key, name)}: {allowed(parameter.annotation)}")
        else:
            checked[name] = parameter.default
    return checked


def bind_component(kind: Kind, value: Any, key: str, base: Path) -> Component[Any]:
    """Check one component: a Component, a factory, what it makes, a table with a ``name``, or a shorthand."""
    made = _made_in_python(kind, value, key)
    if made is not None:
        _refuse_other(kind, made.factory, made.name, key)
        return dataclasses.replace(made.at(key), gives=kind.gives)
    if isinstance(value, np.generic):
        value = value.item()
    table = value if isinstance(value, Mapping) else kind.shorthand(value)
    if table is None:
        raise ConfigError(f"{key} = {shorten(value)}: must be {kind.allowed}")
    if "name" not in table:
        raise ConfigError(f"missing key {key}.name: one of {', '.join(sorted(kind.registry))}")
    name = table["name"]
    factory = find(kind, name, f"{key}.name", base)
    _refuse_other(kind, factory, str(name), key)
    rest = {k: v for k, v in table.items() if k != "name"}
    plain = not isinstance(value, Mapping)
    options = bind(factory, rest, key, base, plain)
    return Component(str(name), factory, options, key, plain, gives=kind.gives)


def _refuse_other(kind: Kind, factory: Factory[..., Any], name: str, key: str) -> None:
    """A factory that says it makes something else. Raises ConfigError."""
    gives = factory.gives
    if kind.gives and isinstance(gives, type) and gives is not Any and not issubclass(gives, kind.gives):
        made = article(gives.__name__)
        raise ConfigError(f"{key} = {shorten(name)}: makes {made}, must be {article(kind.noun)}")


def _made_in_python(kind: Kind, value: Any, key: str) -> Component[Any] | None:
    """A component that is an object already; None for what a file may hold."""
    if isinstance(value, Factory):
        value = value()
    elif callable(value) and not isinstance(value, type) and not isinstance(value, Component):
        value = Factory(value)()
    if isinstance(value, Component):
        return value
    if kind.gives and isinstance(value, kind.gives):
        ready = value

        def given(context: Context) -> Any:
            return ready

        return Component(f"made in Python: {type(value).__name__}", Factory(given), {}, key)
    return None


def find(kind: Kind, name: Any, key: str, base: Path) -> Factory[..., Any]:
    """The factory of a name: registered, or ``module:factory`` and ``file.py:factory`` from outside. ConfigError."""
    if isinstance(name, str) and ":" in name:
        found = load_name(name, key, getattr(name, "base", base))
        if isinstance(found, Factory):
            return found
        if not callable(found):
            raise ConfigError(f"{key} = {shorten(name)}: must be a function of a context")
        return Factory(found)
    if isinstance(name, str) and name not in kind.registry:
        from fedpbc.core.registry import load_installed

        load_installed()
    if not isinstance(name, str) or name not in kind.registry:
        known = ", ".join(sorted(kind.registry))
        hint = ""
        if isinstance(name, str):
            written = kind.elsewhere.get(name.lower())
            hint = f" ({written})" if written else suggest(name, kind.registry)
        own = 'your own: "module:factory", "file.py:factory", or fedpbc.register in a file of imports (--import)'
        raise ConfigError(f"{key} = {shorten(name)}: unknown {kind.noun}{hint}; allowed: {known}; {own}")
    return kind.registry[name]


def check(annotation: Any, value: Any, key: str, base: Path) -> Any:
    """``value`` as the annotation wants it. Raises ConfigError otherwise."""
    kind, extra = unwrap(annotation)
    if isinstance(extra, Kind):
        return bind_component(extra, value, key, base)
    if isinstance(value, np.generic):
        value = value.item()
    if kind is Any:
        return value
    if isinstance(extra, NumberOrWord):
        if isinstance(value, str) and value in extra.words:
            return str(value)
        hint = suggest(value, extra.words) if isinstance(value, str) else ""
        kind = float
        if not (is_plain(kind, value) and value in extra):
            raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}{hint}")
    origin = typing.get_origin(kind)
    if origin in (list, Sequence):
        if isinstance(value, tuple | range | np.ndarray):
            value = [v.item() if isinstance(v, np.generic) else v for v in value]
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}")
        (item,) = typing.get_args(kind)
        return [check(item, v, f"{key}[{i}]", base) for i, v in enumerate(value)]
    if origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
            raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}")
        item = typing.get_args(kind)[1]
        return {k: check(item, v, f"{key}.{k}", base) for k, v in value.items()}
    if origin is Callable:
        if isinstance(value, str) and ":" in value:
            value = load_name(value, key, getattr(value, "base", base))
        if not callable(value):
            raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}")
        return value
    if kind is Path and isinstance(value, str | Path) and str(value):
        try:
            return Path(getattr(value, "base", base) / value).resolve()
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"{key} = {shorten(str(value))}: cannot be used as a path: {error}") from None
    if kind is Path and hasattr(value, "digest"):
        return value
    if origin is Literal:
        if isinstance(value, str) and value in typing.get_args(kind):
            return str(value)
        hint = suggest(value, typing.get_args(kind)) if isinstance(value, str) else ""
        raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}{hint}")
    if kind not in (int, float, str, bool, Path):  # an object of a stranger's own class, given in Python
        return value
    if is_plain(kind, value) and (extra is None or value in extra):
        return float(value) if kind is float else kind(value)
    raise ConfigError(f"{key} = {shorten(value)}: must be {allowed(annotation)}")


def article(noun: str) -> str:
    """a problem, an algorithm."""
    return f"an {noun}" if noun[0] in "aeiouAEIOU" else f"a {noun}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
