"""A small convolutional network that is fast on CPUs: every convolution is one matrix product over patches.

XLA's convolutions inside a loop over clients are 15 to 25 times slower on CPUs than patches and a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, PositiveInt, component
from fedpbc.core.types import Array
from fedpbc.errors import ConfigError
from fedpbc.models.dense import affine, columns, initial_layer
from fedpbc.models.model import Model


@dataclass(frozen=True)
class Cnn(Model):
    """Blocks of 3x3 convolution, relu and 2x2 max pooling, then dense layers."""

    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    one_by_one: ClassVar[bool] = True

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Weights ~ N(0, 2 / fan-in), biases 0: {"conv": layers [out, 9 in + 1], "dense": layers [out, in + 1]}.

        Raises ConfigError for samples that are no images [height, width] or [height, width, channels], or too small.
        """
        if len(shape) not in (2, 3):
            raise ConfigError(f"model: cnn needs images [height, width, channels], the samples have shape {shape}")
        height, width, depth = (*shape, 1)[:3]
        conv = []
        for out in self.channels:
            conv.append(initial_layer(rng, 9 * depth, out, 2.0))
            height, width, depth = height // 2, width // 2, out
        if min(height, width) < 1:
            raise ConfigError(f"model: images of shape {shape} are too small for {len(self.channels)} poolings by 2")
        sizes = [height * width * depth, *self.hidden, num_outputs]
        dense = [initial_layer(rng, a, b, 2.0) for a, b in pairwise(sizes)]
        return {"conv": tuple(conv), "dense": tuple(dense)}

    def outputs(self, params: Any, features: Array) -> Array:
        """[n, h, w(, c)] -> [outputs, n]."""
        values = features if features.ndim == 4 else features[..., None]
        for weights in params["conv"]:
            values = _pool(jax.nn.relu(_convolve(weights, values)))
        first, *rest = params["dense"]
        dense = affine(first, columns(values))
        for weights in rest:
            dense = affine(weights, jax.nn.relu(dense))
        return dense


def _convolve(weights: Array, images: Array) -> Array:
    """3x3, stride 1, zero padding; weights [out, 9 in + 1], images [n, h, w, in] -> [n, h, w, out]."""
    height, width = images.shape[1:3]
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    patches = jnp.concatenate([padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=-1)
    return patches @ weights[:, :-1].T + weights[:, -1]


def _pool(images: Array) -> Array:
    """2x2 maximum; an odd last row or column is dropped."""
    n, height, width, depth = images.shape
    even = images[:, : height // 2 * 2, : width // 2 * 2]
    return even.reshape(n, height // 2, 2, width // 2, 2, depth).max(axis=(2, 4))


@component
def cnn(
    context: Context, channels: Sequence[PositiveInt] = (16, 32), *, hidden: Sequence[PositiveInt] = (64,)
) -> Model:
    """Blocks of 3x3 convolution to so many ``channels``, relu and 2x2 max pooling, then dense layers of ``hidden``."""
    return Cnn(tuple(channels), tuple(hidden))
