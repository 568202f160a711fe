"""Questions 1 to 3 of an audit: how uneven, how biased, how steady. Nothing here builds a rounds x clients table.

Symbols: client i of m, round t of T, active set A^t, S_i the rounds with client i, p_i = S_i/T. Every function
is a few passes over the n active pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedpbc.audit.log import ParticipationLog

BLOCK_PAIRS = 1 << 21
CONFIDENCE = 0.95


class PerClient(NamedTuple):
    """What one pass over the pairs, sorted by client, gives."""

    seen: np.ndarray
    """S_i, int[m]."""
    repeats: np.ndarray
    """Rounds t with i in A^t and in A^(t+1), int[m]."""
    ends: np.ndarray
    """1{i in A^0} + 1{i in A^(T-1)}, int[m]."""
    longest: np.ndarray
    """Longest run of rounds without client i, int[m]; before the first and after the last time count too."""
    deviation: np.ndarray
    """max_k |S_i(k)/S_i - k/T|, S_i(k) = rounds with i among the first k, f[m]; 0 for clients never seen."""
    overlap: np.ndarray
    """|A^t and A^(t+1) in common|, int[T-1]."""
    edges: np.ndarray
    """1, 2, 4, ... beyond T: the classes of absence lengths."""
    absences: np.ndarray
    """Absences of edges[k] <= length < edges[k+1], over all clients; never seen: one of T. int[len(edges)-1]."""


def per_client(log: ParticipationLog) -> PerClient:
    """One pass over the pairs in the order client, round: O(n log n)."""
    m, total = len(log.clients), log.num_rounds
    keys = log.members.astype(np.int64) * total + log.rounds
    keys.sort()
    keys %= total
    rounds = keys.astype(np.int32)
    del keys
    seen = np.bincount(log.members, minlength=m)
    starts = np.concatenate([[0], np.cumsum(seen)])
    edges = 2 ** np.arange(total.bit_length() + 1)
    repeats, ends, longest = (np.zeros(m, np.int64) for _ in range(3))
    deviation, overlap, absences = (
        np.zeros(m),
        np.zeros(max(total - 1, 0), np.int64),
        np.zeros(len(edges) - 1, np.int64),
    )
    longest[seen == 0] = total
    absences += np.histogram(longest[seen == 0], edges)[0]
    for first, last in _blocks(starts):
        clients = first + np.flatnonzero(seen[first:last])
        block = rounds[starts[first] : starts[last]].astype(np.int64)
        begins = starts[clients] - starts[first]
        gaps, again = _gaps(block, begins, total)
        repeats[clients] = np.add.reduceat(again, begins)
        overlap += np.bincount(block[again.astype(bool)] - 1, minlength=len(overlap))[: len(overlap)]
        tails = total - 1 - block[np.append(begins[1:], len(block)) - 1]
        ends[clients] = (block[begins] == 0).astype(np.int64) + (tails == 0)
        longest[clients] = np.maximum(np.maximum.reduceat(gaps, begins), tails)
        absences += np.histogram(gaps, edges)[0] + np.histogram(tails, edges)[0]
        deviation[clients] = _deviation(block, begins, seen[clients], total)
    return PerClient(seen, repeats, ends, longest, deviation, overlap, edges, absences)


def _blocks(starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of clients that hold about BLOCK_PAIRS pairs each, and at least one."""
    first, m = 0, len(starts) - 1
    while first < m:
        last = max(int(np.searchsorted(starts, starts[first] + BLOCK_PAIRS, side="right")) - 1, first + 1)
        if starts[last] > starts[first]:
            yield first, last
        first = last


