"""What ``fedpbc tune`` prints: the plan before it begins, the choices and the warnings after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from fedpbc.tuning.grid import written
from fedpbc.tuning.plan import Plan
from fedpbc.tuning.record import short_of_the_end


def plan_lines(plan: Plan, grids: bool = False) -> Iterator[str]:
    """What it will cost, and with ``grids`` what is tried of each method."""
    e, tune = plan.experiment, plan.tune
    what = "together" if tune["per"] == "all" else "each by itself"
    yield (
        f"{e.name}: {_count(len(plan.methods), 'method')}, {_count(len(e.links), 'link setting')} {what}, tuned on "
        f"seeds {_list(tune['seeds'])} by {tune['metric']}; reported on {_list(e.seeds)}"
    )
    own = len(e.links) * len(e.algorithms) * len(e.compute) * len(e.seeds) * e.rounds
    lengths = sorted({length for method in plan.methods for length in method.schedule.lengths})
    yield (
        f"{plan.runs:,} runs of {_list([f'{n:,}' for n in lengths])} rounds, {plan.rounds:,} rounds in all, "
        f"{plan.rounds / own:.1f} times those of the experiment itself; a budget of {tune['budget']} settings run "
        "to the end, of which each method uses"
    )
    rows = []
    for method in plan.methods:
        used = method.schedule.rounds / e.rounds
        drawn = f"{len(method.points)} of {method.size}" if len(method.points) < method.size else str(method.size)
        rows.append([method.algorithm.label, drawn, " > ".join(map(str, method.schedule.counts)), f"{used:.1f}"])
    yield from _table(["method", "settings", "how many go on", "budget used"], rows)
    for method in plan.methods if grids else ():
        yield f"{method.algorithm.label}:"
        for name, values in method.axes.items():
            yield f"  {name} = {_list([_short(written(method.algorithm, {name: v})[name]) for v in values])}"


def result_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The choices, and what they cost."""
    measure = record["measure"]
    rows: list[list[str]] = []
    before = ""
    several = len(record["links"]) > 1 and record["per"] != "all"
    head = ["method", "chosen", measure["title"], "settings", "budget used"]
    yield (
        f"{record['experiment']}: tuned on seeds {_list(record['seeds'])}, mean over them; reported on seeds "
        + _list(record["reported_on"])
    )
    for one in record["methods"]:
        if several and one["links"] != before:
            if rows:
                yield from _table(head, rows)
            yield ""
            yield str(one["links"])
            before, rows = one["links"], []
        chosen = ", ".join(f"{name} {_short(value)}" for name, value in one["settings"].items())
        star = " *" if one["edges"] else ""
        score = "diverged" if one["score"] is None else f"{one['score']:.4g}"
        if short := short_of_the_end(one):
            score += f" after {short}"
        rows.append([one["algorithm"], chosen + star, score, str(one["drawn"]), f"{one['budget_used']:g}"])
    yield from _table(head, rows)
    cost = record["cost"]
    yield (
        f"cost: {cost['rounds']:,.0f} rounds, {cost['gradient_steps']:,.0f} local steps, {cost['seconds']:,.0f} s of a "
        "core (runs of each length start anew)"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first two columns to the left, numbers to the right."""
    widths = [max(cell_len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [
            text + " " * (width - cell_len(text)) if i < 2 else " " * (width - cell_len(text)) + text
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _short(value: Any) -> str:
    """A value as TOML has it, in few words: of a schedule or an optimiser its name and its step size."""
    if isinstance(value, Mapping):
        rate = next((value[k] for k in ("value", "initial", "learning_rate") if k in value), None)
        return str(value["name"]) + ("" if rate is None else f" {rate:g}")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")
