"""What a tuning will run: every method's grid, how much of it is drawn, and what that costs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpbc.core.schema import Component, bind
from fedpbc.errors import ConfigError
from fedpbc.experiment import keys
from fedpbc.experiment.choices import refuse_reported
from fedpbc.experiment.grid import Experiment
from fedpbc.tuning.budget import Schedule, lengths_of, schedule
from fedpbc.tuning.grid import Point, axes_of, check_names, points_of, with_point


@dataclass(frozen=True)
class Method:
    """A method, its grid and its share of the budget."""

    algorithm: Component[Any]
    axes: dict[str, list[Any]]
    points: list[Point]
    """Those drawn of the grid, in its order."""
    schedule: Schedule

    @property
    def size(self) -> int:
        """Of the whole grid."""
        return int(np.prod([len(values) for values in self.axes.values()]))

    def variant(self, i: int, point: Point | None = None) -> Component[Any]:
        """Setting i as a method of its own."""
        return with_point(self.algorithm, point or self.points[i], f"{self.algorithm.label} #{i}")


@dataclass(frozen=True)
class Plan:
    """A tuning before it begins."""

    experiment: Experiment
    """With every default of [tune]."""
    methods: list[Method]
    lengths: list[int]
    targets: list[list[Component[Any]]]
    """The link settings that are chosen for together."""

    @property
    def tune(self) -> dict[str, Any]:
        """The table [tune]."""
        return self.experiment.tune or {}

    @property
    def per_setting(self) -> int:
        """Runs of a setting, over all targets."""
        e = self.experiment
        return len(e.links) * len(e.compute) * len(self.tune["seeds"])

    @property
    def runs(self) -> int:
        """How many there will be."""
        return self.per_setting * sum(sum(method.schedule.counts) for method in self.methods)

    @property
    def rounds(self) -> int:
        """Of all of them."""
        return self.per_setting * sum(method.schedule.rounds for method in self.methods)

    def rung(self, target: list[Component[Any]], variants: list[Component[Any]], rounds: int) -> Experiment:
        """The experiment that measures some settings after so many rounds: the server's model, after the last."""
        e, share = self.experiment, rounds / self.experiment.rounds
        loss = {**e.state_loss, "round": int(e.state_loss["round"] * share)} if e.state_loss else None
        return dataclasses.replace(e, tune=None, tuned=None).replace(
            algorithms=variants, links=target, rounds=rounds, eval_every=rounds, seeds=self.tune["seeds"],
            metrics=[name for name in e.metrics if name != "mean"], state_loss=loss,
            cooldown_rounds=int(e.cooldown_rounds * share),
        )  # fmt: skip


def plan_of(experiment: Experiment) -> Plan:
    """Every method's grid and schedule. Raises ConfigError."""
    tune = experiment.tune or bind(keys.tune, {}, "tune", ".")  # type: ignore[arg-type]
    first = max(experiment.seeds) + 1
    tune = {**tune, "seeds": tune["seeds"] or [first, first + 1]}
    refuse_reported(tune["seeds"], experiment.seeds, "tune.seeds")
    if experiment.part is not None:
        raise ConfigError("cells: a tuning has no parts; tune each link setting on a machine of its own")
    experiment = dataclasses.replace(experiment, tune=tune, tuned=None)
    check_names(experiment)
    lengths = lengths_of(experiment.rounds, tune["lengths"], tune["halving"])
    methods = [_method(experiment, algorithm, lengths) for algorithm in experiment.algorithms]
    together = tune["per"] == "all"
    targets = [list(experiment.links)] if together else [[links] for links in experiment.links]
    return Plan(experiment, methods, lengths, targets)


def _method(experiment: Experiment, algorithm: Component[Any], lengths: list[int]) -> Method:
    tune = experiment.tune or {}
    axes = axes_of(experiment, algorithm)
    points = points_of(axes)
    plan = schedule(len(points), tune["budget"], lengths, tune["halving"])
    if plan.drawn < len(points):
        rng = np.random.default_rng(list(algorithm.label.encode()))
        points = [points[i] for i in sorted(rng.choice(len(points), plan.drawn, replace=False).tolist())]
    return Method(algorithm, axes, points, plan)
