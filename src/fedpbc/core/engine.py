"""The only loop: link -> train -> aggregate -> evaluate, compiled once and run in blocks of rounds.

It knows no algorithm, link process or problem by name. Settings, data and the number of rounds are arguments of
the compiled program; a ``Plan`` and the array shapes select it. The loop bounds are arguments too, so the
same program runs every block, however long, and a run cut into other blocks gives the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.core import buffers as buffers_
from fedpbc.core.aggregation import consensus_distance, mean_of_rows
from fedpbc.core.buffers import Buffers
from fedpbc.core.descent import PLAIN, Descent
from fedpbc.core.local import local_steps, map_clients, map_some, sum_blocks
from fedpbc.core.types import (
    Algorithm,
    Array,
    LinkProcess,
    Problem,
    Round,
    ServerOptimizer,
    TimeFunction,
    Train,
    Weighting,
)

CAPACITY = 1024
"""Rows of metrics that one call of the compiled program can hold."""


_STATIC = {
    TimeFunction: ["at"],
    LinkProcess: ["init", "step"],
    Algorithm: ["init", "round", "models", "forget", "cost"],
    Weighting: ["init", "step"],
    ServerOptimizer: ["init", "step", "num_memories"],
    Problem: [
        "num_clients",
        "sample",
        "gradient",
        "num_blocks",
        "block_sums",
        "metrics",
        "work",
        "unroll",
        "several",
        "by_client",
    ],
}
for _cls, _static in _STATIC.items():
    _data = ["params", "init", "owned", "buffers"] if _cls is Problem else ["params"]
    _host = ["client_traits", "measures", "tree", "shard"] if _cls is Problem else []
    jax.tree_util.register_dataclass(_cls, _data, _static, drop_fields=_host)


@dataclass(frozen=True)
class Plan:
    """What is compiled in: everything that changes the program and not only its arguments."""

    compute: str
    """Who computes: "all" (Algorithms 1 and 2 as printed) or "active" (Fig. 2b)."""
    local_steps: int
    batch_size: int
    minibatch: str
    chunk_size: int
    num_devices: int = 1
    device: int = 0
    """The first of them."""
    with_clients: bool = False
    """The worst of the clients and the active ones are measured too."""
    with_mean: bool = True
    """The mean model and the consensus distance are measured too, which need the models of absent clients."""
    descent: Descent = PLAIN


class Inputs(NamedTuple):
    """Arguments of the program that stay the same from round to round."""

    problem: Problem
    links: LinkProcess
    algorithm: Algorithm
    schedule: TimeFunction
    seed: Array
    num_rounds: Array
    training_rounds: Array
    """From this round on (consensus cool-down) there are no local steps."""
    eval_every: Array
    loss: StateLoss | None = None


class StateLoss(NamedTuple):
    """Clients that lose all they keep, once."""

    round: Array
    """Before the local steps of this round."""
    lost: Array
    """bool[m]."""


class Counts(NamedTuple):
    """Client-rounds so far, each int32[2]: millions, and the rest (rounds times clients may overflow 32 bits)."""

    computed: Array
    """Clients whose local steps the method uses, now or later."""
    sent: Array
    """Clients the server heard from."""
    received: Array
    """Clients a message of the server reached."""

    def plus(self, *masks: Array) -> Counts:
        """After one more round; masks bool[m] in the order of the fields."""
        return Counts(*(_count(so_far, mask) for so_far, mask in zip(self, masks, strict=True)))


def _count(so_far: Array, mask: Array) -> Array:
    rest = so_far[1] + jnp.sum(mask, dtype=jnp.int32)
    return jnp.stack([so_far[0] + rest // 1_000_000, rest % 1_000_000])


class Carry(NamedTuple):
    """What changes from round to round: a checkpoint holds its leaves."""

    algorithm: Any
    links: Any
    num_active: Array
    empty_rounds: Array
    counts: Counts
    first_nonfinite: Array
    """The first round after which a model was not finite; -1 so far."""
    server_sum: Array
    """Sum of the server models after rounds > T/2, [d]."""
    last_active: Array | None = None
    """A^t of the latest round that was not empty, bool[m], everybody at first; None where nobody asks."""
    buffers: Buffers | None = None


def _keys(seed: Array) -> tuple[Array, Array]:
    """Independent keys for the links and for the samples of a run; algorithms share both."""
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def _round(plan: Plan, inputs: Inputs, carry: Carry, t: Array) -> Carry:
    """Round t: draw the links, let the clients train, let the algorithm aggregate."""
    link_key, sample_key = (jax.random.fold_in(key, t) for key in _keys(inputs.seed))
    link_state, link = inputs.links.step(inputs.links.params, link_key, carry.links, t)
    link = jax.tree.map(jnp.asarray, link)  # a process may give a constant of NumPy, which methods cannot tell apart
    eta = inputs.schedule.at(inputs.schedule.params, t)

    algorithm, m = inputs.algorithm, inputs.problem.num_clients
    training = t < inputs.training_rounds
    computes = training & (link.active if plan.compute == "active" else jnp.ones(m, bool))
    # whether local steps of clients that are not heard change what is used later, or measured
    matter = algorithm.cost.uses_all or plan.with_mean or link.downlink is not None
    needed = None if plan.compute == "all" and matter else computes if matter else computes & link.active
    num_steps = jnp.where(training, plan.local_steps, 0)
    before, buffers = _forget(inputs, carry, t)
    after = Trained(buffers.before(link, algorithm.cost.broadcast) if buffers else None)
    train = _trainer(plan, inputs, sample_key, eta, training, needed, after)
    way = None
    if plan.descent.momentum:
        worth, before_one = plan.descent.way(plan.local_steps)
        way = jnp.where(training, worth, 0.0), jnp.where(training, before_one, 0.0)
    state = algorithm.round(algorithm.params, before, Round(t, link, eta, num_steps, computes, train, way))
    if buffers:
        buffers = buffers.after(after.buffers, link, algorithm.cost.broadcast, training)
    used = computes if algorithm.cost.uses_all else computes & link.active
    received = link.receives if algorithm.cost.broadcast else link.receives & link.active
    models = algorithm.models(state)
    num_active = jnp.sum(link.active, dtype=jnp.int32)
    finite = jnp.all(jnp.isfinite(models.clients)) & jnp.all(jnp.isfinite(models.server))
    if buffers:
        finite &= buffers.all_finite()
    return Carry(
        algorithm=state,
        links=link_state,
        num_active=num_active,
        empty_rounds=carry.empty_rounds + (num_active == 0),
        counts=carry.counts.plus(used, link.active, received),
        first_nonfinite=jnp.where(finite | (carry.first_nonfinite >= 0), carry.first_nonfinite, t),
        server_sum=carry.server_sum + jnp.where(2 * (t + 1) > inputs.num_rounds, models.server, 0),
        last_active=None if carry.last_active is None else jnp.where(num_active > 0, link.active, carry.last_active),
        buffers=buffers,
    )


class Trained:
    """The buffers of all clients in a round: what their training begins with, and then what the first one left.

    A method may train several times in a round, as FedPBC that replays; each begins with the same buffers.
    """

    def __init__(self, buffers: Any) -> None:
        self.start = self.buffers = buffers
        self._told = False

    def tell(self, buffers: Any) -> None:
        """Local training is traced."""
        self.buffers = self.buffers if self._told else buffers
        self._told = True


def _trainer(
    plan: Plan, inputs: Inputs, key: Array, eta: Array, training: Array, needed: Array | None, after: Trained
) -> Train:
    """Local training of round t, as an algorithm may call it; clients that are not ``needed`` keep their row."""

    def train(
        models: Array,
        shift: Array | None = None,
        proximal: Array | None = None,
        last_gradient: bool = False,
    ) -> Array:
        def train_one(*row: Any) -> tuple[Array, Any]:
            (x, buffers), *given, client = row
            return local_steps(
                inputs.problem,
                x,
                client,
                key,
                eta,
                plan.local_steps,
                plan.batch_size,
                plan.minibatch,
                shift=given[0] if shift is not None else None,
                proximal=proximal,
                last_gradient=last_gradient,
                descent=plan.descent,
                buffers=buffers,
            )

        kept = (models, after.start)
        rows = (kept,) if shift is None else (kept, shift)
        if needed is not None:  # nobody in the cool-down
            models, buffers = map_some(train_one, rows, needed, plan.chunk_size, plan.num_devices)
        else:
            models, buffers = jax.lax.cond(
                training,
                lambda rows: map_clients(train_one, rows, plan.chunk_size, plan.num_devices),
                lambda rows: rows[0],
                rows,
            )
        after.tell(buffers)
        return models

    return train


def _forget(inputs: Inputs, carry: Carry, t: Array) -> tuple[Any, Buffers | None]:
    """The algorithm's state, and the buffers, at the start of round t, after a loss that falls into it."""
    loss, algorithm, problem = inputs.loss, inputs.algorithm, inputs.problem
    kept = carry.algorithm, carry.buffers
    if loss is None:
        return kept

    def forget(kept: tuple[Any, Buffers | None]) -> tuple[Any, Buffers | None]:
        state, buffers = kept
        state = algorithm.forget(algorithm.params, state, loss.lost, problem.init, t)
        return state, buffers.forget(loss.lost, problem.buffers) if buffers else None

    return jax.lax.cond(t == loss.round, forget, lambda kept: kept, kept)


