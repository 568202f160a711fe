"""Ragged client data: one flat array of samples, and an offset and a size per client. Never padded per client."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.errors import ConfigError
from fedpbc.types import Array


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros at an address that is a multiple of 64: JAX then uses the memory as it is, without a copy on the host."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """First row of each client, int32[m]. Raises ConfigError when a client has no sample."""
    if len(sizes) == 0 or int(sizes.min()) < 1:
        client = int(np.argmin(sizes)) if len(sizes) else 0
        raise ConfigError(f"client {client} has no training sample: every client needs at least one")
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)


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
    """1 / (m n_i) for every sample of client i, [sum n_i]: the uniform mean over clients of sample means."""
    return np.repeat(1.0 / (len(sizes) * np.maximum(sizes, 1)), sizes).astype(dtype)
