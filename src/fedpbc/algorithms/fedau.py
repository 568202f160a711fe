"""FedAU: weights learnt online from how long each client was away (Wang & Ji, arXiv 2306.03401)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import weighted
from fedpbc.core.schema import Context, NonNegativeInt, component
from fedpbc.core.types import Algorithm, Array, Link, Weighting


class Intervals(NamedTuple):
    """What FedAU knows of each client, all [m]."""

    waiting: Array
    """S_i: rounds since its interval began."""
    count: Array
    """M_i: intervals that are over."""
    weight: Array
    """w_i: the mean of their lengths, an estimate of 1/p_i; 1 at the start."""


@component
def fedau(context: Context, *, cutoff: NonNegativeInt = 50, server: Server | None = None) -> Algorithm:
    """x += (1/m) sum over the active of w_i times their update, w_i the mean interval of i (arXiv 2306.03401).

    ``cutoff`` (K): an interval ends after K rounds even if the client is still away, which bounds the weight by K
    and biases it wherever absences of K rounds are common: for p_i below about 1/K, and at much larger p_i where links
    have memory. K = 50 at p = .1 and autocorrelation .9, absences of 100 rounds on average: 8.8 instead of 10. 0: no
    cutoff, no bias, and the weight may grow with the longest absence.
    """
    return weighted(weighting(cutoff), server)


def weighting(cutoff: int) -> Weighting:
    """The weights with K = ``cutoff``; 0: none."""
    return Weighting(np.int32(cutoff or np.iinfo(np.int32).max), init, weights)


def init(params: Array, num_clients: int, dtype: Any) -> Intervals:
    """Nobody was away yet."""
    zero = np.zeros(num_clients, np.int32)
    return Intervals(zero, zero, np.ones(num_clients, dtype))


def weights(cutoff: Array, state: Intervals, link: Link, t: Array) -> tuple[Intervals, Array]:
    """Use w_i / m, then S_i += 1; if i in A^t or S_i = K: w_i = (M_i w_i + S_i)/(M_i + 1), M_i += 1, S_i = 0.

    Order: use, then update, as the weight of round t must not know the outcome of round t (else it would be biased).
    Source: their program (IBM/fedau, main.py: ``agg_weight = np.mean(participate_intervals_at_node[n])``, then
    ``append(...)  # interval used in the next round``). Their Algorithm 2; its text was not compared again.

    >>> state = init(None, 2, float)
    >>> for active in ([False, True], [True, True]):
    ...     state, used = weights(50, state, Link(np.array(active), np.ones(2)), 0)
    >>> used.tolist(), state.weight.tolist()
    ([0.5, 0.5], [2.0, 1.0])
    """
    xp = link.active.__array_namespace__()
    waiting = state.waiting + 1
    over = link.active | (waiting == cutoff)
    mean = (state.count * state.weight + waiting) / (state.count + 1)
    after = Intervals(
        xp.where(over, 0, waiting),
        state.count + over,
        xp.where(over, mean, state.weight).astype(state.weight.dtype),
    )
    return after, state.weight / link.active.shape[0]
