"""Mean and spread over the seeds, the same for tables and for bands in figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpbc.runs.run import Group, Run

WORDS = {
    "sd": "mean ± standard deviation over seeds",
    "ci": "mean ± 95 % confidence interval over seeds",
    "range": "mean and range over seeds",
}


class Spread(NamedTuple):
    """Mean and bounds over the seeds of values [seeds, ...]; each of shape [...]."""

    mean: Any
    low: Any
    high: Any


def spread_of(runs: Sequence[Run]) -> str:
    """The kind of spread the first experiment asks for: sd, ci or range."""
    look: Mapping[str, Any] = runs[0].table.get("figure", {})
    return str(look.get("spread", "sd"))


def spread(values: np.ndarray, how: str) -> Spread:
    """Mean and bounds; one seed has no spread, and bounds that are the mean.

    sd: the standard deviation (ddof 1); ci: 95 % interval of the mean by Student's t; range: smallest and largest.
    """
    with np.errstate(all="ignore"):
        mean = np.mean(values, axis=0, dtype=np.float64)
        if len(values) < 2:
            return Spread(mean, mean, mean)
        if how == "range":
            return Spread(mean, values.min(axis=0), values.max(axis=0))
        half = np.std(values, axis=0, ddof=1, dtype=np.float64)
        if how == "ci":
            from scipy.special import stdtrit

            half = half * stdtrit(len(values) - 1, 0.975) / np.sqrt(len(values))
        return Spread(mean, mean - half, mean + half)


def last_values(run: Run, group: Group, column: str) -> np.ndarray:
    """The last value of each seed of a group, [seeds]; of a cell that was stopped early, where it stopped."""
    cells = [run.cells[key] for key in run.select(**group._asdict())]
    return np.array([cell.rows[column][-1] for cell in cells], np.float64)


def held_curves(run: Run, group: Group, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds [n], values [seeds, n]); a cell that was stopped early keeps its last value, as its model does."""
    rounds, values = run.curves(*group, column)
    for row, key in zip(values, run.select(**group._asdict()), strict=True):
        if key in run.stopped:
            row[rounds > run.stopped[key]] = run.cells[key].rows[column][-1]
    return rounds, values


def written(over: Spread, how: str, alone: bool = False, plus_minus: str = " ± ") -> str:
    """A spread as text: the bounds to two digits, the mean to the same place. ``alone``: there is one seed.

    >>> written(Spread(0.85312, 0.84079, 0.86545), "sd")
    '0.853 ± 0.012'
    >>> written(Spread(1192.0, 792.0, 1592.0), "sd"), written(Spread(1.5e-7, 1.2e-7, 1.8e-7), "sd")
    ('1190 ± 400', '1.50e-07 ± 0.30e-07')
    >>> written(Spread(0.85312, 0.84, 0.87), "range"), written(Spread(0.85312, 0.85312, 0.85312), "sd", alone=True)
    ('0.853 (0.840 to 0.870)', '0.8531')
    """
    if alone:
        return f"{over.mean:.4g}"
    half = max(float(over.high - over.mean), float(over.mean - over.low))
    size = max(abs(float(over.mean)), half)
    if half == 0 or size == 0:
        return f"{over.mean:.4g}" + ("" if how == "range" else f"{plus_minus}0")
    place = math.floor(math.log10(half)) - 1  # of the last digit
    top = math.floor(math.log10(size))
    place = max(place, top - 5)  # no more than six digits of the mean, however small the spread
    scientific = top < -4 or top > 6
    unit = 10.0**top if scientific else 1.0
    digits = max(0, top - place) if scientific else max(0, -place)

    def number(value: float) -> str:
        rounded = round(float(value) / 10.0**place) * 10.0**place
        return f"{rounded / unit:.{digits}f}" + (f"e{top:+03d}" if scientific else "")

    if how == "range":
        return f"{number(over.mean)} ({number(over.low)} to {number(over.high)})"
    return f"{number(over.mean)}{plus_minus}{number(half)}"
