"""Two logs of one federation, before and after a change: what is different, beyond chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpbc.audit.spectrum import spectra_of
from fedpbc.audit.statistics import per_client
from fedpbc.audit.steadiness import holm, long_run, memory, scatter_of
from fedpbc.audit.types import Findings, Floats
from fedpbc.errors import ConfigError
from fedpbc.io.participation.log import ParticipationLog

ALPHA = 0.05


@dataclass(frozen=True)
class RateChange:
    """The rate of a client in both logs."""

    client: str
    before: float
    after: float


@dataclass(frozen=True)
class Comparison:
    """Before and after; clients are matched by their ids."""

    source: str
    """The earlier log."""
    clients_gone: int
    """Clients of the earlier log that are not in the later one."""
    clients_new: int
    mean_rate: tuple[float, float]
    total_variation: tuple[float, float]
    total_variation_by_chance: tuple[float, float]
    gini: tuple[float, float]
    empty_rounds: tuple[float, float]
    """As shares of the known rounds."""
    autocorrelation: tuple[float, float]
    changed: tuple[RateChange, ...]
    """Clients whose rate is different (two-sided test, long-run variances, Holm, level .05), most changed first."""
    tested: int


def compare(
    before: ParticipationLog, found_before: Findings, after: ParticipationLog, found_after: Findings
) -> Comparison:
    """What changed. Raises ConfigError for logs of counts only, and for logs without a client in common."""
    bias = found_before.bias, found_after.bias
    if bias[0] is None or bias[1] is None:
        raise ConfigError(f"--before {before.source}: a log that holds counts only cannot be compared")
    common = [client for client in after.clients if client in set(before.clients)]
    if not common:
        raise ConfigError(f"--before {before.source}: has no client in common with {after.source}")
    (p, var_p), (q, var_q) = (_rates(log, common) for log in (before, after))
    changed = _changed(common, p, q, var_p + var_q)
    both = (found_before, found_after)
    memories = tuple(
        0.0 if each.stationarity.autocorrelation is None else each.stationarity.autocorrelation.pooled for each in both
    )
    first, second = found_before.participation, found_after.participation
    return Comparison(
        source=before.source,
        clients_gone=len(before.clients) - len(common), clients_new=len(after.clients) - len(common),
        mean_rate=(float(first.mean_rate or 0), float(second.mean_rate or 0)),
        total_variation=(bias[0].total_variation, bias[1].total_variation),
        total_variation_by_chance=(bias[0].total_variation_by_chance, bias[1].total_variation_by_chance),
        gini=(float(getattr(first, "gini", 0.0)), float(getattr(second, "gini", 0.0))),
        empty_rounds=(first.empty_rounds / before.known_rounds, second.empty_rounds / after.known_rounds),
        autocorrelation=(memories[0], memories[1]), changed=changed, tested=len(common),
    )  # fmt: skip


def _rates(log: ParticipationLog, clients: list[str]) -> tuple[Floats, Floats]:
    """(p_i, the variance of its estimate) of ``clients``; (S + 1/2)/(T + 1) stands in the variance."""
    stats, place = per_client(log), {client: i for i, client in enumerate(log.clients)}
    scatter = scatter_of(memory(log, stats), long_run(log, stats, spectra_of(log)))[0]
    chosen = np.array([place[client] for client in clients])
    smooth = (stats.seen[chosen] + 0.5) / (log.known_rounds + 1)
    return stats.seen[chosen] / log.known_rounds, smooth * (1 - smooth) * scatter[chosen] / log.known_rounds


def _changed(clients: list[str], before: Floats, after: Floats, variance: Floats) -> tuple[RateChange, ...]:
    from scipy.special import ndtr

    p = 2 * ndtr(-np.abs(after - before) / np.sqrt(variance))
    found = np.flatnonzero(holm(p) < ALPHA)
    order = found[np.argsort(-np.abs(after - before)[found], kind="stable")]
    return tuple(RateChange(clients[i], float(before[i]), float(after[i])) for i in order)
