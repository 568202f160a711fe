"""The only loop: link -> train -> aggregate -> evaluate, compiled once and run in blocks of rounds.

It knows no algorithm, link process or problem by name. Settings, data and the number of rounds are arguments of
the compiled program; a ``Plan`` and the array shapes select it. The loop bounds are arguments too, so the
same program runs every block, however long, and a run cut into other blocks gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpbc.core.aggregation import consensus_distance, select
from fedpbc.core.local import DEVICES, local_steps, map_clients, sum_blocks
from fedpbc.core.types import (
    Algorithm,
    Array,
    LinkProcess,
    Models,
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
    Problem: ["num_clients", "sample", "gradient", "num_blocks", "block_sums", "metrics", "work", "unroll"],
}
for _cls, _static in _STATIC.items():
    _data = ["params", "init"] if _cls is Problem else ["params"]
    _host = ["client_traits", "measures", "tree"] if _cls is Problem else []
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


def _keys(seed: Array) -> tuple[Array, Array]:
    """Independent keys for the links and for the samples of a run; algorithms share both."""
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def _initial(inputs: Inputs) -> Carry:
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
    )


def _round(plan: Plan, inputs: Inputs, carry: Carry, t: Array) -> Carry:
    """Round t: draw the links, let the clients train, let the algorithm aggregate."""
    link_key, sample_key = (jax.random.fold_in(key, t) for key in _keys(inputs.seed))
    link_state, link = inputs.links.step(inputs.links.params, link_key, carry.links, t)
    link = jax.tree.map(jnp.asarray, link)  # a process may give a constant of NumPy, which methods cannot tell apart
    eta = inputs.schedule.at(inputs.schedule.params, t)

    algorithm, m = inputs.algorithm, inputs.problem.num_clients
    training = t < inputs.training_rounds
    computes = training & (link.active if plan.compute == "active" else jnp.ones(m, bool))
    num_steps = jnp.where(training, plan.local_steps, 0)
    train = _trainer(plan, inputs, sample_key, eta, training, computes)
    before = _forget(inputs, carry.algorithm, t)
    state = algorithm.round(algorithm.params, before, Round(t, link, eta, num_steps, computes, train))
    used = computes if algorithm.cost.uses_all else computes & link.active
    received = link.receives if algorithm.cost.broadcast else link.receives & link.active
    models = algorithm.models(state)
    num_active = jnp.sum(link.active, dtype=jnp.int32)
    finite = jnp.all(jnp.isfinite(models.clients)) & jnp.all(jnp.isfinite(models.server))
    return Carry(
        algorithm=state,
        links=link_state,
        num_active=num_active,
        empty_rounds=carry.empty_rounds + (num_active == 0),
        counts=carry.counts.plus(used, link.active, received),
        first_nonfinite=jnp.where(finite | (carry.first_nonfinite >= 0), carry.first_nonfinite, t),
        server_sum=carry.server_sum + jnp.where(2 * (t + 1) > inputs.num_rounds, models.server, 0),
    )


def _trainer(plan: Plan, inputs: Inputs, key: Array, eta: Array, training: Array, computes: Array) -> Train:
    """Local training of round t, as an algorithm may call it."""

    def train(models: Array, shift: Array | None = None, proximal: Array | None = None) -> Array:
        def train_one(*row: Array) -> Array:
            *given, client = row
            return local_steps(
                inputs.problem,
                given[0],
                client,
                key,
                eta,
                plan.local_steps,
                plan.batch_size,
                plan.minibatch,
                shift=given[1] if shift is not None else None,
                proximal=proximal,
            )

        rows = (models,) if shift is None else (models, shift)
        trained = jax.lax.cond(
            training,
            lambda rows: map_clients(train_one, rows, plan.chunk_size, plan.num_devices),
            lambda rows: rows[0],
            rows,
        )
        return select(computes, trained, models) if plan.compute == "active" else trained

    return train


def _forget(inputs: Inputs, state: Any, t: Array) -> Any:
    """The algorithm's state at the start of round t, after a loss that falls into it."""
    loss, algorithm = inputs.loss, inputs.algorithm
    if loss is None:
        return state
    return jax.lax.cond(
        t == loss.round,
        lambda state: algorithm.forget(algorithm.params, state, loss.lost, inputs.problem.init, t),
        lambda state: state,
        state,
    )


