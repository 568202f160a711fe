"""Multinomial logistic regression: one matrix.

The model is W of shape (classes, features), flattened to [d]; the last feature of every sample is 1, so the
last column of W is the bias. Class-major weights and logits make the gradient a fast matrix product on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpbc.types import Array


@dataclass(frozen=True)
class Logistic:
    """A fedpbc.problems.classification.Model."""

    num_features: int
    """The one that is always 1 included."""
    num_classes: int

    @property
    def size(self) -> int:
        """d = classes (features + 1)."""
        return self.num_classes * self.num_features

    def init(self, rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        """x^0 = 0."""
        return np.zeros(self.size, dtype)

    def logits(self, x: Array, features: Array) -> Array:
        """W X^T, [..., classes, n]."""
        return self._weights(x) @ features.T

    def gradient(self, x: Array, features: Array, residual: Array) -> Array:
        """R X, flattened: [..., d]."""
        return (residual @ features).reshape(x.shape)

    def _weights(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.num_classes, self.num_features)
