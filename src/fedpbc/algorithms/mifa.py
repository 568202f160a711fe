"""MIFA: the server uses everybody's latest update in every round (Gu et al., arXiv 2106.04159)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, forget, heard, models, nothing_known
from fedpbc.algorithms.differences import Kept, exchange, forget_own, mean_with, nothing_kept
from fedpbc.core.aggregation import mean_of_rows, select
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Algorithm, Array, Cost, Round


class State(NamedTuple):
    """Models and the table of latest updates."""

    server: Array
    clients: Array
    table: Array
    """G_i = -Delta_i / eta of the round it was made in, [m, d]; 0 until i is heard."""
    heard: Array
    """bool[m]: clients that were heard at least once."""


class Spread(NamedTuple):
    """Models; the G_i where the clients keep them."""

    server: Array
    clients: Array
    kept: Kept
    """h_i = G_i, and their mean."""
    heard: Array
    """bool[m]: clients that were heard at least once in this epoch."""


@component
def mifa(context: Context, *, wait: bool = False, memory: Literal["client", "server"] = "server") -> Algorithm:
    """x -= (eta/m) sum over ALL clients of their latest update / its eta (arXiv 2106.04159).

    ``wait``: the server does not move before everybody was heard once, as in the paper; else absent clients
    count as zero until then. ``memory``: who keeps the G_i. The server (m models), as in the paper; or each client
    its own, sending the difference to the last: the server then keeps the mean alone, and the models are the same.
    A client that loses its G_i makes everybody's start from 0 again.
    """
    if memory == "client":
        cost = Cost(scalars=(1, 1), server=2, client=1, needs="eta_t on the server")
        return Algorithm(np.asarray(wait), _init_spread, _round_spread, models, _forget_spread, cost)
    cost = Cost(server_per_client=1, needs="eta_t on the server")
    return Algorithm(np.asarray(wait), _init, _round, models, forget, cost)


def _init(params: Array, x0: Array, num_clients: int) -> State:
    return State(x0, at_start(x0, num_clients), nothing_known(x0, num_clients), np.zeros(num_clients, bool))


def _init_spread(params: Array, x0: Array, num_clients: int) -> Spread:
    return Spread(x0, at_start(x0, num_clients), nothing_kept(x0, num_clients), np.zeros(num_clients, bool))


def remember(table: Array, update: Array, learning_rate: Array, reported: Array) -> Array:
    """G_i = -Delta_i / eta_t for those who reported, the others as they were; [m, d].

    >>> remember(np.zeros((2, 1)), np.array([[0.5], [7.0]]), 0.25, np.array([True, False])).tolist()
    [[-2.0], [0.0]]
    """
    return select(reported, -update / learning_rate, table)


def _round(wait: Array, state: State, round: Round) -> State:
    """G_i anew for i in A^t; x^(t+1) = x^t - (eta_t/m) sum_i G_i, in an empty round too.

    Order: update the table, then use it, this round's updates included. Source: their program (hmgxr128/MIFA_code,
    src/trainers/fdu_no_wait.py: ``update_table[c.cid] = 1/lr * (soln - latest_model)``, then ``aggregate``, which adds
    lr times the mean of the table). Waiting, theirs (fdu.py) fills the table in the round in which the last client is
    heard and moves from the next round on; here it moves in that round. (Not compared with the text of the paper.)

    With memory of the others the server moves on when nobody is heard: the rule needs no A^t. In the cool-down
    nothing is learnt, and model and table stay.
    """
    trained = broadcast_and_train(state.server, state.clients, round)
    reported = heard(round)
    table = remember(state.table, trained.update, round.learning_rate, reported)
    known = state.heard | reported
    server = _step(wait, state.server, mean_of_rows(table), known, round)
    return State(server, trained.end, table, known)


def _round_spread(wait: Array, state: Spread, round: Round) -> Spread:
    """As ``_round`` with Gbar += (1/m) sum over A^t of the changes of G_i: updated, then used.

    In the round in which a loss is reported the step is still that of the old epoch.
    """
    trained = broadcast_and_train(state.server, state.clients, round)
    latest = -trained.update / round.learning_rate
    kept, change, counted = exchange(state.kept, latest, heard(round), round.link.receives)
    known = state.heard | counted
    server = _step(wait, state.server, mean_with(state.kept.mean, change, counted), known, round)
    return Spread(server, trained.end, kept, known & (kept.server_epoch == state.kept.server_epoch))


def _step(wait: Array, server: Array, mean: Array, known: Array, round: Round) -> Array:
    """x^t - eta_t Gbar; x^t in the cool-down, and while somebody is waited for."""
    moves = (round.num_steps > 0) & (known.all() | ~wait)
    return mean.__array_namespace__().where(moves, server - round.learning_rate * mean, server)


def _forget_spread(wait: Array, state: Spread, lost: Array, x0: Array, t: Array) -> Spread:
    """Model and G_i are gone."""
    return state._replace(clients=select(lost, x0, state.clients), kept=forget_own(state.kept, lost))
