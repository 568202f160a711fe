"""Figures of run directories: one panel per link setting, metric and who computes.

Curves with the seeds as bands, or, where there are more methods than colours, a ranking of the last values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedpbc.report.palette import COLORS, RESERVED
from fedpbc.report.style import LOGARITHMIC, TITLES, own_style, save
from fedpbc.results import Run, read_run

STYLES: dict[str, Any] = {"server": "-", "mean": (0, (4, 1.5))}
MODEL_NAMES = {"server": "server model", "mean": "mean of all client models (no server can compute it)"}
COMPUTE_TITLES = {"all": "everybody computes", "active": "only active clients compute"}
MAX_POINTS = 400
"""Points of a curve that are drawn: evenly spaced evaluated rounds."""


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, "" when there is only one."""
    if len(runs) == 1:
        return [""]
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def shown_metrics(runs: Sequence[Run]) -> list[str]:
    """Metrics for figures and tables: what the experiments ask for, else what a reader asks for first."""
    known = [name.removeprefix("server_") for name in _measured(runs[0]) if name.startswith("server_")]
    known = [name for name in known if all(f"server_{name}" in _measured(run) for run in runs)]
    asked = [name for run in runs for name in run.experiment.get("figure", {}).get("metrics", [])]
    usual = ["test_accuracy", "train_loss"] if "test_accuracy" in known else ["grad_norm"]
    return [name for name in dict.fromkeys(asked) if name in known] or [n for n in usual if n in known]


def _measured(run: Run) -> list[str]:
    return list(run.summary["groups"][0]["final"])


def draw_run(path: Path) -> None:
    """Draw figure.png and figure.svg of one run directory, into it."""
    save(draw([read_run(path)]), path, "figure")


def draw(runs: Sequence[Run]) -> Figure:
    """One figure of one or several runs: columns are link settings, rows are who computes and metrics."""
    with own_style({}):
        return _draw(runs)


