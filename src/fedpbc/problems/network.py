"""A network with one hidden layer, V (tanh(W x), 1): the smallest model whose loss is not convex.

The model is W of shape (hidden, features), then V of shape (classes, hidden + 1), flattened and joined to [d]. The last
feature of every sample is 1 and so is the last hidden unit: the last columns are the biases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpbc.types import Array


@dataclass(frozen=True)
class Network:
    """A fedpbc.problems.classification.Model."""

    num_features: int
    """The one that is always 1 included."""
    num_hidden: int
    num_classes: int

    @property
    def size(self) -> int:
        """d = hidden (features + 1) + classes (hidden + 1)."""
        return self._split + self.num_classes * (self.num_hidden + 1)

    def init(self, rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        """Weights ~ N(0, 1 / fan-in), biases 0; zeros alone would be a saddle point, where hidden units stay alike."""
        inner = rng.standard_normal((self.num_hidden, self.num_features)) / np.sqrt(max(self.num_features - 1, 1))
        outer = rng.standard_normal((self.num_classes, self.num_hidden + 1)) / np.sqrt(self.num_hidden)
        inner[:, -1] = 0
        outer[:, -1] = 0
        return np.concatenate([inner.ravel(), outer.ravel()]).astype(dtype)

    def logits(self, x: Array, features: Array) -> Array:
        """V (tanh(W X^T), 1), [..., classes, n]."""
        inner, outer = self._weights(x)
        return outer[..., :-1] @ self._hidden(inner, features) + outer[..., -1:]

    def gradient(self, x: Array, features: Array, residual: Array) -> Array:
        """By V: R (tanh(W X^T), 1)^T. By W: ((V^T R) (1 - tanh^2)) X."""
        inner, outer = self._weights(x)
        hidden = self._hidden(inner, features)
        xp = x.__array_namespace__()
        by_outer = xp.concat(
            [residual @ xp.matrix_transpose(hidden), xp.sum(residual, axis=-1, keepdims=True)], axis=-1
        )
        by_inner = ((xp.matrix_transpose(outer[..., :-1]) @ residual) * (1 - hidden**2)) @ features
        shape = x.shape[:-1]
        return xp.concat([by_inner.reshape(*shape, -1), by_outer.reshape(*shape, -1)], axis=-1)

    @property
    def _split(self) -> int:
        return self.num_hidden * self.num_features

    def _weights(self, x: Array) -> tuple[Array, Array]:
        inner, outer = x[..., : self._split], x[..., self._split :]
        shape = x.shape[:-1]
        return (
            inner.reshape(*shape, self.num_hidden, self.num_features),
            outer.reshape(*shape, self.num_classes, self.num_hidden + 1),
        )

    def _hidden(self, inner: Array, features: Array) -> Array:
        """tanh(W X^T), [..., hidden, n]."""
        product = inner @ features.T
        return product.__array_namespace__().tanh(product)
