"""FedAWE: a client echoes its update once for every round it was away (arXiv 2409.17446)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, models
from fedpbc.core.aggregation import masked_mean, select, weighted_sum
from fedpbc.core.schema import Context, NonNegative, NonNegativeInt, Positive, component
from fedpbc.core.types import Algorithm, Array, Cost, Round


class State(NamedTuple):
    """Models, and when each client was last active."""

    server: Array
    clients: Array
    last: Array
    """tau_i, int[m]; -1 at the start."""


@component
def fedawe(
    context: Context,
    *,
    server_learning_rate: Positive = 1.0,
    clip: NonNegativeInt = 0,
    norm_limit: NonNegative = 0.0,
) -> Algorithm:
    """Mean over the active of x_i + eta_g (t - tau_i) update_i, tau_i its last active round (arXiv 2409.17446).

    Without a limit a long absence multiplies one update by its length, and links with memory make the model diverge at
    a constant step size. ``clip``: the largest echo t - tau_i (ours); 0: none. ``norm_limit``: the largest norm of the
    mean of (t - tau_i) update_i, which is shortened to it; 0: none. The authors' program (mingxiang12/FedAWE,
    util/util.py) runs with .5 and a decaying rate: ``norm_limit = 0.5`` and ``learning_rate = { name = "inverse_sqrt",
    initial = 0.05, period = 10 }``. Clients compute only while active, whatever ``compute`` says.
    """
    params = {
        "rate": context.number("server_learning_rate", server_learning_rate),
        "clip": np.int32(clip or np.iinfo(np.int32).max),
        "limit": np.asarray(norm_limit, context.dtype),
    }
    round = _round_limited if norm_limit else _round
    return Algorithm(params, _init, round, models, _forget, Cost(client=1, broadcast=False))


def _init(params: dict[str, Array], x0: Array, num_clients: int) -> State:
    return State(x0, at_start(x0, num_clients), np.full(num_clients, -1, np.int32))


def echo(models: Array, update: Array, rate: Array, rounds_away: Array) -> Array:
    """x_i + eta_g (t - tau_i) Delta_i, [m, d].

    >>> echo(np.array([[1.0], [1.0]]), np.array([[0.5], [0.5]]), 1.0, np.array([1, 4])).tolist()
    [[1.5], [3.0]]
    """
    return models + (rate * rounds_away)[:, None].astype(models.dtype) * update


def share_within(vector: Array, limit: Array) -> Array:
    """min(1, limit / |v|) of a vector [d].

    >>> float(share_within(np.array([3.0, 4.0]), 2.5)), float(share_within(np.array([3.0, 4.0]), 6.0))
    (0.5, 1.0)
    """
    xp = vector.__array_namespace__()
    norm = xp.sqrt(xp.sum(vector * vector))
    return xp.where(norm > limit, limit / xp.where(norm > limit, norm, 1), 1)


def _round(params: dict[str, Array], state: State, round: Round) -> State:
    """x^(t+1) = mean over A^t of the echoes; x_i = x^(t+1) and tau_i = t for i in A^t; the others keep x_i.

    Order: use tau_i, then update it: the echo of round t is t - tau_i with the tau_i from before the round, 1 for a
    client that was active in t - 1. Source: their program (varying_awe.py: the count starts at 1, multiplies the
    update, and is set back to 1 afterwards; not compared with the text of the paper). An empty A^t leaves everything
    as it is.
    """
    active, away = round.link.active, _away(params, state, round)
    trained = select(active, round.train(state.clients), state.clients)
    echoes = echo(state.clients, trained - state.clients, params["rate"], away)
    return _after(state, round, trained, masked_mean(echoes, active, otherwise=state.server))


def _round_limited(params: dict[str, Array], state: State, round: Round) -> State:
    """As ``_round`` with x^(t+1) = mean over A^t of x_i + eta_g v, v the mean of the (t - tau_i) Delta_i, shortened.

    Source: their program (util/util.py, ``accumulation``: the mean is shortened before ``lr_global`` multiplies it).
    """
    active, away = round.link.active, _away(params, state, round)
    trained, xp = round.train(state.clients), state.clients.__array_namespace__()
    count = xp.maximum(xp.sum(active), 1).astype(trained.dtype)
    mean = weighted_sum(trained - state.clients, away / count, active)
    step = params["rate"] * share_within(mean, params["limit"]) * mean
    server = masked_mean(state.clients, active, otherwise=state.server) + step
    return _after(state, round, select(active, trained, state.clients), server)


def _away(params: dict[str, Array], state: State, round: Round) -> Array:
    """How often each client echoes, int[m]."""
    return state.last.__array_namespace__().minimum(round.index - state.last, params["clip"])


def _after(state: State, round: Round, trained: Array, server: Array) -> State:
    """The active that are reached go on from x^(t+1), the others from their own."""
    active, xp = round.link.active, trained.__array_namespace__()
    clients = select(active & round.link.receives, server, trained)
    return State(server, clients, xp.where(active, round.index, state.last))


def _forget(params: dict[str, Array], state: State, lost: Array, x0: Array, t: Array) -> State:
    """A client that lost its model and its clock starts anew from x^0, as if it had just been active."""
    last = x0.__array_namespace__().where(lost, t - 1, state.last)
    return state._replace(clients=select(lost, x0, state.clients), last=last)
