"""Dense arrays, Parquet and Flower's console; the files beside a log; the choice between formats."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.audit.assemble import Table, assemble, meaning_of_missing, refusal
from fedpbc.audit.csvfile import decode, read_csv
from fedpbc.audit.jsonlines import describe_json, read_jsonl
from fedpbc.audit.log import Names, ParticipationLog, Progress, Reading, Rows, require_clients, with_clients
from fedpbc.audit.outcome import Columns
from fedpbc.errors import ConfigError, FedpbcError, shorten, suggest

KINDS = {
    ".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".npy": "npy", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".log": "flower", ".txt": "flower",
}  # fmt: skip
BLOCK_CELLS = 1 << 22


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
    progress: Progress | None = None,
) -> ParticipationLog:
    """A participation log from a file; the format follows from the ending (docs/audit.md describes them).

    clients: how many there are, if some never appear. sizes, groups: CSV files client,size and client,group, which
    may name clients that never appear. active_column: the column that says who took part, as ``"name"`` (booleans) or
    ``"name=value,value"`` (these values did), or ``"none"``: every row did. round_seconds: the column round holds
    times, a round is so long. missing_rounds: ``"empty"`` or ``"unknown"``; None refuses them. drop_duplicates: a pair
    of round and client that stands there more than once counts once. Raises ConfigError naming file, line and what is
    allowed.
    """
    path = Path(path)
    reading = Reading(active_column, round_seconds, missing_rounds, drop_duplicates)
    reading.check()
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path}: {_no_log(path)}")
    if path.stat().st_size == 0:
        raise ConfigError(f"{path}: the file is empty")
    if clients is not None and clients < 2:
        raise ConfigError(f"--clients {clients}: must be at least 2")
    log = _read(path, kind, reading, progress)
    size_of = _companion(Path(sizes), "size") if sizes else {}
    group_of = _companion(Path(groups), "group") if groups else {}
    log = with_clients(log, clients, [*size_of, *group_of])
    require_clients(log)
    return _attach(log, sizes, size_of, groups, group_of)


def _no_log(path: Path) -> str:
    """Why a file with another ending cannot be read."""
    if path.suffix.lower() == ".json":
        return describe_json(path)
    return f"must end in one of {', '.join(KINDS)}{suggest(path.suffix, KINDS)}"


def _read(path: Path, kind: str, reading: Reading, progress: Progress | None) -> ParticipationLog:
    readers = {"csv": read_csv, "jsonl": read_jsonl, "parquet": read_parquet}
    if kind in readers:
        return assemble(path, kind, readers[kind](path, reading, progress))
    given = {
        "--active-column": reading.active_column is not None,
        "--round-seconds": reading.round_seconds is not None,
        "--drop-duplicates": reading.drop_duplicates,
        "--missing-rounds": kind == "npy" and reading.missing_rounds is not None,
    }
    for option in (option for option, is_given in given.items() if is_given):
        what = "a table of rounds and clients" if kind == "npy" else "the console of a Flower server"
        raise ConfigError(f"{path}: {option} cannot be used: it is {what}")
    return read_flower(path, reading) if kind == "flower" else read_npy(path, progress)


def read_npy(path: Path, progress: Progress | None = None) -> ParticipationLog:
    """A dense 0/1 or boolean array (rounds, clients); read in blocks, never whole. Clients are "0", "1", ..."""
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path}: cannot be read as .npy, is it truncated? ({reason})") from None
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.size == 0:
        raise ConfigError(f"{path}: must have shape (rounds, clients), has {getattr(table, 'shape', 'no shape')}")
    if table.dtype.kind not in "biuf":
        raise ConfigError(f"{path}: must hold only 0 and 1, holds {table.dtype}")
    pairs = list(_npy_pairs(path, table, progress))
    rounds, members = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    return ParticipationLog(
        [str(i) for i in range(table.shape[1])], table.shape[0], 0, rounds, members, source=path.name, format="npy"
    )


def _npy_pairs(path: Path, table: np.ndarray, progress: Progress | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    step = max(BLOCK_CELLS // table.shape[1], 1)
    for first in range(0, len(table), step):
        block = np.asarray(table[first : first + step])
        wrong = np.argwhere((block != 0) & (block != 1)) if block.dtype != bool else np.empty((0, 2))
        if len(wrong):
            row, column = wrong[0].tolist()
            raise ConfigError(f"{path}: row {first + row}, column {column}: must be 0 or 1, is {block[row, column]}")
        t, i = np.nonzero(block)
        yield (t + first).astype(np.int32), i.astype(np.int32)
        if progress:
            progress(min(first + step, len(table)), len(table))


def read_parquet(path: Path, reading: Reading, progress: Progress | None = None) -> Table:
    """Columns round (integer), client (string or integer), and one that says who took part, or none; needs pyarrow."""
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise FedpbcError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from None
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{path}: cannot be read as Parquet, is it truncated? ({str(error).splitlines()[0]})"
        ) from None
    names = file.schema_arrow.names
    for name in ("round", "client"):
        if name not in names:
            raise ConfigError(
                f"{path}: column {name} is missing{suggest(name, names)}; columns must be round, client and active or "
                f"round and client, are {shorten(', '.join(names))}"
            )
    columns = Columns(path, names, reading)
    _check_types(path, pa, file.schema_arrow, columns)
    table = Table(iter(()), Names(), reading, columns, lists_inactive=columns.active is not None)
    table.pieces = _parquet_pieces(path, pa, file, table, progress)
    return table


def _check_types(path: Path, pa: Any, schema: Any, columns: Columns) -> None:
    def plain(name: str) -> Any:
        kind = schema.field(name).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def is_client(kind: Any) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))

    for name, fits, what in (("round", pa.types.is_integer, "integers"), ("client", is_client, "strings or integers")):
        if not fits(plain(name)):
            hint = "" if name == "client" else "; of times, write Unix seconds and give --round-seconds N"
            raise ConfigError(f"{path}: column {name} must hold {what}, holds {plain(name)}{hint}")
    if columns.active is not None and pa.types.is_nested(plain(columns.active)):
        raise ConfigError(f"{path}: column {columns.active} must hold one value a row, holds {plain(columns.active)}")


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
        raise ConfigError(
            f"{path}: row {row}: cannot be read, is it truncated? ({str(error).splitlines()[0]})"
        ) from None


def _text_of(value: Any) -> str:
    """A value of a column as text, as it would stand in a CSV file; what is missing is empty."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parquet_rows(path: Path, found: dict[str, Any], row: int, table: Table) -> Rows:
    columns = table.columns
    for name, column in found.items():
        if column.null_count and not (name == columns.active and columns.wanted is not None):
            at = row + int(np.argmax(np.asarray(column.is_null())))
            raise ConfigError(f"{path}: row {at}: {name} is missing (null)")
    rounds = np.asarray(found["round"]).astype(np.int64)
    if np.any(rounds < 0):
        raise ConfigError(f"{path}: row {row + int(np.argmax(rounds < 0))}: round must be an integer >= 0")
    values, numbers = _dictionary(found["client"])
    codes = table.names.encode([str(value) for value in values])[numbers]
    if columns.active is None:
        return Rows(rounds, codes, np.ones(len(rounds), bool))
    values, numbers = _dictionary(found[columns.active])
    known = [columns.is_active(_text_of(value)) for value in values]
    if None in known:
        wrong = [k for k, is_active in enumerate(known) if is_active is None]
        at = int(np.argmax(np.isin(numbers, wrong)))
        raise ConfigError(f"{path}: row {row + at}: {columns.not_boolean()}, is {shorten(values[numbers[at]])}")
    return Rows(rounds, codes, np.array(known, bool)[numbers])


