"""FedFade (ours): control variates that fade as fast as gradients are seen to change, and FedAU's weights."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np

from fedpbc.algorithms.common.broadcast import at_start, heard, models, nothing_known
from fedpbc.algorithms.common.correction import Apply, corrected_training
from fedpbc.algorithms.common.server import Server, plain
from fedpbc.algorithms.differences import mean_with
from fedpbc.algorithms.fedau import Intervals
from fedpbc.algorithms.fedau import init as first_intervals
from fedpbc.algorithms.fedau import weights as interval_weights
from fedpbc.algorithms.scaffold import renew_own
from fedpbc.core.aggregation import masked_mean, masked_sum, select, weighted_sum
from fedpbc.core.options import NumberOrWord
from fedpbc.core.schema import Context, NonNegativeInt, component
from fedpbc.core.types import Algorithm, Array, Cost, Link, Round, ServerOptimizer

Fading = Annotated[float | str, NumberOrWord(0, 1, words=("learnt", "none"))]

FORGET = 0.98
"""What a round leaves of the weight of the samples before it."""
LEAST = 0.02
"""The least that is taken to be left of a control: also where the gradient has turned round."""
CAUTION = 3.0
"""Controls fade so many times as fast as gradients are seen to change."""
EQUAL_AGES = 1e-4
"""Variance of the ages over their mean square, up to which no slope is seen."""
GONE = -1000.0
"""log of a delta of 0: exp of it is 0 in every precision, and sums of it are exact."""


class State(NamedTuple):
    """Models, controls, and numbers."""

    server: Array
    clients: Array
    control: Array
    """c, [d]: the mean of the u_i."""
    controls: Array
    """c_i, [m, d]: client i's mean gradient at its last contact; 0 before the first."""
    since: Array
    """L_i, f[m]: the log of the server at i's last contact."""
    last: Array
    """int[m]: the round of i's last contact; -1: none since it lost its c_i."""
    log: Array
    """L: the sum of log delta over the rounds so far; u_i = exp(L - L_i) c_i."""
    sums: Array
    """f[5]: sums over the samples, see ``learn``."""
    intervals: Intervals
    optimizer: tuple[Array, ...]
    epoch: Array
    """int[m]: the epoch that c_i belongs to; -1 after a loss."""
    server_epoch: Array
    """The epoch of the server."""


@component
def fedfade(
    context: Context,
    *,
    controls: Literal["client", "server"] = "client",
    apply: Apply = "every_step",
    fading: Fading = "learnt",
    weights: Literal["intervals", "mean"] = "intervals",
    cutoff: NonNegativeInt = 50,
    epoch_reset: bool = False,
    server: Server | None = None,
) -> Algorithm:
    """SCAFFOLD whose controls c_i fade with their age, u_i = delta^a_i c_i, and FedAU's weights w_i (ours).

    a_i: the rounds since i's last contact. Client i steps along grad - u_i + c; g_i is its own mean gradient, and
    d_i = g_i - u_i = -Delta_i / (s eta) - c. x -= eta s (c + (1/m) sum over A of w_i d_i); then
    c = delta (c + (1/m) sum over A of d_i), the mean of the u_i; c_i = g_i. With E[1_A w_i] = 1 the step is unbiased
    whatever the controls are.

    ``fading``: delta, a number in [0, 1] (0: FedAU), "none" (1), or "learnt": from how much of c_i is found in g_i
    again after a_i rounds (``learn``, ``fade``). Each round has its own delta: the server keeps the sum of their logs,
    and client i what that was at its last contact. ``weights``: FedAU's mean intervals with ``cutoff`` (K), or the
    mean over A as in SCAFFOLD, which is the case "none", "mean". ``controls``: who keeps c_i. One that a client loses
    leaves c wrong by (1/m) u_i, which fades as controls do: where they do not (delta = 1, learnt too, as on quadratics
    near the optimum) x stays biased, as under SCAFFOLD without epochs; the server loses none. ``epoch_reset``: after a
    client lost its c_i, c and all c_i start from 0 again, as there. ``apply``: inside every local step, or around a
    black box.
    """
    by_server, around, learnt = controls == "server", apply == "around", fading == "learnt"
    optimizer = cast(ServerOptimizer, server or plain())
    delta = float(fading) if not isinstance(fading, str) else 1.0
    epochs = epoch_reset and not by_server
    up, down = (0, 0) if by_server or (delta == 1 and not learnt) else (2, 2) if learnt else (0, 1)
    rates = "eta and s on the server" if by_server or not around else "eta and s on both sides"
    cost = Cost(
        down=1 if by_server and around else 2,
        scalars=(up + epochs, down + epochs),
        server=2 + optimizer.num_memories,
        server_per_client=int(by_server),
        client=0 if by_server else 1,
        needs=rates if around else f"a hook in the local gradient, {rates}",
    )
    params = {
        "around": np.asarray(around, context.dtype),
        "by_client": np.asarray(not by_server),
        "epochs": np.asarray(epochs),
        "learnt": np.asarray(learnt),
        "log_delta": np.asarray(np.log(delta) if delta else GONE, context.dtype),
        "intervals": np.asarray(weights == "intervals"),
        "cutoff": np.int32(cutoff or np.iinfo(np.int32).max),
        "optimizer": optimizer,
    }
    return Algorithm(params, _init, _round, models, _forget, cost)


