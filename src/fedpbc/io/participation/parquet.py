"""Parquet with the columns of a CSV log; needs pyarrow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from fedpbc.errors import optional
from fedpbc.io.participation.arrow import table_of_batches
from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading, Table
from fedpbc.io.participation.source import Source

BATCH = 1 << 19


def read_parquet(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Columns round (integer) or a time, client (string or integer), and one that says who took part, or none."""
    pa, pq = (optional(module, f"{source}: Parquet") for module in ("pyarrow", "pyarrow.parquet"))
    where = io.BytesIO(source.read()) if source.compressed else source.path
    try:
        schema = pq.ParquetFile(where).schema_arrow
        words = [name for name in schema.names if pa.types.is_string(schema.field(name).type)]
        file = pq.ParquetFile(where, read_dictionary=words)
    except (pa.ArrowException, OSError) as error:
        raise BadLog(source, f"cannot be read as Parquet, is it truncated? ({str(error).splitlines()[0]})") from None

    def batches(columns: list[str]) -> Iterator[Any]:
        yield from file.iter_batches(batch_size=BATCH, columns=columns)

    return table_of_batches(source, pa, file.schema_arrow, file.metadata.num_rows, batches, reading, progress)


FORMAT = Format(
    "parquet", "a Parquet file", read_parquet, lambda source: source.head.startswith(b"PAR1"), (".parquet", ".pq")
)