def _dictionary(column: Any) -> tuple[list[Any], np.ndarray]:
    """(different values, the number of each row's); null is a value of its own."""
    if not hasattr(column, "dictionary"):
        column = column.dictionary_encode()
    values, numbers = column.dictionary.to_pylist(), column.indices
    if column.null_count:
        return [*values, None], np.asarray(numbers.fill_null(len(values)))
    return values, np.asarray(numbers)


_ROUND = re.compile(r"\[ROUND (\d+)(?:/\d+)?\]", re.IGNORECASE)
_SAMPLED = re.compile(r"configure_(?:fit|train): .*?sampled \d+ \w+ \(out of (\d+)\)", re.IGNORECASE)
_RECEIVED = re.compile(
    r"(?:aggregate_(?:fit|train):|fit_round \d+) received (\d+) results and (\d+) failures", re.IGNORECASE
)


_TOO_LONG = re.compile(r"(?:ROUND |Received |received |out of )\d{10}")


def read_flower(path: Path, reading: Reading) -> ParticipationLog:
    """The console log of a Flower server: how many clients answered in each round, and nothing else.

    A round that began without a line of results (every client failed, or none was sampled) counts as empty and is
    noted; one of which nothing stands there is missing.
    """
    results: dict[int, int] = {}
    begun: set[int] = set()
    round_, failures, known, other = None, 0, 0, 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            text = decode(path, raw, number)
            if _TOO_LONG.search(text):
                raise ConfigError(f"{path}: line {number}: holds a number of more than nine digits")
            if match := _ROUND.search(text):
                round_ = int(match[1])
                begun.add(round_)
            elif match := _SAMPLED.search(text):
                known = max(known, int(match[1]))
            elif match := _RECEIVED.search(text):
                key = round_ if round_ is not None else len(results) + 1
                if key in results:
                    raise ConfigError(f"{path}: line {number}: round {key} has results already: one server run a file")
                results[key] = int(match[1])
                failures += int(match[2])
            else:
                other += 1
    return _flower_log(path, reading, results, begun, failures, known, other)


