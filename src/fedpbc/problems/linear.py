"""Several local steps of a linear model on one minibatch, through the products of its samples with each other.

With outputs Z = W X + b of a minibatch X [f, n] and P_k = d(mean loss)/dZ at step k, [c, n], every gradient lies in the
span of the samples: W_k = W_0 - eta (C_k X^T + c_k V), V the shift of every step. So only [c, n] arrays change:

    D <- a D - eta (P G + V X),   C <- a C + P,   c <- a c + 1,   Z_k = Z_0 + D,   a = 1 - eta mu,

G = X^T X, mu the weight of the proximal term. The same steps as one by one, but for rounding; a step costs 2 c n^2
operations instead of 4 c n f.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fedpbc.core.flat import Flat
from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array, Steps
from fedpbc.models.dense import Logistic, columns

OutputsLoss = Callable[[Array, Array], Array]
"""``f(outputs[c, n], targets) -> [n]``."""


@cache
def linear_steps(flat: Flat, model: Logistic, loss: OutputsLoss) -> Callable[[int, int], Steps | None]:
    """``Problem.several`` of a loss of a linear model's outputs; the same function for equal arguments."""
    num_outputs, num_inputs = flat.shapes[0]

    def steps_of(steps: int, batch_size: int) -> Steps | None:
        one_by_one = 4 * num_outputs * batch_size * num_inputs * steps
        together = 2 * batch_size * (num_outputs * batch_size * steps + num_inputs * (batch_size + 2 * num_outputs))
        if together > 0.8 * one_by_one:
            return None

        def several(batch: Any, x: Array, eta: Array, shift: Array | None, proximal: Array | None) -> Array:
            (features, targets), scale = batch
            samples = columns(features).astype(x.dtype)
            start = flat.tree(x)
            weight = 1.0 / batch_size if scale is None else scale / batch_size
            keep = 1.0 if proximal is None else 1.0 - eta * proximal
            gram = samples.T @ samples + model.bias
            outputs = model.outputs(start, features.astype(x.dtype))
            by_shift = None if shift is None else model.outputs(flat.tree(shift), features.astype(x.dtype))
            slope = jax.grad(lambda outputs: jnp.sum(loss(outputs, targets)))

            def step(_: Array, loop: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                change, slopes, count = loop
                now = slope(outputs + change) * weight
                move = now @ gram if by_shift is None else now @ gram + by_shift
                return keep * change - eta * move, keep * slopes + now, keep * count + 1

            zero = jnp.zeros_like(outputs)
            _, slopes, count = jax.lax.fori_loop(0, steps, step, (zero, zero, jnp.zeros((), x.dtype)))
            gradient = slopes @ samples.T
            if model.bias:
                gradient = jnp.concatenate([gradient, jnp.sum(slopes, axis=1, keepdims=True)], axis=1)
            total = gradient.reshape(-1)
            return x - eta * (total if shift is None else total + count * shift)

        return several

    return steps_of
