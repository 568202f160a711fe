"""How fast FedPBC's implicit gossip mixes: the matrix W of a round, E[W], and its second eigenvalue rho.

W is an orthogonal projection, so the paper's M = E[W^2] is E[W] (its appendix expands terms that vanish). Everything
here is about the SQUARED consensus distance (1/m) sum ||x_i - xbar||^2: a round of mixing leaves at most rho of it in
expectation, so at most sqrt(rho) of the distance itself.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedpbc.theory.checks import count, number
from fedpbc.theory.probabilities import Quadrature, quadrature, read_probabilities


def mixing_matrix(active: ArrayLike) -> np.ndarray:
    """W of a round: 1/|A| between active clients, 1 on the diagonal of the others. bool[m] -> [m, m]. Section IV.

    Symmetric, doubly stochastic, idempotent; the identity when |A| <= 1.

    >>> mixing_matrix(np.array([True, False, True]))
    array([[0.5, 0. , 0.5],
           [0. , 1. , 0. ],
           [0.5, 0. , 0.5]])
    """
    mask = np.asarray(active)
    if isinstance(active, np.ma.MaskedArray) or mask.ndim != 1 or mask.size == 0 or mask.dtype != bool:
        raise ValueError(f"active must be a vector of booleans, shape (m,): has shape {mask.shape}, dtype {mask.dtype}")
    together = np.outer(mask, mask) / max(int(mask.sum()), 1)
    return together + np.diag(np.where(mask, 0.0, 1.0))


def expected_mixing_matrix(p: ArrayLike) -> np.ndarray:
    """M = E[W] for independent links: [m] -> [m, m]. Proof of Lemma 1.

    M_jk = p_j p_k int_0^1 u prod_{l != j,k} (1 - p_l + p_l u) du for j != k; the rows sum to 1. Forms the matrix: for
    large m use ``mixing_rate``. Raises ValueError when p is no vector of probabilities or all are 0.

    >>> expected_mixing_matrix(np.array([1.0, 0.5]))
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    p = read_probabilities(p)
    if len(p) == 1:
        return np.ones((1, 1))
    factor = _factor(p, quadrature(p))
    together = factor @ factor.T
    np.fill_diagonal(together, 0.0)
    return together + np.diag(1 - together.sum(axis=1))


def _factor(p: np.ndarray, rule: Quadrature) -> np.ndarray:
    """B [m, Q] with (B B^T)_jk = M_jk for j != k: b_jq = sqrt(weight_q (1 - v_q)) p_j / (1 - p_j v_q)."""
    scale = np.sqrt(rule.weights * (1 - rule.nodes))
    kept = scale > 0
    return p[:, None] / (1 - np.outer(p, rule.nodes[kept])) * scale[kept]


def mixing_gap(p: ArrayLike) -> float:
    """1 - rho, the spectral gap of E[W], to relative precision also when it is tiny; p [m] or [rounds, m].

    I - E[W] = diag(B B^T 1) - B B^T with B [m, Q] of Q quadrature nodes: the number of eigenvalues below x follows from
    the inertia of a Q x Q matrix (Sylvester), and the second smallest is bisected. O(m Q^2) a step, no m x m
    matrix, whatever the clusters of p. For [rounds, m] the smallest gap, as rho = max_t rho(t) in the paper. A single
    client is always at consensus: 1. Some p_i = 0: that client never mixes, 0. Raises ValueError when all are 0.

    >>> round(mixing_gap(np.full(100, 0.1)), 6)
    0.090909
    """
    return float(np.min(mixing_gaps(p)))


def mixing_gaps(p: ArrayLike) -> np.ndarray:
    """1 - rho(t) of every round: [m] or [rounds, m] -> [rounds].

    >>> mixing_gaps(np.array([[0.5, 0.5], [1.0, 1.0]])).round(6)
    array([0.25, 1.  ])
    """
    p = np.atleast_2d(read_probabilities(p, (1, 2)))
    rows, inverse = np.unique(p, axis=0, return_inverse=True) if len(p) > 1 else (p, np.zeros(1, int))
    return np.array([_gap(row) for row in rows])[inverse.ravel()]


def _gap(p: np.ndarray) -> float:
    if len(p) == 1:
        return 1.0
    if np.min(p) == 0:
        return 0.0
    factor = _factor(p, quadrature(p))
    degree = factor @ factor.sum(axis=0)
    diagonal = degree - np.sum(factor**2, axis=1)
    high = len(p) / (len(p) - 1) * float(diagonal.min()) * (1 + 1e-12)
    low = min(mixing_gap_bound(p), high) * (1 - 1e-12)
    return _second_smallest(degree, factor, low, high)


