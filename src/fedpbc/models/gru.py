"""A recurrent network over characters: gated recurrent units (Cho et al., arXiv 1406.1078)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, PositiveInt, component
from fedpbc.core.types import Array
from fedpbc.errors import ConfigError
from fedpbc.models.dense import affine, initial_layer
from fedpbc.models.model import Model


@dataclass(frozen=True)
class Gru(Model):
    """An embedding, layers of gated recurrent units, and a dense layer of the last one's state after the sequence."""

    hidden: tuple[int, ...]
    embedding: int
    vocabulary: int
    one_by_one: ClassVar[bool] = True

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Embedding ~ N(0, 1), other weights ~ N(0, 1 / fan-in), biases 0.

        {"embedding" [e, vocabulary], "layers": {"input" [3 h, in + 1], "hidden" [3 h, h + 1]} each, "dense" [outputs,
        h + 1]}; rows of the gates r, z, n. Raises ConfigError for samples that are no sequences.
        """
        if len(shape) != 1:
            raise ConfigError(f"model: gru needs sequences [length] of characters, the samples have shape {shape}")
        size, layers = self.embedding, []
        for h in self.hidden:
            layers.append({"input": initial_layer(rng, size, 3 * h, 1.0), "hidden": initial_layer(rng, h, 3 * h, 1.0)})
            size = h
        embedding = rng.standard_normal((self.embedding, self.vocabulary))
        return {"embedding": embedding, "layers": tuple(layers), "dense": initial_layer(rng, size, num_outputs, 1.0)}

    def check(self, features: np.ndarray) -> None:
        """Characters must be numbers of the vocabulary. Raises ConfigError."""
        if features.dtype.kind not in "iub":
            raise ConfigError(f"model: gru needs characters as integers, the samples are {features.dtype}")
        if features.size and not 0 <= features.min() <= features.max() < self.vocabulary:
            found = f"from {features.min()} to {features.max()}"
            raise ConfigError(f"model: characters go {found}, must be from 0 to {self.vocabulary - 1} (vocabulary)")

    def outputs(self, params: Any, features: Array) -> Array:
        """Sequences [n, length] -> [outputs, n], of the state after the last character; the first state is 0."""
        n, length = features.shape
        characters = features.T.reshape(-1).astype(jnp.int32)
        chosen = characters == jnp.arange(self.vocabulary, dtype=jnp.int32)[:, None]
        values = params["embedding"] @ chosen.astype(params["embedding"].dtype)  # a product: no scatter in its gradient
        for layer in params["layers"]:
            given = affine(layer["input"], values).reshape(-1, length, n).transpose(1, 0, 2)
            states = _states(layer["hidden"], given)
            values = states.transpose(1, 0, 2).reshape(-1, length * n)
        return affine(params["dense"], states[-1])


def _states(weights: Array, given: Array) -> Array:
    """The states [length, h, n] of a layer: weights [3 h, h + 1], what the input gives to the gates [length, 3 h, n].

    r, z = sigmoid(given + W s + b); c = tanh(given + r (W s + b)); s <- (1 - z) c + z s.
    """
    h = weights.shape[0] // 3

    def step(state: Array, given: Array) -> tuple[Array, Array]:
        own = affine(weights, state)
        r, z = jax.nn.sigmoid((given[: 2 * h] + own[: 2 * h]).reshape(2, h, -1))
        candidate = jnp.tanh(given[2 * h :] + r * own[2 * h :])
        state = candidate + z * (state - candidate)
        return state, state

    return jax.lax.scan(step, jnp.zeros((h, given.shape[2]), given.dtype), given)[1]


@component
def gru(
    context: Context,
    hidden: Sequence[PositiveInt] = (128,),
    *,
    embedding: PositiveInt = 8,
    vocabulary: PositiveInt = 80,
) -> Model:
    """Which character comes next: sequences [n, length] from 0 to ``vocabulary`` - 1, layers of ``hidden`` GRUs.

    One label for each sequence, the character that follows it, as in LEAF's Shakespeare (arXiv 1812.01097), whose
    network is two layers of 256 LSTMs on the same embedding of 8.
    """
    return Gru(tuple(hidden), embedding, vocabulary)
