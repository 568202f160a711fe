"""Question 3 of an audit: do rates drift, do rounds remember. Tests, with what they assume; cycles: ``spectrum``."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedpbc.audit.spectrum import Spectra, at_zero, centred
from fedpbc.audit.statistics import BLOCK_PAIRS, PerClient, per_client
from fedpbc.io.participation.log import ParticipationLog

ALPHA = 0.05
MEMORY_ALPHA = 0.01
FEWEST_ROUNDS = 20
"""No test on less."""
FEWEST_EVENTS = 5
"""A client is tested for drift when it was active, and inactive, at least so often."""


class Memory(NamedTuple):
    """Lag-1 autocorrelation."""

    each: np.ndarray
    """r_i, f[m]; nan for clients always or never active."""
    pooled: float
    """One r for all clients, each weighing p_i (1 - p_i)."""
    p_value: float
    """Two-sided, of the pooled r under rounds independent of each other."""
    used: np.ndarray
    """r_i >= 0 that was found, f[m]: 0 where no memory was found."""


def memory(log: ParticipationLog, stats: PerClient) -> Memory:
    """Does a round depend on the one before?

    r_i = sum_t (a_t - p)(a_(t+1) - p) / (T p (1-p)) + 1/T, a_t = 1{i in A^t}; 1/T undoes the bias. Pooled: z =
    sum D_t / sqrt(sum D_t^2), D_t = sum_i (a_t - p_i)(a_(t+1) - p_i) + sum_i p_i (1-p_i)/(T-1): uncorrelated over t
    when rounds are independent, however clients depend on each other within a round. A single client counts when its
    number of runs is improbable (exact, Wald and Wolfowitz) after Holm's correction. With unknown rounds the sums go
    over the P pairs of known rounds that follow each other, divided by P + 1 (T without unknown ones), and the runs are
    those of the longest stretch.
    """
    from scipy.special import ndtr

    total, rate, follows = log.known_rounds, stats.seen / log.known_rounds, followed(log)
    pairs = int(follows.sum())
    spread = rate * (1 - rate)
    products = stats.repeats - rate * (2 * stats.seen - stats.ends) + pairs * rate**2
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.where(spread > 0, np.minimum(products / ((pairs + 1) * spread) + 1 / total, 1), np.nan)
    if pairs < FEWEST_ROUNDS - 1 or not np.any(spread > 0):
        return Memory(each if pairs else np.full(len(rate), np.nan), 0.0, 1.0, np.zeros(len(rate)))
    terms = _products(log, stats, rate)[follows] + spread.sum() / (total - 1)
    scale = np.sqrt(np.sum(terms**2))
    p_value = float(2 * ndtr(-abs(terms.sum()) / scale)) if scale > 0 else 1.0
    pooled = float(terms.sum() / ((pairs + 1) * spread.sum()))
    used = np.full(len(rate), max(pooled, 0.0) if p_value < MEMORY_ALPHA else 0.0)
    own = holm(_runs_p_values(log, stats)) < ALPHA
    used[own] = each[own]
    return Memory(each, pooled, p_value, np.clip(np.nan_to_num(used), 0, 0.99))


def followed(log: ParticipationLog) -> np.ndarray:
    """bool[all rounds - 1]: this round and the next are known."""
    known = log.known()
    return known[:-1] & known[1:]


def _runs_p_values(log: ParticipationLog, stats: PerClient) -> np.ndarray:
    if not len(log.unknown):
        return runs_test(stats.seen, stats.repeats, log.num_rounds)
    stretches = log.stretches()
    first, after = stretches[np.argmax(stretches[:, 1] - stretches[:, 0])].tolist()
    a, b = np.searchsorted(log.rounds, [first, after])
    longest = replace(
        log, num_rounds=after - first, rounds=log.rounds[a:b] - np.int32(first), members=log.members[a:b],
        unknown=log.unknown[:0],
    )  # fmt: skip
    stats = per_client(longest)
    return runs_test(stats.seen, stats.repeats, after - first)


def _products(log: ParticipationLog, stats: PerClient, rate: np.ndarray) -> np.ndarray:
    """sum_i (a_t - p_i)(a_(t+1) - p_i), [all rounds - 1]; without meaning where one of the two is unknown."""
    expected = np.zeros(log.num_rounds)
    for first in range(0, len(log.members), BLOCK_PAIRS):
        part = slice(first, first + BLOCK_PAIRS)
        expected += np.bincount(log.rounds[part], rate[log.members[part]], minlength=len(expected))
    products = stats.overlap - expected[:-1]
    products -= expected[1:]
    products += np.sum(rate**2)
    return products


def runs_test(seen: np.ndarray, repeats: np.ndarray, total: int) -> np.ndarray:
    """Two-sided p-values [m] of the number of runs of active rounds, S - repeats, given S.

    P(runs = k) = C(T-S+1, k) C(S-1, S-k) / C(T, S): hypergeometric; normal where its variance is large.
    """
    from scipy.special import ndtr

    runs, slots = seen - repeats, total - seen + 1
    mean = seen * slots / total
    variance = seen * slots / total * (seen - 1) / total * (total - seen) / max(total - 1, 1)
    p = np.ones(len(seen))
    large, small = variance > 25, (variance > 0) & (variance <= 25)
    distance = np.abs(runs - mean)[large] - 0.5
    p[large] = 2 * ndtr(-np.maximum(distance, 0) / np.sqrt(variance[large]))
    if small.any():
        from scipy.stats import hypergeom  # takes longer to import than ten million rounds to test

        law = hypergeom(total, slots[small], seen[small])
        p[small] = 2 * np.minimum(law.cdf(runs[small]), law.sf(runs[small] - 1))
    return np.minimum(p, 1)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values [n]: max over the k smallest of (n - k + 1) p_(k), at most 1."""
    order = np.argsort(p)
    adjusted = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    result = np.empty(len(p))
    result[order] = np.minimum(adjusted, 1)
    return result


