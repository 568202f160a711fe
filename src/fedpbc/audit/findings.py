"""The findings: everything an audit computes, as the plain dictionary that audit.json holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedpbc.audit.mixing import mixing
from fedpbc.audit.rules import Findings, advise
from fedpbc.audit.statistics import (
    CONFIDENCE,
    PerClient,
    components,
    gini,
    intervals,
    per_client,
    realised_weights,
    total_variation_by_chance,
)
from fedpbc.audit.steadiness import ALPHA, MEMORY_ALPHA, Drift, Memory, counts_drift, drift, memory, period
from fedpbc.io.participation.log import ParticipationLog, require_clients
from fedpbc.theory import fedavg_weights

NAMED = 5
"""How many of the most over- and under-represented clients are named."""


def audit(log: ParticipationLog) -> Findings:
    """Answer the five questions about a log; the keys are described in docs/audit.md.

    Raises ConfigError when there is nothing to compare: a single client, or nobody active.
    """
    require_clients(log)
    if log.counts_only is not None:
        return _audit_counts(log)
    stats = per_client(log)
    remembered = memory(log, stats)
    label = components(log)
    groups = [[log.clients[i] for i in np.flatnonzero(label == k)] for k in np.unique(label[label >= 0])]
    findings: Findings = {
        "log": _about(log),
        "participation": _participation(log, stats, remembered, groups),
        "bias": _bias(log, stats, remembered),
        "stationarity": {
            "drift": _drift(log, drift(log, stats, remembered.used)),
            "autocorrelation": _autocorrelation(remembered),
            "period": _period(log),
        },
        "mixing": _mixing(log, len(groups)),
    }
    findings["advice"] = advise(findings)
    findings["clients"] = log.clients
    return findings


def _audit_counts(log: ParticipationLog) -> Findings:
    counts = log.active_counts()
    p = counts_drift(counts, log.known())
    findings: Findings = {
        "log": _about(log),
        "participation": {**_rounds(log), "mean_rate": _over(log.known_counts().mean(), log.num_clients)},
        "bias": None,
        "stationarity": {
            "drift": {"p_value": p, "drifting": [], "tested": 0, "counts_drift": p < ALPHA, "alpha": ALPHA,
                      "method": "CUSUM of the number of active clients"},
            "autocorrelation": None,
            "period": _period(log),
        },
        "mixing": None,
    }  # fmt: skip
    findings["advice"] = advise(findings)
    findings["clients"] = []
    return findings


def _over(value: float, m: int | None) -> float | None:
    return float(value) / m if m else None


def _about(log: ParticipationLog) -> dict[str, Any]:
    pairs = int(log.active_counts().sum())
    return {
        "source": log.source, "format": log.format, "num_clients": log.num_clients, "num_rounds": log.num_rounds,
        "unknown_rounds": len(log.unknown), "first_round": log.first_round, "num_active_pairs": pairs,
        "dropped_duplicates": log.dropped_duplicates, "skipped": dict(log.skipped),
        "notes": list(log.notes), "counts_only": log.counts_only is not None,
    }  # fmt: skip


def _rounds(log: ParticipationLog) -> dict[str, Any]:
    counts = log.known_counts()
    return {
        "empty_rounds": int(np.sum(counts == 0)),
        "single_rounds": int(np.sum(counts == 1)),
        "mean_active": float(counts.mean()),
    }


def _participation(
    log: ParticipationLog, stats: PerClient, remembered: Memory, groups: list[list[str]]
) -> dict[str, Any]:
    rate = stats.seen / log.known_rounds
    effective = np.maximum(log.known_rounds * (1 - remembered.used) / (1 + remembered.used), 1)
    low, high = intervals(rate, effective)
    never = [log.clients[i] for i in np.flatnonzero(stats.seen == 0)]
    return {
        **_rounds(log),
        "mean_rate": float(rate.mean()),
        "rate": rate.tolist(), "rate_low": low.tolist(), "rate_high": high.tolist(), "confidence": CONFIDENCE,
        "intervals_widened": bool(np.any(remembered.used > 0)),
        "gini": gini(rate),
        "longest_absence": stats.longest.tolist(),
        "absence_histogram": {"edges": stats.edges.tolist(), "counts": stats.absences.tolist(),
                              "censored": stats.censored},
        "never_seen": never, "components": groups, "meets_all": len(groups) == 1 and not never,
    }  # fmt: skip


def _bias(log: ParticipationLog, stats: PerClient, remembered: Memory) -> dict[str, Any]:
    m = len(log.clients)
    weight = realised_weights(log)
    theory = fedavg_weights(stats.seen / log.known_rounds)
    order = np.argsort(weight, kind="stable")
    correlation = min(max(remembered.pooled, 0.0), 0.99) if remembered.p_value < MEMORY_ALPHA else 0.0
    return {
        "realised_weight": weight.tolist(), "theoretical_weight": theory.tolist(), "uniform": 1 / m,
        "total_variation": _distance(weight, np.full(m, 1 / m)),
        "total_variation_theoretical": _distance(theory, np.full(m, 1 / m)),
        "total_variation_by_chance": total_variation_by_chance(log.active_counts(), m, correlation),
        "total_variation_to_sizes": None if log.sizes is None else _distance(weight, log.sizes / log.sizes.sum()),
        "most_over": [_entry(log, weight, i) for i in order[::-1][:NAMED] if weight[i] * m > 1],
        "most_under": [_entry(log, weight, i) for i in order[:NAMED] if weight[i] * m < 1],
        "by_group": _by_group(log, weight),
    }  # fmt: skip


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Total variation distance sum |a - b| / 2 of two weightings [m]."""
    return float(np.abs(a - b).sum() / 2)


