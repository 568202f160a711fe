"""Mean and spread over the seeds: chosen once, for tables and bands alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpbc.runs.run import Run

WORDS = {
    "sd": "mean ± standard deviation over seeds",
    "ci": "mean ± 95 % confidence interval over seeds",
    "range": "mean and range over seeds",
}


class Spread(NamedTuple):
    """Of values [seeds, ...] over the seeds, each [...]."""

    mean: Any
    low: Any
    high: Any


def spread_of(runs: Sequence[Run]) -> str:
    """What the first experiment asks for: sd, ci or range."""
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
