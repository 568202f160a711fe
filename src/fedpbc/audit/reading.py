"""A log for the audit: the file, clients that never appear, and the files beside it with sizes and groups."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.errors import ConfigError, shorten
from fedpbc.io.participation.formats import read_participation
from fedpbc.io.participation.log import ParticipationLog, require_clients, with_clients
from fedpbc.io.participation.reading import BadLog, Progress, Reading, decode

SAID = (
    "active_column", "round_seconds", "missing_rounds", "drop_duplicates", "columns", "group", "table", "query",
    "round_start", "round_gap", "active_when",
)  # fmt: skip
"""Options that say how the file itself is read."""


def read_log(
    path: str | Path,
    *,
    clients: int | None = None,
    sizes: str | Path | None = None,
    groups: str | Path | None = None,
    active_column: str | None = None,
    round_seconds: float | None = None,
    missing_rounds: str | None = None,
    drop_duplicates: bool = False,
    columns: str | None = None,
    group: str | None = None,
    table: str | None = None,
    query: str | None = None,
    round_start: str | None = None,
    round_gap: str | None = None,
    active_when: str | None = None,
    progress: Progress | None = None,
) -> ParticipationLog:
    """A participation log from a file, a folder or ``-``; the content tells the format (docs/audit.md describes them).

    clients: how many there are, if some never appear. sizes, groups: CSV files client,size and client,group, which
    may name clients that never appear. active_column: the column that says who took part, as ``"name"`` (booleans) or
    ``"name=value,value"`` (these values did), or ``"none"``: every row did. round_seconds: the column round holds
    times, a round is so long. missing_rounds: ``"empty"`` or ``"unknown"``; None refuses them. drop_duplicates: a pair
    of round and client that stands there more than once counts once. columns: ``"round=NAME,client=NAME"``, names or
    numbers from 1. group: a column with the client's group. table, query: of a database (table: of a workbook too).
    round_start, round_gap, active_when: what ``Reading`` says of them. Raises ConfigError naming file, line and what is
    allowed.
    """
    if clients is not None and clients < 2:
        raise ConfigError(f"--clients {clients}: must be at least 2")
    reading = Reading(
        active_column, round_seconds, missing_rounds, drop_duplicates, columns, group, table, query,
        round_start, round_gap, active_when,
    )  # fmt: skip
    if group is not None and groups is not None:
        raise ConfigError(f"--group {group}: choose one of it and --groups")
    log = read_participation(Path(path), reading, progress)
    sizes, groups = (None if each is None else Path(each) for each in (sizes, groups))
    size_of = _companion(sizes, "size") if sizes else {}
    group_of = _companion(groups, "group") if groups else {}
    log = with_clients(log, clients, [*size_of, *group_of])
    require_clients(log)
    given = {"clients": clients} | {name: getattr(reading, name) for name in SAID}
    options = {name: _short(value) for name, value in given.items() if value not in (None, False)}
    return replace(_attach(log, sizes, size_of, groups, group_of), options=options)


def _short(value: Any) -> Any:
    """60 for 60.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _companion(path: Path, column: str) -> dict[str, str]:
    """client -> cell of ``column`` from a CSV file with the header client,COLUMN."""
    if not path.is_file():
        raise BadLog(path, "no such file")
    text = decode(path, path.read_bytes(), 1).lstrip("\ufeff")
    rows = csv.reader(text.split("\n"), strict=True)
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
    except csv.Error as error:
        raise BadLog(path, f"line 1: is not CSV: {error}") from None
    if sorted(header) != sorted(["client", column]):
        raise BadLog(path, f"line 1: must be client,{column}, is {shorten(','.join(header))}")
    found: dict[str, str] = {}
    try:
        for row in rows:
            if len(row) > 2:
                raise BadLog(path, f"line {rows.line_num}: must have 2 cells like the header, has {len(row)}")
            if row:
                _add_companion(path, rows.line_num, dict(zip(header, map(str.strip, row), strict=False)), column, found)
    except csv.Error as error:
        raise BadLog(path, f"line {rows.line_num}: is not CSV: {error}") from None
    if not found:
        raise BadLog(path, "holds no rows")
    return found


def _add_companion(path: Path, line: int, row: dict[str, str], column: str, found: dict[str, str]) -> None:
    client, value = row.get("client"), row.get(column)
    if not client or not value:
        raise BadLog(path, f"line {line}: must be a client id and a {column}")
    if client in found:
        raise BadLog(path, f"line {line}: client {shorten(client)} stands there twice")
    found[client] = value


def _attach(
    log: ParticipationLog,
    sizes: Path | None,
    size_of: dict[str, str],
    groups: Path | None,
    group_of: dict[str, str],
) -> ParticipationLog:
    if log.counts_only is not None:
        if sizes or groups:
            raise ConfigError(f"{log.source}: holds counts only, so {sizes or groups} cannot be used with it")
        return log
    for path, known in ((sizes, size_of), (groups, group_of)):
        lacking = [name for name in log.clients if name not in known and not name.startswith("(unseen ")]
        if path and lacking:
            raise BadLog(path, f"has no row for client {shorten(lacking[0])} ({len(lacking):,} lack one)")
    if sizes and any(name not in size_of for name in log.clients):
        raise ConfigError(f"{sizes}: has {len(size_of):,} clients, --clients says {len(log.clients):,}; name them all")
    values = np.array([_size(sizes, name, size_of[name]) for name in log.clients]) if sizes else None
    labels = [group_of.get(name, "(no group)") for name in log.clients] if groups else log.groups
    return replace(log, sizes=values, groups=labels)


def _size(path: Path, client: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e200:
        raise BadLog(path, f"the size of client {shorten(client)} must be a number > 0, is {shorten(text)}")
    return value