def _init(params: dict[str, Any], x0: Array, num_clients: int) -> State:
    number, optimizer = np.zeros(num_clients, x0.dtype), params["optimizer"]
    return State(
        server=x0,
        clients=at_start(x0, num_clients),
        control=x0 * 0,
        controls=nothing_known(x0, num_clients),
        since=number,
        last=np.full(num_clients, -1, np.int32),
        log=x0.dtype.type(0),
        sums=np.zeros(5, x0.dtype),
        intervals=first_intervals(None, num_clients, x0.dtype),
        optimizer=optimizer.init(optimizer.params, x0),
        epoch=np.zeros(num_clients, np.int32),
        server_epoch=np.int32(0),
    )


def aged(controls: Array, log: Array, since: Array) -> Array:
    """u_i = exp(L - L_i) c_i, [m, d]: the product of the deltas of all rounds since i's last contact.

    >>> aged(np.array([[8.0], [8.0]]), np.log(0.25), np.log([1.0, 0.5])).round(9).tolist()
    [[2.0], [4.0]]
    """
    return controls * controls.__array_namespace__().exp(log - since).astype(controls.dtype)[:, None]


def overlap(new: Array, old: Array) -> tuple[Array, Array]:
    """(<g_i, c_i>, |c_i|^2), each [m]; sums over columns, so blocks of columns can be added up."""
    xp = new.__array_namespace__()
    return xp.sum(new * old, axis=1), xp.sum(old * old, axis=1)


def left(product: Array, square: Array, known: Array) -> tuple[Array, Array]:
    """(log r, whether there is one), each [m]: r = <g_i, c_i> / |c_i|^2, clipped to [.02, 1].

    Nothing can be said of a client that has no c_i (``known`` bool[m]), of c_i = 0, and of numbers too large.

    >>> log_r, measured = left(np.array([1.0, -5.0, 9.0, 1.0]), np.array([2.0, 1.0, 3.0, 0.0]), np.array([True] * 4))
    >>> np.exp(log_r).round(9).tolist(), measured.tolist()
    ([0.5, 0.02, 1.0, 1.0], [True, True, True, False])
    """
    xp = product.__array_namespace__()
    ratio = product / xp.where(square > 0, square, 1)
    measured = known & (square > 0) & xp.isfinite(square) & xp.isfinite(ratio)
    return xp.log(xp.clip(xp.where(measured, ratio, 1), LEAST, 1)), measured


def learn(sums: Array, age: Array, log_r: Array, measured: Array) -> Array:
    """.98 of the sums so far, and (1, a, a^2, log r, a log r) of this round's samples, f[5].

    >>> learn(np.ones(5), np.array([3, 9]), np.array([-0.5, 0.0]), np.array([True, False])).round(9).tolist()
    [1.98, 3.98, 9.98, 0.48, -0.52]
    """
    xp = log_r.__array_namespace__()
    a = age.astype(log_r.dtype)
    samples = xp.stack([xp.ones_like(a), a, a * a, log_r, a * log_r], axis=1)
    return FORGET * sums + masked_sum(samples, measured)


def fade(sums: Array) -> Array:
    """log delta = 3 slope, with log r = log kappa + slope a by least squares, slope clipped to [-1, 0].

    The intercept kappa is what minibatches take off r at any age. Without samples, and where all ages are equal, no
    slope is seen: delta = 1.

    >>> float(fade(learn(np.zeros(5), np.array([1, 3]), np.array([-0.5, -0.7]), np.array([True, True]))).round(9))
    -0.3
    >>> float(fade(learn(np.zeros(5), np.array([3, 3]), np.array([-0.5, -0.7]), np.array([True, True]))))
    0.0
    """
    xp = sums.__array_namespace__()
    count, age, square, log_r, product = sums
    spread = count * square - age * age
    seen = spread > EQUAL_AGES * count * square
    slope = (count * product - age * log_r) / xp.where(seen, spread, 1)
    return CAUTION * xp.where(seen, xp.clip(slope, -1, 0), 0)


