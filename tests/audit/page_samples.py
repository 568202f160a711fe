"""Logs, and findings in the documented shape, made here from NumPy: what the page is tested on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fedpbc.audit.types import (
    About,
    Absences,
    Advice,
    Autocorrelation,
    Bias,
    ClientWeight,
    Drift,
    Findings,
    GroupWeight,
    Mixing,
    Participation,
    Period,
    Rounds,
    Stationarity,
)
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.theory import fedavg_weights


def two_groups(m: int = 40, rounds: int = 500, seed: int = 0, cycle: int = 24) -> ParticipationLog:
    """Half of the clients at rate 0.1, half at 0.9, with a daily cycle."""
    rng = np.random.default_rng(seed)
    rate = np.where(np.arange(m) < m // 2, 0.1, 0.9)
    wave = 1 + 0.5 * np.sin(2 * np.pi * np.arange(rounds)[:, None] / cycle)
    t, i = np.nonzero(rng.random((rounds, m)) < rate * np.minimum(wave, 1.1))
    names = [f"{'rural' if k < m // 2 else 'city'}-{k:03d}" for k in range(m)]
    return log_of(t, i, names, rounds, groups=["rural" if k < m // 2 else "city" for k in range(m)])


def cross_device(m: int = 2000, rounds: int = 3000, seed: int = 1) -> ParticipationLog:
    """Many clients, each seldom there, at rates over two orders of magnitude; some never come."""
    rng = np.random.default_rng(seed)
    rate = np.minimum(rng.lognormal(-4, 1, m), 0.9)
    rate[:3] = 0
    pairs = [(t, np.flatnonzero(rng.random(m) < rate)) for t in range(rounds)]
    t = np.concatenate([np.full(len(active), t) for t, active in pairs])
    return log_of(t, np.concatenate([active for _, active in pairs]), [f"device-{i:08x}" for i in range(m)], rounds)


def counts_only(rounds: int = 300, seed: int = 2) -> ParticipationLog:
    """As from a console: how many, not who."""
    rng = np.random.default_rng(seed)
    empty = np.zeros(0, np.int32)
    return ParticipationLog([], rounds, 1, empty, empty, counts_only=rng.poisson(8, rounds), skipped={"other lines": 7})


def log_of(t: np.ndarray, i: np.ndarray, names: list[str], rounds: int, **more: Any) -> ParticipationLog:
    return ParticipationLog(names, rounds, 1, t.astype(np.int32), i.astype(np.int32), **more)


def findings_of(log: ParticipationLog) -> Findings:
    """Plausible findings; the page does not care how they were computed."""
    m, rounds, counts = len(log.clients), log.num_rounds, log.active_counts()
    of_counts = log.counts_only is not None
    about = About(
        source="participation.csv", format="csv", num_clients=None if of_counts else m, num_rounds=rounds,
        unknown_rounds=0, first_round=log.first_round, num_active_pairs=int(counts.sum()), dropped_duplicates=0,
        skipped=log.skipped, notes=log.notes, counts_only=of_counts, options={},
    )  # fmt: skip
    unequal = Advice(
        "unequal",
        "Use FedPBC, or weight the updates by measured rates",
        "Rates differ by a factor of nine and FedAvg puts 40% of the weight on the wrong clients.",
        "https://example.org/docs/results.html#unequal-links",
        "strategy = fedpbc.flower.FedPBC()",
        None,
    )
    cycle = Advice("cycle", "Train over whole cycles", "Activity repeats.", "not known", "rounds = 24", None)
    drift = Drift(0.34, (), 0, False, 0.01, "chi-squared over tenths of the log")
    period = Period(24.0 if log.groups else None, 0.4, 1e-6)
    of_rounds = Rounds(int(np.sum(counts == 0)), int(np.sum(counts == 1)), float(counts.mean()), None)
    if of_counts:
        return Findings(about, of_rounds, None, Stationarity(drift, None, period), None, (cycle,), ())
    rate = np.bincount(log.members, minlength=m) / rounds
    error = 1.96 * np.sqrt(rate * (1 - rate) / rounds + 1 / rounds**2)
    weight = np.bincount(log.members, 1 / counts[log.rounds], minlength=m) / np.sum(counts > 0)
    theory = fedavg_weights(np.minimum(rate, 1))
    lengths = _absences(log)
    longest = np.array([max(each, default=0) for each in lengths])
    edges = np.unique(np.round(np.geomspace(1, max(longest.max(), 1) + 1, 20)))
    histogram = np.histogram([k for each in lengths for k in each], edges)[0]
    participation = Participation(
        empty_rounds=of_rounds.empty_rounds, single_rounds=of_rounds.single_rounds, mean_active=of_rounds.mean_active,
        mean_rate=float(rate.mean()), rate=rate, rate_low=np.maximum(rate - error, 0),
        rate_high=np.minimum(rate + error, 1), confidence=0.95, intervals_widened=False,
        gini=float(np.abs(rate[:, None] - rate).mean() / 2 / rate.mean()) if m < 5000 else 0.4,
        longest_absence=longest, absence_histogram=Absences(edges, histogram, 0),
        never_seen=tuple(log.clients[i] for i in np.flatnonzero(rate == 0)), components=(tuple(log.clients),),
        meets_all=True,
    )  # fmt: skip
    entry = lambda i: ClientWeight(log.clients[i], float(weight[i]), float(weight[i] * m))  # noqa: E731
    by_weight = np.argsort(weight)
    bias = Bias(
        realised_weight=weight, theoretical_weight=theory, uniform=1 / m,
        total_variation=float(np.abs(weight - 1 / m).sum() / 2),
        total_variation_theoretical=float(np.abs(theory - 1 / m).sum() / 2),
        more_rounds_to_tell=0, total_variation_by_chance=0.05,
            rarest_half=float(np.sort(weight)[: m // 2].sum()),
        total_variation_to_sizes=None, most_over=tuple(map(entry, by_weight[::-1][:10])),
        most_under=tuple(map(entry, by_weight[:10])), by_group=_groups(log, weight),
    )  # fmt: skip
    mixing = Mixing(
        squared_distance_left_per_round=0.856, distance_left_per_round=0.925,
        distance_halved_after=2.0, distance_tenth_after=None, distance_half_life_rounds=8.9,
        distance_cooldown_rounds_1e3=89, extrapolated=False, squared_distance_left_for_good=0.0, windows=50,
        clients_seen=int(np.sum(rate > 0)), local_work_ratio=float(1 / rate.mean()),
    )  # fmt: skip
    memory = Autocorrelation(0.12, -0.02, 0.31, 0.12, 1e-4, True, 0.01, np.full(m, 0.12))
    steady = Stationarity(drift, memory, period)
    return Findings(about, participation, bias, steady, mixing, (unequal, cycle), tuple(log.clients))


def _groups(log: ParticipationLog, weight: np.ndarray) -> tuple[GroupWeight, ...] | None:
    if log.groups is None:
        return None
    groups = np.array(log.groups)
    shares = [(g, float(np.mean(groups == g)), float(weight[groups == g].sum())) for g in sorted(set(log.groups))]
    return tuple(GroupWeight(g, share, weight, weight / share, None) for g, share, weight in shares)


def _absences(log: ParticipationLog) -> list[list[int]]:
    """Lengths of the absences of each client."""
    order = np.argsort(log.members, kind="stable")
    members, rounds = log.members[order], log.rounds[order]
    bounds = np.searchsorted(members, np.arange(len(log.clients) + 1))
    found = []
    for a, b in pairwise(bounds):
        gaps = np.diff(np.concatenate([[-1], rounds[a:b], [log.num_rounds]])) - 1
        found.append(gaps[gaps > 0].tolist())
    return found