def _evaluate(plan: Plan, inputs: Inputs, carry: Carry) -> dict[str, Array]:
    """One row of metrics of the state after a round."""
    models = inputs.algorithm.models(carry.algorithm)
    measured = {"server": models.server}
    if plan.with_mean:
        measured["mean"] = mean_of_rows(models.clients)
    stacked = jnp.stack(list(measured.values()))
    buffers = _measured_buffers(plan, carry.buffers)
    sums = sum_blocks(inputs.problem, stacked, plan.num_devices, buffers)
    values = inputs.problem.metrics(inputs.problem.params, stacked, sums)
    if plan.with_clients and inputs.problem.by_client is not None:
        by_client = inputs.problem.by_client
        alone = dataclasses.replace(inputs.problem, block_sums=by_client.sums)
        each = sum_blocks(alone, stacked, plan.num_devices, buffers)
        values |= by_client.finish(inputs.problem.params, each, carry.last_active)
    values = {name: value.astype(stacked.dtype) for name, value in values.items()}
    row = {f"{model}_{name}": value[i] for name, value in values.items() for i, model in enumerate(measured)}
    if plan.with_mean:
        row["consensus_distance"] = consensus_distance(models.clients, measured["mean"])
    return row | {
        "num_active": carry.num_active,
        "empty_rounds": carry.empty_rounds,
        **carry.counts._asdict(),
    }


