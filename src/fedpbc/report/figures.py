"""Figures of run directories: one panel per link setting, metric and who computes; seeds as bands."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedpbc.files import replacing
from fedpbc.report.palette import COLORS, RESERVED
from fedpbc.results import Run, read_run

STYLES: dict[str, Any] = {"server": "-", "mean": (0, (4, 1.5))}
MODEL_NAMES = {"server": "server model", "mean": "mean of all client models (no server can compute it)"}
LOGARITHMIC = ("grad_norm", "distance")
TITLES = {
    "grad_norm": "gradient norm of F",
    "distance": "distance to the minimiser",
    "train_loss": "train loss",
    "test_accuracy": "test accuracy",
    "test_accuracy_by_client": "test accuracy, mean over clients",
}
COMPUTE_TITLES = {"all": "everybody computes", "active": "only active clients compute"}
MARKERS = ("", "o", "s", "^", "D")
"""Where there are more methods than colours: the next round of colours has the next marker."""
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


def save(figure: Figure, folder: Path, stem: str) -> None:
    """Write ``stem``.png and ``stem``.svg, the same bytes for the same figure."""
    with _own_style({"svg.hashsalt": "fedpbc", "svg.fonttype": "path"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a label may use any script
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            with replacing(folder / f"{stem}.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix, dpi=150, metadata=metadata)


@contextmanager
def _own_style(settings: Any) -> Iterator[None]:
    """Matplotlib's defaults, whatever the user's own settings file says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def draw(runs: Sequence[Run]) -> Figure:
    """One figure of one or several runs: columns are link settings, rows are who computes and metrics."""
    with _own_style({}):
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
    figure = Figure(figsize=(max(3.3 * len(links), 6.5), 2.7 * len(rows) + 0.9), layout="constrained")
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
    handles = _legend(series, runs)
    columns = min(len(handles), max(2, int(figure.get_figwidth() / 3.3)))
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


class _Series(NamedTuple):
    """One method of one run, and how it looks."""

    run: Run
    algorithm: str
    name: str
    color: str
    marker: str
    band: bool
    """Whether the range over the seeds is drawn: not where many methods would cover each other."""


def _series(runs: Sequence[Run]) -> list[_Series]:
    named = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        algorithms = dict.fromkeys(group["algorithm"] for group in run.summary["groups"])
        named += [(run, algorithm, f"{label}: {algorithm}" if label else algorithm) for algorithm in algorithms]
    reserved = RESERVED if len(runs) == 1 else {}
    free = [color for color in COLORS if color not in reserved.values()]
    others = [name for _, _, name in named if name not in reserved]
    looks = {name: (free[i % len(free)], MARKERS[i // len(free) % len(MARKERS)]) for i, name in enumerate(others)}
    looks |= {name: (color, "") for name, color in reserved.items()}
    return [_Series(*entry, *looks[entry[2]], band=len(named) <= len(COLORS)) for entry in named]


def _models(run: Run) -> list[str]:
    return list(run.experiment.get("figure", {}).get("models", STYLES))


def _panel(ax: Axes, series: list[_Series], links: str, compute: str, metric: str) -> None:
    for one in series:
        run, algorithm = one.run, one.algorithm
        keys = {"links": links, "algorithm": algorithm, "compute": compute}
        if not any(keys.items() <= group.items() for group in run.summary["groups"]):
            continue
        from_round = run.experiment.get("figure", {}).get("from_round", 0)
        for model in _models(run):
            rounds, values = run.curves(links, algorithm, compute, f"{model}_{metric}")
            kept = np.flatnonzero(rounds >= from_round) if rounds[-1] > from_round else np.arange(len(rounds))
            kept = kept[np.unique(np.linspace(0, len(kept) - 1, MAX_POINTS).astype(int))]
            _band(ax, rounds[kept], values[:, kept], one, STYLES[model])
    if metric in LOGARITHMIC and any(np.any(np.asarray(line.get_ydata()) > 0) for line in ax.lines):
        ax.set_yscale("log")
    ax.grid(True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def _band(ax: Axes, rounds: np.ndarray, values: np.ndarray, one: _Series, style: Any) -> None:
    """Median over the seeds, and the range over the seeds; rounds that are not finite are left out."""
    finite = np.all(np.isfinite(values), axis=0)
    rounds, values = rounds[finite], values[:, finite]
    if len(rounds) == 0:
        return
    look: dict[str, Any] = {"color": one.color, "marker": one.marker, "markersize": 4, "markevery": 0.12}
    ax.plot(rounds, np.median(values, axis=0), linestyle=style, linewidth=1.3, **look)
    if one.band and len(values) > 1:
        ax.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=one.color, alpha=0.18, linewidth=0)


def _legend(series: list[_Series], runs: Sequence[Run]) -> list[Line2D]:
    handles = [Line2D([], [], color=one.color, marker=one.marker, markersize=4, label=one.name) for one in series]
    models = dict.fromkeys(model for run in runs for model in _models(run))
    handles += [Line2D([], [], color="0.3", linestyle=STYLES[model], label=MODEL_NAMES[model]) for model in models]
    if any(len(run.experiment["seeds"]) > 1 for run in runs):
        if series[0].band:
            handles.append(Line2D([], [], color="0.6", linewidth=6, alpha=0.4, label="range over seeds (line: median)"))
        else:
            handles.append(Line2D([], [], linestyle="", label="line: median over seeds"))
    return handles