def _draw(runs: Sequence[Run]) -> Figure:
    groups = [group for run in runs for group in run.summary["groups"]]
    links = list(dict.fromkeys(group["links"] for group in groups))
    rows = [
        (compute, metric)
        for compute in dict.fromkeys(group["compute"] for group in groups)
        for metric in shown_metrics(runs)
    ]
    series = _series(runs)
    if len(series) > len(COLORS):
        return _draw_ranking(runs, series, links, rows)
    handles = _legend(series, runs)
    width = max(3.3 * len(links), 6.5)
    columns = min(len(handles), max(2, int(width / 3.3)))
    height = 2.7 * len(rows) + 0.6 + 0.17 * -(-len(handles) // columns)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(len(rows), len(links), squeeze=False, sharex=True, sharey="row")
    for i, (compute, metric) in enumerate(rows):
        for j, label in enumerate(links):
            _panel(axes[i, j], series, label, compute, metric)
            if i == 0:
                axes[i, j].set_title(label, fontsize=10, parse_math=False)
        several = len({compute for compute, _ in rows}) > 1
        prefix = f"{COMPUTE_TITLES[compute]}\n" if several else ""
        axes[i, 0].set_ylabel(prefix + TITLES.get(metric, metric.replace("_", " ")))
    for ax in axes[-1]:
        ax.set_xlabel("round t")
    figure.suptitle(
        " / ".join(dict.fromkeys(run.name for run in runs)), fontsize=11, fontweight="bold", parse_math=False
    )
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _draw_ranking(runs: Sequence[Run], series: list[_Series], links: list[str], rows: list[tuple[str, str]]) -> Figure:
    """More methods than colours: the server's values after the last round, the best method on top of each panel."""
    shape = len(rows), len(links)
    figure = Figure(
        figsize=(max(4.2 * shape[1], 6.5), (0.19 * len(series) + 0.8) * shape[0] + 0.6), layout="constrained"
    )
    axes = figure.subplots(*shape, squeeze=False)
    for (i, j), ax in np.ndenumerate(axes):
        compute, metric = rows[i]
        _ranking(ax, series, links[j], compute, metric)
        ax.set_title(f"{links[j]}, {COMPUTE_TITLES[compute]}", fontsize=9, parse_math=False)
        ax.set_xlabel(TITLES.get(metric, metric.replace("_", " ")))
    name = " / ".join(dict.fromkeys(run.name for run in runs))
    what = "server model after the last round; median and range over the seeds"
    figure.suptitle(f"{name}: {what}", fontsize=10, fontweight="bold", parse_math=False)
    return figure


def _ranking(ax: Axes, series: list[_Series], links: str, compute: str, metric: str) -> None:
    found = []
    for one in series:
        keys = {"links": links, "algorithm": one.algorithm, "compute": compute}
        if any(keys.items() <= group.items() for group in one.run.summary["groups"]):
            last = one.run.curves(links, one.algorithm, compute, f"server_{metric}")[1][:, -1]
            found.append((one, last if np.all(np.isfinite(last)) else np.full(1, np.nan)))
    sign = -1 if metric.startswith("test_accuracy") else 1
    found.sort(key=lambda entry: (np.isnan(entry[1][0]), sign * np.median(entry[1])))
    for place, (one, last) in enumerate(found):
        color = one.color if one.color in RESERVED.values() else "0.35"
        ax.plot([last.min(), last.max()], [place, place], color=color, linewidth=1.2)
        ax.plot(np.median(last), place, "o", color=color, markersize=4.5)
    names = [one.name if np.isfinite(last[0]) else f"{one.name} (diverged)" for one, last in found]
    for tick in ax.set_yticks(range(len(found)), names, fontsize=8):
        tick.label1.set_parse_math(False)
    ax.invert_yaxis()
    if metric in LOGARITHMIC and any(last[0] > 0 for _, last in found):
        ax.set_xscale("log")
    ax.grid(True, axis="x", alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def _reserved(run: Run) -> dict[str, str]:
    """Label -> colour of plain FedAvg and plain FedPBC, whatever they are called here."""
    found: dict[str, str] = {}
    for entry in run.experiment["algorithms"]:
        options = {key: value for key, value in entry.items() if key not in ("name", "label")}
        if entry["name"] in RESERVED and not options and RESERVED[entry["name"]] not in found.values():
            found[entry["label"]] = RESERVED[entry["name"]]
    return found


class _Series(NamedTuple):
    """One method of one run, and how it looks."""

    run: Run
    algorithm: str
    name: str
    color: str


def _series(runs: Sequence[Run]) -> list[_Series]:
    named = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        algorithms = dict.fromkeys(group["algorithm"] for group in run.summary["groups"])
        named += [(run, algorithm, f"{label}: {algorithm}" if label else algorithm) for algorithm in algorithms]
    reserved = _reserved(runs[0]) if len(runs) == 1 else {}
    free = [color for color in COLORS if color not in reserved.values()]
    others = [name for _, _, name in named if name not in reserved]
    colors = {name: free[i % len(free)] for i, name in enumerate(others)} | reserved
    return [_Series(*entry, colors[entry[2]]) for entry in named]


def models_of(run: Run) -> list[str]:
    """Which models the experiment's figure shows."""
    return list(run.experiment.get("figure", {}).get("models", STYLES))


def _panel(ax: Axes, series: list[_Series], links: str, compute: str, metric: str) -> None:
    for one in series:
        run, algorithm = one.run, one.algorithm
        keys = {"links": links, "algorithm": algorithm, "compute": compute}
        if not any(keys.items() <= group.items() for group in run.summary["groups"]):
            continue
        from_round = run.experiment.get("figure", {}).get("from_round", 0)
        for model in models_of(run):
            rounds, values = run.curves(links, algorithm, compute, f"{model}_{metric}")
            kept = np.flatnonzero(rounds >= from_round) if rounds[-1] > from_round else np.arange(len(rounds))
            kept = kept[np.unique(np.linspace(0, len(kept) - 1, MAX_POINTS).astype(int))]
            _band(ax, rounds[kept], values[:, kept], one.color, STYLES[model])
    if metric in LOGARITHMIC and any(np.any(np.asarray(line.get_ydata()) > 0) for line in ax.lines):
        ax.set_yscale("log")
    ax.grid(True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def _band(ax: Axes, rounds: np.ndarray, values: np.ndarray, color: str, style: Any) -> None:
    """Median over the seeds, and the range over the seeds; rounds that are not finite are left out."""
    finite = np.all(np.isfinite(values), axis=0)
    rounds, values = rounds[finite], values[:, finite]
    if len(rounds) == 0:
        return
    ax.plot(rounds, np.median(values, axis=0), color=color, linestyle=style, linewidth=1.3)
    if len(values) > 1:
        ax.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=color, alpha=0.18, linewidth=0)


def _legend(series: list[_Series], runs: Sequence[Run]) -> list[Line2D]:
    handles = [Line2D([], [], color=one.color, label=one.name) for one in series]
    models = dict.fromkeys(model for run in runs for model in models_of(run))
    if len(models) > 1 or "mean" in models:
        handles += [Line2D([], [], color="0.3", linestyle=STYLES[model], label=MODEL_NAMES[model]) for model in models]
    if any(len(run.experiment["seeds"]) > 1 for run in runs):
        handles.append(Line2D([], [], color="0.6", linewidth=6, alpha=0.4, label="range over seeds (line: median)"))
    return handles
