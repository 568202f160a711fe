"""FedAvg over the active clients (McMahan et al. 2017), in the form of the paper's Algorithm 1."""

from __future__ import annotations

from fedpbc.aggregation import masked_mean, select
from fedpbc.schema import Context
from fedpbc.types import Algorithm, Array, Models, Round


def fedavg(context: Context) -> Algorithm:
    """Mean over the active clients; the broadcast comes first (McMahan et al. 2017; Algorithm 1)."""
    return Algorithm((), init, _round, models)


def init(params: tuple[()], x0: Array, num_clients: int) -> Models:
    """Server and clients start from x^0."""
    return Models(x0, x0.__array_namespace__().tile(x0, (num_clients, 1)))


def _round(params: tuple[()], state: Models, round: Round) -> Models:
    """x_i^(t,0) = x^t if i in A^t else x_i^t; local steps; x^(t+1) = mean over A^t of x_i^(t+1).

    As printed, clients that were not reached compute too, from their own model; the server never sees it.
    An empty A^t leaves x^t as it is.
    """
    clients = round.train(select(round.link.active, state.server, state.clients))
    return Models(masked_mean(clients, round.link.active, otherwise=state.server), clients)


def models(state: Models) -> Models:
    """The state itself."""
    return state
