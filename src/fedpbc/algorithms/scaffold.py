"""SCAFFOLD: control variates take the drift out of local steps (Karimireddy et al., arXiv 1910.06378)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, heard, models, nothing_known
from fedpbc.algorithms.common.correction import Apply, corrected_training
from fedpbc.algorithms.differences import Kept, exchange, up_to_date
from fedpbc.core.aggregation import masked_mean, masked_sum, select
from fedpbc.core.schema import Context, Positive, component
from fedpbc.core.types import Algorithm, Array, Cost, Round


class State(NamedTuple):
    """Models and control variates."""

    server: Array
    clients: Array
    control: Array
    """c, [d]: the mean of the c_i."""
    controls: Array
    """c_i, [m, d]."""
    epoch: Array
    """int[m]: the epoch that c_i belongs to; -1 after a loss."""
    server_epoch: Array
    """The epoch of the server."""


@component
def scaffold(
    context: Context,
    *,
    server_learning_rate: Positive = 1.0,
    controls: Literal["client", "server"] = "client",
    apply: Apply = "every_step",
    epoch_reset: bool = False,
) -> Algorithm:
    """Local steps along grad - c_i + c; x += eta_g times the mean over the active (arXiv 1910.06378, option II).

    ``controls``: who keeps c_i. A client that loses its c_i unbalances c for good; on the server (m models) it is
    safe, and clients keep nothing. Either way one model goes up: c_i+ - c_i = -c - Delta_i / (s eta), and the server
    knows c, s and eta. ``apply``: inside every local step, or around a client that is a black box (ours, see
    docs/drift-correction.md). ``epoch_reset``: after a client lost its c_i, c and all c_i start from 0 again, as in
    MIFA by differences (ours; nothing to do where the server keeps them).
    """
    by_server, around = controls == "server", apply == "around"
    rates = "eta and s on the server" if by_server or not around else "eta and s on both sides"
    cost = Cost(
        down=1 if by_server and around else 2,
        scalars=(1, 1) if epoch_reset and not by_server else (0, 0),
        server=2,
        server_per_client=int(by_server),
        client=0 if by_server else 1,
        needs=rates if around else f"a hook in the local gradient, {rates}",
    )
    params = {
        "rate": context.number("server_learning_rate", server_learning_rate),
        "around": np.asarray(around, context.dtype),
        "by_client": np.asarray(not by_server),
        "epochs": np.asarray(epoch_reset and not by_server),
    }
    return Algorithm(params, _init, _round, models, _forget, cost)


def _init(params: dict[str, Array], x0: Array, num_clients: int) -> State:
    zero = np.zeros(num_clients, np.int32)
    return State(x0, at_start(x0, num_clients), x0 * 0, nothing_known(x0, num_clients), zero, np.int32(0))


def renew(control: Array, controls: Array, update: Array, length: Array, reported: Array) -> tuple[Array, Array]:
    """c_i+ = c_i - c - Delta_i / (s eta) for those who reported; c+ = c + (1/m) sum over them of (c_i+ - c_i).

    ``length`` = s eta. The sum is divided by m, all clients, and not by |A|: c stays the mean of the c_i. The change is
    -c - Delta_i / (s eta), without c_i: a server that does not keep the c_i has all it needs to follow their mean.

    >>> c, ci = renew(np.zeros(1), np.zeros((2, 1)), np.array([[-1.0], [9.0]]), 0.5, np.array([True, False]))
    >>> c.tolist(), ci.tolist()
    ([1.0], [[2.0], [0.0]])
    """
    new = renew_own(control, controls, update, length, reported)
    return renew_mean(control, new - controls, reported, controls.shape[0]), new


def renew_own(control: Array, controls: Array, update: Array, length: Array, reported: Array) -> Array:
    """c_i+ = c_i - c - Delta_i / (s eta) for those who reported, [m, d].

    Times the reciprocal, as some compilers make of it: else the last bit depends on what else a program does.
    """
    return select(reported, controls - control - update * (1 / length), controls)


def change_of(control: Array, update: Array, length: Array) -> Array:
    """c_i+ - c_i = -c - Delta_i / (s eta), [m, d]: the same whatever c_i is, so a server without the c_i knows it."""
    return -control - update * (1 / length)


def renew_mean(control: Array, change: Array, reported: Array, num_clients: int) -> Array:
    """c+ = c + (1/m) sum over those who reported of (c_i+ - c_i), [d]."""
    return control + masked_sum(change, reported) / num_clients


def _round(params: dict[str, Array], state: State, round: Round) -> State:
    """x^(t+1) = x^t + eta_g mean over A^t of Delta_i. Empty A^t and cool-down: nothing changes on the server.

    A client that the broadcast did not reach (and that computes all the same) has no c: it takes plain steps, its
    Delta_i counts in x, and its c_i and c do not change. Where a downlink fails alone it must say so (one bit, not
    counted in the cost), or the server would move c by a change that c_i does not make.
    """
    receives = round.link.receives
    start = select(receives, state.server, state.clients)
    kept = up_to_date(Kept(state.controls, state.control, state.epoch, state.server_epoch), receives)
    shift = select(receives, kept.mean - kept.own, kept.mean * 0)
    end = corrected_training(round, start, shift, params["around"])
    update, reported = end - start, heard(round)
    xp = start.__array_namespace__()
    server = state.server + params["rate"] * masked_mean(update, reported, otherwise=xp.zeros_like(state.server))
    length = round.learning_rate * xp.maximum(round.steps(start.dtype), 1)
    counted = reported & receives
    kept, _, _ = exchange(kept, renew_own(kept.mean, kept.own, update, length, counted), counted, receives)
    return State(server, end, kept.mean, kept.own, kept.epoch, kept.server_epoch)


def _forget(params: dict[str, Array], state: State, lost: Array, x0: Array, t: Array) -> State:
    """Model and c_i are gone; without epochs the server does not know, and c keeps what c_i was."""
    controls = select(lost & params["by_client"], x0 * 0, state.controls)
    epoch = x0.__array_namespace__().where(lost & params["epochs"], -1, state.epoch)
    return state._replace(clients=select(lost, x0, state.clients), controls=controls, epoch=epoch)
