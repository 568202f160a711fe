"""A small convolutional network. On CPUs every convolution is one matrix product over patches; else it is XLA's own.

XLA's convolutions inside a loop over clients are 15 to 25 times slower on CPUs than patches and a product. Patches have
the samples of the minibatch last, so that every copy moves whole vectors. Both ways agree but for rounding.
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
        images = features if features.ndim == 4 else features[..., None]
        conv = _by_patches if on_cpu() else _by_convolution
        first, *rest = params["dense"]
        dense = affine(first, conv(params["conv"], images))
        for weights in rest:
            dense = affine(weights, jax.nn.relu(dense))
        return dense


def on_cpu() -> bool:
    """Programs are made for CPUs: asked while they are traced."""
    return bool(jax.default_backend() == "cpu")


def _by_patches(layers: Sequence[Array], images: Array) -> Array:
    """All convolutions, relu and pooling, [n, h, w, c] -> [h' w' c', n]; samples last in between."""
    values = images.transpose(3, 1, 2, 0)
    for weights in layers:
        depth, height, width, n = values.shape
        padded = jnp.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
        parts = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
        patches = jnp.concatenate(parts).reshape(9 * depth, -1)
        filtered = weights[:, :-1] @ patches + weights[:, -1:]
        values = jax.nn.relu(_pool(filtered.reshape(-1, height, width, n)))
    return values.transpose(1, 2, 0, 3).reshape(-1, values.shape[3])


def _by_convolution(layers: Sequence[Array], images: Array) -> Array:
    """The same by XLA's convolutions."""
    values = images
    for weights in layers:
        kernel = weights[:, :-1].T.reshape(3, 3, values.shape[3], -1)  # rows of patches: 3x3, then channels
        filtered = jax.lax.conv_general_dilated(
            values, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        pooled = _pool((filtered + weights[:, -1]).transpose(3, 1, 2, 0))
        values = jax.nn.relu(pooled).transpose(3, 1, 2, 0)
    return columns(values)


def _pool(values: Array) -> Array:
    """2x2 maximum of [c, h, w, n]; an odd last row or column is dropped. Before relu, which it commutes with."""
    depth, height, width, n = values.shape
    even = values[:, : height // 2 * 2, : width // 2 * 2].reshape(depth, height // 2, 2, width // 2, 2, n)
    upper, lower = even[:, :, 0], even[:, :, 1]
    return jnp.maximum(
        jnp.maximum(upper[:, :, :, 0], upper[:, :, :, 1]), jnp.maximum(lower[:, :, :, 0], lower[:, :, :, 1])
    )


@component
def cnn(
    context: Context, channels: Sequence[PositiveInt] = (16, 32), *, hidden: Sequence[PositiveInt] = (64,)
) -> Model:
    """Blocks of 3x3 convolution to so many ``channels``, relu and 2x2 max pooling, then dense layers of ``hidden``."""
    return Cnn(tuple(channels), tuple(hidden))
