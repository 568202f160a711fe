"""The grid of a method: learning rates, the server's step size, the method's own options."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpbc.algorithms.grids import OWN, PLAIN_STEP
from fedpbc.core.schedules import constant, inverse_sqrt
from fedpbc.core.schema import Component, options_of
from fedpbc.errors import ConfigError, shorten, suggest
from fedpbc.experiment.choices import values_table, with_values
from fedpbc.experiment.grid import Experiment

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Times the learning rate of the experiment."""
PERIODS = 10
"""The period of a decaying learning rate is T divided by this; at the end the rate is initial / sqrt(11)."""
RATES = ("learning_rate", "server", "server_learning_rate")
"""Axes that ``extend`` goes on along."""

Point = Mapping[str, Any]
"""One setting: a value of each axis."""


def axes_of(experiment: Experiment, algorithm: Component[Any]) -> dict[str, list[Any]]:
    """What is tried of a method: name of a setting or an option -> its values. Raises ConfigError."""
    tune = experiment.tune or {}
    axes = {"learning_rate": list(tune["learning_rate"] or _rates(experiment, algorithm))}
    options = options_of(algorithm.factory)
    given = tune["grid"] or {}
    key = algorithm.label if algorithm.label in given else algorithm.name
    stated = "server_learning_rate" in given.get(key, {})
    axes |= _server(algorithm, tune["server"], None if stated else _plain_step(experiment, algorithm))
    axes |= {
        name: values
        for name, values in OWN.get(algorithm.name, {}).items()
        if algorithm.options[name] == options[name].default
    }
    for name, values in given.get(key, {}).items():
        here = f"tune.grid.{key}"
        if isinstance(values, list) and not values:
            raise ConfigError(f"{here}.{name} = []: must be a value, or a list of values to try")
        tried = [with_values(algorithm, {name: v}, here, Path.cwd()) for v in _listed(values)]
        axes[name] = [{**one.options, **one.settings}[name] for one in tried]
    return axes


def check_names(experiment: Experiment) -> None:
    """Raise ConfigError where ``tune.grid`` names no method of the experiment."""
    known = list(dict.fromkeys(name for one in experiment.algorithms for name in (one.label, one.name)))
    for name, table in ((experiment.tune or {}).get("grid") or {}).items():
        if name not in known:
            hint = suggest(name, known)
            raise ConfigError(f"tune.grid.{shorten(name)}: no method{hint}; there are {', '.join(known)}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"tune.grid.{name} = {shorten(table)}: must be a table of lists")


def points_of(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every combination; the last axis varies fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def with_point(algorithm: Component[Any], point: Point, label: str | None = None) -> Component[Any]:
    """The method with these settings, under another label."""
    made = with_values(algorithm, point, algorithm.key, Path.cwd())
    return dataclasses.replace(made, label=label or algorithm.label)


def written(algorithm: Component[Any], point: Point) -> dict[str, Any]:
    """A point as plain values, as TOML has them."""
    return values_table(with_point(algorithm, point), list(point))


def edge_of(values: Sequence[Any], chosen: Any) -> int:
    """-1 or 1 where the chosen value is the smallest or largest of its kind, 0 else.

    Only numbers above 0 have edges: 0 is "none" or "no limit" of most options.
    """
    numbers = sorted(_family(values, chosen))
    if len(numbers) < 2 or numbers[0] <= 0:
        return 0
    number = _number(chosen)
    return -1 if number == numbers[0] else int(number == numbers[-1])


def beyond(values: Sequence[Any], chosen: Any) -> Any:
    """The value that follows at the edge where the chosen one is, in the ratio of the last two."""
    numbers = sorted(_family(values, chosen))
    last, other = (numbers[0], numbers[1]) if edge_of(values, chosen) < 0 else (numbers[-1], numbers[-2])
    number = _tidy(last * last / other)
    if not isinstance(chosen, Component):
        return number
    name = next(iter(_rate_option(chosen)))
    return dataclasses.replace(chosen, options={**chosen.options, name: number})


def _rates(experiment: Experiment, algorithm: Component[Any]) -> list[Component[Any]]:
    """Multiples of its own learning rate, constant and decaying."""
    own = experiment.setting(algorithm, "learning_rate")
    number = _number(own)
    if number is None:
        text = f"learning_rate = {own}: is no number to try multiples of; give tune.learning_rate, a list"
        raise ConfigError(text)
    period = own.options.get("period", max(1.0, experiment.rounds / PERIODS))
    rates = [_tidy(factor * number) for factor in FACTORS]
    decaying = [inverse_sqrt(initial=rate, period=period) for rate in rates]
    return [*(constant(value=rate) for rate in rates), *decaying]


def _plain_step(experiment: Experiment, algorithm: Component[Any]) -> float | None:
    """``PLAIN_STEP`` of a method whose server step size is its default; it needs the problem, to know m."""
    default = options_of(algorithm.factory).get("server_learning_rate")
    if algorithm.name not in PLAIN_STEP or default is None:
        return None
    if algorithm.options["server_learning_rate"] != default.default:
        return None
    problem = experiment.problem.build(experiment.context((experiment.tune or {})["seeds"][0]))
    return PLAIN_STEP[algorithm.name](experiment.setting(algorithm, "local_steps"), problem.num_clients)


def _server(algorithm: Component[Any], factors: Sequence[float], plain: float | None) -> dict[str, list[Any]]:
    """The axis of the server's step size, where the method has one: multiples of ``plain``, None: of its own."""
    options = algorithm.options
    if "server_learning_rate" in options:
        own = options["server_learning_rate"] if plain is None else plain
        return {"server_learning_rate": [_tidy(factor * own) for factor in factors]}
    if "server" not in options:
        return {}
    server = options["server"]
    if server is None:
        return {"server": [float(factor) for factor in factors]}
    if "learning_rate" not in getattr(server, "options", {}):
        return {}  # one of the user's own
    rate = server.options["learning_rate"]
    replaced = [{**server.options, "learning_rate": _tidy(factor * rate)} for factor in factors]
    return {"server": [dataclasses.replace(server, options=one) for one in replaced]}


def _rate_option(component: Component[Any]) -> dict[str, float]:
    """The option that is the step size of a schedule or a server optimiser."""
    found = {k: v for k, v in component.options.items() if k in ("value", "initial", "learning_rate")}
    return dict(list(found.items())[:1])


def _number(value: Any) -> float | None:
    if isinstance(value, Component):
        return next(iter(_rate_option(value).values()), None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _family(values: Sequence[Any], chosen: Any) -> set[float]:
    """The numbers that differ from the chosen value in size alone."""

    def rest(value: Any) -> Any:
        if not isinstance(value, Component):
            return type(value) in (int, float)
        return value.name, {k: v for k, v in value.options.items() if k not in _rate_option(value)}

    same = [value for value in values if rest(value) == rest(chosen)]
    return {number for value in same if (number := _number(value)) is not None}


def _tidy(number: float) -> float:
    """Without the noise of a product: .1 * 3 is .3."""
    return float(f"{number:.6g}")


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]
