"""FedAvg over all clients: an absent client counts as a zero update."""

from __future__ import annotations

from fedpbc.aggregation import masked_sum, select
from fedpbc.algorithms.fedavg import init, models
from fedpbc.schema import Context
from fedpbc.types import Algorithm, Models, Round


def fedavg_all(context: Context) -> Algorithm:
    """x += (1/m) sum over the active clients of their update (McMahan et al. 2017, sum over all m)."""
    return Algorithm((), init, _round, models)


def _round(params: tuple[()], state: Models, round: Round) -> Models:
    """x^(t+1) = x^t + (1/m) sum over A^t of (x_i^(t+1) - x^t).

    Minimises sum_i p_i F_i when links are Bernoulli, and is slower by the mean p. Clients as in ``fedavg``.
    """
    clients = round.train(select(round.link.active, state.server, state.clients))
    update = masked_sum(clients - state.server, round.link.active) / clients.shape[0]
    return Models(state.server + update, clients)
