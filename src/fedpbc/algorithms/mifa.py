"""MIFA: the server remembers everybody's latest update and always uses all of them (Gu et al., arXiv 2106.04159)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, forget, heard, models, nothing_known
from fedpbc.core.aggregation import select
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


@component
def mifa(context: Context, *, wait: bool = False) -> Algorithm:
    """x -= (eta/m) sum over ALL clients of their latest update / its eta (arXiv 2106.04159).

    ``wait``: the server does not move before everybody was heard once, as in the paper; else absent clients
    count as zero until then.
    """
    cost = Cost(server_per_client=1, needs="eta_t on the server")
    return Algorithm(np.asarray(wait), _init, _round, models, forget, cost)


def _init(params: Array, x0: Array, num_clients: int) -> State:
    return State(x0, at_start(x0, num_clients), nothing_known(x0, num_clients), np.zeros(num_clients, bool))


def remember(table: Array, update: Array, learning_rate: Array, reported: Array) -> Array:
    """G_i = -Delta_i / eta_t for those who reported, the others as they were; [m, d].

    >>> remember(np.zeros((2, 1)), np.array([[0.5], [7.0]]), 0.25, np.array([True, False])).tolist()
    [[-2.0], [0.0]]
    """
    return select(reported, -update / learning_rate, table)


def _round(wait: Array, state: State, round: Round) -> State:
    """G_i anew for i in A^t; x^(t+1) = x^t - (eta_t/m) sum_i G_i, in an empty round too.

    With memory of the others the server moves on when nobody is heard: the rule needs no A^t. In the cool-down
    nothing is learnt, and model and table stay.
    """
    trained = broadcast_and_train(state.server, state.clients, round)
    reported = heard(round)
    table = remember(state.table, trained.update, round.learning_rate, reported)
    known = state.heard | reported
    xp = table.__array_namespace__()
    moves = (round.num_steps > 0) & (known.all() | ~wait)
    server = xp.where(moves, state.server - round.learning_rate * xp.mean(table, axis=0), state.server)
    return State(server, trained.end, table, known)
