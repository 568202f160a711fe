"""Convolutions and pooling of images [channels, height, width, n], the samples of the minibatch last.

On CPUs every convolution is one matrix product over patches, else it is XLA's own: inside a loop over clients that is
15 to 25 times slower there. With the samples last, every copy of the patches moves whole vectors. Both ways agree but
for rounding.
"""

from __future__ import annotations

import numpy as np

from fedpbc.core.lazy import jax, jnp, on_cpu
from fedpbc.core.types import Array
from fedpbc.errors import ConfigError


def image_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(height, width, channels) of samples [height, width(, channels)]. Raises ConfigError, which says who asks."""
    if len(shape) not in (2, 3):
        raise ConfigError(f"model: {name} needs images [height, width, channels], the samples have shape {shape}")
    height, width, depth = (*shape, 1)[:3]
    return height, width, depth


def samples_last(features: Array) -> Array:
    """[n, h, w(, c)] -> [c, h, w, n]."""
    return (features if features.ndim == 4 else features[..., None]).transpose(3, 1, 2, 0)


def initial_kernel(rng: np.random.Generator, depth: int, out: int, width: int = 3) -> np.ndarray:
    """[out, width^2 depth]: weights ~ N(0, 2 / fan-in)."""
    fan_in = width * width * depth
    return rng.standard_normal((out, fan_in)) * np.sqrt(2.0 / fan_in)


def convolved(kernel: Array, values: Array, stride: int = 1) -> Array:
    """3x3 convolution, zeros around: kernel [out, 9 c], values [c, h, w, n] -> [out, ceil(h / stride), ..., n].

    A row of the kernel goes through the 3x3 places, in each through the channels: [out, 3, 3, c].
    """
    depth, height, width, n = values.shape
    out = (kernel.shape[0], -(-height // stride), -(-width // stride), n)
    if not on_cpu():
        given = kernel.reshape(-1, 3, 3, depth)
        dimensions = ("CHWN", "OHWI", "CHWN")
        pads = ((1, 1), (1, 1))
        return jax.lax.conv_general_dilated(values, given, (stride, stride), pads, dimension_numbers=dimensions)
    padded = jnp.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [padded[:, i : i + height : stride, j : j + width : stride] for i in range(3) for j in range(3)]
    return (kernel @ jnp.concatenate(parts).reshape(9 * depth, -1)).reshape(out)


def pooled(values: Array) -> Array:
    """2x2 maximum of [c, h, w, n]; an odd last row or column is dropped."""
    depth, height, width, n = values.shape
    even = values[:, : height // 2 * 2, : width // 2 * 2].reshape(depth, height // 2, 2, width // 2, 2, n)
    upper, lower = even[:, :, 0], even[:, :, 1]
    return jnp.maximum(
        jnp.maximum(upper[:, :, :, 0], upper[:, :, :, 1]), jnp.maximum(lower[:, :, :, 0], lower[:, :, :, 1])
    )
