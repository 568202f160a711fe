"""FedPBC: the broadcast is postponed to the end of the round (the paper's Algorithm 2)."""

from __future__ import annotations

from fedpbc.aggregation import masked_mean, select
from fedpbc.algorithms.fedavg import init, models
from fedpbc.schema import Context
from fedpbc.types import Algorithm, Models, Round


def fedpbc(context: Context) -> Algorithm:
    """Mean over the active clients, sent to them alone after the round (arXiv 2404.10091; Algorithm 2)."""
    return Algorithm((), init, _round, models)


def _round(params: tuple[()], state: Models, round: Round) -> Models:
    """Local steps from x_i^t; x^(t+1) = mean over A^t; x_i^(t+1) = x^(t+1) if i in A^t, else its own.

    In matrix form X^(t+1) = (X^t - eta G^t) W^t with W^t doubly stochastic, so the mean of all client models
    does not depend on the links. An empty A^t leaves x^t as it is and nobody receives anything.
    """
    trained = round.train(state.clients)
    server = masked_mean(trained, round.link.active, otherwise=state.server)
    return Models(server, select(round.link.active, server, trained))
