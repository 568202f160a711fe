"""Question 3 of an audit: do rates drift, do rounds remember, is there a cycle. Tests, with what they assume."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedpbc.audit.statistics import BLOCK_PAIRS, PerClient, per_client
from fedpbc.audit.types import Period
from fedpbc.io.participation.log import ParticipationLog

ALPHA = 0.05
MEMORY_ALPHA = 0.01
FEWEST_ROUNDS = 20
"""No test on less."""
FEWEST_EVENTS = 5
"""A client is tested for drift when it was active, and inactive, at least so often."""
CYCLES = 3
"""A period must fit so often into the log."""
NEIGHBOURS = 30
SAMPLED_CLIENTS = 200
TRANSFORM_CELLS = 20_000_000
BLOCK = 1 << 18
"""Frequencies that are looked at together."""


class Memory(NamedTuple):
    """Lag-1 autocorrelation."""

    each: np.ndarray
    """r_i, f[m]; nan for clients always or never active."""
    pooled: float
    """One r for all clients, each weighing p_i (1 - p_i)."""
    p_value: float
    """Two-sided, of the pooled r under rounds independent of each other."""
    used: np.ndarray
    """r_i >= 0 that intervals and the drift test allow for, f[m]: 0 where no memory was found."""


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


def drift(log: ParticipationLog, stats: PerClient, used: np.ndarray) -> DriftTest:
    """CUSUM per client, and one of |A^t|, together corrected by Holm: family-wise error ALPHA.

    sqrt(S/(1-p)) max_k |S(k)/S - k/T| / sqrt((1+r)/(1-r)) has Kolmogorov's distribution in the limit when the rate is
    constant and memory is that of a two-state chain with autocorrelation r; for few events it is conservative.
    Unknown rounds are left out: k and T count known ones.
    """
    from scipy.special import kolmogorov

    total, rate = log.known_rounds, stats.seen / log.known_rounds
    tested = np.flatnonzero((stats.seen >= FEWEST_EVENTS) & (total - stats.seen >= FEWEST_EVENTS))
    inflation = np.sqrt((1 + used) / (1 - used))
    statistic = stats.deviation[tested] * np.sqrt(stats.seen[tested] / (1 - rate[tested])) / inflation[tested]
    p = np.append(kolmogorov(statistic), counts_drift(log.active_counts(), log.known()))
    if total < FEWEST_ROUNDS:
        return DriftTest(None, np.empty(0, np.int64), 0, False)
    adjusted = holm(p)
    return DriftTest(float(adjusted.min()), tested[adjusted[:-1] < ALPHA], len(tested), bool(adjusted[-1] < ALPHA))


def counts_drift(counts: np.ndarray, known: np.ndarray | None = None) -> float:
    """p-value of the CUSUM of |A^t| [T], allowing for lag-1 autocorrelation; 1 when the number never changes.

    known: bool[T]; the other rounds are left out, and so are pairs with one of them from the autocorrelation.
    """
    from scipy.special import kolmogorov

    known = np.ones(len(counts), bool) if known is None else known
    series, total = centred(counts, known), int(known.sum())
    power = float(series @ series)
    if power == 0:
        return 1.0
    share = (np.sum(known[1:] & known[:-1]) + 1) / total
    r = float(np.clip(series[1:] @ series[:-1] / (power * share) + 1 / total, 0, 0.99))
    largest = np.abs(np.cumsum(series)).max()
    return float(kolmogorov(largest / np.sqrt(power * (1 + r) / (1 - r))))


def period(log: ParticipationLog) -> Period:
    """A period in |A^t|, or in single clients whose cycles are not in step (time zones).

    Periodogram of |A^t|, and the sum of those of up to 200 clients, what they share removed; an ordinate, divided by
    the spectrum of a chain with the same lag-1 autocorrelation and by the mean of its 30 nearest neighbours, is F(2k,
    60k) without a cycle (k: 1, or as many independent clients as the ordinates' scatter shows). Bonferroni over
    frequencies and both series, level MEMORY_ALPHA. Periods of more than 2, up to T/3 rounds. The sums over rounds go
    over the known ones, at their places: an unknown round adds nothing to any of them.
    """
    total, known = log.num_rounds, log.known()
    if log.known_rounds < 2 * NEIGHBOURS:
        return Period(None, 0.0, 1.0)
    spectra = [_power(centred(log.active_counts(), known))]
    if log.counts_only is None:
        spectra.append(_clients_power(log))
    peaks = (_peak(power, total, independent=number > 0) for number, power in enumerate(spectra) if power.any())
    found = min(peaks, key=lambda each: each.p_value, default=None)
    if found is None:
        return Period(None, 0.0, 1.0)
    p_value = min(found.p_value * len(spectra), 1.0)
    return Period(found.rounds if p_value < MEMORY_ALPHA else None, found.strength, p_value)


def centred(series: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Less its mean over the known rounds; 0 in the others. [T] -> f[T]."""
    if known.all():
        return series - series.mean()
    return np.where(known, series - series[known].mean(), 0.0)


def _power(series: np.ndarray) -> np.ndarray:
    """|FFT|^2 of a series of mean 0 at the frequencies k/T, k = 0 .. T/2; 0 at k = 0."""
    power = np.abs(np.fft.rfft(series))
    power *= power
    power[0] = 0.0
    return power


def _clients_power(log: ParticipationLog) -> np.ndarray:
    """Sum of the normalised |FFT|^2 of the clients active closest to half of the rounds, |A^t| regressed out."""
    total, known = log.num_rounds, log.known()
    seen = np.bincount(log.members, minlength=len(log.clients))
    spread = np.minimum(seen, log.known_rounds - seen)
    number = max(min(SAMPLED_CLIENTS, TRANSFORM_CELLS // total), 1)
    chosen = np.argsort(-spread, kind="stable")[:number]
    place = np.full(len(seen), -1, np.int32)
    place[chosen] = np.arange(len(chosen))
    places = place[log.members]
    wanted = places >= 0
    places, rounds = places[wanted], log.rounds[wanted]
    power = np.zeros(total // 2 + 1)
    common = centred(log.active_counts(), known)
    common = common / max(float(np.sqrt(common @ common)), 1e-300)
    for client in np.flatnonzero(spread[chosen] > 0):
        row = np.zeros(total)
        row[rounds[places == client]] = 1
        own = centred(row, known) - (np.sum(row * common)) * common
        power += _power(own) / max(float(np.sum(own * own)), 1e-12)
    return power


def _peak(power: np.ndarray, total: int, independent: bool) -> Period:
    """The most improbable ordinate; its fundamental when it is a harmonic of a significant lower one."""
    cosine = np.cos(2 * np.pi * np.arange(len(power)) / total)
    r = float(np.clip(np.sum(power * cosine) / power.sum(), -0.95, 0.95))
    flat = power[1:] * (1 - 2 * r * cosine[1:] + r * r)
    del cosine
    flat = flat[:-1] if total % 2 == 0 else flat
    ratio = flat / np.maximum(_background(flat), 1e-300)
    shape = _shape(ratio) if independent else 1.0
    p = _improbable(ratio, shape)
    best = _fundamental(p, int(np.argmin(p)))
    near, whole = float(flat[max(best - 1, 0) : best + 2].sum()), float(flat.sum())
    return Period(total / _refined(ratio, best), near / whole if whole > 0 else 0.0, float(p.min()))


def _improbable(ratio: np.ndarray, shape: float) -> np.ndarray:
    """p-values [n] of ordinates under F(2k, 60k), times n, at most 1; the lowest frequencies are 1.

    Only those are computed that can be below 1: most ordinates are nowhere near.
    """
    from scipy.special import fdtrc, fdtri

    n, laws = len(ratio), (2 * shape, 2 * NEIGHBOURS * shape)
    near = ~(ratio < fdtri(*laws, 1 - 4 / n)) if n > 4 else np.ones(n, bool)
    near[: CYCLES - 1] = False
    p = np.ones(n)
    p[near] = np.minimum(fdtrc(*laws, ratio[near]) * n, 1)
    return p


def _background(flat: np.ndarray) -> np.ndarray:
    """Mean of the nearest NEIGHBOURS ordinates, the five around each left out; [n] -> [n]."""
    n = len(flat)
    sums = np.concatenate([[0], np.cumsum(flat)])
    found = np.empty(n)
    for begin in range(0, n, BLOCK):
        here = np.arange(begin, min(begin + BLOCK, n))
        first = np.clip(here - NEIGHBOURS // 2 - 2, 0, max(n - NEIGHBOURS - 5, 0))
        last = np.minimum(first + NEIGHBOURS + 5, n)
        low, high = np.maximum(here - 2, first), np.minimum(here + 3, last)
        found[here] = (sums[last] - sums[first] - sums[high] + sums[low]) / (last - first - high + low)
    return found


def _shape(ratio: np.ndarray) -> float:
    """k of the Gamma(k)/k law whose quartiles are as far apart as those of the ordinates; 1 to 10^4."""
    from scipy.optimize import brentq
    from scipy.special import gammaincinv

    low, high = np.quantile(ratio, [0.25, 0.75])
    spread = float(high - low)

    def excess(k: float) -> float:
        return float(gammaincinv(k, 0.75) - gammaincinv(k, 0.25)) / k - spread

    return 1.0 if excess(1.0) <= 0 else 1e4 if excess(1e4) >= 0 else float(brentq(excess, 1.0, 1e4))


def _fundamental(p: np.ndarray, best: int) -> int:
    """Lowest significant frequency of which ``best`` is a whole multiple (2 or more, to within one ordinate)."""
    low = np.flatnonzero(p[CYCLES - 1 : best] < MEMORY_ALPHA) + CYCLES - 1
    multiple = (best + 1) / (low + 1)
    low = low[(multiple > 1.5) & (np.abs(multiple - np.rint(multiple)) * (low + 1) <= 1)]
    around = np.pad(p, 2, constant_values=np.inf)[low[:, None] + np.arange(5)]
    low = low[p[low] == around.min(axis=1)]
    return int(low[0]) if len(low) else best


def _refined(ratio: np.ndarray, best: int) -> float:
    """Frequency k between bins: a sine at k + d has amplitudes in the ratio d/(1-d) at k + 1 and k (background off)."""
    amplitude = np.sqrt(np.maximum(ratio - 1, 0))
    before, here, after = (amplitude[k] if 0 <= k < len(ratio) else 0.0 for k in (best - 1, best, best + 1))
    side, sign = (after, 1) if after > before else (before, -1)
    return float(best + 1 + (sign * side / (here + side) if here > 0 else 0.0))
