"""FedAvg with known probabilities: updates are divided by the chance of hearing them."""

from __future__ import annotations

from typing import Any

from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import no_memory, weighted
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Algorithm, Array, Link, Weighting


@component
def fedavg_known(context: Context, *, server: Server | None = None) -> Algorithm:
    """x += (1/m) sum over the active clients of their update / p_i^t, an oracle (Perazzone et al. 2022)."""
    return weighted(Weighting((), no_memory, weights), server, needs="p_i^t of every client and round")


def weights(params: Any, state: Any, link: Link, t: Array) -> tuple[Any, Array]:
    """w_i = 1 / (m p_i^t), each client with its own p; 0 where p_i^t = 0.

    Unbiased in expectation whatever the p > 0; the variance grows with sum_i (1 - p_i)/p_i. A client with p = 0 is
    never heard, so its F_i is left out. Probabilities are those of the setting: under links with memory the updates
    of successive rounds are correlated, which no weight mends.

    >>> import numpy as np
    >>> weights((), (), Link(np.array([True, True, False, False]), np.array([1.0, 0.5, 0.25, 0.0])), 0)[1].tolist()
    [0.25, 0.5, 1.0, 0.0]
    """
    xp, prob = link.prob.__array_namespace__(), link.prob
    return state, xp.where(prob > 0, 1 / (prob.shape[0] * xp.where(prob > 0, prob, 1)), 0)
