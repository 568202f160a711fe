"""FOCUS: exact at a constant rate, by pushing how gradients change (Ying et al., arXiv 2503.20117)."""

from __future__ import annotations

from typing import NamedTuple

from fedpbc.algorithms.common.broadcast import at_start, heard, models
from fedpbc.algorithms.differences import Kept, exchange, forget_own, mean_with, nothing_kept, up_to_date
from fedpbc.core.aggregation import select
from fedpbc.core.schema import Context, Positive, component
from fedpbc.core.types import Algorithm, Array, Cost, Round


class State(NamedTuple):
    """Models and latest gradients."""

    server: Array
    clients: Array
    """What each client received last, [m, d]: its local steps start there, and their result is not kept."""
    kept: Kept
    """h_i = g_i, the last gradient of i's last local steps, and their mean y/m."""


@component
def focus(context: Context, *, server_learning_rate: Positive = 1.0) -> Algorithm:
    """x -= eta_g eta y, y the sum of everybody's latest gradient, kept up by differences (arXiv 2503.20117).

    Client i: z = x, u = 0; s times: z -= eta u, g = grad l_i(z), u += g - g_i, g_i = g. It sends u; y += sum over the
    active of u. So s gradients and s - 1 moves: the first u is 0. ``server_learning_rate`` (eta_g): 1 in the authors'
    program, which has small eta; as y is a sum, a step goes m eta_g / s times as far as s plain steps do, and s/m makes
    them equal. Long steps are fast, and do not survive links with memory. Minibatches: g_i is of the last one alone,
    so noise is not averaged over s steps. A client that loses its g_i makes everybody's start from 0 again (ours).
    """
    cost = Cost(scalars=(1, 1), server=2, client=1, needs="a hook in the local gradient, eta on the server")
    return Algorithm(context.number("server_learning_rate", server_learning_rate), _init, _round, models, _forget, cost)


def _init(rate: Array, x0: Array, num_clients: int) -> State:
    return State(x0, at_start(x0, num_clients), nothing_kept(x0, num_clients))


def step(server: Array, mean: Array, length: Array, num_clients: int) -> Array:
    """x - eta_g eta y, with y = m times the mean of the latest gradients; ``length`` = eta_g eta.

    >>> import numpy as np
    >>> step(np.array([1.0]), np.array([0.5]), 0.25, 4).tolist()
    [0.5]
    """
    return server - length * (num_clients * mean)


def _round(rate: Array, state: State, round: Round) -> State:
    """y += sum over A^t of (g - g_i), then x -= eta_g eta y with this y; empty A^t and cool-down: nothing changes.

    The sum of g_k - g_(k-1) that moves z is g_k - g_i: local steps along grad l_i - g_i. With a downlink of its own,
    who is heard without being reached starts from what it received last.

    Source: the authors' program (FedASL/client.py and server.py: ``y + grad_curr - grad_prev``, ``param - lr * y``; it
    returns before the step when nobody is sampled). Of the paper only abstract and introduction were to be had.
    """
    receives = round.link.receives
    start = select(receives, state.server, state.clients)
    known = up_to_date(state.kept, receives)
    gradient = round.train(start, shift=-known.own, last_gradient=True)
    reported = heard(round)
    kept, change, counted = exchange(state.kept, gradient, reported, receives)
    moved = step(
        state.server,
        mean_with(state.kept.mean, change, counted),
        rate * round.learning_rate.astype(start.dtype),
        start.shape[0],
    )
    return State(start.__array_namespace__().where(reported.any(), moved, state.server), start, kept)


def _forget(rate: Array, state: State, lost: Array, x0: Array, t: Array) -> State:
    """Model and g_i are gone."""
    return state._replace(clients=select(lost, x0, state.clients), kept=forget_own(state.kept, lost))
