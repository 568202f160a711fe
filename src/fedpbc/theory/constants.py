"""The constants of the paper's assumptions for the shipped problems, so that its bounds can be tried."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.theory.bounds import Constants
from fedpbc.theory.checks import count, matrix, numbers_of, refuse


def quadratic_constants(centers: ArrayLike) -> Constants:
    """Exact for F_i(x) = 1/2 ||x - u_i||^2: L = 1, sigma^2 = 0, beta = 0, zeta^2 = (1/m) sum ||u_i - ubar||^2. [m, d].

    >>> quadratic_constants(np.array([[0.0], [2.0]]))
    Constants(smoothness=1.0, sigma2=0.0, beta=0.0, zeta2=1.0)
    """
    centers = matrix("centers", centers)
    spread = np.mean(np.sum((centers - centers.mean(axis=0)) ** 2, axis=1))
    return Constants(1.0, 0.0, 0.0, float(spread))


def logistic_constants(features: ArrayLike, sizes: ArrayLike, batch_size: int) -> Constants:
    """Upper bounds for multinomial logistic regression on ragged data: features [n, d] client after client, sizes [m].

    The gradient of a sample is (softmax - onehot) x^T, of norm at most sqrt(2) ||x||, and the Hessian of the cross-
    entropy is at most (1/2) x x^T, so L <= max ||x||^2 / 2, sigma^2 <= 2 max_i mean ||x||^2 / batch (with replacement),
    beta = 0 and zeta^2 <= (1/m) sum_i 2 (mean ||x||)^2. Valid for every x, and therefore pessimistic.
    Rows of ``features`` after the last client's (a filling) are left out. Raises ValueError unless every client has a
    sample and its rows are there.

    >>> logistic_constants(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1, 1]), 4).smoothness
    2.0
    """
    features, sizes, batch_size = matrix("features", features), _sizes(sizes), count("batch_size", batch_size)
    if sizes.sum() > len(features):
        raise ValueError(f"sizes add up to {sizes.sum()}: features has only {len(features)} rows")
    norm2 = np.sum(features[: sizes.sum()] ** 2, axis=1)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    mean2 = np.add.reduceat(norm2, first) / sizes
    mean = np.add.reduceat(np.sqrt(norm2), first) / sizes
    return Constants(float(norm2.max() / 2), float(2 * mean2.max() / batch_size), 0.0, float(np.mean(2 * mean**2)))


def _sizes(value: ArrayLike) -> np.ndarray:
    sizes = numbers_of("sizes", value)
    if sizes.ndim != 1 or sizes.size == 0:
        raise ValueError(f"sizes must have shape (m,), has {sizes.shape}")
    whole = np.isfinite(sizes) & (sizes >= 1) & (sizes == np.floor(sizes))
    refuse("sizes", sizes, ~whole, "must be a whole number >= 1")
    return sizes.astype(np.int64)
