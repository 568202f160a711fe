"""The engine's loop compiled, and one run of it: advanced block by block, saved and restored between blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpbc.core.buffers import mean_of_all
from fedpbc.core.engine import CAPACITY, Counts, Inputs, Plan, advance, initial
from fedpbc.core.local import DEVICES
from fedpbc.core.memory import require_program
from fedpbc.core.types import Array, Models, Pieces

LAYOUT = 2
"""Of checkpoints, counted up when an older state would go on with other numbers (2: linear models' steps at once)."""
MAX_PROGRAMS = 128
"""Programs that are kept at most."""
MAX_MAPPINGS = 40_000
"""Memory mappings above which programs are let go: each takes 300 to 700, and a Linux process has 65 530."""


@dataclass
class Programs:
    """Compiled programs, one per plan, functions and shapes; shared by all cells of an experiment, and by threads.

    Those that were used last are kept: at most ``MAX_PROGRAMS``, fewer where they take many memory mappings.
    """

    devices: Sequence[Any]
    compiled: dict[Any, Any] = field(default_factory=dict)
    num_compiled: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _compiling: dict[Any, threading.Lock] = field(default_factory=dict)

    def get(self, plan: Plan, inputs: Inputs) -> tuple[Any, Any, float]:
        """(start, advance, seconds spent compiling) for inputs that ``put`` has placed."""
        leaves, tree = jax.tree.flatten(inputs)
        key = (plan, tree, tuple((leaf.shape, leaf.dtype, leaf.sharding.spec) for leaf in leaves))
        with self._guard:
            mine = self._compiling.setdefault(key, threading.Lock())
        with mine:  # who wants the same program waits, others do not
            with self._guard:
                if key in self.compiled:
                    self.compiled[key] = self.compiled.pop(key)  # the latest comes last
                    return *self.compiled[key], 0.0
            began = time.perf_counter()
            both = self._compile(plan, inputs)
            crowded = _mappings() > MAX_MAPPINGS
            with self._guard:
                most = len(self.compiled) // 2 if crowded else MAX_PROGRAMS - 1
                while len(self.compiled) > most:
                    del self.compiled[next(iter(self.compiled))]
                self.compiled[key] = both
                self.num_compiled += 1
                self._compiling.pop(key, None)
            return *both, time.perf_counter() - began

    def _compile(self, plan: Plan, inputs: Inputs) -> tuple[Any, Any]:
        following: Any = partial(advance, plan)
        if plan.num_devices > 1:
            everywhere = PartitionSpec()
            following = jax.shard_map(
                following,
                mesh=self.mesh(plan),
                in_specs=(jax.tree.map(lambda a: a.sharding.spec, inputs), *4 * (everywhere,)),
                out_specs=everywhere,
                check_vma=False,
            )
        sharding = self.sharding(plan)

        def shaped(a: Any) -> Any:
            return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

        number, flag = shaped(np.int32(0)), shaped(np.bool_(False))
        begin = partial(initial, with_clients=plan.with_clients)
        carry = jax.tree.map(shaped, jax.eval_shape(begin, inputs))
        start = jax.jit(begin, out_shardings=sharding).lower(inputs).compile()
        rounds = jax.jit(following, donate_argnums=1).lower(inputs, carry, number, number, flag).compile()
        shared = sum(leaf.nbytes for leaf in jax.tree.leaves(inputs) if leaf.is_fully_replicated)
        require_program(rounds, shared, inputs.problem.num_clients, list(self.mesh(plan).local_devices))
        return start, rounds

    def mesh(self, plan: Plan) -> Mesh:
        """The devices a plan shares."""
        return Mesh(np.array(self.devices[plan.device : plan.device + plan.num_devices]), (DEVICES,))

    def sharding(self, plan: Plan) -> Any:
        """A copy on every device of the plan."""
        return NamedSharding(self.mesh(plan), PartitionSpec())

    def put(self, tree: Any, plan: Plan) -> Any:
        """Copy arrays to every device of the plan, ``Pieces`` to one each; what is there already stays."""
        mesh = self.mesh(plan)
        here = [(k, device) for k, device in enumerate(mesh.devices) if device.process_index == jax.process_index()]

        def placed(a: Any) -> Any:
            if isinstance(a, Pieces):
                pieces = {k: _own(a.arrays[k]) for k, _ in here}
                shape = next(iter(pieces.values())).shape
                shape, spec = (len(a.arrays) * shape[0], *shape[1:]), PartitionSpec(DEVICES)
            elif isinstance(a, jax.Array) and getattr(a.sharding, "mesh", None) == mesh:
                return a
            elif len(here) == mesh.size:
                return jax.device_put(a, self.sharding(plan))
            else:
                whole = np.asarray(a)
                pieces, shape, spec = dict.fromkeys((k for k, _ in here), whole), whole.shape, PartitionSpec()
            parts = [jax.device_put(pieces[k], device) for k, device in here]
            return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), parts)

        return jax.tree.map(placed, tree)


