"""Tables of run directories for a terminal: final values, mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fedpbc.report.figures import models_of, run_labels, shown_metrics
from fedpbc.results import Run

COSTS = ("empty_rounds", "gradient_steps", "bytes_up", "bytes_down")


def final_table(runs: Sequence[Run], costs: bool = True) -> Table:
    """One row per links, algorithm and compute; the server's and the mean model's metrics after the last round.

    ``costs``: with gradient steps and bytes, where there is room for them.
    """
    labels = run_labels(runs)
    title = " / ".join(dict.fromkeys(run.name for run in runs))
    several = any(len(group["seeds"]) > 1 for run in runs for group in run.summary["groups"])
    spread = ", mean ± sd over seeds" if several else ""
    table = Table(title=Text(f"{title}: after the last round{spread}"), title_justify="left")
    models = ("server", "mean") if any("mean" in models_of(run) for run in runs) else ("server",)
    metrics = [f"{model}_{metric}" for metric in shown_metrics(runs) for model in models]
    metrics += [
        name
        for name in ("consensus_distance", *COSTS[: None if costs else 1])
        if name != "consensus_distance" or "mean" in models
    ]
    metrics = [
        name for name in metrics if all(name in group["final"] for run in runs for group in run.summary["groups"])
    ]
    for name in (["run"] if labels[0] else []) + ["links", "algorithm", "compute"]:
        table.add_column(name, overflow="fold")
    for name in metrics:
        table.add_column(name.replace("bytes", "MB").replace("_", " "), justify="right", overflow="fold", min_width=6)
    previous = None
    for run, label in zip(runs, labels, strict=True):
        for group in run.summary["groups"]:
            here = (label, group["links"])
            if previous is not None and here != previous:
                table.add_section()
            values = [_cell(group["final"][metric], metric) for metric in metrics]
            keys = [group["links"] if here != previous else "", group["algorithm"], group["compute"]]
            table.add_row(*map(Text, [*([label] if labels[0] else []), *keys]), *values)
            previous = here
    table.caption = "server: the model the server holds. " + (
        "mean: the mean of all client models, which no server can compute.\n"
        "consensus distance: (1/m) sum ||x_i - mean||^2, squared. "
        if "mean" in models
        else ""
    )
    table.caption += "empty rounds: rounds in which no client was active."
    table.caption += "\ngradient steps: local steps the method uses." if costs else ""
    table.caption_justify = "left"
    return table


def _cell(statistics: dict[str, Any], metric: str) -> str:
    if statistics["mean"] is None:
        return "not finite"
    if metric in COSTS:
        return f"{statistics['mean'] / 1e6:,.3g}" if metric.startswith("bytes") else f"{statistics['mean']:,.0f}"
    mean = f"{statistics['mean']:.4g}"
    return mean if statistics["sd"] is None else f"{mean} ± {statistics['sd']:.1g}"
