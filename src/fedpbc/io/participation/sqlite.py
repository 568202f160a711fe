"""A table, or the answer to a query, of an SQLite database: the columns of a CSV log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

from fedpbc.errors import shorten
from fedpbc.io.participation.reading import OPTIONS, BadLog, Format, Progress, Reading, Table
from fedpbc.io.participation.records import chosen_table, table_of_records
from fedpbc.io.participation.source import Source

MAGIC = b"SQLite format 3\0"


def read_sqlite(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """The only table, that of ``--table``, or the answer to ``--query``; the file is opened for reading only."""
    if source.compressed:
        raise BadLog(source, "is a compressed SQLite database: gunzip it first")
    try:
        query = _query(source, reading)
        with closing(_open(source)) as database:
            names = [column[0] for column in database.execute(query).description or ()]
        if not names:
            raise BadLog(source, f"{reading.spell('query', shorten(query))}: must be a SELECT")
        return table_of_records(source, names, _rows(source, query, names), reading)
    except sqlite3.Error as error:
        raise BadLog(source, f"{_blamed(reading)}{error}") from None


def _blamed(reading: Reading) -> str:
    return f"{reading.spell('query', shorten(reading.query))}: " if reading.query else "cannot be read as SQLite: "


def _open(source: Source) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(source.path))}?mode=ro", uri=True)


def _query(source: Source, reading: Reading) -> str:
    if reading.query is not None:
        return reading.query
    with closing(_open(source)) as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    tables = [name for (name,) in found if not name.startswith("sqlite_")]
    if not tables:
        raise BadLog(source, "is an SQLite database without a table")
    name = chosen_table(source, reading, "table", tables).replace('"', '""')
    return f'SELECT * FROM "{name}"'


def _rows(source: Source, query: str, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with closing(_open(source)) as database:
            for number, row in enumerate(database.execute(query), start=1):
                yield f"row {number}", dict(zip(names, row, strict=True))
    except sqlite3.Error as error:
        raise BadLog(source, f"cannot be read as SQLite: {error}") from None


FORMAT = Format(
    "sqlite", "an SQLite database", read_sqlite, lambda source: source.head.startswith(MAGIC),
    (".sqlite", ".sqlite3", ".db"), OPTIONS,
)  # fmt: skip
