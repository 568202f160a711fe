"""FedPBC: the broadcast is postponed to the end of the round (the paper's Algorithm 2)."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, forget, models
from fedpbc.core.aggregation import masked_mean, select
from fedpbc.core.schema import Context, Range, component
from fedpbc.core.types import Algorithm, Array, Cost, Models, Round

CatchUp = Annotated[int, Range(0, 20)]
"""The program is unrolled over the rounds that are replayed, so there are few."""


class Replays(NamedTuple):
    """What the next replays need; k is ``max_catchup``."""

    server: Array
    replays: tuple[Array, ...]
    """y_i^(0), ..., y_i^(k), each [m, d]: the base, and the base after the latest 1, ..., k rounds of training."""
    away: Array
    """n_i, int[m]: rounds since the end of the last contact; y_i^(j) with j > n_i is never read."""


@component
def fedpbc(context: Context, *, max_catchup: CatchUp = 0) -> Algorithm:
    """Mean over the active clients, sent to them alone after the round (arXiv 2404.10091; Algorithm 2).

    ``max_catchup`` (k): an active client trains from the last global model it received, its base, and replays only
    the latest k rounds since then (ours, docs/catch-up.md); 0: all of them, which is Algorithm 2.
    """
    # which rounds a later contact will replay is open while they pass: with k > 1 all of them are counted
    cost = Cost(client=1, broadcast=False, uses_all=max_catchup != 1)
    if max_catchup:
        rounds = np.arange(1, max_catchup + 1, dtype=np.int32)
        return Algorithm(rounds, _init_replays, _round_replays, _models_replays, _forget_replays, cost)
    return Algorithm((), _init, _round, models, forget, cost)


def _init(params: tuple[()], x0: Array, num_clients: int) -> Models:
    return Models(x0, at_start(x0, num_clients))


def mix(server: Array, clients: Array, active: Array, receives: Array) -> Models:
    """x^(t+1) = mean over A^t of x_i; x_i^(t+1) = x^(t+1) for those of A^t that receive it, else its own.

    >>> mask = np.array([True, True, False])
    >>> mixed = mix(np.zeros(1), np.array([[1.0], [3.0], [9.0]]), mask, mask)
    >>> mixed.server.tolist(), mixed.clients.tolist()
    ([2.0], [[2.0], [2.0], [9.0]])
    """
    server = masked_mean(clients, active, otherwise=server)
    return Models(server, select(active & receives, server, clients))


def _round(params: Any, state: Models, round: Round) -> Models:
    """Local steps from x_i^t; x^(t+1) = mean over A^t; x_i^(t+1) = x^(t+1) if i in A^t, else its own.

    In matrix form X^(t+1) = (X^t - eta G^t) W^t with W^t doubly stochastic, so the mean of all client models
    does not depend on the links. An empty A^t leaves x^t as it is and nobody receives anything.
    """
    return mix(state.server, round.train(state.clients), round.link.active, round.link.receives)


def _init_replays(rounds: Array, x0: Array, num_clients: int) -> Replays:
    replays = tuple(at_start(x0, num_clients) for _ in range(rounds.shape[0] + 1))
    return Replays(x0, replays, x0.__array_namespace__().zeros(num_clients, dtype=np.int32))


def caught_up(replays: tuple[Array, ...], away: Array) -> Array:
    """y_i^(min(n_i, k)), [m, d]: the model of client i after the rounds it replays.

    >>> caught_up((np.zeros((3, 1)), np.ones((3, 1)), np.full((3, 1), 2.0)), np.array([0, 1, 9])).tolist()
    [[0.0], [1.0], [2.0]]
    """
    clients = replays[0]
    for j, replay in enumerate(replays[1:], 1):
        clients = select(away >= j, replay, clients)
    return clients


def _round_replays(rounds: Array, state: Replays, round: Round) -> Replays:
    """n_i += 1; y_i^(j) = y_i^(j-1) after the local steps of round t; x^(t+1) = mean over A^t of y_i^(min(n_i, k)).

    Then y_i^(0) = x^(t+1) and n_i = 0 for those of A^t that receive it. By induction y_i^(j) is the base after rounds
    t-j+1..t, each with its own learning rate and samples, so nothing is computed twice. A client that does not
    compute in a round replays nothing for it.
    """
    active, xp = round.link.active, state.server.__array_namespace__()
    base, away = state.replays[0], state.away + 1
    trained = tuple(round.train(replay) for replay in state.replays[:-1])
    server = masked_mean(caught_up((base, *trained), away), active, otherwise=state.server)
    received = active & round.link.receives
    return Replays(server, (select(received, server, base), *trained), xp.where(received, 0, away))


def _models_replays(state: Replays) -> Models:
    return Models(state.server, caught_up(state.replays, state.away))


def _forget_replays(rounds: Array, state: Replays, lost: Array, x0: Array, t: Array) -> Replays:
    """A client that lost its base goes on from x^0, as if it had just received it."""
    base = select(lost, x0, state.replays[0])
    away = x0.__array_namespace__().where(lost, 0, state.away)
    return state._replace(replays=(base, *state.replays[1:]), away=away)
