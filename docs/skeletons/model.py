"""A model with options: copy this file, and change ``init`` and ``outputs``. Two functions may be enough:
``fedpbc.models.functions``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import fedpbc
from fedpbc.core.schema import Context, PositiveInt
from fedpbc.core.types import Array
from fedpbc.models import Model
from fedpbc.models.dense import affine, columns, initial_layer


@dataclass(frozen=True)
class Example(Model):
    """Sizes only, no arrays: models that compare equal share programs."""

    width: int

    def init(self, rng: np.random.Generator, shape: tuple[int, ...], num_outputs: int) -> Any:
        """Parameters for samples of this shape, any pytree of arrays."""
        size = int(np.prod(shape))
        return {
            "in": initial_layer(rng, size, self.width, 2.0),
            "out": initial_layer(rng, self.width, num_outputs, 1.0),
        }

    def outputs(self, params: Any, features: Array) -> Array:
        """features [n, ...] -> [outputs, n]."""
        return affine(params["out"], jax.nn.silu(affine(params["in"], columns(features))))


@fedpbc.register
def example(context: Context, width: PositiveInt = 16) -> Model:
    """One hidden layer of ``width`` units."""
    return Example(width)
