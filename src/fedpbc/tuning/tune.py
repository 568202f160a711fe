"""Tune an experiment: successive halving over every method's grid, for each link setting or over all of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpbc.core.outside import refuse_while_importing
from fedpbc.core.schema import Component
from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError, optional
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment
from fedpbc.runs.directory import RunDirectory
from fedpbc.simulation import use_every_core
from fedpbc.tuning.budget import ranked, score_of
from fedpbc.tuning.grid import RATES, Point, beyond, edge_of
from fedpbc.tuning.plan import Method, Plan, plan_of
from fedpbc.tuning.record import Tuning, record_of

if TYPE_CHECKING:
    from fedpbc.runs.estimate import Estimate

MOST_EXTENSIONS = 6
"""How often a grid is extended beyond its edge, at most."""


@dataclass
class Search:
    """One method under the links of one target: every setting and what was measured of it."""

    method: Method
    target: list[Component[Any]]
    points: list[Point]
    alive: list[int]
    """Positions in ``points`` that go on, in the order of the grid."""
    rungs: list[dict[str, Any]] = field(default_factory=list)
    """Of each length: ``rounds``, and ``measured``, by position."""
    axes: dict[str, list[Any]] = field(default_factory=dict)
    """The grid, and what was added beyond its edges."""

    def add(self, rounds: int, measured: dict[int, Any], extension: bool = False) -> None:
        """What was measured of some settings."""
        self.rungs.append({"rounds": rounds, "extension": extension, "measured": measured})

    def best(self, measure: Measure) -> int:
        """Of the settings that ran to the end, the one with the best score; of equal ones, the first of the grid.

        Where all of these diverged, the best of those that did not, after the longest runs that any of them made.
        """
        tried = {i: rung["rounds"] for rung in self.rungs for i in rung["measured"]}
        scores = {i: s for rung in self.rungs for i, s in scores_of(rung["measured"], measure).items()}
        standing = {i: tried[i] for i, score in scores.items() if math.isfinite(score)} or tried
        places = sorted(i for i in standing if standing[i] == max(standing.values()))
        return places[ranked([scores[i] for i in places])[0]]

    def halve(self, count: int, measure: Measure) -> None:
        """Keep the best so many of the last rung."""
        scores = scores_of(self.rungs[-1]["measured"], measure)
        places = sorted(scores)
        self.alive = sorted(places[k] for k in ranked([scores[i] for i in places])[:count])

    def edges(self, chosen: int) -> dict[str, int]:
        """The axes at whose edge a setting is, and at which."""
        point = self.points[chosen]
        return {name: edge for name, values in self.axes.items() if (edge := edge_of(values, point[name]))}


def tune(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    extend: bool = False,
    devices: int | None = None,
    progress: bool = False,
) -> Tuning:
    """Choose the settings of every method of an experiment on seeds that are not reported, at an equal budget.

    experiment: a checked one, a TOML file, a shipped one by name, or its table, with components of Python in it. Its
    table ``tune`` says how. out: a folder for tuned.toml, tuning.json, tuning.csv and sensitivity.png; resume: go on in
    it. extend: where the best step size stands at the edge of its grid, try beyond. ``fedpbc.run(result.experiment)``
    runs the experiment as it was tuned. Raises ConfigError.
    """
    refuse_while_importing("tune()")
    optional("jax", "fedpbc.tune()")
    if isinstance(experiment, Mapping):
        experiment = Experiment.from_table(experiment)
    elif not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    if resume and out is None:
        raise ConfigError("resume = true: needs out, the folder to go on in")
    plan = plan_of(experiment)
    use_every_core(devices)
    from fedpbc.runs.cache import use_cache
    from fedpbc.runs.progress import shown
    from fedpbc.tuning.rungs import Rungs

    use_cache()
    folder = Path(out) if out is not None else None
    with shown(plan.runs, plan.rounds, sys.stderr, quiet=not progress) as told:
        rungs = Rungs(plan.tune["metric"], folder / "rungs" if folder else None, devices, told)
        everything = [method.variant(i) for method in plan.methods for i in range(len(method.points))]
        rungs.check(plan.rung(plan.experiment.links, everything, plan.lengths[-1]))
        directory = _opened(folder, plan.experiment, resume) if folder else None
        try:
            searches = [search for target in plan.targets for search in _searched(plan, target, rungs, extend)]
            found = record_of(plan, searches, rungs.measure, extend)
            if folder:
                found.write(folder)
        finally:
            if directory:
                with suppress(OSError):
                    directory.cells.rmdir()
                directory.close()
    return found


def time_of(plan: Plan, devices: int | None = None) -> Estimate:
    """About how long a tuning will take, without what ``extend`` adds. Raises ConfigError."""
    optional("jax", "fedpbc.tune()")
    use_every_core(devices)
    from fedpbc.runs.cache import use_cache
    from fedpbc.runs.estimate import estimate

    use_cache()
    variants = [method.variant(i) for method in plan.methods for i in range(len(method.points))]
    whole = plan.rung(plan.experiment.links, variants, plan.lengths[-1])
    return estimate(whole, devices, plan.rounds, 2 * plan.runs)


def _opened(folder: Path, experiment: Experiment, resume: bool) -> RunDirectory:
    """The folder, locked, with the experiment in it. Raises ConfigError."""
    if (folder / "metrics.csv").exists():
        raise ConfigError(f"{folder}: holds a run; choose another --out")
    return RunDirectory.open(folder, experiment, resume)


def _searched(plan: Plan, target: list[Component[Any]], rungs: Any, extend: bool) -> list[Search]:
    """Every method under the links of one target; runs of one length are measured side by side."""
    searches = [
        Search(method, target, list(method.points), list(range(len(method.points))), axes=dict(method.axes))
        for method in plan.methods
    ]
    for rounds in plan.lengths:
        now = [search for search in searches if rounds in search.method.schedule.lengths]
        for search in now:
            place = search.method.schedule.lengths.index(rounds)
            if place:
                search.halve(search.method.schedule.counts[place], rungs.measure)
        _measure(plan, rungs, now, [search.alive for search in now], rounds, str(rounds))
    for turn in range(MOST_EXTENSIONS if extend else 0):
        further = [(search, added) for search in searches if (added := _extended(search, rungs.measure))]
        if not further:
            break
        some, lists = [search for search, _ in further], [added for _, added in further]
        _measure(plan, rungs, some, lists, plan.lengths[-1], f"beyond-{turn + 1}", extension=True)
    return searches


def _measure(
    plan: Plan,
    rungs: Any,
    searches: list[Search],
    places: list[list[int]],
    rounds: int,
    name: str,
    extension: bool = False,
) -> None:
    if not searches:
        return
    target = searches[0].target
    where = "all" if len(target) > 1 else [links.label for links in plan.experiment.links].index(target[0].label)
    variants = [s.method.variant(i, s.points[i]) for s, mine in zip(searches, places, strict=True) for i in mine]
    measured = iter(rungs.run(f"links-{where}/{name}", plan.rung(target, variants, rounds)))
    for search, mine in zip(searches, places, strict=True):
        search.add(rounds, {i: next(measured) for i in mine}, extension)


def _extended(search: Search, measure: Measure) -> list[int]:
    """Settings beyond the edge of a step size at which the best one is, new in the grid; none if all diverged."""
    best = search.best(measure)
    if not math.isfinite(_score(search, best, measure)):
        return []
    added = []
    for name in search.edges(best):
        if name in RATES:
            value = beyond(search.axes[name], search.points[best][name])
            search.axes[name] = [*search.axes[name], value]
            search.points.append({**search.points[best], name: value})
            added.append(len(search.points) - 1)
    return added


def _score(search: Search, place: int, measure: Measure) -> float:
    return next(scores_of(r["measured"], measure)[place] for r in reversed(search.rungs) if place in r["measured"])


def scores_of(measured: Mapping[int, Any], measure: Measure) -> dict[int, float]:
    """Position -> score, the lower the better."""
    return {i: score_of(one, measure) for i, one in measured.items()}