def _evaluate(plan: Plan, inputs: Inputs, carry: Carry) -> dict[str, Array]:
    """One row of metrics of the state after a round."""
    models = inputs.algorithm.models(carry.algorithm)
    mean = jnp.mean(models.clients, axis=0)
    both = jnp.stack([models.server, mean])
    sums = sum_blocks(inputs.problem, both, plan.num_devices)
    values = inputs.problem.metrics(inputs.problem.params, both, sums)
    values = {name: value.astype(both.dtype) for name, value in values.items()}
    row = {f"{model}_{name}": value[i] for name, value in values.items() for i, model in enumerate(("server", "mean"))}
    return row | {
        "consensus_distance": consensus_distance(models.clients, mean),
        "num_active": carry.num_active,
        "empty_rounds": carry.empty_rounds,
        **carry.counts._asdict(),
    }


def _start(plan: Plan, inputs: Inputs) -> tuple[Carry, dict[str, Array]]:
    """The state before round 0 and its row of metrics."""
    carry = _initial(inputs)
    return carry, _evaluate(plan, inputs, carry)


def _advance(plan: Plan, inputs: Inputs, carry: Carry, first: Array, last: Array) -> tuple[Carry, dict[str, Array]]:
    """Rounds first..last-1, and the rows of metrics that fall due."""
    shapes = jax.eval_shape(lambda: _evaluate(plan, inputs, carry))
    rows = jax.tree.map(lambda a: jnp.zeros((CAPACITY, *a.shape), a.dtype), shapes)

    def body(t: Array, loop: tuple[Carry, dict[str, Array], Array]) -> tuple[Carry, dict[str, Array], Array]:
        carry, rows, slot = loop
        carry = _round(plan, inputs, carry, t)
        due = ((t + 1) % inputs.eval_every == 0) | (t + 1 == inputs.num_rounds)

        def write(rows: dict[str, Array]) -> dict[str, Array]:
            return jax.tree.map(lambda a, v: a.at[slot].set(v), rows, _evaluate(plan, inputs, carry))

        return carry, jax.lax.cond(due, write, lambda rows: rows, rows), slot + due

    carry, rows, _ = jax.lax.fori_loop(first, last, body, (carry, rows, jnp.zeros((), jnp.int32)))
    return carry, rows


MAX_PROGRAMS = 128
"""Programs that are kept: each takes some 300 memory mappings, and a Linux process has 65 530."""


@dataclass
class Programs:
    """Compiled programs, one per plan, functions and shapes; shared by all cells of an experiment.

    The ``MAX_PROGRAMS`` that were used last are kept.
    """

    devices: list[Any]
    compiled: dict[Any, Any] = field(default_factory=dict)
    num_compiled: int = 0

    def get(self, plan: Plan, inputs: Inputs) -> tuple[Any, Any, float]:
        """(start, advance, seconds spent compiling)."""
        leaves, tree = jax.tree.flatten(inputs)
        key = (plan, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        if key in self.compiled:
            self.compiled[key] = self.compiled.pop(key)  # the latest comes last
            return *self.compiled[key], 0.0
        while len(self.compiled) >= MAX_PROGRAMS:
            del self.compiled[next(iter(self.compiled))]
        began = time.perf_counter()
        start: Any = partial(_start, plan)
        advance: Any = partial(_advance, plan)
        if plan.num_devices > 1:
            mesh, everywhere = self.mesh(plan.num_devices), PartitionSpec()
            start, advance = (
                jax.shard_map(f, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
                for f in (start, advance)
            )
        first = jax.jit(start).lower(inputs).compile()
        number = jax.ShapeDtypeStruct((), jnp.int32, sharding=self.sharding(plan.num_devices))
        carry = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self.sharding(plan.num_devices)),
            jax.eval_shape(_initial, inputs),
        )
        following = jax.jit(advance, donate_argnums=1).lower(inputs, carry, number, number).compile()
        self.compiled[key] = first, following
        self.num_compiled += 1
        return first, following, time.perf_counter() - began

    def mesh(self, num_devices: int) -> Mesh:
        """The devices a plan shares."""
        return Mesh(np.array(self.devices[:num_devices]), (DEVICES,))

    def sharding(self, num_devices: int) -> Any:
        """A copy on every device of the plan."""
        return NamedSharding(self.mesh(num_devices), PartitionSpec())

    def put(self, tree: Any, num_devices: int) -> Any:
        """Copy arrays to every device of the plan."""
        return jax.device_put(tree, self.sharding(num_devices))


