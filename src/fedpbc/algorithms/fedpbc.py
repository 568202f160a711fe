"""FedPBC: the broadcast is postponed to the end of the round (the paper's Algorithm 2)."""

from __future__ import annotations

from typing import Any

from fedpbc.aggregation import masked_mean, select
from fedpbc.algorithms.broadcast import at_start, forget, models
from fedpbc.schema import Context
from fedpbc.types import Algorithm, Array, Cost, Models, Round


def fedpbc(context: Context) -> Algorithm:
    """Mean over the active clients, sent to them alone after the round (arXiv 2404.10091; Algorithm 2)."""
    return Algorithm((), _init, _round, models, forget, Cost(client=1, broadcast=False, uses_all=True))


def _init(params: tuple[()], x0: Array, num_clients: int) -> Models:
    return Models(x0, at_start(x0, num_clients))


def mix(server: Array, clients: Array, active: Array, receives: Array) -> Models:
    """x^(t+1) = mean over A^t of x_i; x_i^(t+1) = x^(t+1) for those of A^t that receive it, else its own.

    >>> import numpy as np
    >>> mask = np.array([True, True, False])
    >>> mixed = mix(np.zeros(1), np.array([[1.0], [3.0], [9.0]]), mask, mask)
    >>> mixed.server.tolist(), mixed.clients.tolist()
    ([2.0], [[2.0], [2.0], [9.0]])
    """
    server = masked_mean(clients, active, otherwise=server)
    return Models(server, select(active & receives, server, clients))


def _round(params: Any, state: Models, round: Round) -> Models:
    """Local steps from x_i^t; x^(t+1) = mean over A^t; x_i^(t+1) = x^(t+1) if i in A^t, else its own.

    In matrix form X^(t+1) = (X^t - eta G^t) W^t with W^t doubly stochastic, so the mean of all client models
    does not depend on the links. An empty A^t leaves x^t as it is and nobody receives anything.
    """
    return mix(state.server, round.train(state.clients), round.link.active, round.link.receives)
