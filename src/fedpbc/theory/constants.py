"""The constants of the paper's assumptions for the shipped problems, so that its bounds can be tried."""

from __future__ import annotations

import numpy as np

from fedpbc.theory.bounds import Constants


def quadratic_constants(centers: np.ndarray) -> Constants:
    """Exact for F_i(x) = 1/2 ||x - u_i||^2: L = 1, sigma^2 = 0, beta = 0, zeta^2 = (1/m) sum ||u_i - ubar||^2. [m, d].

    >>> quadratic_constants(np.array([[0.0], [2.0]]))
    Constants(smoothness=1.0, sigma2=0.0, beta=0.0, zeta2=1.0)
    """
    centers = np.asarray(centers, np.float64)
    if centers.ndim != 2 or centers.size == 0 or not np.all(np.isfinite(centers)):
        raise ValueError(f"centers must be a finite matrix, one row per client, has shape {centers.shape}")
    spread = np.mean(np.sum((centers - centers.mean(axis=0)) ** 2, axis=1))
    return Constants(1.0, 0.0, 0.0, float(spread))


def logistic_constants(features: np.ndarray, sizes: np.ndarray, batch_size: int) -> Constants:
    """Upper bounds for multinomial logistic regression on ragged data: features [n, d] client after client, sizes [m].

    The gradient of a sample is (softmax - onehot) x^T, of norm at most sqrt(2) ||x||, and the Hessian of the cross-
    entropy is at most (1/2) x x^T, so L <= max ||x||^2 / 2, sigma^2 <= 2 max_i mean ||x||^2 / batch (with replacement),
    beta = 0 and zeta^2 <= (1/m) sum_i 2 (mean ||x||)^2. Valid for every x, and therefore pessimistic.

    >>> logistic_constants(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1, 1]), 4).smoothness
    2.0
    """
    norm2 = np.sum(np.asarray(features, np.float64)[: int(np.sum(sizes))] ** 2, axis=1)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    mean2 = np.add.reduceat(norm2, first) / sizes
    mean = np.add.reduceat(np.sqrt(norm2), first) / sizes
    return Constants(float(norm2.max() / 2), float(2 * mean2.max() / batch_size), 0.0, float(np.mean(2 * mean**2)))