def _flower_log(
    path: Path, reading: Reading, results: dict[int, int], begun: set[int], failures: int, known: int, other: int
) -> ParticipationLog:
    if not results:
        raise ConfigError(
            f"{path}: holds no line like 'aggregate_train: Received 8 results and 2 failures'; a .log or .txt file "
            "must be the console log of a Flower server"
        )
    if not any(results.values()):
        raise ConfigError(f"{path}: no client is active in any of {len(results):,} rounds; at least one must be")
    there = np.array(sorted({*results, *begun}))
    begin, end = int(there[0]), int(there[-1])
    if end - begin >= len(results) + 1_000_000:
        raise ConfigError(f"{path}: rounds go from {begin} to {end}, but only {len(results):,} have results")
    counts = np.zeros(end - begin + 1, np.int64)
    counts[np.array(list(results)) - begin] = list(results.values())
    notes = ["the log holds counts only: who took part is not known, so weights cannot be had from it"]
    if failures:
        notes.append(f"{failures:,} failures are reported; they count as not active")
    if len(there) > len(results):
        notes.append(f"{len(there) - len(results):,} rounds began and have no line of results; they count as empty")
    missing = np.setdiff1d(np.arange(begin, end + 1), there)
    if len(missing) and reading.missing_rounds is None:
        raise ConfigError(f"{path}: {refusal(missing, len(counts))}")
    if len(missing):
        notes.append(meaning_of_missing(len(missing), str(reading.missing_rounds)))
    hidden = (missing - begin if reading.missing_rounds == "unknown" else missing[:0]).astype(np.int32)
    empty = np.empty(0, np.int32)
    return ParticipationLog(
        [], len(counts), begin, empty, empty, counts_only=counts, counts_clients=known or None,
        skipped={"lines of a console log that are no results": other} if other else {},
        source=path.name, format="flower", notes=tuple(notes), unknown=hidden,
    )  # fmt: skip


def _companion(path: Path, column: str) -> dict[str, str]:
    """client -> cell of ``column`` from a CSV file with the header client,COLUMN."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    text = decode(path, path.read_bytes(), 1).lstrip("\ufeff")
    rows = csv.reader(text.split("\n"), strict=True)
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
    except csv.Error as error:
        raise ConfigError(f"{path}: line 1: is not CSV: {error}") from None
    if sorted(header) != sorted(["client", column]):
        raise ConfigError(f"{path}: line 1: must be client,{column}, is {shorten(','.join(header))}")
    found: dict[str, str] = {}
    try:
        for row in rows:
            if len(row) > 2:
                raise ConfigError(f"{path}: line {rows.line_num}: must have 2 cells like the header, has {len(row)}")
            if row:
                _add_companion(path, rows.line_num, dict(zip(header, map(str.strip, row), strict=False)), column, found)
    except csv.Error as error:
        raise ConfigError(f"{path}: line {rows.line_num}: is not CSV: {error}") from None
    if not found:
        raise ConfigError(f"{path}: holds no rows")
    return found


def _add_companion(path: Path, line: int, row: dict[str, str], column: str, found: dict[str, str]) -> None:
    client, value = row.get("client"), row.get(column)
    if not client or not value:
        raise ConfigError(f"{path}: line {line}: must be a client id and a {column}")
    if client in found:
        raise ConfigError(f"{path}: line {line}: client {shorten(client)} stands there twice")
    found[client] = value


def _attach(
    log: ParticipationLog, sizes: Any, size_of: dict[str, str], groups: Any, group_of: dict[str, str]
) -> ParticipationLog:
    if log.counts_only is not None:
        if sizes or groups:
            raise ConfigError(f"{log.source}: holds counts only, so {sizes or groups} cannot be used with it")
        return log
    for path, known in ((sizes, size_of), (groups, group_of)):
        lacking = [name for name in log.clients if name not in known and not name.startswith("(unseen ")]
        if path and lacking:
            raise ConfigError(f"{path}: has no row for client {shorten(lacking[0])} ({len(lacking):,} lack one)")
    if sizes and any(name not in size_of for name in log.clients):
        raise ConfigError(f"{sizes}: has {len(size_of):,} clients, --clients says {len(log.clients):,}; name them all")
    values = np.array([_size(sizes, name, size_of[name]) for name in log.clients]) if sizes else None
    labels = [group_of.get(name, "(no group)") for name in log.clients] if groups else None
    return replace(log, sizes=values, groups=labels)


def _size(path: Any, client: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e200:
        raise ConfigError(f"{path}: the size of client {shorten(client)} must be a number > 0, is {shorten(text)}")
    return value
