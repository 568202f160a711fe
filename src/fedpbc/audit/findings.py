"""The findings: everything an audit computes, put together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedpbc.audit.mixing import mixing
from fedpbc.audit.rules import HARMLESS, advise
from fedpbc.audit.spectrum import period, spectra_of
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
from fedpbc.audit.steadiness import (
    ALPHA,
    MEMORY_ALPHA,
    DriftTest,
    Memory,
    counts_drift,
    drift,
    long_run,
    memory,
    scatter_of,
)
from fedpbc.audit.types import (
    About,
    Absences,
    Autocorrelation,
    Bias,
    ClientWeight,
    Drift,
    Findings,
    Floats,
    GroupWeight,
    Mixing,
    Participation,
    Rounds,
    Stationarity,
)
from fedpbc.io.participation.log import ParticipationLog, require_clients
from fedpbc.theory import fedavg_weights

NAMED = 5
"""How many of the most over- and under-represented clients are named."""


def audit(log: ParticipationLog) -> Findings:
    """Answer the five questions about a log.

    Raises ConfigError when there is nothing to compare: a single client, or nobody active.
    """
    require_clients(log)
    findings = _of_counts(log) if log.counts_only is not None else _of_clients(log)
    return replace(findings, advice=advise(findings))


def _of_clients(log: ParticipationLog) -> Findings:
    stats = per_client(log)
    spectra = spectra_of(log)
    remembered, slow = memory(log, stats), long_run(log, stats, spectra)
    scatter, pooled = scatter_of(remembered, slow)
    label = components(log)
    groups = tuple(_ids(log, label == k) for k in np.unique(label[label >= 0]))
    return Findings(
        log=_about(log),
        participation=_participation(log, stats, scatter, groups),
        bias=_bias(log, stats, pooled),
        stationarity=Stationarity(
            _drift(log, drift(log, stats, slow, spectra)), _autocorrelation(remembered), period(log, spectra)
        ),
        mixing=_mixing(log, len(groups)),
        advice=(),
        clients=tuple(log.clients),
    )


def _of_counts(log: ParticipationLog) -> Findings:
    counts, m = log.known_counts(), log.num_clients
    spectra = spectra_of(log)
    p = counts_drift(log.active_counts(), log.known(), spectra)
    drifts = Drift(p, (), 0, p < ALPHA, ALPHA, "CUSUM of the number of active clients")
    return Findings(
        log=_about(log),
        participation=_rounds(log, float(counts.mean()) / m if m else None),
        bias=None,
        stationarity=Stationarity(drifts, None, period(log, spectra)),
        mixing=None,
        advice=(),
        clients=(),
    )


def _ids(log: ParticipationLog, chosen: np.ndarray) -> tuple[str, ...]:
    return tuple(log.clients[i] for i in np.flatnonzero(chosen))


def _about(log: ParticipationLog) -> About:
    return About(
        source=log.source, format=log.format, num_clients=log.num_clients, num_rounds=log.num_rounds,
        unknown_rounds=len(log.unknown), first_round=log.first_round, num_active_pairs=int(log.active_counts().sum()),
        dropped_duplicates=log.dropped_duplicates, skipped=dict(log.skipped), notes=log.notes,
        counts_only=log.counts_only is not None, options=dict(log.options),
    )  # fmt: skip


def _rounds(log: ParticipationLog, mean_rate: float | None) -> Rounds:
    counts = log.known_counts()
    return Rounds(int(np.sum(counts == 0)), int(np.sum(counts == 1)), float(counts.mean()), mean_rate)


def _participation(
    log: ParticipationLog, stats: PerClient, scatter: Floats, groups: tuple[tuple[str, ...], ...]
) -> Participation:
    rate = stats.seen / log.known_rounds
    effective = np.maximum(log.known_rounds / scatter, 1)
    low, high = intervals(rate, effective)
    never = _ids(log, stats.seen == 0)
    rounds = _rounds(log, float(rate.mean()))
    return Participation(
        empty_rounds=rounds.empty_rounds, single_rounds=rounds.single_rounds, mean_active=rounds.mean_active,
        mean_rate=rounds.mean_rate,
        rate=rate, rate_low=low, rate_high=high, confidence=CONFIDENCE,
        intervals_widened=bool(np.any(scatter > 1)),
        gini=gini(rate),
        longest_absence=stats.longest,
        absence_histogram=Absences(stats.edges, stats.absences, stats.censored),
        never_seen=never, components=groups, meets_all=len(groups) == 1 and not never,
    )  # fmt: skip


def _bias(log: ParticipationLog, stats: PerClient, scatter: float) -> Bias:
    m = len(log.clients)
    weight = realised_weights(log)
    chance = total_variation_by_chance(log.active_counts(), m, scatter)
    theory = fedavg_weights(stats.seen / log.known_rounds)
    order = np.argsort(weight, kind="stable")
    return Bias(
        realised_weight=weight, theoretical_weight=theory, uniform=1 / m,
        total_variation=_distance(weight, np.full(m, 1 / m)),
        total_variation_theoretical=_distance(theory, np.full(m, 1 / m)),
        total_variation_by_chance=chance, more_rounds_to_tell=_more_rounds(log, chance),
        rarest_half=float(np.sort(weight)[: m // 2].sum()),
        total_variation_to_sizes=None if log.sizes is None else _distance(weight, log.sizes / log.sizes.sum()),
        most_over=tuple(_entry(log, weight, i) for i in order[::-1][:NAMED] if weight[i] * m > 1),
        most_under=tuple(_entry(log, weight, i) for i in order[:NAMED] if weight[i] * m < 1),
        by_group=_by_group(log, weight),
    )  # fmt: skip


def _more_rounds(log: ParticipationLog, chance: float) -> int:
    """What chance gives falls with the root of the number of rounds."""
    return max(math.ceil(log.known_rounds * ((chance / HARMLESS) ** 2 - 1)), 0)


def _distance(a: Floats, b: Floats) -> float:
    """Total variation distance sum |a - b| / 2 of two weightings [m]."""
    return float(np.abs(a - b).sum() / 2)


def _entry(log: ParticipationLog, weight: Floats, i: int) -> ClientWeight:
    return ClientWeight(log.clients[i], float(weight[i]), float(weight[i] * len(weight)))


def _by_group(log: ParticipationLog, weight: Floats) -> tuple[GroupWeight, ...] | None:
    """Per group its share of clients (of samples, if sizes are known) and of FedAvg's weight, most favoured first."""
    if log.groups is None:
        return None
    names, group = np.unique(np.array(log.groups, object).astype(str), return_inverse=True)
    share = np.bincount(group) / len(weight)
    weights = np.bincount(group, weight)
    samples = None if log.sizes is None else np.bincount(group, log.sizes) / log.sizes.sum()
    return tuple(
        GroupWeight(
            group=str(names[k]), share_of_clients=float(share[k]), weight=float(weights[k]),
            ratio=float(weights[k] / share[k]), share_of_samples=None if samples is None else float(samples[k]),
        )
        for k in np.argsort(-weights / share, kind="stable")
    )  # fmt: skip


