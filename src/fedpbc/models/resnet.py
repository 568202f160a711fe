"""A residual network with group normalisation, which keeps no statistics of the data (He et al., arXiv 1512.03385)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, PositiveInt, component
from fedpbc.core.types import Array
from fedpbc.errors import BadOption
from fedpbc.models.convolution import convolved, image_shape, initial_kernel, samples_last
from fedpbc.models.dense import affine, initial_layer
from fedpbc.models.model import Model

EPSILON = 1e-5
"""Added to variances."""


def group_norm(norm: Array, values: Array, groups: int) -> Array:
    """(v - mean) / sqrt(variance + 1e-5) over each group of channels of a sample; then scale and shift by channel.

    norm [2, c]: scales, shifts; values [c, h, w, n].
    """
    depth, height, width, n = values.shape
    grouped = values.reshape(groups, -1, n)
    centred = grouped - jnp.mean(grouped, axis=1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.mean(centred * centred, axis=1, keepdims=True) + EPSILON)
    scale, shift = norm[:, :, None, None, None]
    return (centred * factor).reshape(depth, height, width, n) * scale + shift


@dataclass(frozen=True)
class Resnet(Model):
    """A convolution, stages of residual blocks, the mean over pixels, and a dense layer."""

    widths: tuple[int, ...]
    blocks: int
    groups: int
    one_by_one: ClassVar[bool] = True

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Kernels [out, 9 in] ~ N(0, 2 / fan-in), norms [2, out] of ones and zeros, dense [outputs, in + 1].

        {"stem": {"conv", "norm"}, "stages": a tuple of blocks for each width, "dense"}; a block is {"conv1", "norm1",
        "conv2", "norm2"} and, where its shape changes, {"project" [out, in], "norm3"}. Raises ConfigError for samples
        that are no images.
        """
        depth = image_shape("resnet", shape)[2]
        stem = {"conv": initial_kernel(rng, depth, self.widths[0]), "norm": _norm(self.widths[0])}
        depth, stages = self.widths[0], []
        for stage, width in enumerate(self.widths):
            blocks = []
            for k in range(self.blocks):
                block = {
                    "conv1": initial_kernel(rng, depth, width),
                    "norm1": _norm(width),
                    "conv2": initial_kernel(rng, width, width),
                    "norm2": _norm(width),
                }
                if depth != width or (stage and not k):
                    block |= {"project": initial_kernel(rng, depth, width, 1), "norm3": _norm(width)}
                blocks.append(block)
                depth = width
            stages.append(tuple(blocks))
        return {"stem": stem, "stages": tuple(stages), "dense": initial_layer(rng, depth, num_outputs, 1.0)}

    def outputs(self, params: Any, features: Array) -> Array:
        """[n, h, w(, c)] -> [outputs, n]; the first block of every stage but the first takes every second pixel."""
        stem = params["stem"]
        values = jax.nn.relu(group_norm(stem["norm"], convolved(stem["conv"], samples_last(features)), self.groups))
        for stage, blocks in enumerate(params["stages"]):
            for k, block in enumerate(blocks):
                values = self._block(block, values, 2 if stage and not k else 1)
        return affine(params["dense"], jnp.mean(values, axis=(1, 2)))

    def _block(self, block: Any, values: Array, stride: int) -> Array:
        """relu(norm(conv(relu(norm(conv(v))))) + v), v projected where the shape changes."""
        inner = jax.nn.relu(group_norm(block["norm1"], convolved(block["conv1"], values, stride), self.groups))
        inner = group_norm(block["norm2"], convolved(block["conv2"], inner), self.groups)
        if "project" in block:
            chosen = values[:, ::stride, ::stride]
            projected = (block["project"] @ chosen.reshape(chosen.shape[0], -1)).reshape(-1, *chosen.shape[1:])
            values = group_norm(block["norm3"], projected, self.groups)
        return jax.nn.relu(inner + values)


def _norm(width: int) -> np.ndarray:
    return np.stack([np.ones(width), np.zeros(width)])


@component
def resnet(
    context: Context,
    widths: Sequence[PositiveInt] = (16, 32, 64),
    *,
    blocks: PositiveInt = 1,
    groups: PositiveInt = 8,
) -> Model:
    """A 3x3 convolution, stages of ``blocks`` residual blocks of these ``widths``, global mean, a dense layer.

    With three stages of n blocks the ResNet-(6n+2) for CIFAR-10 of arXiv 1512.03385, with group normalisation in
    ``groups`` groups (arXiv 1803.08494) for batch normalisation, and projections where the shape changes.
    """
    for width in widths:
        if width % groups:
            raise BadOption("groups", groups, f"does not divide the width {width}")
    return Resnet(tuple(widths), blocks, groups)
