"""The heat map of an audit's page: clients by rounds, and the order that clients have in all pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedpbc.audit.numbers import number, tick
from fedpbc.audit.svg import LINE, Labels, Picture, drawings
from fedpbc.io.participation.log import ParticipationLog

MAX_ROWS, MAX_COLUMNS = 400, 600
"""Cells of the heat map; more clients or rounds share a cell."""
BLUE = "#1f83c4"
"""Between the blues of light and dark pages: the heat map's cells are the same in both."""
UNKNOWN = "#80808066"
"""Rounds of which nothing is known."""
PLAIN = FuncFormatter(lambda x, _: number(x, 6))
"""Numbers on a scale, never with an exponent."""
MAX_NAMED = 40
"""Up to so many clients, pictures name each of them."""
CHUNK = 1 << 20
"""Active pairs that are looked at together."""


def order_clients(rate: np.ndarray, groups: Sequence[object] | None) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """Clients by falling rate, groups together: (order [m], [(group, first place, place after its last)])."""
    if groups is None:
        return np.argsort(-rate, kind="stable"), []
    names, group = np.unique(np.array([str(group) for group in groups]), return_inverse=True)
    sizes = np.bincount(group)
    place = np.empty(len(names), int)
    place[np.argsort(-np.bincount(group, weights=rate) / sizes, kind="stable")] = np.arange(len(names))
    order = np.lexsort((-rate, place[group]))
    by_place = np.argsort(place)
    stops = np.cumsum(sizes[by_place])
    starts = stops - sizes[by_place]
    return order, [(str(names[k]), int(a), int(b)) for k, a, b in zip(by_place, starts, stops, strict=True)]


def heat_cells(
    log: ParticipationLog, order: np.ndarray, segments: list[tuple[str, int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """(share of active pairs [rows, columns], row of each place in ``order`` [m]); goes over the log in pieces.

    Pairs of unknown rounds do not count; a column of unknown rounds only is nan.
    """
    m, rounds = len(order), max(log.num_rounds, 1)
    if m <= MAX_ROWS:
        row_of_place = np.arange(m)
    elif 1 < len(segments) <= MAX_NAMED:
        rows = [max(1, (stop - start) * MAX_ROWS // m) for _, start, stop in segments]
        firsts = np.cumsum([0, *rows[:-1]])
        pieces = [
            first + np.arange(stop - start) * count // (stop - start)
            for first, count, (_, start, stop) in zip(firsts, rows, segments, strict=True)
        ]
        row_of_place = np.concatenate(pieces)
    else:
        row_of_place = np.arange(m) * MAX_ROWS // m
    row = np.empty(m, np.int64)
    row[order] = row_of_place
    columns = min(rounds, MAX_COLUMNS)
    height = int(row_of_place[-1]) + 1
    counts = np.zeros(height * columns, np.int64)
    for start in range(0, len(log.rounds), CHUNK):
        column = log.rounds[start : start + CHUNK].astype(np.int64) * columns // rounds
        counts += np.bincount(row[log.members[start : start + CHUNK]] * columns + column, minlength=len(counts))
    in_column = np.bincount(np.arange(rounds) * columns // rounds, log.known(), minlength=columns)
    pairs = np.outer(np.bincount(row_of_place, minlength=height), np.where(in_column > 0, in_column, np.nan))
    return counts.reshape(height, columns) / pairs, row_of_place


def heat_map(log: ParticipationLog, rate: np.ndarray) -> Picture:
    """Participation, clients x time."""
    order, segments = order_clients(rate, log.groups)
    cells, row_of_place = heat_cells(log, order, segments)
    each = len(order) <= MAX_ROWS and log.num_rounds <= MAX_COLUMNS
    top = 1.0 if each else min(1.0, max(float(np.nanquantile(cells, 0.995)), 1e-6) * 1.05)
    named = len(order) <= MAX_NAMED
    drawn = segments if 1 < len(segments) <= MAX_NAMED else []

    def draw(figure: Figure, labels: Labels) -> None:
        ax = figure.subplots()
        colors = ListedColormap(["#0000", BLUE]) if each else colormaps["viridis"]
        first = log.first_round
        extent = (first - 0.5, first + log.num_rounds - 0.5, len(cells), 0.0)
        image = ax.imshow(
            cells,
            cmap=colors.with_extremes(bad=UNKNOWN),
            norm=PowerNorm(0.5, 0, top),
            aspect="auto",
            extent=extent,
            interpolation="none",
            rasterized=True,
        )
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6 if figure.get_figwidth() > 5 else 4))
        ax.xaxis.set_major_formatter(PLAIN)
        ax.set_xlabel("round")
        bounds = [(label, int(row_of_place[a]), int(row_of_place[b - 1]) + 1) for label, a, b in drawn]
        for _, start, _ in bounds[1:]:
            ax.axhline(start, color=LINE if each else "white", linewidth=1.2)
        if named:
            ax.set_yticks(np.arange(len(order)) + 0.5, [labels.token(log.clients[i]) for i in order], fontsize=7.2)
        elif drawn:
            tall = [bound for bound in bounds if bound[2] - bound[1] >= 0.05 * len(cells)]
            ax.set_yticks([(a + b) / 2 for _, a, b in tall], [labels.token(label) for label, _, _ in tall])
        else:
            ax.set_yticks([])
            ax.set_ylabel("clients, most active on top")
        ax.tick_params(axis="y", length=0)
        if not each:
            place: dict[str, Any] = {"location": "bottom", "pad": 0.02, "fraction": 0.05, "aspect": 35, "shrink": 0.7}
            bar = figure.colorbar(image, ax=ax, format=FuncFormatter(lambda x, _: tick(x)), **place)
            bar.outline.set_visible(False)
            bar.set_ticks([share * top for share in (0, 0.05, 0.25, 0.6, 1)])
            bar.ax.set_xlabel("share that took part")

    height = 0.16 * len(order) + 0.7 if named else 4.2
    caption = "Every row is a client, every column a round: coloured where the client took part."
    if not each:
        clients, rounds = len(order) / len(cells), log.num_rounds / cells.shape[1]
        caption = "Every row is " + (f"about {clients:.0f} clients" if clients > 1 else "a client")
        caption += ", every column " + (f"about {number(rounds)} rounds" if rounds > 1 else "a round")
        caption += ": the brighter, the larger the share that took part."
    caption += " Clients that took part most often are on top" + (", group by group." if drawn else ".")
    caption += " Vertical stripes are rounds in which few or many took part; broken rows are clients that come and go."
    if len(log.unknown):
        caption += " Grey: rounds of which nothing is known."
    alt = f"Heat map of participation: {len(order):,} clients by {log.num_rounds:,} rounds"
    return Picture(drawings("heat", draw, max(height, 1.3)), alt + ", sorted by participation rate.", caption)
