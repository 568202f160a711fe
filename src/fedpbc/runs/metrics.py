"""metrics.csv: a row per cell and evaluated round."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpbc.runs.run import COUNTS, GROUP, KEYS, CellResult, metric_names

if TYPE_CHECKING:
    from fedpbc.experiment.grid import CellKey

KEY_COLUMNS = (*KEYS, "round")


def write_metrics(path: Path, results: Iterable[tuple[CellKey, CellResult]]) -> None:
    """Write metrics.csv: five key columns, then the metrics. Floats are the shortest text that reads back the same."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        header: list[str] = []
        for key, result in results:
            if not header:
                header = metric_names(result.rows)
                writer.writerow([*KEY_COLUMNS, *header])
            columns = [result.rows[name] for name in ("round", *header)]
            texts = [map(_text_of(column), column.tolist()) for column in columns]
            writer.writerows((*key, *row) for row in zip(*texts, strict=True))


def _text_of(column: np.ndarray) -> Any:
    """float32 values are written as float32, so that 0.1 stays 0.1."""
    return (lambda value: str(np.float32(value))) if column.dtype == np.float32 else str


_TYPES: dict[str, Any] = {
    **dict.fromkeys(GROUP, str),
    **dict.fromkeys(("seed", *COUNTS), np.int64),
}


def read_metrics(path: Path, dtype: np.dtype) -> dict[str, np.ndarray]:
    """Read metrics.csv as columns, with floats of ``dtype``. Raises ValueError if it is not such a file."""
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if tuple(header[: len(KEY_COLUMNS)]) != KEY_COLUMNS:
            raise ValueError(f"metrics.csv must begin with the columns {','.join(KEY_COLUMNS)}")
        pieces = []
        while piece := list(itertools.islice(reader, 50_000)):
            columns = zip(header, zip(*piece, strict=True), strict=True)
            pieces.append({name: np.array(values, _TYPES.get(name, dtype)) for name, values in columns})
    if not pieces:
        raise ValueError("metrics.csv has no rows")
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in header}
