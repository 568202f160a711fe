"""Figures of runs: a panel per metric and link setting; curves with the spread over seeds as bands.

What a metric is called, on which scale it is drawn and which way is better, its measure says. Where there are more
methods than colours, a ranking of the last values is drawn instead.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.schema import Component, options_of
from fedpbc.plots.choice import models_of, run_labels, shown_metrics, tuned_on
from fedpbc.plots.palette import COLORS, MARKERS, PREFERRED, RESERVED
from fedpbc.plots.spread import WORDS, held_curves, last_values, spread, spread_of
from fedpbc.plots.style import Picture, own_style
from fedpbc.runs.run import Group, Run

STYLES: dict[str, Any] = {"server": "-", "mean": (0, (4, 1.5))}
MODEL_NAMES = {"server": "server model", "mean": "mean of all client models (no server can compute it)"}
SHORT_NAMES = {"server": "server model", "mean": "mean of client models"}
COMPUTE_TITLES = {"all": "everybody computes", "active": "only active clients compute"}
MAX_POINTS = 400
"""Points of a curve that are drawn: evenly spaced evaluated rounds."""
TOGETHER = 3
"""So many methods at most share panels for the server's and the mean model."""


def draw(runs: Sequence[Run], metrics: str | Sequence[str] | None = None) -> Figure:
    """One figure of one or several runs: columns are link settings, rows are who computes, metrics and models."""
    with own_style({}):
        return _draw(runs, metrics)


class _Series(NamedTuple):
    """One method of one run, and how it looks."""

    run: Run
    algorithm: str
    name: str
    color: str
    marker: str
    reserved: bool
    """The figure's FedAvg or FedPBC."""

    def has(self, links: str, compute: str) -> bool:
        """Whether the run has such a group."""
        return (links, self.algorithm, compute) in self.run.groups


class _Row(NamedTuple):
    """A row of panels."""

    compute: str
    metric: str
    models: tuple[str, ...]


