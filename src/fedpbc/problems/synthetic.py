"""Synthetic(alpha, beta): the FedProx generator (Li et al. 2020), with multinomial logistic regression or a network."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np

from fedpbc.core.flat import Flat
from fedpbc.core.memory import PROGRAM_BYTES, STATES, require_memory
from fedpbc.core.options import INT_MAX
from fedpbc.core.schema import Context, NonNegative, NonNegativeInt, PositiveInt, Range, component
from fedpbc.core.types import Problem
from fedpbc.models.dense import Logistic, Mlp
from fedpbc.models.model import Model
from fedpbc.problems import generated
from fedpbc.problems.classification import ACCURACY, accuracy_of, cross_entropy, cross_entropy_of
from fedpbc.problems.generated import NUM_CLASSES, NUM_FEATURES, PARAMETERS, SCALE
from fedpbc.problems.normals import Normals
from fedpbc.problems.objective import LOSS, STORED, Objective, blocks_of, problem_from, problem_of
from fedpbc.problems.samples import Samples, aligned_zeros

TRAIN_BLOCK, TEST_BLOCK = 2048, 256
"""Samples that are evaluated at once: a block of the one and a block of the other."""
PIECE = 256
"""Samples that are drawn at once, in float64: they stay in the cache, and the product is too small for BLAS threads."""
CLIENT_BYTES = 300
"""What is kept of a client beside samples and models: sizes, offsets, labels counted, links."""

FLY_BYTES = 150_000_000
"""What drawing on the fly adds to a process: a larger program, and parameters for each sample of a block."""


@component
def synthetic(
    context: Context,
    *,
    num_clients: PositiveInt = 150,
    alpha: NonNegative = 1.0,
    beta: NonNegative = 1.0,
    hidden: NonNegativeInt = 0,
    weights: Literal["uniform", "samples"] = "uniform",
    max_rows: Annotated[int, Range(2, INT_MAX)] | None = None,
    on_the_fly: bool = False,
) -> Problem:
    """Synthetic(alpha, beta), 60 features, 10 classes, ragged sizes (Li et al. 2020), logistic regression.

    n_i = int(LogNormal(4, 2)) + 50; u_i ~ N(0, alpha), B_i ~ N(0, beta) (standard deviations); W_i [60, 10]
    and b_i [10] have entries ~ N(u_i, 1), v_i [60] ~ N(B_i, 1); x ~ N(v_i, diag(j^-1.2)), y = argmax(W_i x +
    b_i); the first int(0.9 n_i) samples train, the rest test. The seed of the run draws the data.
    ``hidden`` > 0: a network with a hidden layer of so many tanh units instead, whose initial weights the seed draws.
    ``weights``: F is the mean of the F_i, or with "samples" sum_i a_i F_i, a_i = n_i / sum n, as losses m a_i F_i.
    ``max_rows``: n_i is at most this, training and test together, also in a_i (ours). ``on_the_fly``: samples are drawn
    again from a counter wherever they are used and never stored, 2.7 kB a client whatever n_i: the same distribution,
    other values, slower, and without the traits mean_label and label_distribution.
    """
    itemsize = np.dtype(context.dtype).itemsize
    model: Model = Mlp((hidden,), "tanh", bias=False) if hidden else Logistic(bias=False)
    size = hidden * (NUM_FEATURES + 1) + NUM_CLASSES * (hidden + 1) if hidden else NUM_CLASSES * (NUM_FEATURES + 1)
    fixed, models = PROGRAM_BYTES, num_clients * size * itemsize * STATES
    if hidden:
        what = f"{num_clients:,} models of dimension {size:,}"
        require_memory("hidden", hidden, models + TRAIN_BLOCK * hidden * itemsize * 4 + fixed, what, fixed)
    row = 0 if on_the_fly else (NUM_FEATURES + 3) * itemsize + 4
    fixed += FLY_BYTES if on_the_fly else 0
    rest = models + num_clients * (CLIENT_BYTES + (PARAMETERS * 4 if on_the_fly else 0)) + fixed
    about = num_clients * mean_size(max_rows)
    require_memory("num_clients", num_clients, int(about * row) + rest, f"about {about:,.0f} samples", fixed)
    num_rows = max(int(_sizes(context, seed, num_clients, max_rows).sum()) for seed in context.seeds)
    require_memory("num_clients", num_clients, num_rows * row + rest, f"{num_rows:,} samples", fixed)

    sizes = _sizes(context, context.seed, num_clients, max_rows)
    num_train = (0.9 * sizes).astype(np.int64)
    most = int(0.9 * num_rows), int(0.1 * num_rows) + num_clients
    params = model.init(context.rng("initial weights"), (NUM_FEATURES + 1,), NUM_CLASSES)
    objective = Objective(
        Flat.of(params),
        cross_entropy_of(model),
        metrics=(("accuracy", accuracy_of(model)),),
        train=("loss",),
        test=("accuracy",),
        grad_norm=True,
        of_outputs=cross_entropy,
        linear=model if isinstance(model, Logistic) else None,
        blocks=(TRAIN_BLOCK, TEST_BLOCK),
        source=generated.SOURCE if on_the_fly else STORED,
    )
    init, measures = objective.flat.flatten(params, context.dtype), {"loss": LOSS, "accuracy": ACCURACY}
    by_samples = weights == "samples"
    if on_the_fly:
        made = generated.params_of(context, alpha, beta, num_train, sizes - num_train, by_samples)
        made["blocks"] = blocks_of(objective, num_train, sizes - num_train)
        num_blocks = max(_rows(n, block) // block for n, block in zip(most, objective.blocks, strict=True))
        return problem_from(objective, made, num_train, num_blocks, init, measures, {}, by_samples, owned=True)
    train = _allocate(num_train, most[0], TRAIN_BLOCK, context.dtype)
    test = _allocate(sizes - num_train, most[1], TEST_BLOCK, context.dtype)
    drawn = num_clients * PARAMETERS + int(sizes.sum()) * NUM_FEATURES
    with Normals(context.rng("synthetic samples"), drawn) as normals:
        counts = _fill(normals, train, test, alpha, beta)
    traits = {
        "mean_label": counts @ np.arange(NUM_CLASSES) / num_train,
        "label_distribution": counts / num_train[:, None],
    }
    return problem_of(objective, train, test, init, measures, traits, by_samples)


def mean_size(max_rows: int | None) -> float:
    """E[min(50 + L, max_rows)] with L ~ LogNormal(4, 2); 453 samples without a limit.

    E[min(L, c)] = exp(6) Phi(z - 2) + c (1 - Phi(z)), z = (log c - 4) / 2.
    """
    if max_rows is None:
        return 50 + math.exp(4 + 2**2 / 2)
    limit = max_rows - 50
    if limit <= 0:
        return float(max_rows)
    z = (math.log(limit) - 4) / 2
    return 50 + math.exp(6) * _normal_cdf(z - 2) + limit * (1 - _normal_cdf(z))


def _normal_cdf(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def _rows(num_rows: int, block: int) -> int:
    """``num_rows``, at least one, filled up to whole blocks."""
    return -(-max(num_rows, 1) // block) * block


def _allocate(sizes: np.ndarray, num_rows: int, block: int, dtype: Any) -> Samples:
    """Room for sum(sizes) samples, filled up to ``num_rows`` and to whole blocks of ``block``; the last feature is 1.

    Seeds whose data differ in length run in one compiled program when they are filled up to the same length.
    """
    rows = _rows(max(int(sizes.sum()), num_rows), block)
    features = aligned_zeros((rows, NUM_FEATURES + 1), dtype)
    features[:, -1] = 1
    return Samples((features, aligned_zeros((rows,), np.dtype(np.int32))), sizes)


def _sizes(context: Context, seed: int, num_clients: int, max_rows: int | None) -> np.ndarray:
    """n_i, int[m]: known for every seed of the run before any sample is drawn."""
    rng = context.rng("synthetic sizes", seed)
    sizes = rng.lognormal(4, 2, num_clients).astype(np.int64) + 50
    return sizes if max_rows is None else np.minimum(sizes, max_rows)


def _fill(normals: Normals, train: Samples, test: Samples, alpha: float, beta: float) -> np.ndarray:
    """Draw all samples, client after client, into their places; returns the training labels counted, int[m, classes].

    The stream is u_i, B_i, W_i, b_i, v_i and then the samples of client i, so client i's do not depend on m. They are
    drawn in float64 ahead of their use, made a ``PIECE`` at a time, and stored in the run's precision.
    """
    counts = np.zeros((len(train.sizes), NUM_CLASSES), np.int64)
    first = [0, 0]
    for i, (num_train, num_test) in enumerate(zip(train.sizes.tolist(), test.sizes.tolist(), strict=True)):
        client = generated.split(normals.take(PARAMETERS), alpha, beta)
        ends, place, left = (num_train, num_train + num_test), 0, num_train + num_test
        while left:
            rows = normals.take(min(left, PIECE) * NUM_FEATURES).reshape(-1, NUM_FEATURES)
            rows *= SCALE
            rows += client.center
            logits = rows @ client.weights
            logits += client.bias
            labels = logits.argmax(axis=1)
            cut = min(max(ends[0] - place, 0), len(rows))
            for k, (part, mine) in enumerate(((train, slice(0, cut)), (test, slice(cut, len(rows))))):
                to = slice(first[k], first[k] + mine.stop - mine.start)
                part.data[0][to, :NUM_FEATURES] = rows[mine]
                part.data[1][to] = labels[mine]
                first[k] = to.stop
            if cut:
                counts[i] += np.bincount(labels[:cut], minlength=NUM_CLASSES)
            place, left = place + len(rows), left - len(rows)
    return counts
