"""What clients measure: averaged where it can be, left out where it cannot; nothing of it can stop a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedpbc.errors import shorten
from fedpbc.flower.server.roster import Client

log = logging.getLogger("flwr")
Average = Callable[[list[RecordDict], str], MetricRecord]
LeftOut = list[tuple[str, str]]
"""(client, why its metrics do not count)."""

LARGEST = 1 << 16
"""Characters of JSON that the metrics of one client, and those of a round, may take."""
HUGE = 1e300
"""Beyond it, a mean may overflow."""
MOST_SAMPLES = 2.0**53


def average_metrics(
    named: Iterable[tuple[str, RecordDict]], average: Average | None, weighted_by_key: str
) -> tuple[MetricRecord | None, LeftOut]:
    """The ``average`` over the replies (client, content) whose one MetricRecord has a positive ``weighted_by_key``.

    ``average`` None: their weighted mean. The result is None without such a reply, or when their metrics do not go
    together, which is logged. Left out with a reason are records with numbers that would spoil the mean of the others,
    and records that are too large.
    """
    usable, left_out = [], []
    for who, content in named:
        records = [record for record in content.values() if isinstance(record, MetricRecord)]
        if len(records) != 1 or records[0].get(weighted_by_key, 0) == 0:
            continue
        why = _unusable(records[0], weighted_by_key)
        if why:
            left_out.append((who, why))
        else:
            usable.append(RecordDict({"metrics": records[0]}))
    if not usable:
        return None, left_out
    try:
        return _bounded(as_metrics((average or aggregate_metricrecords)(usable, weighted_by_key))), left_out
    except Exception as error:
        log.warning("metrics of the clients were not averaged: %s", error)
        return None, left_out


def samples_of(content: RecordDict, weighted_by_key: str) -> float | None:
    """n_i as the one MetricRecord of a reply says, a number from 1 to 2^53; None: it does not."""
    records = [record for record in content.values() if isinstance(record, MetricRecord)]
    size = records[0].get(weighted_by_key) if len(records) == 1 else None
    return float(size) if isinstance(size, (int, float)) and 1 <= size <= MOST_SAMPLES else None


def _unusable(record: MetricRecord, weighted_by_key: str) -> str:
    """Why a client's metrics do not count, or nothing."""
    weight = record[weighted_by_key]
    if not isinstance(weight, (int, float)) or not 0 < weight <= MOST_SAMPLES:
        return f"{weighted_by_key} is {shorten(weight)}, not a number > 0 and at most 2^53"
    for key, value in record.items():
        for number in value if isinstance(value, list) else [value]:
            if not abs(number) <= HUGE:
                return f"{shorten(key)} holds {shorten(number)}"
    size = len(json.dumps(dict(record)))
    return f"they take {size} characters, more than {LARGEST}" if size > LARGEST else ""


def _bounded(metrics: MetricRecord | None) -> MetricRecord | None:
    """Metrics that fit into a line of a log. Raises ValueError for others."""
    size = len(json.dumps(dict(metrics or {})))
    if size > LARGEST:
        raise ValueError(f"together they take {size} characters, more than {LARGEST}")
    return metrics


def as_metrics(value: Any) -> MetricRecord | None:
    """Metrics as an app gives them, numbers of NumPy included; None, and a line in the log, for anything else."""
    if value is None or isinstance(value, MetricRecord):
        return value
    try:
        return MetricRecord({key: getattr(v, "tolist", lambda v=v: v)() for key, v in value.items()})
    except (TypeError, ValueError, AttributeError) as error:
        log.warning("metrics are left out: %s", error)
        return None


def spread(clients: list[Client], wanted: int, turn: int) -> list[Client]:
    """``wanted`` of the clients, others in every round."""
    if wanted >= len(clients):
        return clients
    first = (turn * wanted) % len(clients)
    return (clients + clients)[first : first + wanted]
