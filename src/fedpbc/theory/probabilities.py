"""What every function of link probabilities shares: checks, and integrals of products over all clients.

With v = 1 - u, the paper's expectations over random subsets are integrals of
g(v) = prod_z (1 - p_z v) over [0, 1]: a product of positive factors instead of an alternating sum over 2^m subsets.
g falls from 1 like exp(-v sum p), so the nodes are put where it has not yet vanished.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NODES = 64
"""Gauss-Legendre nodes: far more than the smooth integrand needs (see ``tests/theory``)."""
VANISHED = -80.0
"""log g from which on the integrand is left out: e^-80 of its largest value."""
EXACT_UP_TO = 2 * NODES - 2
"""Up to this many clients the integrand is a polynomial that the nodes integrate exactly on all of [0, 1]."""


class Quadrature(NamedTuple):
    """sum_q weights[q] f(nodes[q]) stands for int_0^1 g(v) f(v) dv; g is in the weights."""

    nodes: np.ndarray
    """v, [Q]."""
    weights: np.ndarray
    """Gauss-Legendre weight times g(v), [Q]."""


def check_probabilities(p: np.ndarray, dims: tuple[int, ...] = (1,)) -> np.ndarray:
    """``p`` as float64. Raises ValueError unless it holds probabilities in [0, 1], not all 0 in any round."""
    p = np.asarray(p, np.float64)
    if p.ndim not in dims or p.size == 0:
        shapes = " or ".join({1: "(m,)", 2: "(rounds, m)"}[n] for n in dims)
        raise ValueError(f"p must have shape {shapes}, has {p.shape}")
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError("p must hold probabilities in [0, 1]")
    if not np.all(np.any(p > 0, axis=-1)):
        raise ValueError("every probability is 0: no round has an active client")
    return p


def log_nobody(p: np.ndarray) -> float:
    """log of prod (1 - p_i), the probability of an empty round; -inf when some p_i is 1."""
    with np.errstate(divide="ignore"):
        return float(np.sum(np.log1p(-p)))


def quadrature(p: np.ndarray, nodes: int = NODES) -> Quadrature:
    """Nodes on the part of [0, 1] where g(v) = prod (1 - p_i v) lives, with g in the weights."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    end = 1.0 if len(p) <= EXACT_UP_TO else _end(p)
    v = end * (x + 1) / 2
    log_g = np.array([np.sum(np.log1p(-p * v_q)) for v_q in v])
    return Quadrature(v, end * w / 2 * np.exp(log_g))


def quadrature_error(p: np.ndarray) -> float:
    """Estimated relative error of the integrals behind weights and mixing rates: 64 nodes against 48. p [m].

    The largest relative difference of int g / (1 - p_i v) dv over the smallest, the median and the largest p_i.

    >>> quadrature_error(np.full(1000, 0.3)) < 1e-12
    True
    """
    p = check_probabilities(p)
    some = np.quantile(p, [0.0, 0.5, 1.0])[:, None]
    fine, coarse = (
        np.sum(rule.weights / (1 - some * rule.nodes), axis=1)
        for rule in (quadrature(p), quadrature(p, 3 * NODES // 4))
    )
    return float(np.max(np.abs(coarse / fine - 1)))


def _end(p: np.ndarray) -> float:
    """The v at which log g has fallen to VANISHED, or 1 when it never does; log g is decreasing and concave."""
    if log_nobody(p) > VANISHED:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if np.sum(np.log1p(-p * middle)) < VANISHED else (middle, high)
    return high