def _measured_buffers(plan: Plan, buffers: Buffers | None) -> Any:
    """Those of the models that are measured, each leaf [k, ...]: B^t, and the mean of the clients'."""
    if buffers is None:
        return None
    found = [buffers.server, buffers_.mean_of_all(buffers.clients)] if plan.with_mean else [buffers.server]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def initial(inputs: Inputs, with_clients: bool = False) -> Carry:
    """The state before round 0."""
    problem, x0 = inputs.problem, inputs.problem.init
    key, _ = _keys(inputs.seed)
    zero = jnp.zeros((), jnp.int32)
    return Carry(
        algorithm=inputs.algorithm.init(inputs.algorithm.params, x0, problem.num_clients),
        links=inputs.links.init(inputs.links.params, key),
        num_active=zero,
        empty_rounds=zero,
        counts=Counts(*(jnp.zeros(2, jnp.int32) for _ in Counts._fields)),
        first_nonfinite=zero - 1,
        server_sum=jnp.zeros_like(x0),
        last_active=jnp.ones(problem.num_clients, bool) if with_clients else None,
        buffers=None if problem.buffers is None else Buffers.begin(problem.buffers, problem.num_clients),
    )


def advance(
    plan: Plan, inputs: Inputs, carry: Carry, first: Array, last: Array, fresh: Array
) -> tuple[Carry, dict[str, Array]]:
    """Rounds first..last-1, and the rows of metrics that fall due; ``fresh``: the row before round ``first`` too.

    An outer loop over rows, an inner one over the rounds between them: evaluation stands in the program once.
    """
    shapes = jax.eval_shape(lambda: _evaluate(plan, inputs, carry))
    rows = jax.tree.map(lambda a: jnp.zeros((CAPACITY, *a.shape), a.dtype), shapes)
    Loop = tuple[Array, Array, Array, Carry, dict[str, Array]]

    def more(loop: Loop) -> Array:
        t, fresh, *_ = loop
        return fresh | (t < last)

    def row(loop: Loop) -> Loop:
        t, fresh, slot, carry, rows = loop
        after = jnp.minimum(last, (t // inputs.eval_every + 1) * inputs.eval_every)
        after = jnp.where(fresh, t, after)
        carry = jax.lax.fori_loop(t, after, lambda t, carry: _round(plan, inputs, carry, t), carry)
        due = fresh | (after % inputs.eval_every == 0) | (after == inputs.num_rounds)

        def write(rows: dict[str, Array]) -> dict[str, Array]:
            return jax.tree.map(lambda a, v: a.at[slot].set(v), rows, _evaluate(plan, inputs, carry))

        return after, jnp.zeros_like(fresh), slot + due, carry, jax.lax.cond(due, write, lambda rows: rows, rows)

    *_, carry, rows = jax.lax.while_loop(more, row, (first, fresh, jnp.zeros((), jnp.int32), carry, rows))
    return carry, rows


def has_downlink(links: LinkProcess) -> bool:
    """The process says itself whom the server reaches, instead of the active clients."""
    key = jax.random.key(0, impl="threefry2x32")
    state = jax.eval_shape(links.init, links.params, key)
    return jax.eval_shape(links.step, links.params, key, state, np.int32(0))[1].downlink is not None


def draw_links(links: LinkProcess, seed: int, num_rounds: int, num_clients: int, block: int) -> Iterator[np.ndarray]:
    """A^t of a run of that seed, bool[up to ``block``, m] at a time, with the keys of ``initial`` and ``_round``."""
    key, _ = _keys(np.uint32(seed))
    links = jax.tree.map(jnp.asarray, links)
    state = jax.jit(links.init)(links.params, key)
    block = min(block, num_rounds)

    def rounds(links: LinkProcess, key: Array, state: Any, first: Array, last: Array) -> tuple[Any, Array]:
        def body(t: Array, loop: tuple[Any, Array]) -> tuple[Any, Array]:
            state, table = loop
            state, link = links.step(links.params, jax.random.fold_in(key, t), state, t)
            return state, table.at[t - first].set(link.active)

        return jax.lax.fori_loop(first, last, body, (state, jnp.zeros((block, num_clients), bool)))

    compiled = jax.jit(rounds)
    for first in range(0, num_rounds, block):
        last = min(first + block, num_rounds)
        state, table = compiled(links, key, state, np.int32(first), np.int32(last))
        yield np.asarray(table)[: last - first]
