"""Ragged client data: one flat array of samples, and an offset and a size per client. Never padded per client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpbc.core.lazy import jax, jnp, on_cpu
from fedpbc.core.options import INT_MAX
from fedpbc.core.types import Array, Pieces
from fedpbc.errors import ConfigError


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros at an address that is a multiple of 64: JAX then uses the memory as it is, without a copy on the host."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """First row of each client, int32[m]. Raises ConfigError when a client has no sample, or all have 2^31 and more."""
    if len(sizes) == 0 or int(sizes.min()) < 1:
        client = int(np.argmin(sizes)) if len(sizes) else 0
        raise ConfigError(f"data: client {client} has no training sample: every client needs at least one")
    ends = np.cumsum(sizes, dtype=np.int64)
    if ends[-1] > INT_MAX:
        raise ConfigError(f"data: {ends[-1]:,} training samples: at most {INT_MAX:,} can be counted")
    return np.concatenate([[0], ends[:-1]]).astype(np.int32)


def draw_rows(key: Array, offset: Array, size: Array, batch_size: int) -> Array:
    """``batch_size`` rows of one client, uniform with replacement: int32[batch_size] into the flat array.

    offset + floor(bits size / 2^32) in integer arithmetic: a float32 could not tell rows above 2^24 apart.
    """
    bits = jax.random.bits(key, (batch_size,), jnp.uint32)
    return offset + multiply_high(bits, size.astype(jnp.uint32)).astype(jnp.int32)


def multiply_high(a: Array, b: Array) -> Array:
    """floor(a b / 2^32) of unsigned 32-bit integers, without 64-bit arithmetic."""
    a_low, a_high = a & 0xFFFF, a >> 16
    b_low, b_high = b & 0xFFFF, b >> 16
    middle = a_high * b_low + ((a_low * b_low) >> 16)
    carry = (a_low * b_high + (middle & 0xFFFF)) >> 16
    return a_high * b_high + (middle >> 16) + carry


def weights_of(sizes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """1 / (m n_i) for every sample of client i, [sum n_i]: the mean over the m clients that have any."""
    return np.repeat((1.0 / (np.count_nonzero(sizes) * np.maximum(sizes, 1))).astype(dtype), sizes)


class Samples(NamedTuple):
    """Samples of all clients, client after client; rows behind the last one's are filling."""

    data: Any
    """A pytree of arrays [rows, ...]: what a batch is made of."""
    sizes: np.ndarray
    """int[m]: how many rows belong to client i."""
    owned: bool = True
    """False: the samples belong to nobody (a common test set), and ``sizes`` is their number alone, [1]."""

    @property
    def rows(self) -> int:
        """With the filling."""
        return int(jax.tree.leaves(self.data)[0].shape[0])


