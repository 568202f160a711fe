"""The bias of FedAvg under Bernoulli links: which objective it minimises instead of F (Proposition 1)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.theory.checks import count, matrix, number
from fedpbc.theory.probabilities import log_nobody, quadrature, read_probabilities


def fedavg_weights(p: ArrayLike) -> np.ndarray:
    """Limiting weights of Proposition 1: FedAvg's E[x^T] goes to sum_i w_i u_i, w_i = E[1{i in A}/|A| | A not empty].

    w_i = p_i int_0^1 prod_{z != i} (1 - p_z v) dv / (1 - prod_z (1 - p_z)): the paper's alternating sum over
    subsets, as an integral of a polynomial; no cancellation, no underflow. Shapes: p [m] in [0, 1] -> [m], sums to 1.
    p_i = 0 gives weight 0; p_i = 1 for all gives 1/m. The same weights hold per non-empty round for links with
    memory, p being the stationary probabilities, if clients are independent of each other. Raises ValueError when p
    is no vector of probabilities or when every p_i is 0 (no round is ever non-empty).

    >>> fedavg_weights(np.array([0.5, 1.0]))
    array([0.25, 0.75])
    """
    p = read_probabilities(p)
    rule = quadrature(p)
    weights = np.zeros_like(p)
    for v, weight in zip(rule.nodes, rule.weights, strict=True):
        weights += weight / (1 - p * v)
    weights *= p
    return weights / weights.sum()


def fedavg_limit(p: ArrayLike, centers: ArrayLike) -> np.ndarray:
    """lim E[x^T] = sum_i w_i u_i of FedAvg on F_i(x) = 1/2 ||x - u_i||^2. Shapes: [m], [m, d] -> [d]. Proposition 1.

    The paper writes lim x^T; x^T itself keeps fluctuating, its expectation converges.

    >>> fedavg_limit(np.array([0.5, 1.0]), np.array([[0.0], [4.0]]))
    array([3.])
    """
    weights = fedavg_weights(p)
    return weights @ matrix("centers", centers, len(weights))


def fedavg_expected_model(
    p: ArrayLike, centers: ArrayLike, learning_rate: float, local_steps: int, rounds: int
) -> np.ndarray:
    """E[x^T] of FedAvg's server model after ``rounds`` rounds, exactly, from x^0 = 0. Proof of Proposition 1.

    E[x^T] = (1 - B^T) sum_i w_i u_i with B = P0 + (1 - P0)(1 - eta)^s and P0 = prod_i (1 - p_i). Shapes: p [m],
    centers [m, d] -> [d]. Raises ValueError unless 0 < eta < 1, s >= 1 and T >= 0.

    >>> fedavg_expected_model(np.array([1.0, 1.0]), np.array([[0.0], [4.0]]), 0.5, 1, 2)
    array([1.5])
    """
    learning_rate = number("learning_rate", learning_rate, "(0, 1)")
    local_steps, rounds = count("local_steps", local_steps), count("rounds", rounds, 0)
    limit = fedavg_limit(p, centers)
    active = -math.expm1(log_nobody(read_probabilities(p)))
    step = -math.expm1(local_steps * math.log1p(-learning_rate))
    shrink = 1.0 if active * step == 1 else -math.expm1(rounds * math.log1p(-active * step))
    return (shrink if rounds else 0.0) * limit


def fedavg_bias(p: ArrayLike, centers: ArrayLike) -> np.ndarray:
    """sum_i w_i u_i - (1/m) sum_i u_i: how far FedAvg's limit is from the minimiser of F. Shapes: [m], [m, d] -> [d].

    0 for equal probabilities. Proposition 1 and the remark after it.

    >>> fedavg_bias(np.array([0.5, 1.0]), np.array([[0.0], [4.0]]))
    array([1.])
    """
    return fedavg_limit(p, centers) - matrix("centers", centers).mean(axis=0)
