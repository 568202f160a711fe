"""Rows that come one by one, as objects: events in JSON, rows of a database or of a workbook."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any

import numpy as np

from fedpbc.errors import shorten, suggest
from fedpbc.io.participation.columns import LONGEST_WATCHED, Columns
from fedpbc.io.participation.reading import BadLog, Names, Reading, Rows, Table
from fedpbc.io.participation.source import Source
from fedpbc.io.participation.times import Clock, NoTime

BLOCK = 1 << 16
"""Rows of a piece."""
Records = Iterable[tuple[str, Mapping[str, Any]]]
"""Rows, each with its place in words (``line 3``)."""


def table_of_records(source: Source, names: list[str], records: Records, reading: Reading, what: str = "") -> Table:
    """The rows as a table; ``names``: the columns, or the keys of the first row.

    Raises BadLog when a column that is needed is not among them, and, row by row, on what is not as documented.
    """
    columns = Columns(source, names, reading)
    columns.what = what
    table = Table(
        iter(()), Names(), reading, columns, lists_inactive=columns.lists_inactive, row_width=len(columns.wide) or 1,
        clock=Clock() if columns.roles.is_time or reading.of_times else None,
    )  # fmt: skip
    table.pieces = _pieces(source, table, records)
    return table


def chosen_table(source: Source, reading: Reading, what: str, names: list[str]) -> str:
    """That of ``--table``, or the only one of ``names``; ``what`` they are called. Raises BadLog."""
    known = ", ".join(names[:8])
    if reading.table is not None and reading.table not in names:
        option = reading.spell("table", shorten(reading.table))
        raise BadLog(source, f"{option}: no such {what}{suggest(reading.table, names)}; there is {known}")
    if reading.table is None and len(names) > 1:
        raise BadLog(source, f"holds {len(names)} {what}s: {reading.spell('table', 'NAME')}, one of {known}")
    return reading.table or names[0]


def _pieces(source: Source, table: Table, records: Records) -> Iterator[Rows]:
    columns, roles = table.columns, table.columns.roles
    needed = [
        name for name in (roles.moment, roles.client, roles.end, columns.active, columns.group) if name is not None
    ]
    ids, block = Ids(source), _Block(source, table)
    for place, record in records:
        for name in needed:
            if name not in record:
                raise BadLog(source, f"{place}: key {name} is missing: every line is a client of a round")
        block.moments.append(record[str(roles.moment)])
        block.places.append(place)
        if roles.end is not None:
            block.ends.append(record[roles.end])
        columns.rows += 1
        if columns.wide:
            block.names += columns.wide
            block.active += [_took_part(source, place, record.get(name), columns) for name in columns.wide]
        else:
            block.names += ids.check(place, [record[str(roles.client)]])
            block.active.append(columns.active is None or _took_part(source, place, record[columns.active], columns))
            if columns.group is not None:
                block.groups.append(text_of(record[columns.group]))
            if not columns.decided:
                for key in record.keys() - set(needed):
                    columns.add_unused(key)
                    columns.watch(key, [text_of(record[key])[:LONGEST_WATCHED]])
        if len(block.moments) == BLOCK:
            yield block.rows()
            block = _Block(source, table)
    yield block.rows()


class _Block:
    """Rows on their way into arrays."""

    def __init__(self, source: Source, table: Table) -> None:
        self._source, self._table = source, table
        self.places: list[str] = []
        self.moments: list[Any] = []
        self.ends: list[Any] = []
        self.names: list[str] = []
        self.active: list[bool] = []
        self.groups: list[str] = []

    def rows(self) -> Rows:
        """What was gathered."""
        table = self._table
        codes = table.names.encode(self.names)
        if self.groups:
            names = Names()
            numbers = names.encode(self.groups)
            table.join_groups(self._source, codes, numbers, list(names.codes))
        moments = self._moments(self.moments, "time" if table.columns.roles.is_time else "round")
        ends = self._moments(self.ends, "end") if table.columns.roles.end is not None else None
        return Rows(np.repeat(moments, table.row_width), codes, np.array(self.active, bool), ends)

    def _moments(self, values: list[Any], what: str) -> np.ndarray:
        clock = self._table.clock
        if clock is None:
            return np.array(
                [_round(self._source, place, value, self._table.reading) for place, value in self._places(values)],
                np.int64,
            )
        texts = ["" if value is None else _time_text(value) for value in values]
        try:
            return clock.read(texts, what == "end")
        except NoTime as error:
            raise BadLog(self._source, f"{self.places[error.place]}: {what} {error.problem}") from None

    def _places(self, values: list[Any]) -> Iterator[tuple[str, Any]]:
        return zip(self.places, values, strict=True)


def _time_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.6f}"
    return value.isoformat() if isinstance(value, date) else str(value).strip()


def _round(source: Source, place: str, value: Any, reading: Reading) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a workbook knows no integers
    text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
    if text:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 4 * 10**18:
        time = isinstance(value, date) or (isinstance(value, str) and "-" in value and ":" in value)
        hint = f"; of times, give {reading.spell('round_seconds', 'N')}" if time else ""
        raise BadLog(source, f"{place}: round must be an integer >= 0, is {shorten(value)}{hint}")
    return value


def _took_part(source: Source, place: str, value: Any, columns: Columns) -> bool:
    found = columns.is_active(text_of(value))
    if found is None:
        raise BadLog(source, f"{place}: {columns.not_boolean()}, is {shorten(value)}")
    return found


def text_of(value: Any) -> str:
    """A value as text, as it would stand in a CSV file; null is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    return value.isoformat() if isinstance(value, date) else json.dumps(value, default=str)


class Ids:
    """Checks client ids: strings or integers, one of both in the whole file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kinds: dict[type, str] = {}

    def check(self, place: str, members: list[Any]) -> list[str]:
        """The ids as strings. Raises BadLog."""
        for member in members:
            if type(member) not in (str, int) or member == "":
                raise BadLog(self._source, f"{place}: a client id must be a string or an integer, is {shorten(member)}")
            self._kinds.setdefault(type(member), place)
        if len(self._kinds) > 1:
            kinds = " and ".join(f"{kind.__name__} from {first}" for kind, first in self._kinds.items())
            raise BadLog(
                self._source,
                f"{place}: client ids must be all strings or all integers, are of mixed types ({kinds})",
            )
        names = [str(member) for member in members]
        for name in names:
            if "\0" in name or len(name.encode("utf-8", "replace")) > 256 or not _encodable(name):
                raise BadLog(
                    self._source,
                    f"{place}: a client id must be UTF-8 of up to 256 bytes without NUL, is {shorten(ascii(name))}",
                )
        return names


def _encodable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write
        return False
    return True
