"""Logs, and findings in the documented shape, made here from NumPy: what the page is tested on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

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


def findings_of(log: ParticipationLog) -> dict[str, Any]:
    """Plausible findings; the page does not care how they were computed."""
    m, rounds, counts = len(log.clients), log.num_rounds, log.active_counts()
    about = {"source": "participation.csv", "format": "csv", "num_clients": m, "num_rounds": rounds}
    about |= {"first_round": log.first_round, "num_active_pairs": len(log.rounds), "skipped": log.skipped}
    about["counts_only"] = log.counts_only is not None
    advice = [
        {
            "rule": "unequal",
            "advice": "Use FedPBC, or weight the updates by measured rates",
            "reason": "Rates differ by a factor of nine and FedAvg puts 40% of the weight on the wrong clients.",
            "evidence": "https://example.org/docs/results.html#unequal-links",
        },
        {"rule": "cycle", "advice": "Train over whole cycles", "reason": "Activity repeats.", "evidence": "not known"},
    ]
    if log.counts_only is not None:
        return {"log": about, "participation": None, "bias": None, "mixing": None, "advice": advice[1:], "clients": []}
    rate = np.bincount(log.members, minlength=m) / rounds
    error = 1.96 * np.sqrt(rate * (1 - rate) / rounds + 1 / rounds**2)
    weight = np.bincount(log.members, 1 / counts[log.rounds], minlength=m) / np.sum(counts > 0)
    theory = fedavg_weights(np.minimum(rate, 1))
    lengths = _absences(log)
    longest = [max(each, default=0) for each in lengths]
    edges = np.unique(np.round(np.geomspace(1, max(max(longest), 1) + 1, 20)))
    histogram = np.histogram([k for each in lengths for k in each], edges)[0] if len(edges) > 1 else []
    entry = lambda i: {"client": log.clients[i], "weight": float(weight[i]), "ratio": float(weight[i] * m)}  # noqa: E731
    by_weight = np.argsort(weight)
    groups = None if log.groups is None else np.array(log.groups)
    return {
        "log": about,
        "participation": {
            "mean_rate": float(rate.mean()),
            "rate": rate.tolist(),
            "rate_low": np.maximum(rate - error, 0).tolist(),
            "rate_high": np.minimum(rate + error, 1).tolist(),
            "confidence": 0.95,
            "gini": float(np.abs(rate[:, None] - rate).mean() / 2 / rate.mean()) if m < 5000 else 0.4,
            "empty_rounds": int(np.sum(counts == 0)),
            "single_rounds": int(np.sum(counts == 1)),
            "mean_active": float(counts.mean()),
            "longest_absence": longest,
            "absence_histogram": {"edges": edges.tolist(), "counts": list(map(int, histogram))},
            "never_seen": [log.clients[i] for i in np.flatnonzero(rate == 0)],
            "components": [log.clients],
            "meets_all": True,
        },
        "bias": {
            "realised_weight": weight.tolist(),
            "theoretical_weight": theory.tolist(),
            "uniform": 1 / m,
            "total_variation": float(np.abs(weight - 1 / m).sum() / 2),
            "total_variation_theoretical": float(np.abs(theory - 1 / m).sum() / 2),
            "total_variation_by_chance": 0.05,
            "most_over": [entry(i) for i in by_weight[::-1][:10]],
            "most_under": [entry(i) for i in by_weight[:10]],
            "by_group": None
            if groups is None
            else [
                {
                    "group": g,
                    "share_of_clients": float(np.mean(groups == g)),
                    "weight": float(weight[groups == g].sum()),
                }
                for g in sorted(set(log.groups or []))
            ],
        },
        "stationarity": {
            "drift": {"p_value": 0.34, "drifting": [], "method": "chi-squared over tenths of the log", "alpha": 0.01},
            "autocorrelation": {"median": 0.12, "low": -0.02, "high": 0.31, "significant": True},
            "period": {"rounds": 24.0 if log.groups else None, "strength": 0.4, "p_value": 1e-6},
        },
        "mixing": {
            "squared_distance_left_per_round": 0.856,
            "distance_left_per_round": 0.925,
            "windows": 50,
            "clients_seen": int(np.sum(rate > 0)),
            "distance_half_life_rounds": 8.9,
            "distance_cooldown_rounds_1e3": 89,
            "extrapolated": False,
            "squared_distance_left_for_good": 0.0,
            "local_work_ratio": float(1 / rate.mean()),
        },
        "advice": advice,
        "clients": log.clients,
    }


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