def _second_smallest(degree: np.ndarray, factor: np.ndarray, low: float, high: float) -> float:
    """The second smallest eigenvalue of diag(degree) - B B^T, known to lie in [low, high]."""
    while high - low > 2e-14 * high:
        middle = math.sqrt(low * high) if high > 2 * low else (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if _count_below(degree, factor, middle) >= 2 else (middle, high)
    return (low + high) / 2


def _count_below(degree: np.ndarray, factor: np.ndarray, x: float) -> int:
    """How many eigenvalues of diag(degree) - B B^T are below x.

    inertia(D - B B^T) = inertia(D) + inertia(I - B^T D^-1 B) - inertia(I) with D = diag(degree) - x.
    """
    shifted = degree - x
    shifted[shifted == 0] = np.finfo(np.float64).tiny
    small = np.eye(factor.shape[1]) - factor.T @ (factor / shifted[:, None])
    return int(np.sum(shifted < 0)) + int(np.sum(np.linalg.eigvalsh(small) < 0))


def mixing_rate(p: ArrayLike) -> float:
    """rho = lambda_2(E[W]): a round of mixing leaves at most rho of the expected squared consensus distance (Lemma 2).

    Of the distance itself it leaves at most sqrt(rho), in the root mean square. p [m], or [rounds, m]: then the
    largest, as in the paper. See ``mixing_gap`` for the method and the edge cases; for rho near 1 use the gap, which
    keeps its digits. Assumes links independent over rounds: with memory the contraction differs, see
    ``markov_contraction``.

    >>> round(mixing_rate(np.where(np.arange(100) < 50, 0.1, 0.9)), 5)
    0.90178
    """
    return 1 - mixing_gap(p)


def mixing_product(p: ArrayLike) -> float:
    """prod_t rho(t) over the rounds of p [rounds, m]: what is left of the expected squared distance, at most.

    Lemma 2 round by round, tighter than rho^T.

    >>> round(mixing_product(np.full((3, 100), 0.1)), 6) == round(mixing_rate(np.full(100, 0.1)) ** 3, 6)
    True
    """
    with np.errstate(divide="ignore"):
        return float(np.exp(np.sum(np.log1p(-mixing_gaps(read_probabilities(p, (2,)))))))


def mixing_rate_bound(p_min: float, num_clients: int) -> float:
    """Lemma 1 as printed: rho <= 1 - c^4 [1 - (1-c)^m]^2 / 8 with c = ``p_min`` <= p_i. (The bracket is superfluous.)

    >>> round(mixing_rate_bound(0.1, 100), 7)
    0.9999875
    """
    p_min, num_clients = _p_min(p_min), count("num_clients", num_clients)
    return 1 - p_min**4 * (1 - (1 - p_min) ** num_clients) ** 2 / 8


def mixing_rate_bound_square(p_min: float) -> float:
    """rho <= 1 - p_min^2: far tighter than Lemma 1, and shorter. Not in the paper.

    >>> mixing_rate_bound_square(0.1)
    0.99
    """
    return 1 - _p_min(p_min) ** 2


def _p_min(value: float) -> float:
    return number("p_min", value, "(0, 1]")


def mixing_gap_bound(p: ArrayLike) -> float:
    """1 - rho >= m min_{j != k} p_j p_k / (2 + sum_{l != j,k} p_l). Not in the paper. [m], m >= 2.

    The two smallest p_j attain the minimum: the expression grows in both.

    >>> round(1 - mixing_gap_bound(np.full(100, 0.1)), 3)
    0.915
    """
    p = read_probabilities(p)
    if len(p) < 2:
        raise ValueError(f"p has shape {p.shape}: the bound needs at least two clients")
    first, second = np.partition(p, 1)[:2]
    return float(len(p) * first * second / (2 + p.sum() - first - second))


def cooldown_rounds(p: ArrayLike, tolerance: float) -> int:
    """Mixing-only rounds after which at most ``tolerance`` of the expected SQUARED consensus distance is left.

    The smallest n with rho^n <= tolerance (Lemma 2); for p [rounds, m] the smallest n with rho(0) ... rho(n-1) <=
    tolerance. For the distance itself to fall to a share delta, ask for ``tolerance = delta**2``: about twice as many
    rounds. Raises ValueError when it never gets there, or not within the rounds of p.

    >>> cooldown_rounds(np.full(100, 0.1), 1e-3)
    73
    """
    tolerance, p = number("tolerance", tolerance, "(0, 1)"), read_probabilities(p, (1, 2))
    with np.errstate(divide="ignore"):
        logs = np.log1p(-mixing_gaps(p))
    if p.ndim == 1:
        if logs[0] == 0:
            raise ValueError("rho is 1: the clients never come to a consensus")
        return max(1, math.ceil(math.log(tolerance) / logs[0] - 1e-12))
    enough = np.flatnonzero(np.cumsum(logs) <= math.log(tolerance))
    if len(enough) == 0:
        raise ValueError(f"{len(logs)} rounds are not enough for a factor of {tolerance:g} of the squared distance")
    return int(enough[0]) + 1
