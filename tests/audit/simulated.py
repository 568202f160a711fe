"""Simulated logs and what the audit says of them: the figures of docs/audit.md.

python tests/audit/simulated.py          # the table of docs/audit.md: 200 logs of 500 rounds and 100 clients each
python tests/audit/simulated.py 50       # of fewer logs
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpbc.audit import ParticipationLog
from fedpbc.audit.spectrum import period, spectra_of
from fedpbc.audit.statistics import intervals, per_client
from fedpbc.audit.steadiness import ALPHA, MEMORY_ALPHA, drift, long_run, memory, scatter_of

Made = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The log bool[T, m], the mean probabilities [m], the numbers of the clients that drift."""


def markov(rng: np.random.Generator, rounds: int, p: np.ndarray, memory: float) -> np.ndarray:
    """Two-state chains with stationary probability p and lag-1 autocorrelation ``memory``."""
    table = np.empty((rounds, len(p)), bool)
    state = rng.random(len(p)) < p
    for t in range(rounds):
        table[t] = state
        state = rng.random(len(p)) < np.where(state, memory + (1 - memory) * p, (1 - memory) * p)
    return table


def _independent(rng: np.random.Generator, rounds: int, m: int) -> Made:
    p = rng.uniform(0.05, 0.6, m)
    return rng.random((rounds, m)) < p, p, np.empty(0, int)


def _memory(value: float) -> Callable[..., Made]:
    def make(rng: np.random.Generator, rounds: int, m: int) -> Made:
        p = rng.uniform(0.05, 0.6, m)
        return markov(rng, rounds, p, value), p, np.empty(0, int)

    return make


def _ten_of_all(rng: np.random.Generator, rounds: int, m: int) -> Made:
    chosen = np.argsort(rng.random((rounds, m)), axis=1)[:, :10]
    table = np.zeros((rounds, m), bool)
    np.put_along_axis(table, chosen, True, axis=1)
    return table, np.full(m, 10 / m), np.empty(0, int)


def _outage(rng: np.random.Generator, rounds: int, m: int) -> Made:
    p = rng.uniform(0.05, 0.6, m)
    up = rng.random((rounds, 1)) < 0.8
    return (rng.random((rounds, m)) < p) & up, 0.8 * p, np.empty(0, int)


def _step(height: float) -> Callable[..., Made]:
    """One client in ten goes from .3 to .3 + height half-way."""

    def make(rng: np.random.Generator, rounds: int, m: int) -> Made:
        p = np.full((rounds, m), 0.3)
        p[rounds // 2 :, : m // 10] += height
        return rng.random((rounds, m)) < p, p.mean(0), np.arange(m // 10)

    return make


def _daily(zones: bool) -> Callable[..., Made]:
    def make(rng: np.random.Generator, rounds: int, m: int) -> Made:
        p = rng.uniform(0.05, 0.4, m)
        phase = rng.uniform(0, 2 * np.pi, m) if zones else 0
        wave = 1 + 0.4 * np.sin(2 * np.pi * np.arange(rounds)[:, None] / 24 + phase)
        return rng.random((rounds, m)) < p * wave, p, np.empty(0, int)

    return make


KINDS: dict[str, Callable[..., Made]] = {
    "independent": _independent,
    "memory .2": _memory(0.2),
    "memory .5": _memory(0.5),
    "memory .8": _memory(0.8),
    "ten of all": _ten_of_all,
    "shared outage": _outage,
    "step of .1": _step(0.1),
    "step of .15": _step(0.15),
    "step of .2": _step(0.2),
    "step of .3": _step(0.3),
    "daily": _daily(False),
    "daily, time zones": _daily(True),
}


HIDDEN = ("independent", "memory .5", "daily")
"""The kinds that are also studied with unknown rounds."""


class Study(NamedTuple):
    """Means over the logs of a kind."""

    coverage: float
    drift_alarms: float
    """Share of logs said to drift."""
    named: float
    """Share of the drifting clients that are named."""
    falsely_named: float
    memory_alarms: float
    period_alarms: float
    periods: list[float]


def hidden_rounds(rng: np.random.Generator, rounds: int) -> np.ndarray:
    """An outage of the logger of a tenth of the rounds, and one round in twenty beside it."""
    hidden = rng.random(rounds) < 0.05
    first = rng.integers(rounds // 10, rounds - rounds // 5)
    hidden[first : first + rounds // 10] = True
    return np.flatnonzero(hidden)


def study(name: str, logs: int, rounds: int, m: int, hide: bool = False) -> Study:
    """Audit ``logs`` simulated logs of a kind; ``hide``: with unknown rounds."""
    rows, periods = [], []
    for seed in range(logs):
        table, p, moved = KINDS[name](np.random.default_rng(seed), rounds, m)
        unknown = hidden_rounds(np.random.default_rng(seed), rounds) if hide else ()
        log = ParticipationLog.from_matrix(table, unknown=unknown)
        stats = per_client(log)
        spectra = spectra_of(log)
        remembered, slow = memory(log, stats), long_run(log, stats, spectra)
        total = log.known_rounds
        low, high = intervals(stats.seen / total, np.maximum(total / scatter_of(remembered, slow)[0], 1))
        drifts, cycle = drift(log, stats, slow, spectra), period(log, spectra)
        is_named = np.isin(np.arange(m), drifts.drifting)
        rest = np.setdiff1d(np.arange(m), moved)
        named = is_named[moved].mean() if len(moved) else np.nan
        rows.append(
            (np.mean((low <= p) & (p <= high)), drifts.p_value < ALPHA, named, is_named[rest].mean(),
             remembered.p_value < MEMORY_ALPHA, cycle.rounds is not None)
        )  # fmt: skip
        periods += [cycle.rounds] if cycle.rounds is not None else []
    return Study(*np.mean(np.array(rows, float), axis=0).tolist(), periods)


if __name__ == "__main__":
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print("| logs | coverage | drift | drifting clients named | others named | memory | period |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind, hide in [*((kind, False) for kind in KINDS), *((kind, True) for kind in HIDDEN)]:
        s = study(kind, logs, rounds=500, m=100, hide=hide)
        named = "" if np.isnan(s.named) else f"{s.named:.3f}"
        cells = (f"{s.coverage:.4f}", f"{s.drift_alarms:.3f}", named, f"{s.falsely_named:.5f}",
                 f"{s.memory_alarms:.3f}", f"{s.period_alarms:.3f}")  # fmt: skip
        print(f"| {kind}{', a seventh unknown' if hide else ''} | {' | '.join(cells)} |", flush=True)
