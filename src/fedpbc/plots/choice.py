"""Choose what figures and tables show: names of runs, metrics and models. Does not need matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

from fedpbc.errors import unknown_name
from fedpbc.runs.run import Run

MODELS = ("server", "mean")


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, "" when there is only one."""
    if len(runs) == 1:
        return [""]
    names = [run.path.resolve().name if run.path else run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [str(run.path) if run.path else f"{run.name} {i + 1}" for i, run in enumerate(runs)]


def shown_metrics(runs: Sequence[Run], asked: str | Sequence[str] | None = None) -> list[str]:
    """The metrics to show: those ``asked`` for, else those of the experiments, else those the problems mark.

    Raises UnknownName when one that is asked for is not measured in every run.
    """
    asked = [asked] if isinstance(asked, str) else asked
    known = [m for m in runs[0].measures if all(f"server_{m}" in run.columns for run in runs)]
    for name in asked or ():
        if name not in known:
            raise unknown_name("metric", name, known)
    wanted = list(asked or [name for run in runs for name in run.table.get("figure", {}).get("metrics", [])])
    usual = [name for name in known if runs[0].measures[name].shown] or known[:1]
    return [name for name in dict.fromkeys(wanted) if name in known] or usual


def tuned_on(runs: Sequence[Run]) -> list[str]:
    """Of each run whose settings were tuned, on which seeds that was, and on which it is reported."""
    lines = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        tuned = run.table.get("tuned")
        if tuned:
            on, reported = (", ".join(map(str, seeds)) for seeds in (tuned["seeds"], run.table["seeds"]))
            lines.append(f"{label}{': ' if label else ''}tuned on seeds {on}; reported on seeds {reported}")
    return lines


def models_of(run: Run) -> list[str]:
    """Which models the experiment's figure shows: those it names, of those that were evaluated (``metrics``)."""
    evaluated = [model for model in MODELS if any(column.startswith(f"{model}_") for column in run.columns)]
    wanted = run.table.get("figure", {}).get("models", MODELS)
    return [model for model in evaluated if model in wanted] or evaluated