def _draw(runs: Sequence[Run], metrics: str | Sequence[str] | None) -> Figure:
    groups = [group for run in runs for group in run.groups]
    links = list(dict.fromkeys(group.links for group in groups))
    computes = list(dict.fromkeys(group.compute for group in groups))
    shown = shown_metrics(runs, metrics)
    series = _series(runs)
    if len(series) > len(COLORS):
        return _draw_ranking(runs, series, links, [(c, m) for c in computes for m in shown])
    models = tuple(dict.fromkeys(model for run in runs for model in models_of(run)))
    apart = [(model,) for model in models] if len(series) > TOGETHER else [models]
    rows = [_Row(compute, metric, some) for compute in computes for metric in shown for some in apart]
    handles = _legend(series, runs, models if len(apart) == 1 else ())
    width = max(3.3 * len(links), 6.5)
    columns = min(len(handles), max(2, int(width / 3.3)))
    lines = sum(1 + str(handle.get_label()).count("\n") for handle in handles)
    height = (2.7 if len(rows) < 4 else 2.2) * len(rows) + 0.6 + 0.17 * -(-lines // columns)
    figure = Picture(figsize=(width, height), layout="constrained")
    axes = figure.subplots(len(rows), len(links), squeeze=False, sharex=True, sharey="row")
    for i, row in enumerate(rows):
        for j, label in enumerate(links):
            _panel(axes[i, j], series, label, row)
            if i == 0:
                axes[i, j].set_title(_title(label, len(links)), fontsize=10 if len(links) == 1 else 9, parse_math=False)
        title = runs[0].measures[row.metric].title
        model = SHORT_NAMES[row.models[0]] if len(apart) > 1 else ""
        who = COMPUTE_TITLES[row.compute] if len(computes) > 1 else ""
        words = (who, model, _with_unit(runs[0], row.metric, title))
        axes[i, 0].set_ylabel("\n".join(text for text in words if text), parse_math=False)
    for ax in axes[-1]:
        ax.set_xlabel("round t")
    name = " / ".join(dict.fromkeys(run.name for run in runs))
    figure.suptitle("\n".join([name, *tuned_on(runs)]), fontsize=11, fontweight="bold", parse_math=False)
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _title(text: str, columns: int) -> str:
    """As wide as a panel; of the longest settings the beginning."""
    return textwrap.fill(text, 60 if columns == 1 else 40, max_lines=6, placeholder=" ...")


def _plain_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Numbers as they are spoken where a log axis shows less than two decades; else powers of ten.

    No ticks between them: they say little, and are most of what a figure with many panels costs.
    """
    low, high = limits
    axis.set_minor_locator(NullLocator())
    if low > 0 and high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0) if high > 3 * low else "all"))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _with_unit(run: Run, metric: str, title: str) -> str:
    unit = run.measures[metric].unit
    return f"{title} [{unit}]" if unit else title


def _draw_ranking(runs: Sequence[Run], series: list[_Series], links: list[str], rows: list[tuple[str, str]]) -> Figure:
    """More methods than colours: the server's values after the last round, the best method on top of each panel."""
    shape = len(rows), len(links)
    size = max(4.2 * shape[1], 6.5), (0.19 * len(series) + 0.8) * shape[0] + 0.6
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(*shape, squeeze=False)
    for (i, j), ax in np.ndenumerate(axes):
        compute, metric = rows[i]
        _ranking(ax, series, links[j], compute, metric)
        who = f", {COMPUTE_TITLES[compute]}" if len({compute for compute, _ in rows}) > 1 else ""
        ax.set_title(_title(links[j] + who, len(links)), fontsize=9, parse_math=False)
        ax.set_xlabel(_with_unit(runs[0], metric, runs[0].measures[metric].title), parse_math=False)
    name = " / ".join(dict.fromkeys(run.name for run in runs))
    what = f"server model after the last round; {WORDS[spread_of(runs)]}"
    title = "\n".join([f"{name}: {what}", *tuned_on(runs)])
    figure.suptitle(title, fontsize=10, fontweight="bold", parse_math=False)
    return figure


def _ranking(ax: Axes, series: list[_Series], links: str, compute: str, metric: str) -> None:
    found = []
    for one in series:
        if one.has(links, compute):
            final = last_values(one.run, Group(links, one.algorithm, compute), f"server_{metric}")
            found.append((one, spread(final, spread_of([one.run])) if np.all(np.isfinite(final)) else None))
    measure = series[0].run.measures[metric]
    sign = -1 if measure.better == "higher" else 1
    found.sort(key=lambda entry: (entry[1] is None, sign * float(entry[1].mean) if entry[1] else 0.0))
    for place, (one, over) in enumerate(found):
        color = one.color if one.reserved else "0.35"
        if over is not None:
            ax.plot([over.low, over.high], [place, place], color=color, linewidth=1.2)
            ax.plot([over.mean], [place], "o", color=color, markersize=4.5)
    names = [one.name if over is not None else f"{one.name} (diverged)" for one, over in found]
    for tick in ax.set_yticks(range(len(found)), names, fontsize=8):
        tick.label1.set_parse_math(False)
    ax.invert_yaxis()
    if measure.scale == "log" and any(over is not None and over.mean > 0 for _, over in found):
        ax.set_xscale("log")
        _plain_ticks(ax.xaxis, ax.get_xlim())
    ax.grid(True, axis="x", alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def _preferred(entries: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Position -> colour of methods that have one by their name: alone of that name, or the first plain one."""
    found: dict[int, str] = {}
    for name, color in PREFERRED.items():
        same = [i for i, entry in enumerate(entries) if entry["name"] == name]
        plain = [i for i in same if _is_plain(entries[i])]
        if same and (len(same) == 1 or plain):
            found[(plain or same)[0]] = color
    return found


def _is_plain(entry: dict[str, Any]) -> bool:
    """Every option is the default, written or not."""
    defaults = {name: option.default for name, option in options_of(ALGORITHMS.registry[entry["name"]]).items()}
    options = {key: value for key, value in entry.items() if key not in ("name", "label")}
    return all(key in defaults and _is_default(value, defaults[key]) for key, value in options.items())


def _is_default(value: Any, default: Any) -> bool:
    """A table of a component is compared by its name and options, as far as they are written."""
    if isinstance(value, dict) and isinstance(default, Component):
        written = default.table()
        return all(key in written and written[key] == item for key, item in value.items())
    return bool(value == default)


def _series(runs: Sequence[Run]) -> list[_Series]:
    """Each method of each run, in order; the colours depend on the methods alone, not on what is drawn of them."""
    named = [
        (run, entry, f"{label}: {entry['label']}" if label else entry["label"])
        for run, label in zip(runs, run_labels(runs), strict=True)
        for entry in run.table["algorithms"]
        if any(group.algorithm == entry["label"] for group in run.groups)
    ]
    colors = _preferred([entry for _, entry, _ in named])
    free = sorted((c for c in COLORS if c not in colors.values()), key=lambda color: color in RESERVED.values())
    free = free or list(COLORS)
    for place, i in enumerate(i for i in range(len(named)) if i not in colors):
        colors[i] = free[place % len(free)]
    return [
        _Series(
            run, entry["label"], name, colors[i], MARKERS[COLORS.index(colors[i])],
            RESERVED.get(entry["name"]) == colors[i],
        )
        for i, (run, entry, name) in enumerate(named)
    ]  # fmt: skip


def _panel(ax: Axes, series: list[_Series], links: str, row: _Row) -> None:
    measure = series[0].run.measures[row.metric]
    for place, one in enumerate(series):
        if not one.has(links, row.compute):
            continue
        from_round = one.run.table.get("figure", {}).get("from_round", 0)
        for model in models_of(one.run):
            if model not in row.models:
                continue
            rounds, values = held_curves(one.run, Group(links, one.algorithm, row.compute), f"{model}_{row.metric}")
            kept = np.flatnonzero(rounds >= from_round) if rounds[-1] > from_round else np.arange(len(rounds))
            kept = kept[np.unique(np.linspace(0, len(kept) - 1, MAX_POINTS).astype(int))]
            style = STYLES[model] if len(row.models) > 1 else "-"
            strength = 0.18 if len(series) <= TOGETHER else 0.1
            look = _Look(style, place / max(len(series), 1), strength, measure.scale == "log")
            _band(ax, rounds[kept], values[:, kept], one, look)
    if measure.scale == "log" and any(np.any(np.asarray(line.get_ydata()) > 0) for line in ax.lines):
        ax.set_yscale("log")
        _plain_ticks(ax.yaxis, ax.get_ylim())
    ax.grid(True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


class _Look(NamedTuple):
    """How a curve is drawn, beside its colour."""

    style: Any
    offset: float
    """Of its first marker, as a share of the distance between two."""
    strength: float
    """Opacity of the band."""
    log: bool


def _band(ax: Axes, rounds: np.ndarray, values: np.ndarray, one: _Series, look: _Look) -> None:
    """Mean and spread over the seeds; rounds that are not finite are left out. Markers of methods stand apart."""
    finite = np.all(np.isfinite(values), axis=0)
    rounds, values = rounds[finite], values[:, finite]
    if len(rounds) == 0:
        return
    line = spread(values, spread_of([one.run]))
    every = max(1, len(rounds) // 6)
    ax.plot(
        rounds, line.mean, color=one.color, linestyle=look.style, linewidth=1.3,
        marker=one.marker, markersize=4, markevery=(int(look.offset * every), every),
    )  # fmt: skip
    if len(values) > 1:
        low = np.maximum(line.low, values.min(axis=0)) if look.log else line.low  # a band below zero has no place there
        ax.fill_between(rounds, low, line.high, color=one.color, alpha=look.strength, linewidth=0)


def _legend(series: list[_Series], runs: Sequence[Run], models: Sequence[str]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=one.color, marker=one.marker, markersize=4, label=textwrap.fill(one.name, 60))
        for one in series
    ]
    if len(models) > 1 or "mean" in models:
        handles += [Line2D([], [], color="0.3", linestyle=STYLES[model], label=MODEL_NAMES[model]) for model in models]
    if any(len(run.table["seeds"]) > 1 for run in runs):
        handles.append(Line2D([], [], color="0.6", linewidth=6, alpha=0.4, label=WORDS[spread_of(runs)]))
    return handles
