"""The local steps of one client: gradient descent, and its options, which are off unless an experiment sets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array


@dataclass(frozen=True)
class Descent:
    """Options of local steps: u = min(1, C / |g|) g + lambda x + shift + proximal (x - x_start), v <- beta v + u,
    x <- x - eta v, with v = 0 at the start of each round.

    C bounds the client's own gradient alone: a correction (``shift``) has to be able to cancel it.
    """

    weight_decay: float = 0.0
    """lambda."""
    clip_norm: float | None = None
    """C; None: no bound."""
    momentum: float = 0.0
    """beta."""

    def own(self, gradient: Any, x: Any) -> Any:
        """min(1, C / |g|) g + lambda x, pytrees."""
        if self.clip_norm is not None:
            norm = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(gradient)))
            factor = jnp.where(norm > self.clip_norm, self.clip_norm / norm, 1)
            gradient = jax.tree.map(lambda g: g * factor, gradient)
        if self.weight_decay:
            gradient = jax.tree.map(lambda g, a: g + self.weight_decay * a, gradient, x)
        return gradient

    def way(self, steps: int) -> tuple[float, float]:
        """(how many plain steps the steps are worth, how many are behind where a gradient is taken, on average).

        A constant u leads eta S u far, S = sum over k = 1..s of (1 - beta^k) / (1 - beta); the gradient of step j is
        taken after S_j, and counts by how far it leads in the end. Without momentum s and (s - 1) / 2.

        >>> Descent(momentum=0.5).way(2)  # steps of 1 and 1.5; the first gradient counts 1.5, the second, after 1, 1
        (2.5, 0.4)
        """
        powers = self.momentum ** np.arange(1, steps + 1)
        lengths = (1 - powers) / (1 - self.momentum)
        before = np.cumsum(lengths) - lengths
        return float(lengths.sum()), float(lengths[::-1] @ before / lengths.sum())


PLAIN = Descent()
"""x <- x - eta (g + shift + proximal (x - x_start))."""


def descend(
    gradient: Callable[[Array, Any, Any], tuple[Any, Any]],
    x: Any,
    eta: Array,
    steps: int,
    shift: Any,
    proximal: Array | None,
    unroll: int,
    descent: Descent = PLAIN,
    buffers: Any = None,
) -> tuple[Any, Any]:
    """``steps`` local steps from x, a vector or any pytree: (x, buffers) after them.

    ``gradient(k, x, buffers) -> (g, buffers)``, k = 0 .. steps-1.
    """
    start = x

    def step(k: Array, loop: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        x, velocity, buffers = loop
        direction, buffers = gradient(k, x, buffers)
        direction = descent.own(direction, x)
        if shift is not None:
            direction = jax.tree.map(jnp.add, direction, shift)
        if proximal is not None:
            direction = jax.tree.map(lambda g, a, b: g + proximal * (a - b), direction, x, start)
        if velocity is not None:
            velocity = direction = jax.tree.map(lambda v, u: descent.momentum * v + u, velocity, direction)
        return jax.tree.map(lambda a, g: a - eta * g, x, direction), velocity, buffers

    velocity = jax.tree.map(jnp.zeros_like, x) if descent.momentum else None
    x, _, buffers = jax.lax.fori_loop(0, steps, step, (x, velocity, buffers), unroll=min(steps, unroll))
    return x, buffers
