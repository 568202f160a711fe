"""How often the audit finds a drift or a cycle in logs with memory that have none, and in logs that do have one.

python tests/audit/autocorrelated.py     # the second table of docs/audit.md: 400 logs of each kind and size
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from simulated import markov

from fedpbc.audit import ParticipationLog
from fedpbc.audit.spectrum import period, spectra_of
from fedpbc.audit.statistics import per_client
from fedpbc.audit.steadiness import ALPHA, drift, long_run

Maker = Callable[[np.random.Generator, int, int], np.ndarray]


def _rates(rng: np.random.Generator, m: int) -> np.ndarray:
    return rng.uniform(0.1, 0.7, m)


def _chain(value: float) -> Maker:
    """Two-state chains."""
    return lambda rng, rounds, m: markov(rng, rounds, _rates(rng, m), value)


def _flicker(rng: np.random.Generator, rounds: int, m: int) -> np.ndarray:
    """A slow chain that is seen through losses: up by a chain of .97, and then heard with .7."""
    return markov(rng, rounds, _rates(rng, m), 0.97) & (rng.random((rounds, m)) < 0.7)


def _modulated(rng: np.random.Generator, rounds: int, m: int) -> np.ndarray:
    """Rates of .15 and .6, which a chain of .97 of every client switches."""
    rate = np.where(markov(rng, rounds, np.full(m, 0.5), 0.97), 0.6, 0.15)
    return rng.random((rounds, m)) < rate


def _shared(rng: np.random.Generator, rounds: int, m: int) -> np.ndarray:
    """All rates fall to a third while one chain of .97, the same for all, is down."""
    up = markov(rng, rounds, np.full(1, 0.6), 0.97)
    return rng.random((rounds, m)) < _rates(rng, m) * np.where(up, 1, 1 / 3)


def _long_tails(rng: np.random.Generator, rounds: int, m: int) -> np.ndarray:
    """Presences and absences with lognormal lengths, median 4 rounds, one in twenty above 29."""
    table = np.empty((2 * rounds, m), bool)
    for i in range(m):
        ends = np.cumsum(np.ceil(rng.lognormal(np.log(4), 1.2, 2 * rounds)).astype(int))
        table[:, i] = (np.searchsorted(ends, np.arange(2 * rounds), side="right") + rng.integers(2)) % 2
    return table[rounds:]


def _step(value: float, height: float) -> Maker:
    """One client in ten, at least one, changes its rate half-way from .3 to .3 + height, with the memory as before."""

    def make(rng: np.random.Generator, rounds: int, m: int) -> np.ndarray:
        before, after = np.full(m, 0.3), np.full(m, 0.3)
        after[: max(m // 10, 1)] += height
        half = rounds // 2
        return np.concatenate([markov(rng, half, before, value), markov(rng, rounds - half, after, value)])

    return make


def _daily(value: float, swing: float) -> Maker:
    """A cycle of 24 rounds in chains with memory: heard with 1 - swing to 1 of the probability."""

    def make(rng: np.random.Generator, rounds: int, m: int) -> np.ndarray:
        wave = 1 - swing * (1 + np.sin(2 * np.pi * np.arange(rounds)[:, None] / 24)) / 2
        return markov(rng, rounds, _rates(rng, m), value) & (rng.random((rounds, m)) < wave)

    return make


STEADY: dict[str, Maker] = {
    "independent": _chain(0.0),
    "memory .9": _chain(0.9),
    "memory .97": _chain(0.97),
    "flicker .97": _flicker,
    "modulated .97": _modulated,
    "shared .97": _shared,
    "long tails": _long_tails,
}
CHANGING: dict[str, Maker] = {
    "independent, step of .3": _step(0.0, 0.3),
    "memory .9, step of .3": _step(0.9, 0.3),
    "memory .9, step of .6": _step(0.9, 0.6),
    "memory .97, step of .6": _step(0.97, 0.6),
    "memory .9, daily": _daily(0.9, 0.5),
    "memory .97, daily": _daily(0.97, 0.5),
}
SIZES = ((500, 100), (2000, 100), (2000, 9))


def study(make: Maker, logs: int, rounds: int, m: int) -> tuple[float, float, float, float]:
    """Shares of logs that are said to drift, of the first tenth of clients named, of the others named, of cycles."""
    rows = []
    for seed in range(logs):
        log = ParticipationLog.from_matrix(make(np.random.default_rng(seed), rounds, m))
        stats = per_client(log)
        spectra = spectra_of(log)
        found, cycle = drift(log, stats, long_run(log, stats, spectra), spectra), period(log, spectra)
        named = np.isin(np.arange(m), found.drifting)
        tenth = max(m // 10, 1)
        drifts = found.p_value is not None and found.p_value < ALPHA
        rows.append((drifts, named[:tenth].mean(), named[tenth:].mean(), cycle.rounds is not None))
    drifts, first, others, cycles = np.mean(np.array(rows, float), axis=0).tolist()
    return drifts, first, others, cycles


if __name__ == "__main__":
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print("| logs | rounds | clients | drift | first tenth named | others named | period |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind, maker in (STEADY | CHANGING).items():
        for rounds, m in SIZES:
            cells = " | ".join(f"{value:.4f}" for value in study(maker, logs, rounds, m))
            print(f"| {kind} | {rounds:,} | {m} | {cells} |", flush=True)
