"""FedVARP: FedAvg whose variance is reduced by everybody's latest update (Jhunjhunwala et al., arXiv 2207.14130)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, forget, heard, models, nothing_known
from fedpbc.algorithms.differences import Kept, exchange, forget_own, nothing_kept
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


class Spread(NamedTuple):
    """Models; the y_i where the clients keep them."""

    server: Array
    clients: Array
    kept: Kept
    """h_i = y_i, and their mean."""


@component
def fedvarp(
    context: Context, *, server_learning_rate: Positive = 1.0, memory: Literal["client", "server"] = "server"
) -> Algorithm:
    """x += eta_g (mean of all latest updates y + mean over the active of (update - y_i)) (arXiv 2207.14130).

    ``memory``: who keeps the y_i. The server (m models), as in the paper; or each client its own, sending the
    difference to the last: the server then keeps the mean alone, and the models are the same. A client that loses its
    y_i makes everybody's start from 0 again.
    """
    rate = context.number("server_learning_rate", server_learning_rate)
    if memory == "client":
        cost = Cost(scalars=(1, 1), server=2, client=1)
        return Algorithm(rate, _init_spread, _round_spread, models, _forget_spread, cost)
    return Algorithm(rate, _init, _round, models, forget, Cost(server=2, server_per_client=1))


def _init(rate: Array, x0: Array, num_clients: int) -> State:
    return State(x0, at_start(x0, num_clients), nothing_known(x0, num_clients), x0 * 0)


def _init_spread(rate: Array, x0: Array, num_clients: int) -> Spread:
    return Spread(x0, at_start(x0, num_clients), nothing_kept(x0, num_clients))


def surrogate(table: Array, mean: Array, update: Array, reported: Array) -> tuple[Array, Array, Array]:
    """(ybar + (1/|A|) sum over A of (Delta_i - y_i), the new table, the new mean).

    Order: the step uses ybar and y_i from before the round, then both are updated. Source: the program
    of FedAU's authors, who compare with it (IBM/fedau, main.py: ``w_tmp -= update_per_node[n]``; ``w_tmp_a +=
    update_all_avg``, and only in the line after it ``update_all_avg`` is computed anew). No program of FedVARP's own
    authors was found, and the order was not compared with the text of the paper.

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


def _round_spread(rate: Array, state: Spread, round: Round) -> Spread:
    """As ``_round`` from the differences Delta_i - y_i, which are all that the rule needs: used, then added to ybar.

    In the round in which a loss is reported the step is still that of the old epoch, over the others in A^t.
    """
    trained = broadcast_and_train(state.server, state.clients, round)
    kept, change, counted = exchange(state.kept, trained.update, heard(round), round.link.receives)
    mean = state.kept.mean
    step = mean + masked_mean(change, counted, otherwise=mean * 0)
    server = mean.__array_namespace__().where(counted.any(), state.server + rate * step, state.server)
    return Spread(server, trained.end, kept)


def _forget_spread(rate: Array, state: Spread, lost: Array, x0: Array, t: Array) -> Spread:
    """Model and y_i are gone."""
    return state._replace(clients=select(lost, x0, state.clients), kept=forget_own(state.kept, lost))