def in_order(data: Any, client: np.ndarray | None, num_clients: int, block: int, dtype: Any, most: int = 0) -> Samples:
    """Arrays [n, ...] sorted by client, filled up to whole blocks; floats in the run's precision, integers in 32 bits.

    ``most``: fill up to at least so many rows. Raises ConfigError for integers beyond 32 bits, floats beyond ``dtype``.
    """
    leaves = jax.tree.leaves(data)
    n = len(leaves[0])
    order = None if client is None else np.argsort(client, kind="stable")
    sizes = np.array([n]) if client is None else np.bincount(client, minlength=num_clients)
    rows = -(-max(n, most, 1) // block) * block

    def stored(array: np.ndarray) -> np.ndarray:
        target = _stored_type(array, dtype)
        filled = aligned_zeros((rows, *array.shape[1:]), target)
        narrower = target.kind == "f" and target.itemsize < array.dtype.itemsize
        for piece in pieces(n, array[:1].size):  # the sorted copy, in its own type, is never held whole
            with np.errstate(over="ignore"):
                filled[piece] = array[piece if order is None else order[piece]]
            if narrower and not np.all(np.isfinite(filled[piece])):
                raise ConfigError(f'data: values beyond {target}; scale them, or run with precision = "float64"')
        return filled

    return Samples(jax.tree.map(stored, data), sizes, client is not None)


def pieces(n: int, row: int = 1) -> Iterator[slice]:
    """Slices over n rows of ``row`` numbers each, about a million numbers at a time."""
    size = max(1, 2**20 // max(row, 1))
    return (slice(first, min(first + size, n)) for first in range(0, n, size))


def _stored_type(array: np.ndarray, dtype: Any) -> np.dtype:
    if array.dtype.kind == "f":
        return np.dtype(dtype)
    if array.dtype.kind in "iu" and array.dtype.itemsize > 2:
        if array.size and (array.max() > np.iinfo(np.int32).max or array.min() < np.iinfo(np.int32).min):
            raise ConfigError(f"data: integers up to {array.max()} do not fit in 32 bits; use floats")
        return np.dtype(np.int32)
    return array.dtype


def block_of(sample: Any) -> int:
    """How many samples of this shape are evaluated at once: a power of 2 from 64 to 2048."""
    size = sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(sample))
    return int(min(2048, max(64, 2 ** int(np.log2(2**19 / max(size, 1))))))


def weighted(samples: Samples, dtype: Any) -> dict[str, Any]:
    """The samples and their weights 1/(m n_i) (by client) and 1/n (pooled); the filling weighs nothing."""
    rows, total = samples.rows, int(samples.sizes.sum())
    part = {"data": samples.data, "pooled": aligned_zeros((rows,), dtype)}
    part["pooled"][:total] = 1.0 / max(total, 1)
    if samples.owned:
        part["by_client"] = aligned_zeros((rows,), dtype)
        part["by_client"][:total] = weights_of(samples.sizes, dtype)
    return part


def windows(part: dict[str, Any], first: Sequence[int], block: int) -> dict[str, Any]:
    """What ``weighted`` gives, cut into windows: views, all of one length, the k-th with rows first[k]..first[k+1]-1.

    They are whole blocks, and overlap where they must. Lengths are rounded up a little, so that seeds, whose data
    differ, mostly share a program. "start" is the row of the whole at which a window begins.
    """
    rows = part["pooled"].shape[0]
    begin = [row // block * block for row in first[:-1]]
    longest = max(end - start for start, end in zip(begin, first[1:], strict=True))
    step = block * max(1, rows // (block * 32 * len(begin)))
    length = min(rows, max(step, -(-longest // step) * step))
    starts = [min(start, rows - length) for start in begin]
    cut = jax.tree.map(lambda a: Pieces(tuple(a[start : start + length] for start in starts)), part)
    return {**cut, "start": Pieces(tuple(np.array([start], np.int32) for start in starts))}


def first_row(part: dict[str, Any]) -> Array | int:
    """The row of the whole set at which the rows of this device begin."""
    return part["start"][0] if "start" in part else 0


WIDTH = 64
"""Numbers that are added side by side."""


def weighted_sum(values: Array, weights: Array) -> Array:
    """sum_k values_k weights_k, [n] and [n] -> a number: rows of ``WIDTH`` one after the other, then halves to halves.

    The order is in the program: a product of vectors is summed in an order that the compiler chooses, and it chooses
    another one when a round is shared between devices. The loop keeps what makes the values out of the sum, where XLA
    would compute them one by one.
    """
    parts = jax.lax.stop_gradient(values) * weights
    if on_cpu() and parts.shape[0] > WIDTH and parts.shape[0] % WIDTH == 0:
        rows = parts.reshape(-1, WIDTH)
        parts = jax.lax.fori_loop(1, rows.shape[0], lambda k, total: total + rows[k], rows[0])
    while parts.shape[0] > 1:
        half = parts.shape[0] // 2
        added, rest = parts[:half] + parts[half : 2 * half], parts[2 * half :]
        parts = jnp.concatenate([added, rest]) if rest.shape[0] else added
    return parts[0]


def block_rows(part: dict[str, Any], block: Array, size: int) -> dict[str, Any]:
    """The rows of one block; outside the rows that are here, weights of zero."""
    rows = {name: value for name, value in part.items() if name != "start"}
    last = part["pooled"].shape[0] // size - 1
    here = block - first_row(part) // size
    start = jnp.clip(here, 0, last) * size
    rows = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), rows)
    inside = (here >= 0) & (here <= last)
    weights = {name: jnp.where(inside, value, 0) for name, value in rows.items() if name != "data"}
    return {"data": rows["data"], **weights}
