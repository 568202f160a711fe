"""Local training: s SGD steps of one client, and how clients are spread over chunks and devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedpbc.core.aggregation import select
from fedpbc.core.descent import PLAIN, Descent, descend
from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array, Problem

DEVICES = "devices"
"""Name of the mesh axis over which chunks are shared."""


def local_steps(
    problem: Problem,
    x: Array,
    client: Array,
    key: Array,
    eta: Array,
    steps: int,
    batch_size: int,
    minibatch: str,
    shift: Array | None = None,
    proximal: Array | None = None,
    last_gradient: bool = False,
    descent: Descent = PLAIN,
    buffers: Any = None,
) -> tuple[Array, Any]:
    """x <- x - eta (grad l_i(x; xi) + shift + proximal (x - x_start)), ``steps`` times, for one client i; x [d].

    (x, buffers) after them. ``last_gradient``: grad l_i of the last of these steps, in place of taking it.

    ``minibatch``: "round" reuses one minibatch for all steps (Algorithms 1 and 2 as printed), "step" draws a
    fresh one for each. ``key`` belongs to this round alone; client and step are folded into it, so that the
    samples do not depend on how clients are chunked or sharded. ``descent``: what the steps have beside that.
    """
    key = jax.random.fold_in(key, client)
    fixed = problem.sample(problem.params, client, key, batch_size) if minibatch == "round" else None
    at_once = problem.several is not None and minibatch == "round" and descent == PLAIN and not last_gradient
    several = problem.several(steps, batch_size) if at_once and problem.several is not None else None
    if several is not None:
        return several(fixed, x, eta, shift, proximal), buffers

    def gradient(k: Array, x: Array, buffers: Any) -> tuple[Array, Any]:
        batch = fixed
        if minibatch == "step":
            batch = problem.sample(problem.params, client, jax.random.fold_in(key, k), batch_size)
        return gradient_at(problem, batch, x, buffers)

    if last_gradient:
        if steps > 1:
            x, buffers = descend(gradient, x, eta, steps - 1, shift, proximal, problem.unroll, descent, buffers)
        return gradient(jnp.int32(steps - 1), x, buffers)
    return descend(gradient, x, eta, steps, shift, proximal, problem.unroll, descent, buffers)


def gradient_at(problem: Problem, batch: Any, x: Array, buffers: Any) -> tuple[Array, Any]:
    """(grad l_i(x; xi) [d], the buffers after it); None: of a problem without."""
    return (problem.gradient(batch, x), None) if buffers is None else problem.gradient(batch, x, buffers)


def measured(problem: Problem, models: Array) -> dict[str, Array]:
    """The metrics of models [k, d], with the buffers that everybody begins with."""
    return problem.metrics(problem.params, models, sum_blocks(problem, models, 1, first_buffers(problem, models)))


def first_buffers(problem: Problem, models: Array) -> Any:
    """For each of k models the buffers that everybody begins with, each leaf [k, ...]; None: the problem has none."""
    k = models.shape[0]
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (k, *jnp.shape(a))), problem.buffers)


def first_clients(num_clients: int, chunk_size: int, num_devices: int) -> list[int]:
    """The first client of each device, and m: device k trains clients first[k]..first[k+1]-1, whole chunks of them."""
    size = min(chunk_size, num_clients)
    own = size * -(-num_clients // (size * num_devices))
    return [min(k * own, num_clients) for k in range(num_devices + 1)]


def map_clients(train_one: Callable[..., Any], rows: Any, chunk_size: int, num_devices: int) -> Any:
    """``train_one(*rows_i, i)`` for every client i, stacked; ``rows`` is a tuple of pytrees of arrays [m, ...].

    Chunks of ``chunk_size`` clients are vectorised, chunks follow each other. The last chunk is filled up with
    repetitions of the last client, whose results are dropped.
    """
    m = jax.tree.leaves(rows)[0].shape[0]
    size = min(chunk_size, m)
    num_chunks = -(-m // size)
    clients = jnp.minimum(jnp.arange(num_chunks * size, dtype=jnp.int32), m - 1)
    filled = rows if num_chunks * size == m else jax.tree.map(lambda a: a[clients], rows)
    chunks = jax.tree.map(lambda a: a.reshape(num_chunks, size, *a.shape[1:]), (*filled, clients))
    trained = map_chunks(lambda chunk: jax.vmap(train_one)(*chunk), chunks, num_devices)
    return jax.tree.map(lambda a: a.reshape(num_chunks * size, *a.shape[2:])[:m], trained)


def map_some(train_one: Callable[..., Any], rows: Any, needed: Array, chunk_size: int, num_devices: int) -> Any:
    """``map_clients`` for the clients of a mask bool[m]; the others keep ``rows[0]``, which is alike, and cost nothing.

    Those needed come first, in their order, in as many chunks as they fill; chunks have the shapes of ``map_clients``,
    so that a client's result is the same in both. Each device does so with its own clients (``first_clients``). The
    last chunk is filled up with the last client.
    """
    m = needed.shape[0]
    size = min(chunk_size, m)
    share = -(-m // (size * num_devices))
    own = share * size
    here = jax.lax.axis_index(DEVICES) if num_devices > 1 else 0
    padded = jnp.concatenate([needed, jnp.zeros(own * num_devices - m, bool)]).reshape(num_devices, own)
    mine = padded[here]
    clients = jnp.nonzero(mine, size=own, fill_value=m)[0].astype(jnp.int32).reshape(share, size) + here * own
    num_chunks = -(-jnp.sum(mine, dtype=jnp.int32) // size)

    def trained(chunk: Array) -> Any:
        ids = jnp.minimum(clients[chunk], m - 1)
        return jax.vmap(train_one)(*jax.tree.map(lambda a: a[ids], rows), ids)

    if num_devices == 1:

        def into(chunk: Array, kept: Any) -> Any:
            return jax.tree.map(lambda a, new: a.at[clients[chunk]].set(new, mode="drop"), kept, trained(chunk))

        return jax.lax.fori_loop(0, num_chunks, into, rows[0])
    place = jnp.cumsum(padded, axis=1, dtype=jnp.int32) - 1 + own * jnp.arange(num_devices, dtype=jnp.int32)[:, None]

    def written(k: Array, room: Any) -> Any:
        return jax.tree.map(lambda a, new: a.at[k].set(new), room, trained(k))

    def spread(done: Array, kept: Array) -> Array:
        everywhere = jax.lax.all_gather(done, DEVICES).reshape(num_devices * own, *kept.shape[1:])
        return select(needed, everywhere[place.reshape(-1)[:m]], kept)

    room = jax.tree.map(lambda a: jnp.zeros((share, size, *a.shape[1:]), a.dtype), rows[0])
    return jax.tree.map(spread, jax.lax.fori_loop(0, num_chunks, written, room), rows[0])


def map_chunks(fn: Callable[[Any], Any], chunks: Any, num_devices: int) -> Any:
    """``fn`` of every slice along the leading axis, in order; each device maps its share, then all have all.

    Every chunk is the same program on the same shapes wherever it runs, and nothing is summed across
    devices: results are bit-identical over the number of devices.
    """
    if num_devices == 1:
        return jax.lax.map(fn, chunks)
    num_chunks = jax.tree.leaves(chunks)[0].shape[0]
    share = -(-num_chunks // num_devices)
    mine = jax.lax.axis_index(DEVICES) * share + jnp.arange(share)
    mine = jnp.minimum(mine, num_chunks - 1)
    results = jax.lax.map(fn, jax.tree.map(lambda a: a[mine], chunks))
    gathered = jax.tree.map(lambda a: jax.lax.all_gather(a, DEVICES, tiled=True), results)
    return jax.tree.map(lambda a: a[:num_chunks], gathered)


def sum_blocks(problem: Problem, models: Array, num_devices: int, buffers: Any = None) -> Any:
    """``problem.block_sums`` over all blocks, added up in the order of the blocks whatever the devices."""
    beside = () if buffers is None else (buffers,)

    def sums(block: Array) -> Any:
        return problem.block_sums(problem.params, models, block, *beside)

    if problem.owned is None:
        parts = map_chunks(sums, jnp.arange(problem.num_blocks, dtype=jnp.int32), num_devices)
    else:
        each = jax.lax.map(sums, problem.owned[jax.lax.axis_index(DEVICES)])
        order = jnp.argsort(problem.owned.reshape(-1))[: problem.num_blocks]
        parts = jax.tree.map(lambda a: jax.lax.all_gather(a, DEVICES, tiled=True)[order], each)
    zero = jax.tree.map(lambda a: jnp.zeros_like(a[0]), parts)
    total, _ = jax.lax.scan(
        lambda total, part: (jax.tree.map(jnp.add, total, part), None), zero, parts, length=problem.num_blocks
    )
    return total
