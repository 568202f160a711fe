"""FedScale's availability trace as JSON: client -> {active: [seconds], inactive: [seconds], finish_time: seconds}."""

from __future__ import annotations

from typing import Any

from fedpbc.errors import shorten
from fedpbc.io.participation.intervals import Intervals
from fedpbc.io.participation.jsonarray import document
from fedpbc.io.participation.reading import OF_INTERVALS, BadLog, Format, Progress, Reading, Table
from fedpbc.io.participation.source import Source


def read_fedscale(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Up from active[k] to inactive[k], once; the links called ``fedscale`` repeat it after finish_time."""
    content = document(source)
    if not isinstance(content, dict) or not content:
        raise BadLog(source, "must hold a table: client id -> {active, inactive, finish_time}")
    found, last = Intervals(reading), 0.0
    for client, entry in content.items():
        who = f"client {shorten(client)}"
        starts, ends = (_times(source, who, entry, key) for key in ("active", "inactive"))
        if len(starts) != len(ends) or any(end < start for start, end in zip(starts, ends, strict=False)):
            raise BadLog(source, f"{who}: every time in active must have a later one in inactive")
        found.names.encode([str(client)])
        for start, end in zip(starts, ends, strict=True):
            found.add(str(client), start, end)
            last = max(last, end)
        finish = entry.get("finish_time")
        last = max(last, float(finish)) if type(finish) in (int, float) else last
    return found.table(source, 0.0, last)


def _times(source: Source, who: str, entry: Any, key: str) -> list[float]:
    values = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(values, list) or any(type(each) not in (int, float) or not abs(each) < 1e11 for each in values):
        raise BadLog(source, f"{who}: {key} must be a list of seconds")
    return list(map(float, values))


def _is_fedscale(source: Source) -> bool:
    text = source.text
    return text.lstrip().startswith("{") and '"inactive"' in text and '"active"' in text and '"round"' not in text


FORMAT = Format("fedscale", "FedScale's availability trace (JSON)", read_fedscale, _is_fedscale, (), OF_INTERVALS)
