"""FedVARP: FedAvg whose variance is reduced by everybody's latest update (Jhunjhunwala et al., arXiv 2207.14130)."""

from __future__ import annotations

from typing import NamedTuple

from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, forget, heard, models, nothing_known
from fedpbc.core.aggregation import masked_mean, masked_sum, select
from fedpbc.core.schema import Context, Positive, component
from fedpbc.core.types import Algorithm, Array, Cost, Round


class State(NamedTuple):
    """Models, the table of latest updates and its mean."""

    server: Array
    clients: Array
    table: Array
    """y_i, the latest Delta_i, [m, d]; 0 until i is heard."""
    mean: Array
    """(1/m) sum_i y_i, [d], kept up incrementally."""


@component
def fedvarp(context: Context, *, server_learning_rate: Positive = 1.0) -> Algorithm:
    """x += eta_g (mean of all latest updates y + mean over the active of (update - y_i)) (arXiv 2207.14130)."""
    rate = context.number("server_learning_rate", server_learning_rate)
    return Algorithm(rate, _init, _round, models, forget, Cost(server=2, server_per_client=1))


def _init(rate: Array, x0: Array, num_clients: int) -> State:
    return State(x0, at_start(x0, num_clients), nothing_known(x0, num_clients), x0 * 0)


def surrogate(table: Array, mean: Array, update: Array, reported: Array) -> tuple[Array, Array, Array]:
    """(ybar + (1/|A|) sum over A of (Delta_i - y_i), the new table, the new mean).

    >>> import numpy as np
    >>> update, reported = np.array([[4.0], [9.0]]), np.array([True, False])
    >>> step, table, mean = surrogate(np.zeros((2, 1)), np.zeros(1), update, reported)
    >>> step.tolist(), table.tolist(), mean.tolist()
    ([4.0], [[4.0], [0.0]], [2.0])
    """
    change = update - table
    step = mean + masked_mean(change, reported, otherwise=mean * 0)
    return step, select(reported, update, table), mean + masked_sum(change, reported) / table.shape[0]


def _round(rate: Array, state: State, round: Round) -> State:
    """x^(t+1) = x^t + eta_g surrogate; then y_i = Delta_i for i in A^t.

    The rule divides by |A^t|: an empty round is not defined by the paper, and leaves everything as it is here.
    """
    trained = broadcast_and_train(state.server, state.clients, round)
    reported = heard(round)
    step, table, mean = surrogate(state.table, state.mean, trained.update, reported)
    server = table.__array_namespace__().where(reported.any(), state.server + rate * step, state.server)
    return State(server, trained.end, table, mean)