def direction(control: Array, change: Array, weights: Array, contacts: Array) -> Array:
    """c + (1/m) sum over A of w_i d_i, [d]; ``weights`` are w_i / m.

    >>> d, w, a = np.array([[4.0], [9.0]]), np.array([1.5, 0.5]), np.array([True, False])
    >>> direction(np.ones(1), d, w, a).tolist()
    [7.0]
    """
    return control + weighted_sum(change, weights, contacts)


def _round(params: dict[str, Any], state: State, round: Round) -> State:
    """The order: u_i and w_i of before the round are used; then this round's samples, delta with them, and all age.

    Empty A^t: x^(t+1) = x^t - eta s c under "intervals" (the absent of every round count by their controls; a round
    left out would weigh them less), x^t under "mean"; the controls age. Cool-down: the intervals go on, all
    else stays.

    With downlinks of their own a contact is a round in which i is reached and heard; the intervals are between
    those. Who is heard without being reached took plain steps from a model of its own: under "intervals" its
    update is not used, under "mean" Delta_i counts in x as in SCAFFOLD; its c_i stays and goes on ageing.

    Epochs: whom the broadcast reaches with an older one has c_i = 0 before its steps. Is somebody heard who lost its
    c_i, a new epoch begins after the step, with c = 0 and c_i = 0 for those who were heard.
    """
    receives, reported, optimizer = round.link.receives, heard(round), params["optimizer"]
    start = select(receives, state.server, state.clients)
    xp = start.__array_namespace__()
    outdated = receives & (state.epoch >= 0) & (state.epoch != state.server_epoch)
    controls, last = select(outdated, state.control * 0, state.controls), xp.where(outdated, -1, state.last)
    epoch = xp.where(outdated, state.server_epoch, state.epoch)
    own = aged(controls, state.log, state.since)
    shift = select(receives, state.control - own, state.control * 0)
    end = corrected_training(round, start, shift, params["around"])
    update, contacts = end - start, reported & receives
    length = round.learning_rate * xp.maximum(round.steps(start.dtype), 1)
    gradient = renew_own(state.control, own, update, length, contacts)
    change = gradient - own

    met = Link(round.link.active & receives, round.link.prob)
    intervals, weights = interval_weights(params["cutoff"], state.intervals, met, round.index)
    by_intervals = -length * direction(state.control, change, weights, contacts)
    by_mean = masked_mean(update, reported, otherwise=xp.zeros_like(state.server))
    step = xp.where(params["intervals"], by_intervals, by_mean)
    memories, step = optimizer.step(optimizer.params, state.optimizer, step)
    trains = round.num_steps > 0
    moves = trains & (params["intervals"] | reported.any())

    log_r, measured = left(*overlap(gradient, controls), contacts & (last >= 0))
    sums = learn(state.sums, round.index - last, log_r, measured)
    log_delta = xp.where(params["learnt"], fade(sums), params["log_delta"])
    lost = (contacts & (epoch < 0)).any()
    zero, begun = state.control * 0, state.server_epoch + lost
    control = xp.where(lost, zero, mean_with(state.control, change, contacts) * xp.exp(log_delta))
    return State(
        server=xp.where(moves, state.server + step, state.server),
        clients=end,
        control=xp.where(trains, control, state.control),
        controls=select(contacts, xp.where(lost, zero, gradient), controls),
        since=xp.where(contacts, state.log, state.since),
        last=xp.where(contacts, xp.where(lost, -1, round.index), last),
        log=xp.where(trains, state.log + log_delta, state.log),
        sums=xp.where(trains, sums, state.sums),
        intervals=intervals,
        optimizer=tuple(xp.where(moves, new, old) for new, old in zip(memories, state.optimizer, strict=True)),
        epoch=xp.where(contacts, begun, epoch),
        server_epoch=begun,
    )


def _forget(params: dict[str, Any], state: State, lost: Array, x0: Array, t: Array) -> State:
    """The model is gone, and c_i where the client kept it; without epochs the server does not know."""
    xp, own = x0.__array_namespace__(), lost & params["by_client"]
    return state._replace(
        clients=select(lost, x0, state.clients),
        controls=select(own, x0 * 0, state.controls),
        last=xp.where(own, -1, state.last),
        epoch=xp.where(lost & params["epochs"], -1, state.epoch),
    )
