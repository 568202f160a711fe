"""What every function of link probabilities shares: checks, and integrals of products over all clients.

With v = 1 - u, the paper's expectations over random subsets are integrals of
g(v) = prod_z (1 - p_z v) over [0, 1]: a product of positive factors instead of an alternating sum over 2^m subsets.
g falls from 1 like exp(-v sum p), so the nodes are put where it has not yet vanished.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.theory.checks import numbers_of, refuse

NODES = 64
"""Gauss-Legendre nodes: far more than the smooth integrand needs (see ``quadrature_error``)."""
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


def read_probabilities(p: Any, dims: tuple[int, ...] = (1,)) -> np.ndarray:
    """``p`` as float64: a list, an array or a Series of shape (m,), or (rounds, m) where ``dims`` has 2.

    Raises ValueError, with the shape or with index and value, unless it holds probabilities in [0, 1], not all 0 in
    any round. One column is refused: read as rounds of a single client it would mix at once, whatever it holds.

    >>> read_probabilities([0.5, 1])
    array([0.5, 1. ])
    """
    p = numbers_of("p", p)
    if p.ndim not in dims or p.size == 0 or (p.ndim == 2 and p.shape[1] == 1):
        raise ValueError(_wrong_shape(p, dims))
    outside = ~((p >= 0) & (p <= 1))
    percent = " (in percent? divide by 100)" if np.any(p > 1) and not np.any((p < 0) | (p > 100)) else ""
    refuse("p", p, outside, "must be a probability in [0, 1]" + percent)
    empty = ~np.any(p > 0, axis=-1)
    if np.any(empty):
        where = f" of round {int(np.argmax(empty))}" if p.ndim == 2 else ""
        raise ValueError(f"p: every probability is 0{where}: no client is ever active")
    return p


def _wrong_shape(p: np.ndarray, dims: tuple[int, ...]) -> str:
    """What is wrong with the shape of ``p``, and the remedy."""
    shapes = " or ".join({1: "(m,)", 2: "(rounds, m)"}[n] for n in dims)
    if p.ndim == 2 and p.shape[1] == 1 and p.size:
        return f"p has shape {p.shape}, one column: for {p.size} clients give shape ({p.size},), as np.ravel(p) does"
    remedies = {
        (1, 2): "; a single round is p[t]",
        (2, 1): "; for the same in every round give np.tile(p, (rounds, 1))",
    }
    remedy = remedies.get((dims[0], p.ndim), "") if len(dims) == 1 and p.size else ""
    return f"p must have shape {shapes}, has {p.shape}{remedy}"


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


def quadrature_error(p: ArrayLike) -> float:
    """Estimated relative error of the integrals behind weights and mixing rates: 64 nodes against 48. p [m].

    The largest relative difference of int g / (1 - p_i v) dv over the smallest, the median and the largest p_i.

    >>> quadrature_error(np.full(1000, 0.3)) < 1e-12
    True
    """
    p = read_probabilities(p)
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
