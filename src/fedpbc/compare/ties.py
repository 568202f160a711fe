"""The best of several methods, and those that the seeds do not tell apart from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

LEVEL = 0.05


class Ties(NamedTuple):
    """Methods by their position."""

    best: int | None
    """The one with the best mean; None where nothing is finite."""
    tied: frozenset[int]
    """Those whose difference from the best is not significant; without the best."""
    adjusted: tuple[float, ...]
    """Corrected p-value of each method against the best; NaN where there is no test."""


def paired_p(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p-value of Student's paired t-test, t = mean(d) / (sd(d) / sqrt(n)), d the differences by seed.

    Differences without spread are certain: 1 where they are 0, else 0. NaN for one seed.
    """
    from scipy.special import stdtr

    d = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    n = len(d)
    if n < 2:
        return float("nan")
    spread = d.std(ddof=1)
    if spread == 0:
        return float(d[0] == 0)
    return float(2 * stdtr(n - 1, -abs(d.mean()) / (spread / np.sqrt(n))))


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's correction of p-values for many comparisons: the k-th smallest of n times (n - k + 1), never falling.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted


def ties(values: Sequence[np.ndarray], better: Literal["lower", "higher", "neither"]) -> Ties:
    """The method with the best mean over seeds, and those tied with it; ``values``: [seeds] of each, in one order.

    Methods see the same data, links and samples under one seed, so differences are taken seed by seed. All others are
    tested against the best and corrected together (Holm), at 5 %. Wilcoxon's signed-rank test, which assumes no normal
    distribution, cannot give a p-value below 1/16 with five seeds, so that nothing would ever differ. A method with a
    value that is not finite is neither best nor tied.
    """
    none = tuple(float("nan") for _ in values)
    finite = [i for i, one in enumerate(values) if len(one) and np.all(np.isfinite(one))]
    if not finite or better == "neither":
        return Ties(None, frozenset(), none)
    sign = -1.0 if better == "higher" else 1.0
    best = min(finite, key=lambda i: (sign * float(np.mean(values[i])), i))
    others = [i for i in finite if i != best]
    if len(values[best]) < 2:
        return Ties(best, frozenset(), none)
    adjusted = dict(zip(others, holm([paired_p(values[best], values[i]) for i in others]).tolist(), strict=True))
    tied = frozenset(i for i, p in adjusted.items() if p >= LEVEL)
    return Ties(best, tied, tuple(adjusted.get(i, float("nan")) for i in range(len(values))))
