"""Links with memory: what still holds, and the contraction by simulation where no formula does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.theory.checks import count, number
from fedpbc.theory.probabilities import read_probabilities


class Contraction(NamedTuple):
    """The rate of a window, rho_hat = (E ||z W^1 ... W^T||^2 / ||z||^2)^(1/T) for random z orthogonal to 1.

    As rho, the factor a round of the SQUARED distance; that of the distance itself is the square root.
    """

    rate: float
    low: float
    """Lower end of the confidence interval of ``rate``."""
    high: float
    """Its upper end."""


def markov_contraction(
    p: ArrayLike, memory: float, window: int = 50, repetitions: int = 400, seed: int = 0, confidence: float = 0.95
) -> Contraction:
    """Contraction of the squared distance per round of Markov links, over a window, by simulation.

    Links: P(on | on) = memory + (1 - memory) p, P(on | off) = (1 - memory) p, started from their stationary law p;
    lag-1 autocorrelation ``memory``. The rate is that of the squared consensus distance (1/m) sum ||x_i - xbar||^2, as
    rho of Lemma 2, which assumes memory 0 (there the rate is at most rho). FedAvg's weights are the same per non-empty
    round as without memory: ``fedavg_weights(p)``. The interval is a bootstrap over ``repetitions`` windows. Shape:
    p [m]. Raises ValueError, naming the argument, unless 0 <= memory < 1, window >= 1, repetitions >= 2, seed >= 0 and
    0 < confidence < 1.

    >>> markov_contraction(np.ones(4), 0.0, window=3, repetitions=10).rate
    0.0
    """
    p = read_probabilities(p)
    memory, confidence = number("memory", memory, "[0, 1)"), number("confidence", confidence, "(0, 1)")
    window, repetitions = count("window", window), count("repetitions", repetitions, 2)
    rng = np.random.default_rng(count("seed", seed, 0))
    if len(p) == 1:
        return Contraction(0.0, 0.0, 0.0)
    z = rng.standard_normal((repetitions, len(p)))
    z -= z.mean(axis=1, keepdims=True)
    start = np.sum(z**2)
    active = rng.random(z.shape) < p
    for _ in range(window):
        heard = np.maximum(active.sum(axis=1, keepdims=True), 1)
        z = np.where(active, (z * active).sum(axis=1, keepdims=True) / heard, z)
        active = rng.random(z.shape) < (1 - memory) * p + memory * active
    left = np.sum(z**2, axis=1) * repetitions / start
    left[left < 1e-28] = 0.0
    means = rng.choice(left, (1000, repetitions)).mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    rate, low, high = (float(value ** (1 / window)) for value in (left.mean(), low, high))
    return Contraction(rate, low, high)
