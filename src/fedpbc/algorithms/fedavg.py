"""FedAvg over the active clients (McMahan et al. 2017), in the form of the paper's Algorithm 1."""

from __future__ import annotations

from typing import Any

from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import no_memory, weighted
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Algorithm, Array, Link, Weighting


@component
def fedavg(context: Context, *, server: Server | None = None) -> Algorithm:
    """Mean over the active clients; the broadcast comes first (McMahan et al. 2017; Algorithm 1)."""
    return weighted(WEIGHTING, server)


def weights(params: Any, state: Any, link: Link, t: Array) -> tuple[Any, Array]:
    """w_i = 1/|A^t|: x^(t+1) is the mean over A^t of x_i^(t+1); an empty A^t leaves x^t as it is.

    As printed, clients that were not reached compute too, from their own model; the server never sees it.

    >>> import numpy as np
    >>> weights((), (), Link(np.array([True, False, True, True]), np.ones(4)), 0)[1].round(3).tolist()
    [0.333, 0.333, 0.333, 0.333]
    """
    xp = link.active.__array_namespace__()
    return state, xp.ones(link.active.shape) / xp.maximum(xp.sum(link.active), 1)


WEIGHTING = Weighting((), no_memory, weights)
