"""AREA: the server's model is the mean of everybody's last result (Iakovidou and Kim, arXiv 2405.10123)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, heard, models
from fedpbc.algorithms.differences import mean_with
from fedpbc.core.aggregation import select
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Algorithm, Array, Cost, Round


class State(NamedTuple):
    """Models and last results."""

    server: Array
    clients: Array
    results: Array
    """y_i, [m, d]: where i's local steps led when it was last heard; x^0 before."""


@component
def area(context: Context, *, memory: Literal["client", "server"] = "client") -> Algorithm:
    """x += (1/m) sum over the active of (z_i - y_i), y_i = z_i: x is the mean of all last results (arXiv 2405.10123).

    z_i: s plain local steps from x. ``memory``: who keeps y_i. The client, as in the paper, which sends the difference;
    or the server (m models), where nothing can be lost. A client that lost its y_i takes x^0 for it, and x is
    wrong for good: by (y_i - x^0) / m, of which a small learning rate makes much.
    """
    by_client = memory == "client"
    cost = Cost(server_per_client=int(not by_client), client=int(by_client))
    return Algorithm(np.asarray(by_client), _init, _round, models, _forget, cost)


def _init(by_client: Array, x0: Array, num_clients: int) -> State:
    clients = at_start(x0, num_clients)
    return State(x0, clients, clients)


def follow(server: Array, results: Array, trained: Array, reported: Array) -> tuple[Array, Array]:
    """(x + (1/m) sum over those who reported of (z_i - y_i), y_i = z_i for them).

    >>> y, z, first = np.array([[1.0], [3.0]]), np.array([[5.0], [9.0]]), np.array([True, False])
    >>> mean, last = follow(np.array([2.0]), y, z, first)
    >>> mean.tolist(), last.tolist()
    ([4.0], [[5.0], [3.0]])
    """
    return mean_with(server, trained - results, reported), select(reported, trained, results)


def _round(by_client: Array, state: State, round: Round) -> State:
    """The paper has no rounds: clients send when they are done. Here all of A^t are, with the x^t of this round.

    Empty A^t and cool-down: nothing changes. Source: the project's definition of it; of the paper only the abstract
    (residuals, not gradients; memory on clients; no knowledge of delays) was to be had.
    """
    trained = broadcast_and_train(state.server, state.clients, round)
    server, results = follow(state.server, state.results, trained.end, heard(round))
    return State(server, trained.end, results)


def _forget(by_client: Array, state: State, lost: Array, x0: Array, t: Array) -> State:
    """The model is gone, and y_i where the client kept it; the server does not know."""
    results = select(lost & by_client, x0, state.results)
    return state._replace(clients=select(lost, x0, state.clients), results=results)
