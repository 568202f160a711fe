"""A method as a round of its own: copy this file, and change what is between the lines of its docstring."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import fedpbc
from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, forget, heard, models
from fedpbc.core.aggregation import masked_mean
from fedpbc.core.schema import Positive
from fedpbc.core.types import Array, Cost, Round


class State(NamedTuple):
    """What lives from round to round: arrays alone. ``server`` and ``clients`` are what is evaluated."""

    server: Array
    """x^t, [d]."""
    clients: Array
    """x_i^t, [m, d]."""


@fedpbc.register
def example(context: fedpbc.Context, *, server_rate: Positive = 1.0) -> fedpbc.Algorithm:
    """One line: the rule, and its reference. ``server_rate``: each option in a few words."""
    params = np.asarray(server_rate, context.dtype)  # numbers go into params, never into a closure
    return fedpbc.Algorithm(params, init, round_, models, forget, Cost(up=1, down=1, server=1))


def init(params: Array, x0: Array, num_clients: int) -> State:
    """Everybody starts from x^0, [d]."""
    return State(x0, at_start(x0, num_clients))


def round_(params: Array, state: State, round: Round) -> State:
    """x^(t+1) = x^t + rate (mean over A^t of x_i^(t,s) - x^t); an empty A^t leaves x^t as it is.

    Say the update in the paper's symbols, what an empty round does, and where it differs from its paper. Select with
    masks, never multiply. ``round.train(models[m, d])`` does the local steps, also along gradients with a ``shift``.
    """
    trained = broadcast_and_train(state.server, state.clients, round)
    mean = masked_mean(trained.end, heard(round), otherwise=state.server)
    return State(state.server + params * (mean - state.server), trained.end)
