"""Who has what: partition.csv and its picture in a run directory."""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpbc.core.types import Problem
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.errors import first_line
from fedpbc.io.whole import replacing
from fedpbc.problems.classification import label_counts
from fedpbc.problems.traits import counts_of

FILE, PICTURE = "partition.csv", "partition.png"


@dataclass(frozen=True)
class Held:
    """The training samples of each client."""

    sizes: np.ndarray
    """int[m]."""
    counts: np.ndarray | None
    """Of each label, int[m, labels]; None: samples have no labels."""
    classes: tuple[str, ...] | None
    """What labels are called."""
    seed: int
    """Of which seed: each may draw another partition."""


def held_by(problem: Problem, seed: int) -> Held | None:
    """Of a problem of data; None for others."""
    found = counts_of(problem.client_traits)
    if found is None:
        return None
    return Held(*found, seed)


def held_in(dataset: Dataset, seed: int) -> Held:
    """Of samples that were dealt out, by the labels that occur."""
    sizes = np.bincount(dataset.client, minlength=dataset.num_clients)
    labels = Pool(dataset.train).labels
    if labels is None:
        return Held(sizes, None, None, seed)
    values, places = np.unique(labels, return_inverse=True)
    counts = label_counts(dataset.client, places, dataset.num_clients, len(values))
    names: np.ndarray = values
    if dataset.classes is not None and values[0] >= 0 and values[-1] < len(dataset.classes):
        names = dataset.classes[values]
    return Held(sizes, counts, tuple(map(str, names)), seed)


def write_partition(path: Path, held: Held | None) -> None:
    """partition.csv: a row for each client, the samples it has and how many of each label."""
    if held is None:
        return
    labels = () if held.counts is None else held.classes or tuple(map(str, range(held.counts.shape[1])))
    with replacing(path / FILE) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["seed", "client", "samples", *(f"label {name}" for name in labels)])
        for i, size in enumerate(held.sizes.tolist()):
            rows.writerow([held.seed, i, size, *(() if held.counts is None else held.counts[i].tolist())])


def read_partition(path: Path) -> Held | None:
    """What ``write_partition`` wrote; None where there is nothing. Raises ValueError when it is damaged."""
    if not (path / FILE).is_file():
        return None
    with (path / FILE).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    values = np.array(rows, np.int64)
    labels = tuple(name.removeprefix("label ") for name in header[3:])
    return Held(values[:, 2], values[:, 3:] if labels else None, labels or None, int(values[0, 0]))


def draw_partition(path: Path, named: Path | None = None) -> None:
    """Write partition.png. If drawing fails, warn: the numbers are there. ``named``: the directory of the warning."""
    try:
        held = read_partition(path)
        if held is None:
            return
        save_picture(held, path / PICTURE, f"Training samples of seed {held.seed}")
    except Exception as error:
        here = named or path
        warnings.warn(f"{here}: no picture of the partition could be drawn ({first_line(error)})", stacklevel=2)


def save_picture(held: Held, file: Path, title: str) -> None:
    """Draw it to a .png, .svg or .pdf."""
    from fedpbc.plots.partition import draw
    from fedpbc.plots.style import own_style

    figure = draw(held.sizes, held.counts, held.classes, title)
    kind = file.suffix[1:].lower()
    metadata = {"Software": None} if kind == "png" else {"Date": None} if kind == "svg" else {"CreationDate": None}
    with own_style({"svg.hashsalt": "fedpbc"}), replacing(file) as temporary:
        figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)
