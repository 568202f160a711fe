"""Successive halving within a budget: how many settings run how long, and which go on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpbc.core.types import Measure


class Schedule(NamedTuple):
    """What a method may run."""

    drawn: int
    """Settings that begin."""
    lengths: list[int]
    """Rounds of each run of theirs; every run starts anew."""
    counts: list[int]
    """Settings that run so long."""

    @property
    def rounds(self) -> int:
        """Of one seed under one link setting."""
        return sum(length * count for length, count in zip(self.lengths, self.counts, strict=True))


def lengths_of(rounds: int, most: int, halving: int) -> list[int]:
    """T / halving^k rounds, rounded down, at least 1, for k = most - 1 .. 0, each once.

    >>> lengths_of(1000, 4, 3), lengths_of(2, 4, 3)
    ([37, 111, 333, 1000], [1, 2])
    """
    return sorted({max(1, rounds // halving**k) for k in range(most)})


def schedule(size: int, budget: int, lengths: Sequence[int], halving: int) -> Schedule:
    """For a grid of ``size`` settings within budget x T rounds, T = lengths[-1].

    As few lengths as possible, so that a small grid is run to the end. Where all lengths are not enough for the whole
    grid, as much of it as fits is drawn.

    >>> schedule(10, 20, [37, 111, 333, 1000], 3)
    Schedule(drawn=10, lengths=[1000], counts=[10])
    >>> schedule(90, 20, [37, 111, 333, 1000], 3)
    Schedule(drawn=90, lengths=[37, 111, 333, 1000], counts=[90, 30, 10, 4])
    """
    room = budget * lengths[-1]
    whole = [_of(size, lengths[-k:], halving) for k in range(1, len(lengths) + 1)]
    for one in whole:
        if one.rounds <= room:
            return one
    found = [_largest(size, lengths[-k:], halving, room) for k in range(1, len(lengths) + 1)]
    return max((one for one in found if one is not None), key=lambda one: one.drawn)


def _of(drawn: int, lengths: Sequence[int], halving: int) -> Schedule:
    counts = [drawn]
    for _ in lengths[1:]:
        counts.append(-(-counts[-1] // halving))
    return Schedule(drawn, list(lengths), counts)


def _largest(size: int, lengths: Sequence[int], halving: int, room: int) -> Schedule | None:
    """With as many settings as the room allows; None: not one."""
    low, high = 0, size
    while low < high:
        middle = -(-(low + high) // 2)
        low, high = (middle, high) if _of(middle, lengths, halving).rounds <= room else (low, middle - 1)
    return _of(low, lengths, halving) if low else None


def ranked(scores: Sequence[float]) -> list[int]:
    """Positions from the best, the lowest; what is not finite is worst, and of equal ones the first is better.

    >>> ranked([2.0, float("nan"), 1.0, 1.0, float("inf")])
    [2, 3, 0, 1, 4]
    """
    return sorted(range(len(scores)), key=lambda i: (scores[i] if math.isfinite(scores[i]) else math.inf, i))


def score_of(measured: Mapping[str, Any], measure: Measure) -> float:
    """The mean of ``values`` over links, compute and seeds, lower being better; infinite where a run diverged."""
    values = measured["values"]
    if any(value is None for value in values):
        return math.inf
    return float(np.mean(values)) * (-1 if measure.better == "higher" else 1)
