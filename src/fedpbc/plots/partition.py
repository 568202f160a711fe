"""Who has what: clients x labels as a picture, to be read at ten clients and at a thousand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from fedpbc.plots.palette import COLORS
from fedpbc.plots.style import Picture, own_style

IN_ORDER, WRITTEN, COLUMNS, ROWS = 60, (20, 15), 1200, 40
"""More clients than IN_ORDER are put in the order of their mean label; numbers are written into at most WRITTEN cells,
clients x labels; more than COLUMNS clients share columns; more than ROWS labels are not all named."""


def draw(
    sizes: np.ndarray, counts: np.ndarray | None, classes: Sequence[str] | None = None, title: str = ""
) -> Picture:
    """Bars of the samples of each client, sizes [m], and below, counts [m, labels], the share of each label in them."""
    m = len(sizes)
    order, many = np.arange(m), m > IN_ORDER
    if many:
        by = sizes if counts is None else counts @ np.arange(counts.shape[1]) / np.maximum(sizes, 1)
        order = np.lexsort((sizes, by))
    groups = np.array_split(order, min(m, COLUMNS))
    shown = np.array([sizes[group].mean() for group in groups])
    with own_style({"font.size": 9}):
        labels = 0 if counts is None else counts.shape[1]
        height = 2.6 if counts is None else 2.0 + min(6.0, max(1.2, 0.24 * labels))
        figure = Picture(figsize=(7.5, height), layout="constrained")
        if counts is None:
            above, below = figure.subplots(), None
        else:
            ratio = max(1.0, (height - 1.8) / 1.1)
            above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, ratio))
        above.bar(np.arange(len(groups)), shown, width=1.0 if many else 0.8, color=COLORS[1], linewidth=0)
        if shown.max() > 50 * max(shown.min(), 1):
            above.set_yscale("log")
            above.set_ylim(bottom=shown.min() / 2)
        else:
            above.set_ylim(bottom=0)
        above.set_ylabel("samples")
        above.set_title(title, loc="left", fontsize=10)
        for side in ("top", "right"):
            above.spines[side].set_visible(False)
        if below is not None and counts is not None:
            share = np.array([counts[group].sum(axis=0) / max(counts[group].sum(), 1) for group in groups]).T
            top = float(np.quantile(share.max(axis=0), 0.9)) if many else 1.0
            colors = LinearSegmentedColormap.from_list("share", ["#FFFFFF", "#9CC9E3", COLORS[1], "#00263D"])
            image = below.imshow(share, aspect="auto", cmap=colors, vmin=0, vmax=top, interpolation="nearest")
            figure.colorbar(
                image,
                ax=[above, below],
                label="share of the client's samples",
                extend="max" if top < share.max() else "neither",
                pad=0.01,
                aspect=30,
            )
            names = [str(k) for k in range(labels)] if classes is None else [_short(name) for name in classes]
            step = -(-labels // ROWS)
            below.set_yticks(range(0, labels, step), names[::step], fontsize=8 if labels <= 25 else 6)
            below.set_ylabel("label")
            if m <= WRITTEN[0] and labels <= WRITTEN[1]:
                for (client, label), count in np.ndenumerate(counts):
                    if count:
                        ink = "white" if share[label, client] > 0.5 else "black"
                        below.text(client, label, f"{count:,}", ha="center", va="center", fontsize=6.5, color=ink)
        last = above if below is None else below
        _name_clients(last, m, many, counts is not None)
    return figure


def _name_clients(axis: Any, m: int, many: bool, labelled: bool) -> None:
    if many:
        by = "mean label" if labelled else "size"
        shared = f"; each column is about {m / COLUMNS:.1f} clients" if m > COLUMNS else ""
        axis.set_xlabel(f"{m:,} clients, in the order of their {by}{shared}")
        axis.set_xticks([])
    else:
        step = 1 if m <= 25 else 5
        axis.set_xticks(range(0, m, step))
        axis.set_xlabel("client")
    axis.set_xlim(-0.5, min(m, COLUMNS) - 0.5)


def _short(name: Any) -> str:
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(name))
    return text if len(text) <= 16 else text[:15] + "…"