def _entry(log: ParticipationLog, weight: np.ndarray, i: int) -> dict[str, Any]:
    return {"client": log.clients[i], "weight": float(weight[i]), "ratio": float(weight[i] * len(weight))}


def _by_group(log: ParticipationLog, weight: np.ndarray) -> list[dict[str, Any]] | None:
    """Per group its share of clients (of samples, if sizes are known) and of FedAvg's weight, most favoured first."""
    if log.groups is None:
        return None
    names, group = np.unique(np.array(log.groups, object).astype(str), return_inverse=True)
    share = np.bincount(group) / len(weight)
    weights = np.bincount(group, weight)
    samples = None if log.sizes is None else np.bincount(group, log.sizes) / log.sizes.sum()
    return [
        {"group": str(names[k]), "share_of_clients": float(share[k]), "weight": float(weights[k]),
         "ratio": float(weights[k] / share[k]), "share_of_samples": None if samples is None else float(samples[k])}
        for k in np.argsort(-weights / share, kind="stable")
    ]  # fmt: skip


def _drift(log: ParticipationLog, found: Drift) -> dict[str, Any]:
    return {
        "p_value": found.p_value, "drifting": [log.clients[i] for i in found.drifting], "tested": found.tested,
        "counts_drift": found.counts_drift, "alpha": ALPHA,
        "method": "CUSUM per client and of the number of active clients, Holm's correction",
    }  # fmt: skip


def _autocorrelation(found: Memory) -> dict[str, Any]:
    known = found.each[np.isfinite(found.each)]
    low, median, high = np.quantile(known, [0.05, 0.5, 0.95]).tolist() if len(known) else (None, None, None)
    return {
        "median": median, "low": low, "high": high, "pooled": found.pooled, "p_value": found.p_value,
        "significant": found.p_value < MEMORY_ALPHA, "alpha": MEMORY_ALPHA,
        "per_client": [value if math.isfinite(value) else None for value in found.each.tolist()],
    }  # fmt: skip


def _period(log: ParticipationLog) -> dict[str, Any]:
    found = period(log)
    return {"rounds": found.rounds, "strength": found.strength, "p_value": found.p_value}


def _mixing(log: ParticipationLog, groups: int) -> dict[str, Any]:
    found = mixing(log, groups)
    return {
        "squared_distance_left_per_round": found.squared_left,
        "distance_left_per_round": None if found.squared_left is None else math.sqrt(found.squared_left),
        "distance_half_life_rounds": found.half_life, "distance_cooldown_rounds_1e3": found.cooldown,
        "extrapolated": found.extrapolated, "squared_distance_left_for_good": found.left_for_good,
        "windows": found.windows, "clients_seen": found.clients_seen,
        "local_work_ratio": log.known_rounds * len(log.clients) / len(log.rounds),
    }  # fmt: skip
