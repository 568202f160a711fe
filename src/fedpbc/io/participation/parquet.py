"""Parquet with the columns of a CSV log; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.errors import optional, shorten, suggest
from fedpbc.io.participation.columns import Columns
from fedpbc.io.participation.reading import BadLog, Format, Names, Progress, Reading, Rows, Table


def read_parquet(path: Path, reading: Reading, progress: Progress | None = None) -> Table:
    """Columns round (integer), client (string or integer), and one that says who took part, or none; needs pyarrow."""
    pa, pq = (optional(module, f"{path}: Parquet") for module in ("pyarrow", "pyarrow.parquet"))
    try:
        file = pq.ParquetFile(path)
        words = [name for name in file.schema_arrow.names if pa.types.is_string(file.schema_arrow.field(name).type)]
        file = pq.ParquetFile(path, read_dictionary=words) if words else file
    except (pa.ArrowException, OSError) as error:
        raise BadLog(path, f"cannot be read as Parquet, is it truncated? ({str(error).splitlines()[0]})") from None
    names = file.schema_arrow.names
    for name in ("round", "client"):
        if name not in names:
            raise BadLog(
                path,
                f"column {name} is missing{suggest(name, names)}; columns must be round, client and active or "
                f"round and client, are {shorten(', '.join(names))}",
            )
    columns = Columns(path, names, reading)
    _check_types(path, pa, file.schema_arrow, columns, reading)
    table = Table(iter(()), Names(), reading, columns, lists_inactive=columns.active is not None)
    table.expected_rows = file.metadata.num_rows
    table.pieces = _parquet_pieces(path, pa, file, table, progress)
    return table


def _check_types(path: Path, pa: Any, schema: Any, columns: Columns, reading: Reading) -> None:
    def plain(name: str) -> Any:
        kind = schema.field(name).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def is_client(kind: Any) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))

    for name, fits, what in (("round", pa.types.is_integer, "integers"), ("client", is_client, "strings or integers")):
        if not fits(plain(name)):
            option = reading.spell("round_seconds", "N")
            hint = "" if name == "client" else f"; of times, write Unix seconds and give {option}"
            raise BadLog(path, f"column {name} must hold {what}, holds {plain(name)}{hint}")
    if columns.active is not None and pa.types.is_nested(plain(columns.active)):
        raise BadLog(path, f"column {columns.active} must hold one value a row, holds {plain(columns.active)}")


def _parquet_pieces(path: Path, pa: Any, file: Any, table: Table, progress: Progress | None) -> Iterator[Rows]:
    row, total, columns = 0, file.metadata.num_rows, table.columns
    used = ["round", "client", *([columns.active] if columns.active is not None else [])]
    flat = {field.name for field in file.schema_arrow if not pa.types.is_nested(field.type)}
    watched = [name for name in columns.watched if name in flat]
    try:
        for batch in file.iter_batches(batch_size=1 << 19, columns=[*used, *watched]):
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield _parquet_rows(path, {name: found[name] for name in used}, row, table)
            row += batch.num_rows
            columns.rows = row
            for name in columns.watched:
                if name in found:
                    columns.watch(name, map(_text_of, found[name].unique().to_pylist()))
            if progress:
                progress(row, total)
    except (pa.ArrowException, OSError) as error:
        raise BadLog(path, f"row {row}: cannot be read, is it truncated? ({str(error).splitlines()[0]})") from None


def _text_of(value: Any) -> str:
    """A value of a column as text, as it would stand in a CSV file; what is missing is empty."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parquet_rows(path: Path, found: dict[str, Any], row: int, table: Table) -> Rows:
    columns = table.columns
    for name, column in found.items():
        if column.null_count and not (name == columns.active and columns.wanted is not None):
            at = row + int(np.argmax(np.asarray(column.is_null())))
            raise BadLog(path, f"row {at}: {name} is missing (null)")
    rounds = np.asarray(found["round"]).astype(np.int64)
    if np.any(rounds < 0):
        raise BadLog(path, f"row {row + int(np.argmax(rounds < 0))}: round must be an integer >= 0")
    values, numbers = _dictionary(found["client"])
    codes = table.names.encode([str(value) for value in values])[numbers]
    if columns.active is None:
        return Rows(rounds, codes, np.ones(len(rounds), bool))
    values, numbers = _dictionary(found[columns.active])
    known = [columns.is_active(_text_of(value)) for value in values]
    if None in known:
        wrong = [k for k, is_active in enumerate(known) if is_active is None]
        at = int(np.argmax(np.isin(numbers, wrong)))
        raise BadLog(path, f"row {row + at}: {columns.not_boolean()}, is {shorten(values[numbers[at]])}")
    return Rows(rounds, codes, np.array(known, bool)[numbers])


def _dictionary(column: Any) -> tuple[list[Any], np.ndarray]:
    """(different values, the number of each row's); null is a value of its own."""
    if not hasattr(column, "dictionary"):
        column = column.dictionary_encode()
    values, numbers = column.dictionary.to_pylist(), column.indices
    if column.null_count:
        return [*values, None], np.asarray(numbers.fill_null(len(values)))
    return values, np.asarray(numbers)


FORMAT = Format("parquet", (".parquet", ".pq"), read_parquet)
