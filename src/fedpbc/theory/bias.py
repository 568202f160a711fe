"""The bias of FedAvg under Bernoulli links: which objective it minimises instead of F."""

from __future__ import annotations

import numpy as np


def fedavg_weights(p: np.ndarray) -> np.ndarray:
    """Limiting weights of Proposition 1: FedAvg's E[x^T] goes to sum_i w_i u_i, w_i = E[1{i in A}/|A| | A not empty].

    w_i = p_i int_0^1 prod_{z != i} (1 - p_z + p_z u) du / (1 - prod_z (1 - p_z)): the paper's alternating sum
    over subsets, as an integral of a polynomial of degree m - 1, exact with m/2 + 1 Gauss-Legendre nodes; no
    cancellation. Shapes: p [m] in [0, 1] -> [m], sums to 1. Raises ValueError when p is not such a vector or
    when every p_i is 0 (A^t is then always empty).
    """
    p = np.asarray(p, np.float64)
    if p.ndim != 1 or p.size == 0 or not np.all((p >= 0) & (p <= 1)):
        raise ValueError("p must be a vector of probabilities in [0, 1]")
    if not np.any(p > 0):
        raise ValueError("every probability is 0: no round has an active client, so there are no weights")
    nodes, node_weights = np.polynomial.legendre.leggauss(len(p) // 2 + 1)
    u = (nodes + 1) / 2
    weights = np.zeros_like(p)
    for u_k, weight_k in zip(u, node_weights / 2, strict=True):
        factors = 1 - p + p * u_k
        log_all = np.sum(np.log(factors))
        weights += weight_k * p * np.exp(log_all - np.log(factors))
    return weights / weights.sum()
