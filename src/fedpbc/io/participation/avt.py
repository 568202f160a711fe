"""AVT, the format of the Repository of Availability Traces (Godfrey et al., SIGCOMM 2006), and its event form.

A line of AVT is a node: ``id count start end start end ...`` in seconds. A line of events is ``time id up|down``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedpbc.errors import shorten
from fedpbc.io.participation.intervals import Intervals
from fedpbc.io.participation.reading import OF_INTERVALS, BadLog, Format, Progress, Reading, Table, decode
from fedpbc.io.participation.source import Source


def words_of(source: Source, progress: Progress | None) -> Iterator[tuple[int, list[str]]]:
    """(number, words) of every line that is not blank and no comment (#)."""
    with source.open() as stream:
        for number, raw in enumerate(stream, start=1):
            words = decode(source, raw, number).split()
            if progress and number % 4096 == 0:
                progress(source.position(stream), source.size)
            if words and not words[0].startswith("#"):
                yield number, words


def seconds_of(source: Source, number: int, text: str, what: str) -> float:
    """A time in seconds. Raises BadLog."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) < 1e11:
        raise BadLog(source, f"line {number}: {what} must be a time in seconds, is {shorten(text)}")
    return value


def read_avt(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Intervals of every node. Nodes without one are never active."""
    found = Intervals(reading)
    seen: set[str] = set()
    for number, (node, *rest) in words_of(source, progress):
        if not rest or not rest[0].isdigit() or len(rest) != 1 + 2 * int(rest[0]):
            hint = "; is the file truncated?" if rest and rest[0].isdigit() else ""
            raise BadLog(source, f"line {number}: must be id, count and count times start and end{hint}")
        if node in seen:
            raise BadLog(source, f"line {number}: node {shorten(node)} stands there twice")
        seen.add(node)
        found.names.encode([node])
        times = [seconds_of(source, number, text, "start or end") for text in rest[1:]]
        for start, end in zip(times[::2], times[1::2], strict=True):
            if end < start:
                raise BadLog(source, f"line {number}: an interval of node {shorten(node)} ends before it begins")
            found.add(node, start, end)
    return found.table(source)


def read_events(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Nodes come up and go down; who is up at the end stays up to the time of the last event."""
    found = Intervals(reading)
    up: dict[str, float] = {}
    known: set[str] = set()
    first: float | None = None
    last: float | None = None
    for number, words in words_of(source, progress):
        if len(words) != 3 or words[2].lower() not in ("up", "down"):
            raise BadLog(source, f"line {number}: must be time, id and up or down, is {shorten(' '.join(words))}")
        time, node = seconds_of(source, number, words[0], "the time"), words[1]
        if last is not None and time < last:
            raise BadLog(source, f"line {number}: is before the line above it; events must be in order")
        first, last = time if first is None else first, time
        found.names.encode([node])
        if words[2].lower() == "up":
            up.setdefault(node, time)
        elif node in up:
            found.add(node, up.pop(node), time)
        elif node not in known:
            found.add(node, first, time)  # it was up before the trace began
        known.add(node)
    for node, since in up.items():
        found.add(node, since, last if last is not None else since)
    return found.table(source, first, last)


def _is_avt(source: Source) -> bool:
    lines = [line.split() for line in source.lines(20)]
    return bool(lines) and all(
        len(words) >= 2 and words[1].isdigit() and len(words) == 2 + 2 * int(words[1]) for words in lines
    )


def _is_events(source: Source) -> bool:
    lines = [line.split() for line in source.lines(20)]
    return bool(lines) and all(len(words) == 3 and words[2].lower() in ("up", "down") for words in lines)


FORMAT = Format("avt", "an AVT availability trace", read_avt, _is_avt, (".avt",), OF_INTERVALS)
EVENTS = Format("avt-events", "the event form of AVT", read_events, _is_events, (".evt",), OF_INTERVALS)
