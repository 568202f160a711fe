"""Questions 1 to 3 of an audit: how uneven, how biased, how steady. Nothing here builds a rounds x clients table.

Symbols: client i of m, round t of the T known ones, active set A^t, S_i the rounds with client i, p_i = S_i/T. Unknown
rounds cut the log into stretches of known rounds in a row. Every function is a few passes over the n active pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.pairs import distinct

BLOCK_PAIRS = 1 << 21
CONFIDENCE = 0.95
UINT16_MAX = 2**16 - 1


class PerClient(NamedTuple):
    """What one pass over the pairs, sorted by client, gives."""

    seen: np.ndarray
    """S_i, int[m]."""
    repeats: np.ndarray
    """Known rounds t with i in A^t and in A^(t+1), int[m]."""
    ends: np.ndarray
    """Rounds with i at the begin of a stretch, and those at the end of one, together, int[m]."""
    longest: np.ndarray
    """Longest run of known rounds without client i, int[m]; before the first and after the last time count too."""
    deviation: np.ndarray
    """max_k |S_i(k)/S_i - k/T|, S_i(k) = rounds with i among the first k known ones, f[m]; 0 for clients never seen."""
    overlap: np.ndarray
    """|A^t and A^(t+1) in common|, int[all rounds - 1]; 0 where one of them is unknown."""
    edges: np.ndarray
    """1, 2, 4, ... beyond the number of rounds: the classes of absence lengths."""
    absences: np.ndarray
    """Absences of edges[k] <= length < edges[k+1], over all clients; never seen: one of T. int[len(edges)-1]. Those
    that touch unknown rounds are censored: their length is not known, and they are not here."""
    censored: int
    """How many runs of rounds without a client touch unknown ones."""
    spells: np.ndarray
    """sum over the client's cycles, an absence of D rounds and the presence of U after it, of (U (1-p) - D p)^2,
    f[m]; p is the rate before the k of ``deviation`` and that after it: a change of the rate is no scatter."""
    scatter: np.ndarray
    """sum (U (1-p) - D p)^2 and sum (U (1-p) - D p)^4 with the rate p of the whole log, f[2, m]."""
    cycles: np.ndarray
    """How many of them, int[m]."""


def per_client(log: ParticipationLog) -> PerClient:
    """One pass over the pairs in the order client, round: O(n log n)."""
    m, total = len(log.clients), log.num_rounds
    rounds = _by_client(log)
    seen = np.bincount(log.members, minlength=m)
    starts = np.concatenate([[0], np.cumsum(seen)])
    edges = 2 ** np.arange(total.bit_length() + 1)
    repeats, ends = np.zeros(m, np.int64), np.zeros(m, np.int64)
    longest, absences, censored = _whole_stretches(log, edges)
    deviation, overlap = np.zeros(m), np.zeros(max(total - 1, 0), np.int64)
    spells, scatter, cycles = np.zeros(m), np.zeros((2, m)), np.zeros(m, np.int64)
    stretches, unknown = log.stretches(), log.unknown.astype(np.int64)
    cut = np.column_stack([stretches[:, 0] > 0, stretches[:, 1] < total])
    for first, last in _blocks(starts):
        clients = first + np.flatnonzero(seen[first:last])
        block = rounds[starts[first] : starts[last]].astype(np.int64)
        begins = starts[clients] - starts[first]
        gaps, tails, is_begin, lasts, inside = _runs(block, begins, stretches)
        again = (gaps == 0) & ~is_begin
        repeats[clients] = np.add.reduceat(again.astype(np.int64), begins)
        if len(overlap) > len(block):
            np.add.at(overlap, block[again] - 1, 1)
        else:
            overlap += np.bincount(block[again] - 1, minlength=len(overlap))[: len(overlap)]
        at_end = (is_begin & (gaps == 0)).astype(np.int64)
        at_end[lasts] += tails == 0
        ends[clients] = np.add.reduceat(at_end, begins)
        open_left, open_right = is_begin & cut[inside, 0], cut[inside[lasts], 1]
        absences += np.histogram(gaps[~open_left], edges)[0] + np.histogram(tails[~open_right], edges)[0]
        censored += int(np.sum(gaps[open_left] > 0) + np.sum(tails[open_right] > 0))
        gaps[lasts] = np.maximum(gaps[lasts], tails)
        longest[clients] = np.maximum(longest[clients], np.maximum.reduceat(gaps, begins))
        number = block - np.searchsorted(unknown, block) if len(unknown) else block
        deviation[clients], rates = _deviation(number, begins, seen[clients], log.known_rounds)
        _add_cycles(gaps, tails, again, lasts, begins, rates, spells, scatter, cycles, clients, log.known_rounds)
    return PerClient(
        seen, repeats, ends, longest, deviation, overlap, edges, absences, censored, spells, scatter, cycles
    )


def _add_cycles(
    gaps: np.ndarray, tails: np.ndarray, again: np.ndarray, lasts: np.ndarray, begins: np.ndarray, rates: np.ndarray,
    spells: np.ndarray, scatter: np.ndarray, cycles: np.ndarray, clients: np.ndarray, total: int,
) -> None:  # fmt: skip
    """Add the cycles of a block, and the absences at the end of stretches; ``rates``: p at every place of ``gaps``."""
    first = np.flatnonzero(~again)
    lengths = np.diff(first, append=len(again))
    mean = np.diff(begins, append=len(again)) / total
    for places, up, down in ((first, lengths, gaps[first]), (lasts, 0, tails)):
        whose = np.searchsorted(begins, places, side="right") - 1
        own = (up * (1 - rates[places]) - down * rates[places]) ** 2
        whole = (up * (1 - mean[whose]) - down * mean[whose]) ** 2
        spells[clients] += np.bincount(whose, own, minlength=len(clients))
        scatter[0, clients] += np.bincount(whose, whole, minlength=len(clients))
        scatter[1, clients] += np.bincount(whose, whole * whole, minlength=len(clients))
    cycles[clients] += np.bincount(np.searchsorted(begins, first, side="right") - 1, minlength=len(clients))


def _by_client(log: ParticipationLog) -> np.ndarray:
    """The rounds of every active pair, by client, then round, int32[n]."""
    m = len(log.clients)
    if m > UINT16_MAX:
        keys = log.members.astype(np.int64) * log.num_rounds + log.rounds
        keys.sort()
        keys %= log.num_rounds
        return keys.astype(np.int32)
    # a stable sort of 16 bits counts, it does not compare
    return log.rounds[np.argsort(log.members.astype(np.uint16), kind="stable")]


def _whole_stretches(log: ParticipationLog, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Stretches without a client: (the longest of each client, int[m]; those of the whole log by length; censored)."""
    m, stretches = len(log.clients), log.stretches()
    lengths = stretches[:, 1] - stretches[:, 0]
    bounds = np.searchsorted(log.rounds, stretches)
    longest, censored = np.zeros(m, np.int64), 0
    waiting = np.arange(m)  # clients that have been in all stretches so far
    for k in np.argsort(-lengths, kind="stable"):
        there = distinct(log.members[bounds[k, 0] : bounds[k, 1]])
        if len(waiting):
            missing = ~np.isin(waiting, there)
            longest[waiting[missing]] = lengths[k]
            waiting = waiting[~missing]
        if lengths[k] < log.num_rounds:
            censored += m - len(there)
    return longest, np.histogram(longest[longest == log.num_rounds], edges)[0], censored


