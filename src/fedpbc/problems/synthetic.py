"""Synthetic(alpha, beta): the FedProx generator (Li et al. 2020), with multinomial logistic regression or a network."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedpbc.errors import require_memory
from fedpbc.problems.classification import TEST_BLOCK, TRAIN_BLOCK, Model, allocate, classification
from fedpbc.problems.logistic import Logistic
from fedpbc.problems.network import Network
from fedpbc.schema import Context, NonNegative, NonNegativeInt, PositiveInt
from fedpbc.types import Problem

NUM_FEATURES, NUM_CLASSES = 60, 10
MEAN_SIZE = 50 + np.exp(4 + 2**2 / 2)
"""E[n_i] = 50 + exp(6) = 453 samples."""


def synthetic(
    context: Context,
    *,
    num_clients: PositiveInt = 150,
    alpha: NonNegative = 1.0,
    beta: NonNegative = 1.0,
    hidden: NonNegativeInt = 0,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Problem:
    """Synthetic(alpha, beta), 60 features, 10 classes, ragged sizes (Li et al. 2020), logistic regression.

    n_i = int(LogNormal(4, 2)) + 50; u_i ~ N(0, alpha), B_i ~ N(0, beta) (standard deviations); W_i [60, 10]
    and b_i [10] have entries ~ N(u_i, 1), v_i [60] ~ N(B_i, 1); x ~ N(v_i, diag(j^-1.2)), y = argmax(W_i x +
    b_i); the first int(0.9 n_i) samples train, the rest test. The seed of the run draws the data.
    ``hidden`` > 0: a network with a hidden layer of so many tanh units instead, whose initial weights the seed draws.
    ``weights``: F is the mean of the F_i, or with "samples" sum_i a_i F_i, a_i = n_i / sum n, as losses m a_i F_i.
    """
    itemsize = np.dtype(context.dtype).itemsize
    model: Model = Logistic(NUM_FEATURES + 1, NUM_CLASSES)
    if hidden:
        model = Network(NUM_FEATURES + 1, hidden, NUM_CLASSES)
        estimate = (num_clients * model.size + TRAIN_BLOCK * hidden) * itemsize * 6
        require_memory("hidden", hidden, estimate, f"{num_clients:,} models of dimension {model.size:,}")
    row, models = (NUM_FEATURES + 1) * itemsize * 2, num_clients * model.size * itemsize * 6
    estimate = int(num_clients * MEAN_SIZE) * row + models
    require_memory("num_clients", num_clients, estimate, f"about {num_clients * MEAN_SIZE:,.0f} samples")
    num_rows = max(int(_sizes(context, seed, num_clients).sum()) for seed in context.seeds)
    require_memory("num_clients", num_clients, num_rows * row + models, f"{num_rows:,} samples")
    sizes = _sizes(context, context.seed, num_clients)
    num_train = (0.9 * sizes).astype(np.int64)
    train = allocate(num_train, int(0.9 * num_rows), NUM_FEATURES + 1, TRAIN_BLOCK, context.dtype)
    test = allocate(sizes - num_train, int(0.1 * num_rows) + num_clients, NUM_FEATURES + 1, TEST_BLOCK, context.dtype)
    rng = context.rng("synthetic samples")
    first_train, first_test = 0, 0
    for n, k in zip(sizes.tolist(), num_train.tolist(), strict=True):
        features, labels = _client(rng, n, alpha, beta)
        for part, rows, first in ((train, slice(0, k), first_train), (test, slice(k, n), first_test)):
            count = rows.stop - rows.start
            part.features[first : first + count, :NUM_FEATURES] = features[rows]
            part.labels[first : first + count] = labels[rows]
        first_train, first_test = first_train + k, first_test + n - k
    return classification(train, test, NUM_CLASSES, model, context.rng("initial weights"), weights == "samples")


def _sizes(context: Context, seed: int, num_clients: int) -> np.ndarray:
    """n_i, int[m]: known for every seed of the run before any sample is drawn."""
    rng = context.rng("synthetic sizes", seed)
    return rng.lognormal(4, 2, num_clients).astype(np.int64) + 50


def _client(rng: np.random.Generator, n: int, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """One client's samples, in random order: x [n, 60], y [n]."""
    u, b = rng.normal(0, alpha), rng.normal(0, beta)
    weights = rng.normal(u, 1, (NUM_FEATURES, NUM_CLASSES))
    bias = rng.normal(u, 1, NUM_CLASSES)
    center = rng.normal(b, 1, NUM_FEATURES)
    scale = np.arange(1, NUM_FEATURES + 1) ** -0.6
    features = center + scale * rng.standard_normal((n, NUM_FEATURES))
    return features, np.argmax(features @ weights + bias, axis=1)