class LongRun(NamedTuple):
    """How much more the rounds of a client scatter, in the long run, than independent ones would."""

    ratio: np.ndarray
    """Variance of S_i / (T p (1-p)) for large T, f[m]; 1 where rounds are independent."""
    freedom: np.ndarray
    """Of so many degrees of freedom ``ratio`` is about an estimate, f[m]."""
    pooled: float
    """One ratio for all clients, each weighing p_i (1 - p_i)."""


def long_run(log: ParticipationLog, stats: PerClient, spectra: Spectra | None) -> LongRun:
    """The long-run variance of every client: from its presences and absences, and from the spectra.

    Presences and absences that follow each other independently, of whatever lengths (chains, and chains seen through
    losses, are such), have (1/T) sum (U (1-p) - D p)^2 over the cycles (Smith's theorem for renewal processes). Rates
    that change slowly have more: the spectrum of the clients at frequency 0 says how much, for all alike.
    """
    total, rate = log.known_rounds, stats.seen / log.known_rounds
    spread = rate * (1 - rate)
    variance = np.maximum(stats.spells / total, 0.2 * spread)
    freedom = _freedom(stats)
    if spectra is not None and spectra.clients is not None and len(spectra.chosen):
        zero, ordinates = at_zero(spectra.clients, log.num_rounds)
        chosen = spectra.chosen
        factor = zero / float(np.mean(variance[chosen] / spread[chosen]))
        alike = float(spectra.slow_counts.sum()) / max(float(total * total / 2 * spread.sum()), 1e-300)
        shared = 2 * max(ordinates, 2.0) * max(len(chosen) / max(alike, 1.0), 1.0)
        if factor > 1:
            alone = 1 / shared + 1 / (ALIKE * max(ordinates, 2.0))
            freedom = 1 / (1 / freedom + (alone if factor > _f_quantile(0.95, shared) else 0))
            variance = variance * factor
    variance = variance * (1 + SEARCHED / freedom)
    ratio = np.divide(variance, spread, out=np.ones(len(spread)), where=spread > 0)
    pooled = float(variance[spread > 0].sum() / spread.sum()) if spread.any() else 1.0
    return LongRun(ratio, freedom, pooled)


def scatter_of(remembered: Memory, slow: LongRun) -> tuple[np.ndarray, float]:
    """(variances that intervals allow for, f[m] from 1 up; one for all clients): those of independent rounds, 1, unless
    memory was found."""  # fmt: skip
    has_memory = remembered.used > 0
    each = np.where(has_memory, np.maximum(slow.ratio, 1.0), 1.0)
    return each, max(slow.pooled, 1.0) if remembered.p_value < MEMORY_ALPHA and remembered.pooled > 0 else 1.0


CYCLES_A_DEGREE = 0.4
"""Degrees of freedom of a cycle: squares of differences of exponential times have variance 5, those of normal
ones 2."""


ALIKE = 8.0
"""Degrees of freedom for every ordinate that speaks of slow changes, which clients need not have alike."""
SEARCHED = 4.0
"""The break at which cycles are centred is searched for, which takes so many degrees of freedom out of their
scatter."""


