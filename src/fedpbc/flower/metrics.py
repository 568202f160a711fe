"""What clients measure: averaged where it can be, left out where it cannot; nothing of it can stop a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import MetricRecord, RecordDict

log = logging.getLogger("flwr")
Average = Callable[[list[RecordDict], str], MetricRecord]


def average_metrics(contents: Iterable[RecordDict], average: Average, weighted_by_key: str) -> MetricRecord | None:
    """The ``average`` over the replies whose one MetricRecord has a positive ``weighted_by_key``.

    None without such a reply, or when their metrics do not go together, which is logged.
    """
    usable = []
    for content in contents:
        records = [record for record in content.values() if isinstance(record, MetricRecord)]
        weight = records[0].get(weighted_by_key) if len(records) == 1 else None
        if isinstance(weight, (int, float)) and weight > 0:
            usable.append(RecordDict({"metrics": records[0]}))
    if not usable:
        return None
    try:
        return as_metrics(average(usable, weighted_by_key))
    except Exception as error:
        log.warning("metrics of the clients were not averaged: %s", error)
        return None


def as_metrics(value: Any) -> MetricRecord | None:
    """Metrics as an app gives them, numbers of NumPy included; None, and a line in the log, for anything else."""
    if value is None or isinstance(value, MetricRecord):
        return value
    try:
        return MetricRecord({key: getattr(v, "tolist", lambda v=v: v)() for key, v in value.items()})
    except (TypeError, ValueError, AttributeError) as error:
        log.warning("metrics are left out: %s", error)
        return None


def spread(nodes: list[int], wanted: int, turn: int) -> list[int]:
    """``wanted`` of the nodes, others in every round."""
    if wanted >= len(nodes):
        return nodes
    first = (turn * wanted) % len(nodes)
    return (nodes + nodes)[first : first + wanted]
