"""The event_trace table of the Failure Trace Archive (Kondo, Javadi, Iosup, Epema, CCGrid 2010).

Nine columns between tabs, with comments (#): event_id, component_id, node_id, platform_id, node_name, event_type
(1: up, 0: down), event_start_time, event_stop_time (seconds), event_end_reason.
"""

from __future__ import annotations

from collections import defaultdict

from fedpbc.errors import shorten
from fedpbc.io.participation.avt import seconds_of
from fedpbc.io.participation.intervals import Intervals
from fedpbc.io.participation.reading import OF_INTERVALS, BadLog, Format, Progress, Reading, Table, decode
from fedpbc.io.participation.source import Source

COLUMNS = 9
NODE, PLATFORM, NAME, KIND, START, STOP = 2, 3, 4, 5, 6, 7


def read_fta(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Nodes are up in events of type 1; where there are none, outside those of type 0.

    A client is a node, called by its name where every node has one of its own, else by its number.
    """
    events: dict[tuple[str, str], list[tuple[str, float, float]]] = defaultdict(list)
    names: dict[tuple[str, str], str] = {}
    with source.open() as stream:
        for number, raw in enumerate(stream, start=1):
            text = decode(source, raw, number)
            if progress and number % 4096 == 0:
                progress(source.position(stream), source.size)
            if not text.strip() or text.startswith("#"):
                continue
            cells = _cells(text)
            if len(cells) != COLUMNS or cells[KIND] not in ("0", "1"):
                hint = "; is the file truncated?" if len(cells) < COLUMNS else ""
                raise BadLog(
                    source, f"line {number}: must have nine columns, the sixth 0 or 1, has {len(cells)}: "
                    f"{shorten(text.strip())}{hint}",
                )  # fmt: skip
            start, stop = (seconds_of(source, number, cells[k], "start or stop") for k in (START, STOP))
            if stop < start:
                raise BadLog(source, f"line {number}: the event stops before it starts")
            node = cells[PLATFORM], cells[NODE]
            names[node] = cells[NAME]
            events[node].append((cells[KIND], start, stop))
    if not events:
        raise BadLog(source, "holds no rows")
    return _table(source, reading, events, names)


def _cells(text: str) -> list[str]:
    cells = [cell.strip() for cell in text.rstrip("\r\n").split("\t")]
    return cells if len(cells) == COLUMNS else text.split()


def _table(
    source: Source, reading: Reading, events: dict[tuple[str, str], list[tuple[str, float, float]]],
    names: dict[tuple[str, str], str],
) -> Table:  # fmt: skip
    times = [time for found in events.values() for _, *ends in found for time in ends]
    first, last = min(times), max(times)
    named = len(set(names.values())) == len(names) and all(name.upper() not in ("", "NULL") for name in names.values())
    several = len({platform for platform, _ in names}) > 1
    has_up = any(kind == "1" for found in events.values() for kind, *_ in found)
    intervals = Intervals(reading)
    for node, found in events.items():
        client = names[node] if named else "/".join(node) if several else node[1]
        intervals.names.encode([client])
        for start, stop in _up(found, has_up, first, last):
            intervals.add(client, start, stop)
    table = intervals.table(source, first, last)
    if not has_up:
        table.notes.append("the trace holds failures only: a node is up outside of them")
    return table


def _up(found: list[tuple[str, float, float]], has_up: bool, first: float, last: float) -> list[tuple[float, float]]:
    if has_up:
        return [(start, stop) for kind, start, stop in found if kind == "1"]
    up, since = [], first
    for _, start, stop in sorted(found, key=lambda event: event[1]):
        if start > since:
            up.append((since, start))
        since = max(since, stop)
    return [*up, (since, last)] if since < last else up


def _is_fta(source: Source) -> bool:
    lines = [_cells(line) for line in source.lines(10)]
    return bool(lines) and all(len(cells) == COLUMNS and cells[KIND] in ("0", "1") for cells in lines)


FORMAT = Format("fta", "an event_trace of the Failure Trace Archive", read_fta, _is_fta, (), OF_INTERVALS)
