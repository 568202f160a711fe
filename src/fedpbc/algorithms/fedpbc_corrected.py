"""Drift-corrected FedPBC (ours): every client learns by how much its own direction differs from everybody's."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, models, nothing_known
from fedpbc.algorithms.common.correction import Apply, corrected_training
from fedpbc.core.aggregation import masked_mean, select
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Algorithm, Array, Cost, Round


class State(NamedTuple):
    """Models, corrections, and what a client remembers of its last contact."""

    server: Array
    clients: Array
    corrections: Array
    """z_i, [m, d]; they sum to 0."""
    length: Array
    """h_i, [m]: the sum of the etas of i's own steps since its last contact."""
    base: Array
    """b_i, [m, d]: the model it received then; [m, 0] in the light form, which does without."""
    epoch: Array
    """int[m]: the epoch a client's correction belongs to; -1 after a loss."""
    server_epoch: Array
    """The epoch of the server."""


@component
def fedpbc_corrected(
    context: Context,
    *,
    correction: Literal["full", "light"] = "full",
    apply: Apply = "every_step",
    epoch_reset: bool = True,
) -> Algorithm:
    """FedPBC along grad + z_i, z_i learnt from how i's direction differs from others' (ours, docs/drift-correction.md).

    ``correction``: "full" compares mean directions since the last contact, "light" final models. ``apply``: inside
    every local step, or around a client that is a black box. ``epoch_reset``: after a client lost its z, all
    zero theirs at their next contact, so that they sum to 0 again.
    """
    full, around = correction == "full", apply == "around"
    cost = Cost(
        up=2 if full else 1,
        down=2 if full else 1,
        scalars=(2, 2),
        client=3 if full else 2,
        broadcast=False,
        uses_all=True,
        needs="eta and s on the client" if around else "a hook in the local gradient",
    )
    params = {"around": np.asarray(around, context.dtype), "epoch_reset": np.asarray(epoch_reset)}
    if full:
        return Algorithm(params, _init_full, _round_full, models, _forget, cost)
    return Algorithm(params, _init_light, _round_light, models, _forget, cost)


def _init_full(params: dict[str, Array], x0: Array, num_clients: int) -> State:
    return _init_light(params, x0, num_clients)._replace(base=at_start(x0, num_clients))


def _init_light(params: dict[str, Array], x0: Array, num_clients: int) -> State:
    clients, zero = at_start(x0, num_clients), np.zeros(num_clients, np.int32)
    length = np.zeros(num_clients, x0.dtype)
    base = clients[:, :0]
    return State(x0, clients, nothing_known(x0, num_clients), length, base, zero, np.int32(0))


def correct_full(corrections: Array, base: Array, trained: Array, length: Array, active: Array) -> Array:
    """z_i += mean over A of y - y_i with y_i = (b_i - xhat_i)/h_i, i's mean direction since its last contact; [m, d].

    Clients that took no step since then (h_i = 0) have no direction: they are left out, and keep their z.

    >>> ones, z = np.ones(2), np.zeros((2, 1))
    >>> correct_full(z, z, np.array([[-1.0], [3.0]]), ones, ones > 0).tolist()
    [[-2.0], [2.0]]
    """
    xp = trained.__array_namespace__()
    moved = active & (length > 0)
    direction = (base - trained) / xp.where(length > 0, length, 1)[:, None]
    mean = masked_mean(direction, moved, otherwise=xp.zeros_like(trained[0]))
    return select(moved, corrections + mean - direction, corrections)


def correct_light(corrections: Array, mean: Array, trained: Array, length: Array, active: Array) -> Array:
    """z_i += (xhat_i - mean over A of xhat)/h_A, h_A the largest h_i in A: Z+ = Z + (I - W) Xhat / h_A; [m, d].

    The largest, not the mean: with a smaller divisor some cases diverge.

    >>> ones, z = np.ones(2), np.zeros((2, 1))
    >>> correct_light(z, np.array([1.0]), np.array([[-1.0], [3.0]]), 2 * ones, ones > 0).tolist()
    [[-1.0], [1.0]]
    """
    xp = trained.__array_namespace__()
    longest = xp.max(xp.where(active, length, 0))
    step = (trained - mean) / xp.where(longest > 0, longest, 1)
    return select(active & (longest > 0), corrections + step, corrections)


def _round_full(params: dict[str, Array], state: State, round: Round) -> State:
    """Local steps along grad + z_i; x^(t+1) = mean over A^t, sent there with the mean direction; z, h, b anew there."""
    state, server = _train(params, state, round)
    synced = round.link.active & round.link.receives
    corrections = correct_full(state.corrections, state.base, state.clients, state.length, round.link.active)
    state = state._replace(corrections=select(synced, corrections, state.corrections))
    return _synchronise(state, server, synced)._replace(base=select(synced, server, state.base))


def _round_light(params: dict[str, Array], state: State, round: Round) -> State:
    """Local steps along grad + z_i; x^(t+1) = mean over A^t, sent to A^t with h_A; z and h anew there."""
    state, server = _train(params, state, round)
    synced = round.link.active & round.link.receives
    corrections = correct_light(state.corrections, server, state.clients, state.length, round.link.active)
    return _synchronise(state._replace(corrections=select(synced, corrections, state.corrections)), server, synced)


def _train(params: dict[str, Array], state: State, round: Round) -> tuple[State, Array]:
    """(state with xhat_i, h_i and the epochs of the clients the server hears, x^(t+1))."""
    trained = corrected_training(round, state.clients, state.corrections, params["around"])
    steps = round.steps(state.length.dtype) * round.computes
    server = masked_mean(trained, round.link.active, otherwise=state.server)
    state = state._replace(clients=trained, length=state.length + round.learning_rate * steps)
    return _renew_epochs(params["epoch_reset"], state, round.link.active & round.link.receives), server


def _synchronise(state: State, server: Array, synced: Array) -> State:
    """Those of A^t that receive it take x^(t+1) and count from here."""
    xp = server.__array_namespace__()
    return state._replace(
        server=server, clients=select(synced, server, state.clients), length=xp.where(synced, 0, state.length)
    )


def _renew_epochs(on: Array, state: State, synced: Array) -> State:
    """A client that lost its z raises the server's epoch; who comes with an older one starts again from z = 0.

    All corrections of the current epoch sum to 0 at any time, because only its members exchange; once everybody was
    contacted, that is all of them. One integer on the server, and one in each message.
    """
    xp = state.server.__array_namespace__()
    epoch = state.server_epoch + (on & (synced & (state.epoch < 0)).any())
    renewed = on & synced & (state.epoch != epoch)
    return state._replace(
        corrections=select(renewed, state.server * 0, state.corrections),
        epoch=xp.where(renewed, epoch, state.epoch),
        server_epoch=epoch,
    )


def _forget(params: dict[str, Array], state: State, lost: Array, x0: Array, t: Array) -> State:
    """Model, correction, base and length are gone; the server learns of it at the next contact."""
    xp = x0.__array_namespace__()
    base = select(lost, x0, state.base) if state.base.shape[1] else state.base
    return state._replace(
        clients=select(lost, x0, state.clients),
        corrections=select(lost, x0 * 0, state.corrections),
        length=xp.where(lost, 0, state.length),
        base=base,
        epoch=xp.where(lost, -1, state.epoch),
    )
