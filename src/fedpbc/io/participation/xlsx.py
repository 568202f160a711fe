"""A sheet of a workbook of Excel (.xlsx): the columns of a CSV log; needs openpyxl."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any
from zipfile import BadZipFile

from fedpbc.errors import optional
from fedpbc.io.participation.reading import OF_ROWS, BadLog, Format, Progress, Reading, Table
from fedpbc.io.participation.records import chosen_table, table_of_records
from fedpbc.io.participation.source import Source


def read_xlsx(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """The only sheet, or that of ``--table``; its first row names the columns."""
    openpyxl = optional("openpyxl", f"{source}: Excel")
    try:
        book = openpyxl.load_workbook(io.BytesIO(source.read()), read_only=True, data_only=True)
    except (BadZipFile, KeyError, ValueError, OSError) as error:
        raise BadLog(source, f"cannot be read as a workbook, is it truncated? ({type(error).__name__})") from None
    sheet = chosen_table(source, reading, "sheet", book.sheetnames)
    rows = book[sheet].iter_rows(values_only=True)
    names = ["" if cell is None else str(cell).strip().lower() for cell in next(rows, ())]
    if not any(names):
        raise BadLog(source, "row 1: must be the header, is blank")
    return table_of_records(source, names, _rows(names, rows), reading)


def _rows(names: list[str], rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(rows, start=2):
        if any(cell is not None for cell in row):
            yield f"row {number}", dict(zip(names, map(_whole, row), strict=False))


def _whole(value: Any) -> Any:
    """A workbook keeps every number as a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


FORMAT = Format(
    "xlsx", "a workbook of Excel", read_xlsx, lambda source: source.head.startswith(b"PK\x03\x04"), (".xlsx",),
    (*OF_ROWS, "table"),
)  # fmt: skip
