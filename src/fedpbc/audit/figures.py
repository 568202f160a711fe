"""The other pictures of an audit's page: rates, weights, absences, activity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedpbc.audit.heat import MAX_COLUMNS, MAX_NAMED, PLAIN, order_clients
from fedpbc.audit.numbers import number, tick, times
from fedpbc.audit.statistics import expected_absences
from fedpbc.audit.svg import INK, LINE, Labels, Picture, drawings
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.plots.palette import COLORS, RESERVED

MAX_GROUPS = len(COLORS) - 1


def rates(
    log: ParticipationLog, rate: np.ndarray, low: np.ndarray, high: np.ndarray, confidence: float, mean: float
) -> Picture:
    """Participation rates with confidence intervals."""
    order, segments = order_clients(rate, log.groups)
    named = len(order) <= MAX_NAMED
    positive = rate[rate > 0]
    logarithmic = not named and len(positive) > 0 and rate.max() > 20 * np.median(positive)
    floor = float(positive.min()) / 2 if logarithmic else 0.0

    def draw(figure: Figure, labels: Labels) -> None:
        ax = figure.subplots()
        if named:
            y = np.arange(len(order))
            ax.hlines(y, low[order], high[order], color=RESERVED["fedpbc"], linewidth=2, alpha=0.45)
            ax.plot(rate[order], y, "o", color=RESERVED["fedpbc"], markersize=3.5)
            ax.axvline(mean, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
            _named_axis(ax, [labels.token(log.clients[i]) for i in order])
            ax.set_xlim(0, min(1.0, float(high.max()) * 1.05) + 0.005)
            ax.xaxis.set_major_formatter(FuncFormatter(_percent))
            ax.set_xlabel("rounds with the client")
        else:
            for curve, color, label in _curves(rate, order, segments):
                x = np.linspace(0, 100, len(curve))
                kwargs: dict[str, Any] = {"label": labels.token(label, 24)} if label else {}
                ax.fill_between(
                    x,
                    np.maximum(low[curve], floor),
                    np.maximum(high[curve], floor),
                    color=color,
                    alpha=0.25,
                    linewidth=0,
                )
                ax.plot(x, np.where(rate[curve] >= floor, rate[curve], np.nan), color=color, linewidth=1.3, **kwargs)
            ax.axhline(mean, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
            if logarithmic:
                ax.set_yscale("log")
            ax.set_ylim(bottom=floor)
            ax.set_xlim(0, 100)
            ax.yaxis.set_major_formatter(FuncFormatter(_percent))
            ax.set_ylabel("rounds with the client")
            ax.set_xlabel(
                "% of the clients" + (" of each group" if _by_group(segments) else "") + ", most active first"
            )
            _legend(figure, ax)
        _dress(ax)

    caption = f"{'Dot' if named else 'Line'}: share of the rounds in which a client took part. "
    caption += f"{'Bar' if named else 'Band'}: its {confidence:.0%} confidence interval. Dashed: the mean."
    caption += " The further the intervals stay from the dashed line, the less is it chance."
    if logarithmic:
        caption += " The scale is logarithmic" + (", without clients never seen." if rate.min() == 0 else ".")
    span = f"from {_percent(rate.min())} to {_percent(rate.max())}, mean {_percent(mean)}"
    height = 0.16 * len(order) + 0.7 if named else 2.9
    return Picture(drawings("rates", draw, max(height, 1.3)), f"Participation rates of the clients: {span}.", caption)


def weights(log: ParticipationLog, rate: np.ndarray, realised: np.ndarray, theory: np.ndarray | None) -> Picture:
    """Effective weights in FedAvg, in units of the fair share 1/m."""
    order, _ = order_clients(rate, log.groups)
    named = len(order) <= MAX_NAMED
    ratio = realised * len(order)
    expected = None if theory is None else theory * len(order)
    positive = ratio[ratio > 0]
    logarithmic = len(positive) > 0 and ratio.max() > 30 * np.median(positive)
    orange = RESERVED["fedavg"]

    def draw(figure: Figure, labels: Labels) -> None:
        ax = figure.subplots()
        line: dict[str, Any] = {"color": RESERVED["fedpbc"], "linewidth": 1.2, "label": "fair share 1/m"}
        theoretical = "independent rounds"
        if named:
            y = np.arange(len(order))
            ax.hlines(y, 1, ratio[order], color=orange, linewidth=2, alpha=0.45)
            ax.plot(ratio[order], y, "o", color=orange, markersize=3.5, label="this log")
            if expected is not None:
                hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 0.8, "markersize": 5.5}
                ax.plot(expected[order], y, "o", color=INK, label=theoretical, **hollow)
            ax.axvline(1, **line)
            _named_axis(ax, [labels.token(log.clients[i]) for i in order])
            ax.set_xlabel("weight / fair share")
        else:
            for values, color, dashes, label in ((ratio, orange, "-", "this log"), (expected, INK, ":", theoretical)):
                if values is not None:
                    curve = np.sort(values)[::-1][_spread(len(values))]
                    x = np.linspace(0, 100, len(curve))
                    kept = curve > 0 if logarithmic else slice(None)
                    ax.plot(x[kept], curve[kept], color=color, linestyle=dashes, linewidth=1.5, label=label)
            ax.axhline(1, **line)
            ax.set_xlim(0, 100)
            ax.set_xlabel("% of the clients, largest weight first")
            ax.set_ylabel("weight / fair share")
        axis = "x" if named else "y"
        if logarithmic:
            ax.set(**{f"{axis}scale": "log"})
            (ax.xaxis if named else ax.yaxis).set_major_formatter(PLAIN)
        else:
            ax.set(**{f"{axis}lim": (0, None)})
            (ax.xaxis if named else ax.yaxis).set_major_formatter(PLAIN)
        _legend(figure, ax)
        _dress(ax)

    caption = "Orange: how much each client counts in FedAvg on this log, as a multiple of the fair share 1/m (blue)."
    if expected is not None:
        caption += f" {'Rings' if named else 'Dotted'}: what independent rounds with the same rates would give."
    if logarithmic and (missing := int(np.sum(ratio <= 0))):
        caption += f" The scale is logarithmic; {missing:,} clients of weight 0 are not drawn."
    alt = f"Effective weights in FedAvg: between {times(ratio.min())} and {times(ratio.max())} the fair share 1/m."
    height = 0.16 * len(order) + 0.9 if named else 2.9
    return Picture(drawings("weights", draw, max(height, 1.5)), alt, caption)


def absences(edges: np.ndarray, counts: np.ndarray, rate: np.ndarray | None, log: ParticipationLog) -> Picture:
    """Lengths of absences, and what clients without memory would give."""
    expected = None if rate is None else expected_absences(edges, rate, log.num_rounds, log.stretches())
    used = max(np.flatnonzero(counts), default=0) + 1
    edges, counts = edges[: used + 1], counts[:used]

    def draw(figure: Figure, labels: Labels) -> None:
        ax = figure.subplots()
        gray = COLORS[6]
        ax.stairs(counts, edges, fill=True, color=COLORS[5], alpha=0.75, baseline=0.5, label="this log")
        highest = float(counts.max())
        if expected is not None:
            seen = np.where(expected[:used] >= 0.5, expected[:used], np.nan)
            highest = max(highest, float(expected[:used].max()))
            ax.plot(
                np.sqrt(edges[:-1] * edges[1:]),
                seen,
                "o-",
                color=gray,
                markersize=3,
                linewidth=1,
                label="without memory",
            )
        ax.set_yscale("log")
        ax.set_ylim(0.5, max(10.0, 1.5 * highest))
        ax.minorticks_off()
        if edges[-1] > 30 * max(edges[0], 1):
            ax.set_xscale("log")
            ax.minorticks_off()
            step = 1 + (len(edges) - 1) // (13 if figure.get_figwidth() > 5 else 7)
            ax.set_xticks(edges[::step], [number(edge, 6) for edge in edges[::step]])
        else:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.xaxis.set_major_formatter(PLAIN)
        ax.yaxis.set_major_formatter(PLAIN)
        ax.set_xlabel("length of an absence, rounds")
        ax.set_ylabel("how many")
        _legend(figure, ax)
        _dress(ax)

    caption = "How many absences (rounds in a row without a client) were how long, over all clients."
    if expected is not None:
        caption += " Grey: what clients with the same rates would give, were every round an independent coin flip."
        caption += " Bars above it at the right: clients stay away longer than chance explains."
    longest = min(edges[-1] - 1, log.num_rounds)
    return Picture(
        drawings("absences", draw, 2.6), f"Histogram of absence lengths, up to about {longest:,.0f} rounds.", caption
    )


def activity(log: ParticipationLog, period: float | None) -> Picture:
    """Active clients over time and, when there is a period, over one cycle; unknown rounds are gaps."""
    rounds, first_round, known = log.num_rounds, log.first_round, log.known()
    counts = np.where(known, log.active_counts(), np.nan)
    bins = min(rounds, MAX_COLUMNS)
    starts = np.arange(bins) * rounds // bins
    low, high = np.fmin.reduceat(counts, starts), np.fmax.reduceat(counts, starts)
    in_bin = np.add.reduceat(known.astype(int), starts)
    sums = np.add.reduceat(np.nan_to_num(counts), starts)
    mean = np.where(in_bin > 0, sums / np.maximum(in_bin, 1), np.nan)
    binned = bins < rounds
    longest = max(1, bins // 20) if period is None else max(1, int(period * bins / rounds / 5))
    window = min(bins, longest, 15)
    weight = np.convolve((in_bin > 0).astype(float), np.ones(window), "same")
    smooth = np.where(
        in_bin > 0, np.convolve(np.nan_to_num(mean), np.ones(window), "same") / np.maximum(weight, 1), np.nan
    )
    folded = period is not None and 3 <= period <= rounds / 2

    def draw(figure: Figure, labels: Labels) -> None:
        blue = RESERVED["fedpbc"]
        wide = figure.get_figwidth() > 5
        if folded:
            grid = {"ncols": 2, "width_ratios": [3, 1]} if wide else {"nrows": 2}
            pair: Any = figure.subplots(**grid, sharey=True)
            ax, cycle = pair
            _cycle(cycle, counts, float(period or 0), blue)
            if not wide:
                cycle.set_ylabel("active clients")
        else:
            ax = figure.subplots()
        x = first_round + (starts + np.array([*starts[1:], rounds]) - 1) / 2
        if binned:
            ax.fill_between(x, low, high, color=blue, alpha=0.22, linewidth=0)
        else:
            ax.plot(x, mean, color=blue, linewidth=0.7, alpha=0.45, marker="." if rounds < 3 else "")
        ax.plot(x, smooth, color=blue, linewidth=1.4)
        ax.set_xlim(first_round - 0.5, first_round + rounds - 0.5)
        ax.set_ylim(0, max(float(np.nanmax(counts)) * 1.05, 1))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7 if wide else 4))
        ax.xaxis.set_major_formatter(PLAIN)
        ax.yaxis.set_major_formatter(PLAIN)
        ax.set_xlabel("round")
        ax.set_ylabel("active clients")
        _dress(ax)

    if binned:
        caption = f"Active clients per round. Every point is about {number(rounds / bins)} rounds: band from the"
        caption += " fewest to the most, line their mean."
    else:
        caption = "Active clients per round (thin)" + (f" and the mean over {window} rounds." if window > 1 else ".")
    if folded:
        caption += " Second panel: the average cycle."
    if len(log.unknown):
        caption += " Gaps: rounds of which nothing is known."
    least, most = int(np.nanmin(counts)), int(np.nanmax(counts))
    alt = f"Active clients over {rounds:,} rounds: between {least:,} and {most:,}."
    heights = {"wide": 2.3, "narrow": 4.0 if folded else 2.3}
    return Picture(drawings("activity", draw, heights), alt, caption)


def _cycle(ax: Axes, counts: np.ndarray, period: float, color: str) -> None:
    bins = int(min(np.round(period), 48))
    phase = np.minimum((np.arange(len(counts)) % period * bins / period).astype(int), bins - 1)
    known = np.isfinite(counts)
    how_many = np.bincount(phase[known], minlength=bins)
    mean = np.bincount(phase[known], counts[known], minlength=bins) / np.where(how_many > 0, how_many, np.nan)
    ax.stairs(mean, np.linspace(0, period, bins + 1), color=color, linewidth=1.4, baseline=None)
    ax.set_xlim(0, period)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("round of the cycle")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    ax.xaxis.set_major_formatter(PLAIN)
    _dress(ax)


def _by_group(segments: list[tuple[str, int, int]]) -> bool:
    return 1 < len(segments) <= MAX_GROUPS


def _curves(
    rate: np.ndarray, order: np.ndarray, segments: list[tuple[str, int, int]]
) -> Iterator[tuple[np.ndarray, str, str]]:
    """(clients on the curve, its colour, its label), a curve per group when there are few."""
    if not _by_group(segments):
        yield order_clients(rate, None)[0][_spread(len(order))], RESERVED["fedpbc"], ""
        return
    free = [RESERVED["fedpbc"], *(color for color in COLORS[:MAX_GROUPS] if color != RESERVED["fedpbc"])]
    for color, (label, start, stop) in zip(free, segments, strict=False):
        yield order[start:stop][_spread(stop - start)], color, label


def _spread(n: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, MAX_COLUMNS)).astype(int))


def _percent(value: Any, position: Any = None) -> str:
    return tick(value)


def _named_axis(ax: Axes, labels: list[str]) -> None:
    ax.set_yticks(np.arange(len(labels)), labels, fontsize=7.2)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)


def _dress(ax: Axes) -> None:
    ax.grid(True, color=LINE, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, ax: Axes) -> None:
    handles, names = ax.get_legend_handles_labels()
    if handles:
        columns = 3 if figure.get_figwidth() > 5 else 2
        figure.legend(handles, names, loc="outside upper left", ncols=columns, frameon=False, fontsize=8)