def _blocks(starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of clients that hold about BLOCK_PAIRS pairs each, and at least one."""
    first, m = 0, len(starts) - 1
    while first < m:
        last = max(int(np.searchsorted(starts, starts[first] + BLOCK_PAIRS, side="right")) - 1, first + 1)
        if starts[last] > starts[first]:
            yield first, last
        first = last


def _runs(
    block: np.ndarray, begins: np.ndarray, stretches: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Absences within stretches: (gaps [n] before every active round, back to the client's one before or the begin of
    the stretch; tails [k] after its last ones of a stretch; bool[n]: its first of a stretch; places of the last ones
    [k]; the stretch of every active round [n])."""  # fmt: skip
    if len(stretches) == 1:
        inside, is_begin = np.zeros(len(block), np.int64), np.zeros(len(block), bool)
    else:
        inside = np.searchsorted(stretches[:, 0], block, side="right") - 1
        is_begin = np.diff(inside, prepend=-1) != 0
    is_begin[begins] = True
    gaps = np.diff(block, prepend=0) - 1
    gaps[is_begin] = block[is_begin] - stretches[inside[is_begin], 0]
    lasts = np.append(np.flatnonzero(is_begin)[1:] - 1, len(block) - 1)
    return gaps, stretches[inside[lasts], 1] - 1 - block[lasts], is_begin, lasts, inside


def _deviation(block: np.ndarray, begins: np.ndarray, seen: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """(max_k |S(k)/S - k/T| of every client, the rate before that k, or after it, at every place)."""
    number = np.arange(len(block)) - np.repeat(begins, seen)
    share = np.repeat(1 / seen, seen)
    above = (number + 1) * share - (block + 1) / total
    below = block / total - number * share
    largest = np.maximum(above, below)
    found = np.maximum.reduceat(largest, begins)
    places = np.flatnonzero(largest == np.repeat(found, seen))
    places = places[np.searchsorted(places, begins)]  # the first of every client
    after = above[places] >= below[places]
    active, rounds = number[places] + after, block[places] + after
    with np.errstate(invalid="ignore", divide="ignore"):
        early, late = active / rounds, (seen - active) / (total - rounds)
    early, late = np.where(rounds > 0, early, 0.0), np.where(rounds < total, late, 0.0)
    return found, np.where(number < np.repeat(active, seen), np.repeat(early, seen), np.repeat(late, seen))


def expected_absences(
    edges: np.ndarray, rate: np.ndarray, num_rounds: int, stretches: np.ndarray | None = None
) -> np.ndarray:
    """Expected number of absences with edges[k] <= length < edges[k + 1] of clients without memory.

    A client of rate p and T rounds has (1 - p)^k (1 + (T - k) p) absences of k rounds or more. Of those in a stretch of
    L known rounds (``stretches`` [K, 2]: its first round and the first after it; default: all rounds) the censored ones
    do not count: (1 - p)^k ((L - k) p - 1) + (1 - p)^L do not touch its ends, (1 - p)^k - (1 - p)^L touch one given end
    only, (1 - p)^L both. Shapes: [n + 1], [m] -> [n].

    >>> expected_absences(np.array([1, 2, 3]), np.array([0.5]), 2)
    array([0.5 , 0.25])
    """
    values, how_many = np.unique(rate, return_counts=True)
    stretches = np.array([[0, num_rounds]]) if stretches is None else stretches
    free = (stretches[:, 0] == 0).astype(int) + (stretches[:, 1] == num_rounds)
    kinds, copies = np.unique(np.column_stack([stretches[:, 1] - stretches[:, 0], free]), axis=0, return_counts=True)
    at_least = np.zeros(len(edges))
    for i, edge in enumerate(edges):
        k = np.ceil(max(edge, 1))
        for (length, ends), number_of in zip(kinds.tolist(), copies, strict=True):
            if k <= length:
                some, all_ = (1 - values) ** k, (1 - values) ** length
                inner = some * ((length - k) * values - 1) + all_
                at_least[i] += number_of * (how_many @ (inner + ends * (some - all_) + (ends == 2) * all_))
    return at_least[:-1] - at_least[1:]


def intervals(rate: np.ndarray, effective: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Clopper-Pearson: (low, high) [m] for rates [m] seen in ``effective`` [m] independent rounds.

    low = B(alpha/2; k, n-k+1), high = B(1-alpha/2; k+1, n-k), B the beta quantile, k = rate n. Covers the true
    rate with at least ``confidence`` when rounds are independent; with memory, n is T (1-r)/(1+r).
    """
    from scipy.special import betaincinv

    alpha = 1 - confidence
    k, rest = rate * effective, (1 - rate) * effective
    with np.errstate(invalid="ignore"):
        low = np.where(rate > 0, betaincinv(np.maximum(k, 1e-12), rest + 1, alpha / 2), 0.0)
        high = np.where(rate < 1, betaincinv(k + 1, np.maximum(rest, 1e-12), 1 - alpha / 2), 1.0)
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
        edges = distinct(label[a[together]].astype(np.int64) * m + label[b[together]])
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


def total_variation_by_chance(counts: np.ndarray, m: int, scatter: float) -> float:
    """What sum_i |wbar_i - 1/m| / 2 seldom exceeds (mean plus two standard deviations) when all clients are alike.

    Given |A^t|, exchangeable clients have Var wbar_i = sum_t (1/(m |A^t|) - 1/m^2) / R^2 over the R non-empty
    rounds, here times ``scatter``, which memory brings; the sum of m half-normals has mean m sd sqrt(2/pi).
    """
    counts = counts[counts > 0]
    variance = np.sum(1 / (m * counts) - 1 / m**2) / len(counts) ** 2 * scatter
    sd = np.sqrt(max(float(variance), 0.0))
    return float(min(0.5 * sd * (m * np.sqrt(2 / np.pi) + 2 * np.sqrt(m * (1 - 2 / np.pi))), 1.0))
