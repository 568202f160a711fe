"""What a tuning leaves behind: the choices, every value measured, the cost, and the experiment as it was tuned."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError, optional
from fedpbc.experiment.choices import Choice
from fedpbc.experiment.grid import Experiment
from fedpbc.io.whole import write_text
from fedpbc.runs.inputs import write_experiment
from fedpbc.tuning.budget import score_of
from fedpbc.tuning.grid import RATES, written
from fedpbc.tuning.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpbc.tuning.tune import Search

T = TypeVar("T")
COSTS = ("rounds", "gradient_steps", "seconds")
COLUMNS = (
    "links", "algorithm", "setting", "learning_rate", "schedule", "options", "rounds", "beyond_the_grid", "under",
    "compute", "seed", "value", "goes_on", "chosen",
)  # fmt: skip
"""Of tuning.csv: a row per run."""


@dataclass(repr=False)
class Tuning:
    """What ``fedpbc.tune`` found."""

    record: dict[str, Any]
    """Everything, as in tuning.json."""
    experiment: Experiment
    """The experiment as it was tuned, for ``fedpbc.run``."""
    path: Path | None = None
    """Its folder, if it has one."""

    def __repr__(self) -> str:
        where = f" in {self.path}" if self.path else ""
        return f"<Tuning {self.record['experiment']}: {len(self.record['methods'])} choices{where}>"

    @property
    def choices(self) -> list[dict[str, Any]]:
        """``links`` (None: all), ``algorithm``, ``settings`` and ``score`` of each."""
        return [{k: one[k] for k in ("links", "algorithm", "settings", "score")} for one in self.record["methods"]]

    @property
    def warnings(self) -> list[str]:
        """A line for each choice at the edge of its grid, and for each method of which what ran to the end diverged."""
        return [line for one in self.record["methods"] for line in warnings_of(one)]

    def plot(self) -> Figure:
        """The metric against the learning rate: a panel per method, a curve per link setting, the choice marked."""
        optional("matplotlib", "plot()")
        from fedpbc.plots.sensitivity import draw_sensitivity

        return draw_sensitivity(self.record)

    def write(self, folder: Path) -> None:
        """The files of a tuning; tuning.json comes last but the picture."""
        from fedpbc.plots.style import save

        write_experiment(self.experiment, folder / "tuned.toml")
        write_text(folder / "tuning.csv", _rows(self.record))
        write_text(folder / "tuning.json", json.dumps(self.record, indent=1))
        self.path = folder
        save(self.plot(), folder, "sensitivity")


def record_of(plan: Plan, searches: Sequence[Search], measure: Measure, extend: bool) -> Tuning:
    """The result of a tuning."""
    e, tune = plan.experiment, plan.tune
    methods, choices = [], []
    for search in searches:
        best = search.best(measure)
        where = None if tune["per"] == "all" else search.target[0].label
        methods.append({"links": where, **_method(search, best, measure)})
        chosen = search.method.variant(best, search.points[best])
        chosen = dataclasses.replace(chosen, label=search.method.algorithm.label)
        choices.append(Choice(where, chosen, tuple(search.points[best])))
    found = {key: tune[key] for key in ("seeds", "metric", "budget")}
    tuned = dataclasses.replace(e, tune=None, tuned={**found, "choices": choices})
    record = {
        "experiment": e.name, **found, "reported_on": e.seeds, "measure": vars(measure), "per": tune["per"],
        "rounds": e.rounds, "runs_of_a_setting": plan.per_setting // len(plan.targets), "extended": extend,
        "links": [links.label for links in e.links], "compute": e.compute,
        "cost": {name: round(sum(method["cost"][name] for method in methods), 3) for name in COSTS},
        "methods": methods,
    }  # fmt: skip
    return Tuning(record, tuned)


def read_record(folder: Path, use: Callable[[dict[str, Any]], T]) -> T:
    """``use(record)`` of the tuning.json of a folder. Raises ConfigError when it is damaged."""
    path = folder / "tuning.json"
    try:
        return use(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        text = f"{path}: is damaged: {type(error).__name__} {error}; write it again with fedpbc tune ... --resume"
        raise ConfigError(text) from None


def warnings_of(method: dict[str, Any]) -> list[str]:
    """Of one choice."""
    where = f"{method['algorithm']}" + (f" under {method['links']}" if method["links"] is not None else "")
    if method["score"] is None:
        return [f"{where}: every setting diverged; the first of the grid stands, try smaller learning rates"]
    lines = []
    if short := short_of_the_end(method):
        lines = [
            f"{where}: what ran to the end diverged; of the others the best after {short} rounds stands, try smaller "
            "learning rates, or lengths = 1"
        ]
    words = {"learning_rate": "learning rate", **dict.fromkeys(("server", "server_learning_rate"), "server step size")}
    return lines + [
        f"{where}: the best {words.get(name, name)} is the {'smallest' if edge < 0 else 'largest'} tried; a better one "
        f"may lie beyond ({'--extend, or ' if name in RATES else ''}a wider grid)"
        for name, edge in method["edges"].items()
    ]


def short_of_the_end(method: dict[str, Any]) -> int | None:
    """The rounds that a choice was tried for, where none that ran to the end stands."""
    end = method["rungs"][-1]["rounds"]
    tried = int(method.get("tried_for", end))
    return tried if tried < end else None


def _method(search: Search, best: int, measure: Measure) -> dict[str, Any]:
    """A choice, the grid and every value."""
    method = search.method
    algorithm = method.algorithm
    plain = [written(algorithm, point) for point in search.points]
    rungs = []
    for k, rung in enumerate(search.rungs):
        later = {i for other in search.rungs[k + 1 :] for i in other["measured"]}
        settings = [
            {"setting": i, "score": _finite(score_of(one, measure), measure), **one, "goes_on": i in later}
            for i, one in rung["measured"].items()
        ]
        rungs.append({"rounds": rung["rounds"], "beyond_the_grid": rung["extension"], "settings": settings})
    tried_for, last = next(
        (rung["rounds"], one) for rung in reversed(rungs) for one in rung["settings"] if one["setting"] == best
    )
    cost = {name: round(sum(one[name] for rung in rungs for one in rung["settings"]), 3) for name in COSTS}
    runs = len(last["values"])
    return {
        "algorithm": algorithm.label, "chosen": best, "settings": plain[best], "score": last["score"],
        "tried_for": tried_for,
        "edges": search.edges(best) if last["score"] is not None else {},
        "grid": {name: [written(algorithm, {name: v})[name] for v in values] for name, values in search.axes.items()},
        "grid_size": method.size, "drawn": len(method.points), "cost": cost,
        "budget_used": round(cost["rounds"] / runs / rungs[-1]["rounds"], 2), "points": plain,
        "rates": [rate_of(settings) for settings in plain], "rungs": rungs,
    }  # fmt: skip


def _finite(score: float, measure: Measure) -> float | None:
    """The mean as it was measured; None where a run diverged."""
    return (-score if measure.better == "higher" else score) if math.isfinite(score) else None


def rate_of(settings: dict[str, Any]) -> tuple[float, str]:
    """(step size, name of its schedule) of a setting as TOML has it."""
    rate = settings["learning_rate"]
    if isinstance(rate, dict):
        number = rate.get("initial", rate.get("value"))
        return (float("nan") if number is None else float(number)), str(rate["name"])
    return float(rate), "constant"


def _rows(record: dict[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for method in record["methods"]:
        under = record["links"] if method["links"] is None else [method["links"]]
        runs = [(links, compute, seed) for links in under for compute in record["compute"] for seed in record["seeds"]]
        for rung in method["rungs"]:
            for one in rung["settings"]:
                settings = method["points"][one["setting"]]
                number, name = method["rates"][one["setting"]]
                options = json.dumps({k: v for k, v in settings.items() if k != "learning_rate"})
                head = ["all" if method["links"] is None else method["links"], method["algorithm"], one["setting"],
                        number, name, options, rung["rounds"], int(rung["beyond_the_grid"])]  # fmt: skip
                tail = [int(one["goes_on"]), int(one["setting"] == method["chosen"])]
                for run, value in zip(runs, one["values"], strict=True):
                    writer.writerow([*head, *run, "diverged" if value is None else value, *tail])
    return text.getvalue()
