"""Columns of Arrow, which Parquet and Feather hold: the columns of a CSV log; needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedpbc.errors import shorten
from fedpbc.io.participation.columns import Columns
from fedpbc.io.participation.reading import BadLog, Names, Progress, Reading, Rows, Table
from fedpbc.io.participation.source import Source
from fedpbc.io.participation.times import Clock, NoTime

Batches = Callable[[list[str]], Iterator[Any]]
"""The record batches of a file, with the columns asked for."""


def table_of_batches(
    source: Source, pa: Any, schema: Any, num_rows: int, batches: Batches, reading: Reading, progress: Progress | None
) -> Table:
    """The columns of ``schema`` as a table. Raises BadLog on columns that are not there or hold something else."""
    columns = Columns(source, schema.names, reading)
    clock = Clock() if columns.roles.is_time or reading.of_times else None
    _check_types(source, pa, schema, columns, reading, clock)
    table = Table(
        iter(()), Names(), reading, columns, lists_inactive=columns.lists_inactive, row_width=len(columns.wide) or 1,
        clock=clock, expected_rows=num_rows,
    )  # fmt: skip
    table.pieces = _pieces(source, pa, schema, num_rows, batches, table, progress)
    return table


def _check_types(source: Source, pa: Any, schema: Any, columns: Columns, reading: Reading, clock: Clock | None) -> None:
    def plain(name: str) -> Any:
        kind = schema.field(name).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def is_text(kind: Any) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

    roles = columns.roles
    if clock is None and roles.moment is not None and not pa.types.is_integer(plain(roles.moment)):
        hint = f"; of times, give {reading.spell('round_seconds', 'N')}"
        raise BadLog(source, f"column {roles.moment} must hold integers, holds {plain(roles.moment)}{hint}")
    if roles.client is not None and not (is_text(plain(roles.client)) or pa.types.is_integer(plain(roles.client))):
        raise BadLog(source, f"column {roles.client} must hold strings or integers, holds {plain(roles.client)}")
    for name in (*([roles.moment, roles.end] if clock is not None else ()), columns.active, *columns.wide):
        if name is not None and pa.types.is_nested(plain(name)):
            raise BadLog(source, f"column {name} must hold one value a row, holds {plain(name)}")


def _pieces(
    source: Source, pa: Any, schema: Any, total: int, batches: Batches, table: Table, progress: Progress | None
) -> Iterator[Rows]:
    row, columns = 0, table.columns
    roles = columns.roles
    named = (roles.moment, roles.client, roles.end, columns.active, columns.group, *columns.wide)
    used = [name for name in named if name is not None]
    flat = {field.name for field in schema if not pa.types.is_nested(field.type)}
    watched = [name for name in columns.watched if name in flat]
    try:
        for batch in batches([*used, *watched]):
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield _rows(source, {name: found[name] for name in used}, row, table)
            row += batch.num_rows
            columns.rows = row
            for name in columns.watched:
                if name in found:
                    columns.watch(name, map(_text_of, found[name].unique().to_pylist()))
            if progress:
                progress(row, total)
    except (pa.ArrowException, OSError) as error:
        raise BadLog(source, f"row {row}: cannot be read, is it truncated? ({str(error).splitlines()[0]})") from None


def _text_of(value: Any) -> str:
    """A value of a column as text, as it would stand in a CSV file; what is missing is empty."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _rows(source: Source, found: dict[str, Any], row: int, table: Table) -> Rows:
    columns, roles = table.columns, table.columns.roles
    for name, column in found.items():
        may_miss = name in (roles.end, columns.group) or (columns.wanted is not None and name in _answering(columns))
        if column.null_count and not may_miss:
            at = row + int(np.argmax(np.asarray(column.is_null())))
            raise BadLog(source, f"row {at}: {name} is missing (null)")
    assert roles.moment is not None
    moments = _moments(source, found[roles.moment], row, table, "time" if roles.is_time else "round")
    if columns.wide:
        codes = table.names.encode(columns.wide)
        active = np.column_stack([_answers(source, found[name], row, columns) for name in columns.wide])
        return Rows(np.repeat(moments, len(codes)), np.tile(codes, len(moments)), active.ravel())
    assert roles.client is not None
    values, numbers = _dictionary(found[roles.client])
    codes = table.names.encode([str(value) for value in values])[numbers]
    if columns.group is not None:
        values, numbers = _dictionary(found[columns.group])
        table.join_groups(source, codes, numbers, [_text_of(value) for value in values])
    ends = None if roles.end is None else _moments(source, found[roles.end], row, table, "end")
    if columns.active is None:
        return Rows(moments, codes, np.ones(len(moments), bool), ends)
    return Rows(moments, codes, _answers(source, found[columns.active], row, columns), ends)


def _answering(columns: Columns) -> list[str]:
    return columns.wide or ([columns.active] if columns.active is not None else [])


def _answers(source: Source, column: Any, row: int, columns: Columns) -> np.ndarray:
    """Whether the values say active, bool[n]."""
    values, numbers = _dictionary(column)
    known = [columns.is_active(_text_of(value)) for value in values]
    if None in known:
        wrong = [k for k, is_active in enumerate(known) if is_active is None]
        at = int(np.argmax(np.isin(numbers, wrong)))
        raise BadLog(source, f"row {row + at}: {columns.not_boolean()}, is {shorten(values[numbers[at]])}")
    return np.array(known, bool)[numbers]


def _moments(source: Source, column: Any, row: int, table: Table, what: str) -> np.ndarray:
    """Rounds or times, int64[n]."""
    kind, clock = str(column.type), table.clock
    if kind.startswith(("int", "uint")) and not column.null_count:
        values = np.asarray(column).astype(np.int64)
        if np.any(values < 0):
            raise BadLog(source, f"row {row + int(np.argmax(values < 0))}: {what} must be an integer >= 0")
        if clock is None:
            return values
        try:
            clock.whole()
        except NoTime as error:
            raise BadLog(source, f"row {row}: {what} {error.problem}") from None
        return values
    assert clock is not None
    different, numbers = _dictionary(column)
    texts = [_time_text(value) for value in different]
    try:
        return clock.read(texts, what == "end")[numbers]
    except NoTime as error:
        at = row + int(np.argmax(numbers == error.place))
        raise BadLog(source, f"row {at}: {what} {error.problem}") from None


def _time_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.6f}"
    return str(value) if isinstance(value, int) else value.isoformat()


def _dictionary(column: Any) -> tuple[list[Any], np.ndarray]:
    """(different values, the number of each row's); null is a value of its own."""
    if not hasattr(column, "dictionary"):
        column = column.dictionary_encode()
    values, numbers = column.dictionary.to_pylist(), column.indices
    if column.null_count:
        return [*values, None], np.asarray(numbers.fill_null(len(values)))
    return values, np.asarray(numbers)
