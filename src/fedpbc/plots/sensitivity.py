"""The picture of a tuning: what each method makes of other learning rates."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from fedpbc.plots.palette import COLORS, MARKERS
from fedpbc.plots.style import Picture, own_style

STYLES: tuple[Any, ...] = ("-", (0, (4, 1.5)), ":", "-.")
"""Of schedules, in the order of the grid."""
MOST_COLUMNS = 4


def draw_sensitivity(record: Mapping[str, Any]) -> Figure:
    """A panel per method: the best value at each learning rate, in runs to the end (filled) or of the first length.

    A curve per link setting and schedule; the choice is a star, a learning rate at which all settings diverged a cross
    at the top.
    """
    with own_style({}):
        return _draw(record)


def _draw(record: Mapping[str, Any]) -> Figure:
    methods = list(dict.fromkeys(one["algorithm"] for one in record["methods"]))
    links = list(dict.fromkeys(one["links"] for one in record["methods"]))
    schedules = list(dict.fromkeys(name for one in record["methods"] for _, name in one["rates"]))
    columns = min(MOST_COLUMNS, len(methods))
    rows = -(-len(methods) // columns)
    handles = _legend(links, schedules)
    beside = min(len(handles), max(2, columns))
    size = max(3.0 * columns, 6.5), 2.5 * rows + 0.7 + 0.17 * -(-len(handles) // beside)
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for ax in axes.flat[len(methods) :]:
        ax.set_axis_off()
    for ax, name in zip(axes.flat, methods, strict=False):
        for one in record["methods"]:
            if one["algorithm"] == name:
                _curves(ax, one, links.index(one["links"]), schedules, record["measure"]["better"])
        ax.set_title(textwrap.fill(name, 34), fontsize=9, parse_math=False)
        ax.set_xscale("log")
        ax.grid(True, alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    measure = record["measure"]
    if measure["scale"] == "log" or _spans(record):
        axes[0, 0].set_yscale("log")
    unit = f" [{measure['unit']}]" if measure["unit"] else ""
    for ax in axes[:, 0]:
        ax.set_ylabel(measure["title"] + unit, fontsize=9, parse_math=False)
    for ax in axes[-1]:
        ax.set_xlabel("learning rate", fontsize=9)
    _label_rates(axes[0, 0])
    seeds = ", ".join(map(str, record["seeds"]))
    title = f"{record['experiment']}: tuned on seeds {seeds}, mean over them"
    figure.suptitle(title, fontsize=10, fontweight="bold", parse_math=False)
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=beside, fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _label_rates(ax: Axes) -> None:
    """Decades; 1, 2, 5 where there are less than two; so few that they do not meet."""
    low, high = ax.get_xlim()
    ax.xaxis.set_minor_formatter(NullFormatter())
    if high < 100 * low:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 5 * low else MaxNLocator(4))
        ax.xaxis.set_major_formatter("{x:g}")


def _spans(record: Mapping[str, Any]) -> bool:
    """Whether the values, all above 0, span more than two decades."""
    values = [
        s["score"] for m in record["methods"] for r in m["rungs"] for s in r["settings"] if s["score"] is not None
    ]
    return bool(values) and min(values) > 0 and max(values) > 100 * min(values)


def curves_of(method: Mapping[str, Any], better: str, rounds: int) -> dict[str, dict[float, float | None]]:
    """Schedule -> learning rate -> the best score of its settings after so many rounds; None: all diverged."""
    pick = max if better == "higher" else min
    found: dict[str, dict[float, list[float | None]]] = {}
    for rung in method["rungs"]:
        for one in rung["settings"] if rung["rounds"] == rounds else ():
            rate, name = method["rates"][one["setting"]]
            found.setdefault(name, {}).setdefault(rate, []).append(one["score"])
    return {
        name: {
            rate: pick(kept) if (kept := [s for s in scores if s is not None]) else None
            for rate, scores in sorted(rates.items())
        }
        for name, rates in found.items()
    }


def _curves(ax: Axes, method: Mapping[str, Any], place: int, schedules: list[str], better: str) -> None:
    color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
    first, last = method["rungs"][0]["rounds"], method["rungs"][-1]["rounds"]
    for rounds in dict.fromkeys((first, last)):
        full = rounds == last
        for name, rates in curves_of(method, better, rounds).items():
            known = [(rate, score) for rate, score in rates.items() if score is not None]
            style = STYLES[schedules.index(name) % len(STYLES)]
            if known:
                x, y = np.array(known).T
                face = color if full else "white"
                ax.plot(x, y, color=color, linestyle=style, linewidth=1.3 if full else 0.8, marker=marker,
                        markersize=4, markerfacecolor=face, alpha=1.0 if full else 0.6)  # fmt: skip
            if rounds == first:
                lost = [rate for rate, score in rates.items() if score is None]
                ax.plot(lost, np.full(len(lost), 0.97), "x", color=color, markersize=4, alpha=0.6,
                        transform=ax.get_xaxis_transform())  # fmt: skip
    if method["score"] is not None:
        rate, _ = method["rates"][method["chosen"]]
        ax.plot([rate], [method["score"]], "*", color=color, markersize=13, markeredgecolor="black", zorder=5)


def _legend(links: list[str | None], schedules: list[str]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)], markersize=4,
               label=textwrap.fill("all links" if name is None else name, 50))
        for i, name in enumerate(links)
    ]  # fmt: skip
    handles += [
        Line2D([], [], color="0.3", linestyle=STYLES[i % len(STYLES)], label=name.replace("_", " "))
        for i, name in enumerate(schedules)
    ]
    gray: dict[str, Any] = {"color": "0.3", "linestyle": "none"}
    return [
        *handles,
        Line2D([], [], marker="o", markersize=4, label="run to the end", **gray),
        Line2D([], [], marker="o", markersize=4, markerfacecolor="white", label="first, short runs", **gray),
        Line2D([], [], marker="*", markersize=11, markeredgecolor="black", label="chosen", **gray),
        Line2D([], [], marker="x", markersize=4, label="diverged", **gray),
    ]