def _drift(log: ParticipationLog, found: DriftTest) -> Drift:
    return Drift(
        p_value=found.p_value, drifting=tuple(log.clients[i] for i in found.drifting), tested=found.tested,
        counts_drift=found.counts_drift, alpha=ALPHA,
        method="CUSUM per client and of the number of active clients, Holm's correction",
    )  # fmt: skip


def _autocorrelation(found: Memory) -> Autocorrelation:
    known = found.each[np.isfinite(found.each)]
    low, median, high = np.quantile(known, [0.05, 0.5, 0.95]).tolist() if len(known) else (None, None, None)
    return Autocorrelation(
        median=median, low=low, high=high, pooled=found.pooled, p_value=found.p_value,
        significant=found.p_value < MEMORY_ALPHA, alpha=MEMORY_ALPHA, per_client=found.each,
    )  # fmt: skip


def _mixing(log: ParticipationLog, groups: int) -> Mixing:
    found = mixing(log, groups)
    return Mixing(
        squared_distance_left_per_round=found.squared_left,
        distance_left_per_round=None if found.squared_left is None else math.sqrt(found.squared_left),
        distance_half_life_rounds=found.half_life, distance_cooldown_rounds_1e3=found.cooldown,
        distance_halved_after=found.halved_after, distance_tenth_after=found.tenth_after,
        extrapolated=found.extrapolated, squared_distance_left_for_good=found.left_for_good,
        windows=found.windows, clients_seen=found.clients_seen,
        local_work_ratio=log.known_rounds * len(log.clients) / len(log.rounds),
    )  # fmt: skip
