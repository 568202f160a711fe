"""FedAvg over all clients: an absent client counts as a zero update."""

from __future__ import annotations

from typing import Any

from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import no_memory, weighted
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Algorithm, Array, Link, Weighting


@component
def fedavg_all(context: Context, *, server: Server | None = None) -> Algorithm:
    """x += (1/m) sum over the active clients of their update (McMahan et al. 2017, sum over all m)."""
    return weighted(Weighting((), no_memory, weights), server)


def weights(params: Any, state: Any, link: Link, t: Array) -> tuple[Any, Array]:
    """w_i = 1/m: x^(t+1) = x^t + (1/m) sum over A^t of (x_i^(t+1) - x^t).

    Minimises sum_i p_i F_i when links are Bernoulli, and is slower by the mean p.

    >>> import numpy as np
    >>> weights((), (), Link(np.array([True, False, True, True]), np.ones(4)), 0)[1].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    xp, m = link.active.__array_namespace__(), link.active.shape[0]
    return state, xp.ones(m) / m
