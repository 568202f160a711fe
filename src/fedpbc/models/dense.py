"""Dense models. Weights are [out, in + 1], the last column the bias, and act on columns: layers stay class-major."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, PositiveInt, component
from fedpbc.core.types import Array
from fedpbc.models.model import Model

Activation = Literal["relu", "tanh", "gelu"]


def activation_named(name: str) -> Callable[[Array], Array]:
    """The function of an ``Activation``."""
    functions: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "gelu": jax.nn.gelu}
    return functions[name]


def columns(features: Array) -> Array:
    """[n, ...] -> [f, n], features flattened."""
    return features.reshape(features.shape[0], -1).T


def affine(weights: Array, inputs: Array) -> Array:
    """W [out, in + 1] on inputs [in, n]: W_1 x + b, [out, n].

    As one product with a row of ones, so that neither W nor its gradient is cut into weights and bias: copies of W cost
    as much as the product.
    """
    return weights @ jnp.concatenate([inputs, jnp.ones((1, inputs.shape[1]), inputs.dtype)])


def initial_layer(rng: np.random.Generator, size_in: int, size_out: int, gain: float) -> np.ndarray:
    """[out, in + 1]: weights ~ N(0, gain / in), biases 0."""
    weights = rng.standard_normal((size_out, size_in + 1)) * np.sqrt(gain / max(size_in, 1))
    weights[:, -1] = 0
    return weights


@dataclass(frozen=True)
class Logistic(Model):
    """One matrix; with softmax cross-entropy, multinomial logistic regression."""

    bias: bool = True
    """False where the last feature of every sample is 1: then the last column is the bias all the same."""

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """x^0 = 0."""
        return np.zeros((num_outputs, int(np.prod(shape)) + self.bias))

    def outputs(self, params: Any, features: Array) -> Array:
        """W x + b."""
        return affine(params, columns(features)) if self.bias else params @ columns(features)


@dataclass(frozen=True)
class Mlp(Model):
    """Dense layers with an activation between them."""

    hidden: tuple[int, ...]
    activation: str = "relu"
    bias: bool = True
    """Of the first layer: False where the last feature of every sample is 1."""

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Weights ~ N(0, gain / fan-in), gain 2 before relu and gelu, else 1; biases 0; a tuple of layers."""
        sizes = [int(np.prod(shape)) - (not self.bias), *self.hidden, num_outputs]
        gain = 1.0 if self.activation == "tanh" else 2.0
        last = len(sizes) - 2
        return tuple(
            initial_layer(rng, sizes[i], sizes[i + 1], gain if i < last else 1.0) for i in range(len(sizes) - 1)
        )

    def outputs(self, params: Any, features: Array) -> Array:
        """W_L(... act(W_1 x))."""
        act, (first, *rest) = activation_named(self.activation), params
        values = affine(first, columns(features)) if self.bias else first @ columns(features)
        for weights in rest:
            values = affine(weights, act(values))
        return values


@component
def logistic(context: Context) -> Model:
    """One matrix and a bias, started at 0: (multinomial) logistic or linear regression."""
    return Logistic()


@component
def mlp(context: Context, hidden: Sequence[PositiveInt], *, activation: Activation = "relu") -> Model:
    """Dense layers of ``hidden`` units with an activation between; weights ~ N(0, 2 / fan-in) (tanh: 1 / fan-in)."""
    return Mlp(tuple(hidden), activation)
