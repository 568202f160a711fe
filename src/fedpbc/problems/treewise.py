"""Several local steps on one minibatch without leaving the pytree of parameters.

A model is a vector [d] between rounds. Steps that go from it to the leaves and back copy a large model twice a step;
these cut it once before and join it once after, and compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fedpbc.core.descent import descend
from fedpbc.core.flat import Flat
from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array, Steps


def mean_gradient(loss: Callable[[Any, Any], Array]) -> Callable[..., Any]:
    """``f(tree, (samples, scale), x)``: gradient in x of the mean of ``loss(tree(x), samples)``, times the scale."""

    def total(x: Any, tree: Callable[[Any], Any], batch: Any) -> tuple[Array, int]:
        losses = loss(tree(x), batch)
        return jnp.sum(losses), max(losses.size, 1)

    def gradient(tree: Callable[[Any], Any], batch: tuple[Any, Array | None], x: Any) -> Any:
        samples, scale = batch
        summed, count = jax.grad(total, has_aux=True)(x, tree, samples)
        mean = jax.tree.map(lambda leaf: leaf / count, summed)
        return mean if scale is None else jax.tree.map(lambda leaf: scale * leaf, mean)

    return gradient


@cache
def tree_steps(flat: Flat, loss: Callable[[Any, Any], Array]) -> Callable[[int, int], Steps | None]:
    """``Problem.several`` of any loss of a pytree; the same function for equal arguments."""
    gradient = mean_gradient(loss)

    def steps_of(steps: int, batch_size: int) -> Steps | None:
        if len(flat.shapes) == 1:
            return None  # a single leaf is the vector itself

        def several(batch: Any, x: Array, eta: Array, shift: Array | None, proximal: Array | None) -> Array:
            shifts = None if shift is None else flat.tree(shift)

            def slope(_: Array, tree: Any, buffers: None) -> tuple[Any, None]:
                return gradient(lambda tree: tree, batch, tree), None

            done, _ = descend(slope, flat.tree(x), eta, steps, shifts, proximal, unroll=1)
            return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(done)])

        return several

    return steps_of