def _freedom(stats: PerClient) -> np.ndarray:
    """2 / (relative variance of sum z^2), f[m]: that of exponential times, or less where few long spells make the sum.

    One long absence then proves nothing: it may be a spell like the others.
    """
    number = np.maximum(stats.cycles, 1)
    squares, fourths = stats.scatter
    with np.errstate(invalid="ignore", divide="ignore"):
        concentration = np.where(squares > 0, fourths / squares**2 - 1 / number, 1.0)
    return np.maximum(np.minimum(CYCLES_A_DEGREE * number, 2 / np.maximum(concentration, 1e-9)), 1.0)


def _f_quantile(level: float, freedom: float) -> float:
    """Quantile of chi^2 / freedom."""
    from scipy.special import chdtri

    return float(chdtri(freedom, 1 - level)) / freedom


def bridge_tail(statistic: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """P(sup |Brownian bridge| / sqrt(V) >= statistic), V = chi^2 / freedom, an estimated variance. [n] -> [n]

    2 sum_j (-1)^(j-1) E exp(-2 j^2 x^2 V), and the expectation is (1 + 4 j^2 x^2 / freedom)^(-freedom / 2).
    """
    x, freedom = np.maximum(statistic, 0.2), np.asarray(freedom, float)
    terms = np.arange(1, 101)
    signs = np.where(terms % 2 == 1, 1.0, -1.0)
    signs[-1] /= 2  # half of the last term: the sum alternates
    power = np.exp(-freedom / 2 * np.log1p(4 * (terms[:, None] * x) ** 2 / freedom))
    return np.clip(2 * signs @ power, 0.0, 1.0)


class DriftTest(NamedTuple):
    """Do rates change over the log?"""

    p_value: float | None
    """Smallest adjusted p-value; None when nothing could be tested."""
    drifting: np.ndarray
    """Numbers of the clients whose adjusted p-value is below ALPHA."""
    tested: int
    """How many clients were active, and inactive, often enough."""
    counts_drift: bool
    """Whether the number of active clients per round drifts."""


def drift(log: ParticipationLog, stats: PerClient, scatter: LongRun, spectra: Spectra | None) -> DriftTest:
    """CUSUM per client, and one of |A^t|, together corrected by Holm: family-wise error ALPHA.

    S max_k |S(k)/S - k/T| / sqrt(T v) has Kolmogorov's distribution in the limit when participation is stationary with
    long-run variance v (``long_run``); that v is an estimate is allowed for (``bridge_tail``). A client is tested
    that was active, and inactive, FEWEST_EVENTS times, in as many cycles. Unknown rounds are left out: k and T count
    known ones.
    """
    total, rate = log.known_rounds, stats.seen / log.known_rounds
    enough = (stats.seen >= FEWEST_EVENTS) & (total - stats.seen >= FEWEST_EVENTS) & (stats.cycles >= FEWEST_EVENTS)
    tested = np.flatnonzero(enough)
    variance = np.maximum(scatter.ratio, 1e-3) * rate * (1 - rate)
    statistic = stats.deviation[tested] * stats.seen[tested] / np.sqrt(total * variance[tested])
    p = bridge_tail(statistic, scatter.freedom[tested])
    p = np.append(p, counts_drift(log.active_counts(), log.known(), spectra))
    if total < FEWEST_ROUNDS:
        return DriftTest(None, np.empty(0, np.int64), 0, False)
    adjusted = holm(p)
    return DriftTest(float(adjusted.min()), tested[adjusted[:-1] < ALPHA], len(tested), bool(adjusted[-1] < ALPHA))


def counts_drift(counts: np.ndarray, known: np.ndarray | None = None, spectra: Spectra | None = None) -> float:
    """p-value of the CUSUM of |A^t| [T]; 1 when the number never changes.

    Its long-run variance is that of a chain with its lag-1 autocorrelation, or what its spectrum has at frequency 0,
    where that is more. known: bool[T]; the other rounds are left out, and so are pairs with one of them from the
    autocorrelation.
    """
    known = np.ones(len(counts), bool) if known is None else known
    series, total = centred(counts, known), int(known.sum())
    power = float(series @ series)
    if power == 0:
        return 1.0
    share = (np.sum(known[1:] & known[:-1]) + 1) / total
    r = float(np.clip(series[1:] @ series[:-1] / (power * share) + 1 / total, 0, 0.99))
    variance, freedom = power / total * (1 + r) / (1 - r), max(float(total * (1 - r) / (1 + r)), 2.0)
    if spectra is not None:
        zero, ordinates = at_zero(spectra.slow_counts, len(counts))
        own = 2 * max(ordinates, 2.0)
        if zero / total > variance:
            freedom = min(own, freedom) if zero / total > variance * _f_quantile(0.95, own) else freedom
            variance = zero / total
    largest = np.abs(np.cumsum(series)).max()
    return float(bridge_tail(np.array([largest / np.sqrt(total * variance)]), np.array([freedom]))[0])
