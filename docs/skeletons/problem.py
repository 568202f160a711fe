"""A problem with data of its own: copy this file, and change ``example`` and the loss.

Where the data is the user's, ``fedpbc.problems.loss`` is enough; here the gradient is not even given, as ``jax.grad``
finds it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import fedpbc
from fedpbc.core.schema import Context, Positive, PositiveInt
from fedpbc.core.types import Array, Measure, Problem
from fedpbc.data import Dataset
from fedpbc.problems.loss import objective_problem


@fedpbc.register
def example(
    context: Context, *, num_clients: PositiveInt = 10, dim: PositiveInt = 4, spread: Positive = 1.0
) -> Problem:
    """F_i is the mean Huber loss of a line fitted to 20 points of client i; lines differ by ``spread``."""
    rng = context.rng("example points")
    client = np.repeat(np.arange(num_clients), 20)
    features = rng.standard_normal((len(client), dim))
    slopes = 1 + spread * rng.standard_normal((num_clients, dim))
    targets = np.sum(features * slopes[client], axis=1)
    measures = {"loss": Measure("loss", scale="log"), "error": Measure("absolute error")}
    return objective_problem(
        context, Dataset((features, targets), client, num_clients), np.zeros(dim), huber, {"error": error}, measures,
        grad_norm=True, one_by_one=True, by_samples=False,
    )  # fmt: skip


def huber(params: Any, batch: tuple[Array, Array]) -> Array:
    """One number per sample, [n]."""
    gap = jnp.abs(batch[0] @ params - batch[1])
    return jnp.where(gap < 1, 0.5 * gap**2, gap - 0.5)


def error(params: Any, batch: tuple[Array, Array]) -> Array:
    """|f(x) - y|, [n]."""
    return jnp.abs(batch[0] @ params - batch[1])
