"""Links with memory: what still holds, and the contraction by simulation where no formula does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.theory.probabilities import check_probabilities


class Contraction(NamedTuple):
    """The rate of a window, rho_hat = (E ||z W^1 ... W^T||^2 / ||z||^2)^(1/T) for random z orthogonal to 1."""

    rate: float
    low: float
    high: float


def markov_contraction(
    p: np.ndarray, memory: float, window: int = 50, repetitions: int = 400, seed: int = 0, confidence: float = 0.95
) -> Contraction:
    """Contraction per round over a window of Markov links, by simulation, with a confidence interval.

    Links: P(on | on) = memory + (1 - memory) p, P(on | off) = (1 - memory) p, started from their stationary law p;
    lag-1 autocorrelation ``memory``. The rate is that of the mean-square consensus distance, as rho of Lemma 2, which
    assumes memory 0 (there the rate is at most rho). FedAvg's weights are the same per non-empty round as without
    memory: ``fedavg_weights(p)``. The interval is a bootstrap over ``repetitions`` windows. Shape: p [m]. Raises
    ValueError unless 0 <= memory < 1.

    >>> markov_contraction(np.ones(4), 0.0, window=3, repetitions=10).rate
    0.0
    """
    p = check_probabilities(p)
    if not 0 <= memory < 1 or window < 1 or repetitions < 2:
        raise ValueError("needs 0 <= memory < 1, window >= 1 and repetitions >= 2")
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((repetitions, len(p)))
    z -= z.mean(axis=1, keepdims=True)
    start = np.sum(z**2)
    active = rng.random(z.shape) < p
    for _ in range(window):
        count = np.maximum(active.sum(axis=1, keepdims=True), 1)
        z = np.where(active, (z * active).sum(axis=1, keepdims=True) / count, z)
        active = rng.random(z.shape) < (1 - memory) * p + memory * active
    left = np.sum(z**2, axis=1) * repetitions / start
    left[left < 1e-28] = 0.0
    means = rng.choice(left, (1000, repetitions)).mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    rate, low, high = (float(value ** (1 / window)) for value in (left.mean(), low, high))
    return Contraction(rate, low, high)
