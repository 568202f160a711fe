"""A cycle in who takes part: peaks of periodograms above a background that memory of any length explains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.audit.types import Period
from fedpbc.io.participation.log import ParticipationLog

PERIOD_ALPHA = 0.01
CYCLES = 3
"""A period must fit so often into the log."""
NEIGHBOURS = 30
SAMPLED_CLIENTS = 200
TRANSFORM_CELLS = 20_000_000
BLOCK = 1 << 18
"""Frequencies that are looked at together."""
MEMORIES = np.array([-0.9, -0.5, 0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.97, 0.985, 0.993, 0.997, 0.999])
"""Autocorrelations of the chains whose spectra, mixed, are the background."""
HARMONICS = 100
"""The highest harmonic of a cycle that may stand out most."""
BINS = 240
SWEEPS = 150
CUT = 4.0
"""Ordinates above so many times the background do not count for it: they may be a cycle."""


class Spectra(NamedTuple):
    """Squared Fourier sums of a log, k = 0 .. T/2, and their variances."""

    counts: np.ndarray
    """Of |A^t|."""
    apart: np.ndarray | None
    """Of up to 200 clients, what they share removed, normalised and summed; None where only counts are known."""
    slow_counts: np.ndarray
    """Of |A^t|, each half of the log less its own mean (``halves``): a drift does not count as memory."""
    clients: np.ndarray | None
    """Of the clients, likewise, by T p (1-p): their mean."""
    chosen: np.ndarray
    """Which clients the last are of."""


def spectra_of(log: ParticipationLog) -> Spectra | None:
    """The spectra, or None of a log that is too short."""
    if log.known_rounds < 2 * NEIGHBOURS:
        return None
    series = centred(log.active_counts(), log.known())
    counts, slow = _power(np.fft.rfft(series)), _power(np.fft.rfft(halves(series, log.known())))
    if log.counts_only is not None:
        return Spectra(counts, None, slow, None, np.empty(0, np.int64))
    apart, clients, chosen = _clients_power(log)
    return Spectra(counts, apart, slow, clients, chosen)


def halves(series: np.ndarray, known: np.ndarray) -> np.ndarray:
    """A centred series less its mean before the place where its sum is furthest from 0, and that after it. [T]
    -> f[T]"""
    cut = int(np.argmax(np.abs(np.cumsum(series)))) + 1
    found = series.astype(float)
    for part in (slice(0, cut), slice(cut, len(series))):
        rounds = int(known[part].sum())
        if rounds:
            found[part] -= np.where(known[part], found[part].sum() / rounds, 0.0)
    return found


def period(log: ParticipationLog, spectra: Spectra | None) -> Period:
    """A period in |A^t|, or in single clients whose cycles are not in step (time zones).

    Periodogram of |A^t|, and the sum of those of up to 200 clients, what they share removed; an ordinate, divided by
    the background (``background``: memory of any length) and by the mean of its 30 nearest neighbours, is F(2k, 60k)
    without a cycle (k: 1, or as many independent clients as the ordinates' scatter shows). Bonferroni over
    frequencies and both series, level PERIOD_ALPHA. Periods of more than 2, up to T/3 rounds. The sums over rounds go
    over the known ones, at their places: an unknown round adds nothing to any of them.
    """
    if spectra is None:
        return Period(None, 0.0, 1.0)
    both = [spectra.counts] if spectra.apart is None else [spectra.counts, spectra.apart]
    peaks = (_peak(power, log.num_rounds, number > 0) for number, power in enumerate(both) if power.any())
    found = min(peaks, key=lambda each: each.p_value, default=None)
    if found is None:
        return Period(None, 0.0, 1.0)
    p_value = min(found.p_value * len(both), 1.0)
    return Period(found.rounds if p_value < PERIOD_ALPHA else None, found.strength, p_value)


def centred(series: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Less its mean over the known rounds; 0 in the others. [T] -> f[T]."""
    if known.all():
        return series - series.mean()
    return np.where(known, series - series[known].mean(), 0.0)


def _power(sums: np.ndarray) -> np.ndarray:
    """|.|^2 of Fourier sums; 0 at k = 0."""
    power = np.abs(sums)
    power *= power
    power[0] = 0.0
    return power


def _clients_power(log: ParticipationLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(``apart``, ``clients``, ``chosen``) of Spectra: the clients active closest to half of the rounds."""
    total, known = log.num_rounds, log.known()
    seen = np.bincount(log.members, minlength=len(log.clients))
    spread = np.minimum(seen, log.known_rounds - seen)
    number = max(min(SAMPLED_CLIENTS, TRANSFORM_CELLS // total), 1)
    chosen = np.argsort(-spread, kind="stable")[:number]
    chosen = chosen[spread[chosen] > 0]
    place = np.full(len(seen), -1, np.int32)
    place[chosen] = np.arange(len(chosen))
    places = place[log.members]
    wanted = places >= 0
    places, rounds = places[wanted], log.rounds[wanted]
    apart, whole = np.zeros(total // 2 + 1), np.zeros(total // 2 + 1)
    common = centred(log.active_counts(), known)
    common = common / max(float(np.sqrt(common @ common)), 1e-300)
    common_sums = np.fft.rfft(common)
    few = max(min(len(chosen), TRANSFORM_CELLS // (4 * total)), 1)
    for client in range(len(chosen)):
        row = np.zeros(total)
        row[rounds[places == client]] = 1
        row = centred(row, known)
        size, along = float(row @ row), float(row @ common)
        sums = np.fft.rfft(row)
        if client < few:
            whole += _power(np.fft.rfft(halves(row, known))) / (size * few)
        apart += _power(sums - along * common_sums) / max(size - along**2, 1e-12)
    return apart, whole, chosen[:few]


LONGEST_MEMORY = 1 / 15
"""Memory up to so much of the log is told from a drift; what is slower is one."""
LOWEST = 3
"""Ordinates from here on say what memory there is; a drift shows in those below."""


def at_zero(power: np.ndarray, total: int) -> tuple[float, float]:
    """(the spectrum at frequency 0 that memory gives, of about so many ordinates): a long-run variance.

    Memory of up to LONGEST_MEMORY of the log, from the ordinates from LOWEST on.
    """
    slowest = 1 - 1 / max(LONGEST_MEMORY * total, 2.0)
    memories = np.append(MEMORIES[slowest > MEMORIES], slowest)
    ordinates = power[1:-1] if total % 2 == 0 else power[1:]
    weights = _weights(ordinates, total, memories, LOWEST)
    zero = float(weights @ ((1 + memories) / (1 - memories)))
    fit = _shapes(memories, 2 * np.pi * np.arange(1, len(ordinates) + 1)[:200] / total) @ weights
    return zero, float(np.sum(fit > zero / 2))


def background(power: np.ndarray, total: int) -> np.ndarray:
    """The spectrum of memory, fitted to ordinates 1 .. [n] of which some may belong to a cycle. [n] -> [n]"""
    omega = 2 * np.pi * np.arange(1, len(power) + 1) / total
    weights = _weights(power, total, MEMORIES, 1)
    knots = np.unique(np.round(np.geomspace(1, len(power), 4 * BINS)).astype(np.int64)) - 1
    return np.interp(omega, omega[knots], _shapes(MEMORIES, omega[knots]) @ weights)


def _shapes(memories: np.ndarray, omega: np.ndarray) -> np.ndarray:
    """(1 - r^2) / (1 - 2 r cos w + r^2), [n, memories]: spectra of chains with variance 1."""
    return np.asarray((1 - memories**2) / (1 - 2 * memories * np.cos(omega)[:, None] + memories**2))


def _weights(power: np.ndarray, total: int, memories: np.ndarray, lowest: int) -> np.ndarray:
    """Weights >= 0 of the spectra of ``memories``, for ordinates ``lowest`` .. n of ``power`` (1 .. n).

    They minimise the Itakura-Saito divergence (Whittle's likelihood) by multiplicative steps, over ordinates put
    together in bins of equal logarithmic width; what is above CUT times the fit is cut down to it, and the fit made
    again.
    """
    n = len(power)
    edges = np.unique(np.round(np.geomspace(lowest, n + 1, min(BINS, n) + 1)).astype(np.int64))
    sizes = np.diff(edges)
    middles = 2 * np.pi * (edges[:-1] + (sizes - 1) / 2) / total
    size = float(power[lowest - 1 :].mean())
    if size <= 0:
        return np.zeros(len(memories))
    shapes, power = _shapes(memories, middles), power / size
    cut, weights = power, np.full(len(memories), 1 / len(memories))
    for _ in range(3):
        means = np.add.reduceat(cut, edges[:-1] - 1) / sizes
        means = np.maximum(means, 1e-12)
        for _ in range(SWEEPS):
            fit = shapes @ weights
            weights *= np.sqrt((shapes.T @ (sizes * means / fit**2)) / (shapes.T @ (sizes / fit)))
            weights = np.maximum(weights, 1e-12 * weights.max())
        limits = np.repeat(CUT * (shapes @ weights), sizes)
        cut = power.copy()
        cut[edges[0] - 1 : edges[-1] - 1] = np.minimum(power[edges[0] - 1 : edges[-1] - 1], limits)
    return weights * size


def _peak(power: np.ndarray, total: int, independent: bool) -> Period:
    """The most improbable ordinate; its fundamental where it is a harmonic."""
    ordinates = power[1:-1] if total % 2 == 0 else power[1:]
    flat = ordinates / np.maximum(background(ordinates, total), 1e-300)
    ratio = flat / np.maximum(_neighbours(flat), 1e-300)
    shape = _shape(ratio) if independent else 1.0
    p = _improbable(ratio, shape)
    best = int(np.argmin(p))
    cycle = _fundamental(ratio, shape, _refined(ratio, best))
    near, whole = float(flat[max(best - 1, 0) : best + 2].sum()), float(flat.sum())
    return Period(total / cycle, near / whole if whole > 0 else 0.0, float(p.min()))


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


def _neighbours(flat: np.ndarray) -> np.ndarray:
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


def _fundamental(ratio: np.ndarray, shape: float, best: float) -> float:
    """The lowest frequency of which ``best`` is a harmonic, itself if there is none.

    best/h is one if its harmonics that no higher frequency best/g explains (j best/h, j < 2h without a common divisor
    with h) are there: Fisher's sum of -2 log p over them, level PERIOD_ALPHA over all h. Pulses have them all alike.
    """
    from scipy.special import chdtrc, fdtrc

    n = len(ratio)
    candidates = range(2, min(int(best // CYCLES), HARMONICS) + 1)
    found = best
    for h in candidates:
        orders = np.arange(1, 2 * h)
        lines = orders[np.gcd(orders, h) == 1] * best / h
        lines = lines[lines <= n]
        low = np.clip(np.floor(lines).astype(np.int64) - 1, 0, n - 1)
        highest = np.maximum(ratio[low], ratio[np.minimum(low + 1, n - 1)])
        p = np.minimum(2 * fdtrc(2 * shape, 2 * NEIGHBOURS * shape, highest), 1)
        together = float(chdtrc(2 * len(p), -2 * np.sum(np.log(np.maximum(p, 1e-300)))))
        is_there = float(np.mean(p < 0.1)) > 0.5 or float(p[0]) < PERIOD_ALPHA / n
        if together * len(candidates) < PERIOD_ALPHA and is_there:
            found = best / h
    return found


def _refined(ratio: np.ndarray, best: int) -> float:
    """Frequency k between bins: a sine at k + d has amplitudes in the ratio d/(1-d) at k + 1 and k (background off)."""
    amplitude = np.sqrt(np.maximum(ratio - 1, 0))
    before, here, after = (amplitude[k] if 0 <= k < len(ratio) else 0.0 for k in (best - 1, best, best + 1))
    side, sign = (after, 1) if after > before else (before, -1)
    return float(best + 1 + (sign * side / (here + side) if here > 0 else 0.0))