def _gaps(block: np.ndarray, begins: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Rounds of absence before every active round, and whether the round before was active too."""
    gaps = np.diff(block, prepend=0) - 1
    gaps[begins] = block[begins]
    again = gaps == 0
    again[begins] = False
    return gaps, again.astype(np.int64)


def _deviation(block: np.ndarray, begins: np.ndarray, seen: np.ndarray, total: int) -> np.ndarray:
    number = np.arange(len(block)) - np.repeat(begins, seen)
    share = np.repeat(1 / seen, seen)
    above = (number + 1) * share - (block + 1) / total
    below = block / total - number * share
    return np.maximum.reduceat(np.maximum(above, below), begins)


def intervals(rate: np.ndarray, effective: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Clopper-Pearson: (low, high) [m] for rates [m] seen in ``effective`` [m] independent rounds.

    low = B(alpha/2; k, n-k+1), high = B(1-alpha/2; k+1, n-k), B the beta quantile, k = rate n. Covers the true
    rate with at least ``confidence`` when rounds are independent; with memory, n is T (1-r)/(1+r).
    """
    from scipy.stats import beta

    alpha = 1 - confidence
    k, rest = rate * effective, (1 - rate) * effective
    with np.errstate(invalid="ignore"):
        low = np.where(rate > 0, beta.ppf(alpha / 2, np.maximum(k, 1e-12), rest + 1), 0.0)
        high = np.where(rate < 1, beta.ppf(1 - alpha / 2, k + 1, np.maximum(rest, 1e-12)), 1.0)
    return low, high


def gini(values: np.ndarray) -> float:
    """Gini coefficient sum_{ij} |x_i - x_j| / (2 m^2 mean): 0 all equal, 1 - 1/m one has everything."""
    x = np.sort(np.asarray(values, np.float64))
    m = len(x)
    return float(np.sum((2 * np.arange(1, m + 1) - m - 1) * x) / (m * x.sum()))


def components(log: ParticipationLog) -> np.ndarray:
    """int[m]: clients with the same number can reach each other through rounds they share; -1 for never seen.

    No method that mixes only active clients can join two such groups.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    m = len(log.clients)
    label = np.arange(m)
    for first in range(0, max(len(log.members) - 1, 0), BLOCK_PAIRS):
        a, b = log.members[first : first + BLOCK_PAIRS], log.members[first + 1 : first + BLOCK_PAIRS + 1]
        rounds = log.rounds[first : first + len(a) + 1]
        a = a[: len(b)]
        together = rounds[: len(b)] == rounds[1 : len(b) + 1]
        edges = np.unique(label[a[together]].astype(np.int64) * m + label[b[together]])
        graph = coo_array((np.ones(len(edges), np.int8), (edges // m, edges % m)), shape=(m, m))
        label = connected_components(graph, directed=False)[1][label]
    label = np.array(label)
    label[np.bincount(log.members, minlength=m) == 0] = -1
    return label


def realised_weights(log: ParticipationLog) -> np.ndarray:
    """wbar_i = mean over the non-empty rounds of 1{i in A}/|A|, [m], sums to 1: FedAvg's weights on this log."""
    counts = log.active_counts()
    weights = np.zeros(len(log.clients))
    for first in range(0, len(log.members), BLOCK_PAIRS):
        part = slice(first, first + BLOCK_PAIRS)
        weights += np.bincount(log.members[part], 1 / counts[log.rounds[part]], minlength=len(weights))
    return weights / np.count_nonzero(counts)


def total_variation_by_chance(counts: np.ndarray, m: int, correlation: float) -> float:
    """What sum_i |wbar_i - 1/m| / 2 seldom exceeds (mean plus two standard deviations) when all clients are alike.

    Given |A^t|, exchangeable clients have Var wbar_i = sum_t (1/(m |A^t|) - 1/m^2) / R^2 over the R non-empty
    rounds, here times (1+r)/(1-r) for memory r; the sum of m half-normals has mean m sd sqrt(2/pi).
    """
    counts = counts[counts > 0]
    variance = np.sum(1 / (m * counts) - 1 / m**2) / len(counts) ** 2 * (1 + correlation) / (1 - correlation)
    sd = np.sqrt(max(float(variance), 0.0))
    return float(min(0.5 * sd * (m * np.sqrt(2 / np.pi) + 2 * np.sqrt(m * (1 - 2 / np.pi))), 1.0))