def _mappings() -> int:
    """Of this process; 0 where nobody counts them."""
    try:
        with open("/proc/self/maps", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def _own(piece: np.ndarray) -> np.ndarray:
    """A piece as it is, or a copy where the rest belongs to devices of other processes, and is to be let go."""
    return piece.copy() if jax.process_count() > 1 else piece


class Simulation:
    """One run: a state that is advanced block by block, and can be saved and restored between blocks.

    ``programs`` is shared between runs. Everything is deterministic in the seed.
    """

    def __init__(self, programs: Programs, plan: Plan, inputs: Inputs) -> None:
        self.programs, self.plan = programs, plan
        self.inputs = programs.put(inputs, plan)
        self._initial, self._advance, self.compile_seconds = programs.get(plan, self.inputs)
        self.num_rounds, self.eval_every = int(inputs.num_rounds), int(inputs.eval_every)
        self.carry: Any = None
        self.next_round = 0

    @property
    def done(self) -> bool:
        """All rounds are over."""
        return self.next_round == self.num_rounds

    def start(self) -> dict[str, np.ndarray]:
        """The state before round 0; returns its row."""
        self.carry, self.next_round = self._initial(self.inputs), 0
        return self._rounds(0, True, np.zeros(1, np.int64))

    def advance(self, num_rounds: int) -> dict[str, np.ndarray]:
        """At least one and up to ``num_rounds`` more rounds; returns the rows that fell due, with their ``round``."""
        first = self.next_round
        most = (CAPACITY - 2) * self.eval_every
        last = min(first + max(1, min(num_rounds, most)), self.num_rounds)
        after: Array = np.arange(first + 1, last + 1)
        return self._rounds(last, False, after[(after % self.eval_every == 0) | (after == self.num_rounds)])

    def _rounds(self, last: int, fresh: bool, due: np.ndarray) -> dict[str, np.ndarray]:
        bounds = self.programs.put((np.int32(self.next_round), np.int32(last), np.bool_(fresh)), self.plan)
        self.carry, rows = self._advance(self.inputs, self.carry, *bounds)
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
        when the run is done. ``server.buffers.0``, ...: the leaves of the server's buffers, and of the clients' mean.
        """
        state: Models = self.inputs.algorithm.models(self.carry.algorithm)
        count = max(self.num_rounds - self.num_rounds // 2, 1)
        found = {
            "server": np.asarray(state.server),
            "mean": np.asarray(jnp.mean(state.clients, axis=0)),
            "server_average": np.asarray(self.carry.server_sum / count),
        }
        if self.carry.buffers is not None:
            clients = mean_of_all(self.carry.buffers.clients)
            for name, tree in (("server", self.carry.buffers.server), ("mean", clients)):
                leaves = enumerate(jax.tree.leaves(tree))
                found |= {f"{name}.buffers.{i}": np.asarray(leaf) for i, leaf in leaves}
        return found

    @property
    def first_nonfinite(self) -> int | None:
        """The first round (counted as in the metrics: after t rounds) with a model that is not finite."""
        value = int(self.carry.first_nonfinite)
        return None if value < 0 else value + 1

    def save(self) -> dict[str, np.ndarray]:
        """The state as plain arrays, bit for bit."""
        leaves = {f"carry{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self.carry))}
        return {"layout": np.array(LAYOUT), "next_round": np.array(self.next_round), **leaves}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on from what ``save`` gave. Raises KeyError or ValueError when it is of another run."""
        leaves, tree = jax.tree.flatten(
            jax.eval_shape(partial(initial, with_clients=self.plan.with_clients), self.inputs)
        )
        loaded = [saved[f"carry{i}"] for i in range(len(leaves))]
        if [(a.shape, a.dtype) for a in loaded] != [(a.shape, a.dtype) for a in leaves]:
            raise ValueError("the shapes are those of another run")
        if not 0 <= int(saved["next_round"]) <= self.num_rounds:
            raise ValueError("the round is outside the run")
        self.carry = self.programs.put(jax.tree.unflatten(tree, loaded), self.plan)
        self.next_round = int(saved["next_round"])
