"""Feather (an Arrow file) with the columns of a CSV log; needs pyarrow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from fedpbc.errors import optional
from fedpbc.io.participation.arrow import table_of_batches
from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading, Table
from fedpbc.io.participation.source import Source


def read_feather(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Columns as in Parquet; versions 1 and 2 of Feather."""
    pa, feather = (optional(module, f"{source}: Feather") for module in ("pyarrow", "pyarrow.feather"))
    where = io.BytesIO(source.read()) if source.compressed else str(source.path)
    try:
        found = feather.read_table(where)
    except (pa.ArrowException, OSError) as error:
        raise BadLog(source, f"cannot be read as Feather, is it truncated? ({str(error).splitlines()[0]})") from None

    def batches(columns: list[str]) -> Iterator[Any]:
        yield from found.select(columns).to_batches()

    return table_of_batches(source, pa, found.schema, found.num_rows, batches, reading, progress)


FORMAT = Format(
    "feather", "a Feather (Arrow) file", read_feather, lambda source: source.head.startswith((b"ARROW1", b"FEA1")),
    (".feather", ".arrow"),
)  # fmt: skip
