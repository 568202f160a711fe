"""The registries that components from outside are added to."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
import warnings
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from fedpbc.core.schema import Context, Factory, Kind, article, options_of
from fedpbc.errors import ConfigError, first_line, shorten, suggest

P = ParamSpec("P")
T = TypeVar("T")

GROUP = "fedpbc.components"
"""The entry-point group of installed packages; each entry is a factory, named as the entry is."""

_HOMES = {
    "algorithm": "fedpbc.algorithms:ALGORITHMS",
    "link process": "fedpbc.links.one_way:ONE_WAY",
    "problem": "fedpbc.problems:PROBLEMS",
    "model": "fedpbc.models:MODELS",
    "data": "fedpbc.data:DATA",
    "partition": "fedpbc.data.partition:PARTITIONS",
    "base probability": "fedpbc.links.common.probability:PROBABILITIES",
    "variation": "fedpbc.links.common.variation:VARIATIONS",
    "server optimiser": "fedpbc.algorithms.common.server:SERVERS",
    "learning rate schedule": "fedpbc.core.schedules:SCHEDULES",
}
_BY_TYPE = {
    "Algorithm": "algorithm",
    "LinkProcess": "link process",
    "Problem": "problem",
    "Model": "model",
    "Dataset": "data",
    "ServerOptimizer": "server optimiser",
}
_NAME = re.compile(r"[^\W\d][\w.-]{0,59}")
"""A colon would mean ``module:function``; what a terminal and a TOML file show as it is."""
SETTINGS = ("learning_rate", "local_steps", "batch_size")
"""Keys of the experiment that an algorithm may have its own value of."""


def kind_named(noun: str) -> Kind:
    """The registry of a kind of component. Raises ConfigError."""
    if noun not in _HOMES:
        raise ConfigError(f"kind = {shorten(noun)}: must be one of {', '.join(_HOMES)}{suggest(noun, _HOMES)}")
    module, _, attribute = _HOMES[noun].partition(":")
    kind: Kind = getattr(importlib.import_module(module), attribute)
    return kind


@overload
def register(
    function: Callable[Concatenate[Context, P], T], *, name: str | None = None, kind: str | None = None
) -> Factory[P, T]: ...


@overload
def register(
    *, name: str | None = None, kind: str | None = None
) -> Callable[[Callable[Concatenate[Context, P], T]], Factory[P, T]]: ...


def register(function: Any = None, *, name: str | None = None, kind: str | None = None) -> Any:
    """Add a factory ``def mine(context, *, option: float = 1.0) -> Algorithm`` under its own name, or ``name``.

    Afterwards experiment files may say ``name = "mine"``, and ``mine(option=2)`` gives a component in Python. The
    return annotation says what it is: Algorithm, LinkProcess, Problem, Model, Dataset or ServerOptimizer; for others
    ``kind`` does: "base probability", "variation", "partition", "learning rate schedule". Also a decorator, with or
    without arguments. Registering the same function again is allowed, another one under a taken name is not.
    Raises ConfigError.
    """
    if function is None:
        return functools.partial(register, name=name, kind=kind)
    made: Factory[..., Any] = function if isinstance(function, Factory) else Factory(function)
    noun = kind or _BY_TYPE.get(getattr(made.gives, "__name__", str(made.gives)), "")
    label = made.name if name is None else name
    if not isinstance(label, str) or not _NAME.fullmatch(label):
        raise ConfigError(f"register({shorten(label)}): a name must be of letters, digits, _, - and ., begin with a "
                          f"letter or _, and be up to 60 long; name= gives one")  # fmt: skip
    if not noun:
        wanted = ", ".join(_BY_TYPE)
        raise ConfigError(f"register({label}): its return annotation must be one of {wanted}, or say kind=")
    registry = kind_named(noun).registry
    if label in registry and registry[label].source is None:
        raise ConfigError(f"register({label}): is {article(noun)} of the package; choose another name=")
    if label in registry and registry[label].function.__qualname__ != made.function.__qualname__:
        raise ConfigError(f"register({label}): there is {article(noun)} of that name already; choose another name=")
    if noun == "algorithm":
        taken = [option for option in options_of(made) if option in SETTINGS]
        if taken:
            raise ConfigError(f"register({label}): an option must not be called {taken[0]}, a key of the experiment")
    made.name = label
    registry[label] = made
    return made


@functools.cache
def load_installed() -> None:
    """Register what installed packages offer; one that cannot be loaded is a warning."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            register(entry.load(), name=entry.name)
        except Exception as error:
            text = f"{entry.name} = {entry.value} of {GROUP} cannot be used: {first_line(error)}"
            warnings.warn_explicit(text, UserWarning, "an installed package", 1)  # no line of ours is to blame
