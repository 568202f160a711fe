"""A residual network (He et al., arXiv 1512.03385): with group normalisation, which keeps no statistics of the data, or
with batch normalisation, which does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
MOMENTUM = 0.1
"""How much the latest minibatch counts in running statistics."""


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


def batch_norm(norm: Array, values: Array, running: dict[str, Array], training: bool) -> tuple[Array, dict[str, Array]]:
    """(v - mean) / sqrt(variance + 1e-5) of each channel, scaled and shifted; and the running statistics after it.

    Training: mean and variance of the minibatch, over its samples and pixels; running <- .9 running + .1 of it, the
    variance there divided by n - 1 (PyTorch's convention; arXiv 1502.03167). Else the running ones, which stay.
    norm [2, c]: scales, shifts; values [c, h, w, n]; running: ``running_mean`` [c], ``running_var`` [c].
    """
    mean, variance = running["running_mean"], running["running_var"]
    if training:
        n = values[0].size
        mean = jnp.mean(values, axis=(1, 2, 3))
        variance = jnp.mean((values - mean[:, None, None, None]) ** 2, axis=(1, 2, 3))
        latest = {"running_mean": mean, "running_var": variance * (n / max(n - 1, 1))}
        running = {name: (1 - MOMENTUM) * running[name] + MOMENTUM * latest[name] for name in running}
    scale = norm[0] * jax.lax.rsqrt(variance + EPSILON)
    shift = norm[1] - mean * scale
    return values * scale[:, None, None, None] + shift[:, None, None, None], running


@dataclass(frozen=True)
class Resnet(Model):
    """A convolution, stages of residual blocks, the mean over pixels, and a dense layer."""

    widths: tuple[int, ...]
    blocks: int
    groups: int
    norm: str = "group"
    one_by_one: ClassVar[bool] = True

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Kernels [out, 9 in] ~ N(0, 2 / fan-in), norms [2, out] of ones and zeros, dense [outputs, in + 1].

        {"stem": {"conv", "norm"}, "stages": a tuple of blocks for each width, "dense"}; a block is {"conv1", "norm1",
        "conv2", "norm2"} and, where its shape changes, {"project" [out, in], "norm3"}. With batch normalisation the
        pair of this and the buffers: for each norm, in the same place, {"running_mean", "running_var"} [out], of zeros
        and ones. Raises ConfigError for samples that are no images.
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
        params = {"stem": stem, "stages": tuple(stages), "dense": initial_layer(rng, depth, num_outputs, 1.0)}
        if not self.trains:
            return params
        kept = tuple(tuple(_running(block) for block in blocks) for blocks in stages)
        return params, {"stem": _running(stem), "stages": kept}

    @property
    def trains(self) -> bool:
        """Batch normalisation has buffers."""
        return self.norm == "batch"

    def outputs(self, params: Any, features: Array) -> Array:
        """[n, h, w(, c)] -> [outputs, n]; the first block of every stage but the first takes every second pixel."""
        return self._forward(params, features, training=False)[0]

    def train(self, params: Any, features: Array) -> tuple[Array, Any]:
        """The outputs with the statistics of the minibatch, and the running ones after it."""
        return self._forward(params, features, training=True)

    def _forward(self, params: Any, features: Array, training: bool) -> tuple[Array, Any]:
        weights, buffers = params if self.trains else (params, None)
        kept = jax.tree.map(lambda a: a, buffers)  # dicts of its own, whose entries are replaced one by one
        values = convolved(weights["stem"]["conv"], samples_last(features))
        values = jax.nn.relu(self._normed(weights["stem"], "norm", values, kept and kept["stem"], training))
        for stage, blocks in enumerate(weights["stages"]):
            for k, block in enumerate(blocks):
                own = kept and kept["stages"][stage][k]
                values = self._block(block, values, 2 if stage and not k else 1, own, training)
        return affine(weights["dense"], jnp.mean(values, axis=(1, 2))), kept

    def _block(self, block: Any, values: Array, stride: int, kept: Any, training: bool) -> Array:
        """relu(norm(conv(relu(norm(conv(v))))) + v), v projected where the shape changes."""
        inner = convolved(block["conv1"], values, stride)
        inner = jax.nn.relu(self._normed(block, "norm1", inner, kept, training))
        inner = self._normed(block, "norm2", convolved(block["conv2"], inner), kept, training)
        if "project" in block:
            chosen = values[:, ::stride, ::stride]
            projected = (block["project"] @ chosen.reshape(chosen.shape[0], -1)).reshape(-1, *chosen.shape[1:])
            values = self._normed(block, "norm3", projected, kept, training)
        return jax.nn.relu(inner + values)

    def _normed(self, block: Any, name: str, values: Array, kept: Any, training: bool) -> Array:
        """A normalisation of a block; ``kept``, its running statistics, are what they are after it."""
        if kept is None:
            return group_norm(block[name], values, self.groups)
        values, kept[name] = batch_norm(block[name], values, kept[name], training)
        return values


def _norm(width: int) -> np.ndarray:
    return np.stack([np.ones(width), np.zeros(width)])


def _running(block: Any) -> dict[str, Any]:
    """The first running statistics of the norms of a block."""
    norms = {name: norm.shape[1] for name, norm in block.items() if name.startswith("norm")}
    return {name: {"running_mean": np.zeros(c), "running_var": np.ones(c)} for name, c in norms.items()}


@component
def resnet(
    context: Context,
    widths: Sequence[PositiveInt] = (16, 32, 64),
    *,
    blocks: PositiveInt = 1,
    groups: PositiveInt = 8,
    norm: Literal["group", "batch"] = "group",
) -> Model:
    """A 3x3 convolution, stages of ``blocks`` residual blocks of these ``widths``, global mean, a dense layer.

    With three stages of n blocks the ResNet-(6n+2) for CIFAR-10 of arXiv 1512.03385, with group normalisation in
    ``groups`` groups (arXiv 1803.08494) or, ``norm = "batch"``, batch normalisation as there, and projections where the
    shape changes. Batch normalisation has buffers: running means and variances, averaged whatever the method.
    """
    for width in widths:
        if norm == "group" and width % groups:
            raise BadOption("groups", groups, f"does not divide the width {width}")
    return Resnet(tuple(widths), blocks, groups, norm)
