"""Convolutional networks: blocks of convolution and pooling, then dense layers; those of three papers by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from fedpbc.core.lazy import jax
from fedpbc.core.schema import Context, PositiveInt, component
from fedpbc.core.types import Array
from fedpbc.errors import ConfigError
from fedpbc.models.convolution import convolved, image_shape, pooled, samples_last
from fedpbc.models.dense import affine, initial_layer
from fedpbc.models.model import Model


@dataclass(frozen=True)
class Cnn(Model):
    """Blocks of 3x3 convolution, relu and 2x2 max pooling, then dense layers."""

    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    last_gain: float = 2.0
    """Variance of the last layer's initial weights, times its inputs."""
    one_by_one: ClassVar[bool] = True

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Weights ~ N(0, 2 / fan-in), biases 0: {"conv": layers [out, 9 in + 1], "dense": layers [out, in + 1]}.

        Raises ConfigError for samples that are no images [height, width] or [height, width, channels], or too small.
        """
        height, width, depth = image_shape("cnn", shape)
        conv = []
        for out in self.channels:
            conv.append(initial_layer(rng, 9 * depth, out, 2.0))
            height, width, depth = height // 2, width // 2, out
        if min(height, width) < 1:
            raise ConfigError(f"model: images of shape {shape} are too small for {len(self.channels)} poolings by 2")
        sizes = [height * width * depth, *self.hidden, num_outputs]
        gains = [2.0] * len(self.hidden) + [self.last_gain]
        dense = [initial_layer(rng, a, b, gain) for (a, b), gain in zip(pairwise(sizes), gains, strict=True)]
        return {"conv": tuple(conv), "dense": tuple(dense)}

    def outputs(self, params: Any, features: Array) -> Array:
        """[n, h, w(, c)] -> [outputs, n]."""
        values = samples_last(features)
        for weights in params["conv"]:
            filtered = convolved(weights[:, :-1], values) + weights[:, -1, None, None, None]
            values = jax.nn.relu(pooled(filtered))  # in this order, which is cheaper: they commute
        first, *rest = params["dense"]
        dense = affine(first, values.transpose(1, 2, 0, 3).reshape(-1, values.shape[3]))
        for weights in rest:
            dense = affine(weights, jax.nn.relu(dense))
        return dense


@component
def cnn(
    context: Context, channels: Sequence[PositiveInt] = (16, 32), *, hidden: Sequence[PositiveInt] = (64,)
) -> Model:
    """Blocks of 3x3 convolution to so many ``channels``, relu and 2x2 max pooling, then dense layers of ``hidden``."""
    return Cnn(tuple(channels), tuple(hidden))


def _of_the_papers(*hidden: int) -> Model:
    """Two convolutions of 32 channels; a last layer of the variance of PyTorch's, U(-a, a) with a^2 = 1 / fan-in."""
    return Cnn((32, 32), hidden, last_gain=1 / 3)


@component
def cnn_svhn(context: Context) -> Model:
    """FedAU's, FedPBC's and FedAWE's network for SVHN: two 3x3 convolutions of 32 channels, a dense layer of 128.

    Source: the program of FedAU's authors (IBM/fedau, model/cnn_svhn.py), whose class the programs of FedPBC and FedAWE
    import under the same name.
    """
    return _of_the_papers(128)


@component
def cnn_cifar10(context: Context) -> Model:
    """The same papers' network for CIFAR-10: as ``cnn_svhn`` with dense layers of 256 and 64."""
    return _of_the_papers(256, 64)


@component
def cnn_cinic10(context: Context) -> Model:
    """The same papers' network for CINIC-10: dense layers of 512 and 256; without their dropout of 0.2."""
    return _of_the_papers(512, 256)