class Simulation:
    """One run: a state that is advanced block by block, and can be saved and restored between blocks.

    ``programs`` is shared between runs. Everything is deterministic in the seed.
    """

    def __init__(self, programs: Programs, plan: Plan, inputs: Inputs) -> None:
        self.programs, self.plan = programs, plan
        self.inputs = programs.put(inputs, plan.num_devices)
        self._start, self._advance, self.compile_seconds = programs.get(plan, self.inputs)
        self.num_rounds, self.eval_every = int(inputs.num_rounds), int(inputs.eval_every)
        self.carry, row = self._start(self.inputs)
        self.first_rows = self._columns(np.array([0]), {name: np.asarray(v)[None] for name, v in row.items()})
        self.next_round = 0

    @property
    def done(self) -> bool:
        """All rounds are over."""
        return self.next_round == self.num_rounds

    def advance(self, num_rounds: int) -> dict[str, np.ndarray]:
        """At least one and up to ``num_rounds`` more rounds; returns the rows that fell due, with their ``round``."""
        first = self.next_round
        most = (CAPACITY - 2) * self.eval_every
        last = min(first + max(1, min(num_rounds, most)), self.num_rounds)
        bounds = self.programs.put((np.int32(first), np.int32(last)), self.plan.num_devices)
        self.carry, rows = self._advance(self.inputs, self.carry, *bounds)
        after: Array = np.arange(first + 1, last + 1)
        due = after[(after % self.eval_every == 0) | (after == self.num_rounds)]
        self.next_round = last
        return self._columns(due, {name: np.asarray(column)[: len(due)] for name, column in rows.items()})

    def _columns(self, rounds: np.ndarray, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows as columns of results: counts become local gradient steps and bytes so far."""
        counts = {name: rows.pop(name).astype(np.int64) @ np.array([1_000_000, 1]) for name in Counts._fields}
        x0, cost = self.inputs.problem.init, self.inputs.algorithm.cost
        up, down = (
            x0.dtype.itemsize * (models * x0.shape[0] + scalars)
            for models, scalars in zip((cost.up, cost.down), cost.scalars, strict=True)
        )
        return {
            "round": rounds,
            **{name: column.astype(np.int64) if column.dtype.kind == "i" else column for name, column in rows.items()},
            "gradient_steps": counts["computed"] * self.plan.local_steps,
            "bytes_up": counts["sent"] * up,
            "bytes_down": counts["received"] * down,
        }

    def models(self) -> dict[str, np.ndarray]:
        """``server`` x^t, ``mean`` (1/m) sum_i x_i^t, and ``server_average``, each [d].

        ``server_average`` is the mean of the server model over the second half of the run's rounds, complete
        when the run is done.
        """
        state: Models = self.inputs.algorithm.models(self.carry.algorithm)
        count = max(self.num_rounds - self.num_rounds // 2, 1)
        return {
            "server": np.asarray(state.server),
            "mean": np.asarray(jnp.mean(state.clients, axis=0)),
            "server_average": np.asarray(self.carry.server_sum / count),
        }

    @property
    def first_nonfinite(self) -> int | None:
        """The first round (counted as in the metrics: after t rounds) with a model that is not finite."""
        value = int(self.carry.first_nonfinite)
        return None if value < 0 else value + 1

    def save(self) -> dict[str, np.ndarray]:
        """The state as plain arrays, bit for bit."""
        leaves = {f"carry{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.carry))}
        return {"next_round": np.array(self.next_round), **leaves}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on from what ``save`` gave. Raises KeyError or ValueError when it is of another run."""
        leaves, tree = jax.tree.flatten(self.carry)
        loaded = [saved[f"carry{i}"] for i in range(len(leaves))]
        if [(a.shape, a.dtype) for a in loaded] != [(a.shape, a.dtype) for a in leaves]:
            raise ValueError("the shapes are those of another run")
        if not 0 <= int(saved["next_round"]) <= self.num_rounds:
            raise ValueError("the round is outside the run")
        self.carry = self.programs.put(jax.tree.unflatten(tree, loaded), self.plan.num_devices)
        self.next_round = int(saved["next_round"])


def has_downlink(links: LinkProcess) -> bool:
    """The process says itself whom the server reaches, instead of the active clients."""
    key = jax.random.key(0, impl="threefry2x32")
    state = jax.eval_shape(links.init, links.params, key)
    return jax.eval_shape(links.step, links.params, key, state, np.int32(0))[1].downlink is not None


def draw_links(links: LinkProcess, seed: int, num_rounds: int, num_clients: int, block: int) -> Iterator[np.ndarray]:
    """A^t of a run of that seed, bool[up to ``block``, m] at a time, with the keys of ``_initial`` and ``_round``."""
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
