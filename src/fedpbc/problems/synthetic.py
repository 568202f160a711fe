"""Synthetic(alpha, beta): the FedProx generator (Li et al. 2020), with multinomial logistic regression or a network."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fedpbc.core.flat import Flat
from fedpbc.core.memory import require_memory
from fedpbc.core.schema import Context, NonNegative, NonNegativeInt, PositiveInt, component
from fedpbc.core.types import Problem
from fedpbc.models.dense import Logistic, Mlp
from fedpbc.models.model import Model
from fedpbc.problems.classification import ACCURACY, accuracy_of, cross_entropy, cross_entropy_of, label_counts
from fedpbc.problems.objective import LOSS, Objective, problem_of
from fedpbc.problems.samples import Samples, aligned_zeros

NUM_FEATURES, NUM_CLASSES = 60, 10
TRAIN_BLOCK, TEST_BLOCK = 2048, 256
"""Samples that are evaluated at once: a block of the one and a block of the other."""
MEAN_SIZE = 50 + np.exp(4 + 2**2 / 2)
"""E[n_i] = 50 + exp(6) = 453 samples."""


@component
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
    model: Model = Mlp((hidden,), "tanh", bias=False) if hidden else Logistic(bias=False)
    size = hidden * (NUM_FEATURES + 1) + NUM_CLASSES * (hidden + 1) if hidden else NUM_CLASSES * (NUM_FEATURES + 1)
    if hidden:
        estimate = (num_clients * size + TRAIN_BLOCK * hidden) * itemsize * 6
        require_memory("hidden", hidden, estimate, f"{num_clients:,} models of dimension {size:,}")
    row, models = (NUM_FEATURES + 1) * itemsize * 2, num_clients * size * itemsize * 6
    estimate = int(num_clients * MEAN_SIZE) * row + models
    require_memory("num_clients", num_clients, estimate, f"about {num_clients * MEAN_SIZE:,.0f} samples")
    num_rows = max(int(_sizes(context, seed, num_clients).sum()) for seed in context.seeds)
    require_memory("num_clients", num_clients, num_rows * row + models, f"{num_rows:,} samples")
    sizes = _sizes(context, context.seed, num_clients)
    num_train = (0.9 * sizes).astype(np.int64)
    train = _allocate(num_train, int(0.9 * num_rows), TRAIN_BLOCK, context.dtype)
    test = _allocate(sizes - num_train, int(0.1 * num_rows) + num_clients, TEST_BLOCK, context.dtype)
    rng = context.rng("synthetic samples")
    first_train, first_test = 0, 0
    for n, k in zip(sizes.tolist(), num_train.tolist(), strict=True):
        features, labels = _client(rng, n, alpha, beta)
        for part, rows, first in ((train, slice(0, k), first_train), (test, slice(k, n), first_test)):
            count = rows.stop - rows.start
            part.data[0][first : first + count, :NUM_FEATURES] = features[rows]
            part.data[1][first : first + count] = labels[rows]
        first_train, first_test = first_train + k, first_test + n - k
    return _problem(context, model, train, test, weights == "samples")


def _allocate(sizes: np.ndarray, num_rows: int, block: int, dtype: Any) -> Samples:
    """Room for sum(sizes) samples, filled up to ``num_rows`` and to whole blocks of ``block``; the last feature is 1.

    Seeds whose data differ in length run in one compiled program when they are filled up to the same length.
    """
    rows = -(-max(int(sizes.sum()), num_rows, 1) // block) * block
    features = aligned_zeros((rows, NUM_FEATURES + 1), dtype)
    features[:, -1] = 1
    return Samples((features, np.zeros(rows, np.int32)), sizes)


def _problem(context: Context, model: Model, train: Samples, test: Samples, by_samples: bool) -> Problem:
    params = model.init(context.rng("initial weights"), (NUM_FEATURES + 1,), NUM_CLASSES)
    flat = Flat.of(params)
    client = np.repeat(np.arange(len(train.sizes)), train.sizes)
    counts = label_counts(client, train.data[1][: len(client)], len(train.sizes), NUM_CLASSES)
    return problem_of(
        Objective(
            flat,
            cross_entropy_of(model),
            metrics=(("accuracy", accuracy_of(model)),),
            train=("loss",),
            test=("accuracy",),
            grad_norm=True,
            of_outputs=cross_entropy,
            linear=model if isinstance(model, Logistic) else None,
            blocks=(TRAIN_BLOCK, TEST_BLOCK),
        ),
        train,
        test,
        flat.flatten(params, context.dtype),
        {"loss": LOSS, "accuracy": ACCURACY},
        {
            "mean_label": counts @ np.arange(NUM_CLASSES) / train.sizes,
            "label_distribution": counts / train.sizes[:, None],
        },
        by_samples,
    )


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
