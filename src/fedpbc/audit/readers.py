"""The formats of a participation log other than CSV, the files beside it, and the choice between formats."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.audit.csvfile import decode, read_csv
from fedpbc.audit.log import Names, ParticipationLog, Progress, Rows, Table, assemble, require_clients, with_clients
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
    progress: Progress | None = None,
) -> ParticipationLog:
    """A participation log from a file; the format follows from the ending (docs/audit.md describes them).

    clients: how many there are, if some never appear. sizes, groups: CSV files client,size and client,group, which
    may name clients that never appear. Raises ConfigError naming file, line and what is allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path}: must end in one of {', '.join(KINDS)}{suggest(path.suffix, KINDS)}")
    if path.stat().st_size == 0:
        raise ConfigError(f"{path}: the file is empty")
    if clients is not None and clients < 2:
        raise ConfigError(f"--clients {clients}: must be at least 2")
    log = _read(path, kind, progress)
    size_of = _companion(Path(sizes), "size") if sizes else {}
    group_of = _companion(Path(groups), "group") if groups else {}
    log = with_clients(log, clients, [*size_of, *group_of])
    require_clients(log)
    return _attach(log, sizes, size_of, groups, group_of)


def _read(path: Path, kind: str, progress: Progress | None) -> ParticipationLog:
    if kind == "flower":
        return read_flower(path)
    if kind == "npy":
        return read_npy(path, progress)
    reader = {"csv": read_csv, "jsonl": read_jsonl, "parquet": read_parquet}[kind]
    return assemble(path, kind, reader(path, progress))


def read_jsonl(path: Path, progress: Progress | None = None) -> Table:
    """One line a round, {"round": 3, "clients": ["a", "b"]} ("active" may stand for "clients"); rounds in any order."""
    table = Table(iter(()), Names(), gaps_are_empty=False)
    table.pieces = _jsonl_pieces(path, table, progress)
    return table


def _jsonl_pieces(path: Path, table: Table, progress: Progress | None) -> Iterator[Rows]:
    seen: dict[int, int] = {}
    kinds: dict[type, int] = {}
    total, done = path.stat().st_size, 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            done += len(raw)
            text = decode(path, raw, number).lstrip("\ufeff")
            if not text.strip():
                table.blank_lines.append(number)
                continue
            round_, members = _json_round(path, number, text)
            if round_ in seen:
                raise ConfigError(f"{path}: line {number}: round {round_} stands in line {seen[round_]} already")
            seen[round_] = number
            table.listed_rounds.append(round_)
            codes = table.names.encode(_json_clients(path, number, members, kinds))
            if progress and number % 1024 == 0:
                progress(done, total)
            yield Rows(np.full(len(codes), round_, np.int64), codes, np.ones(len(codes), bool))


def _json_round(path: Path, number: int, text: str) -> tuple[int, list[Any]]:
    shape = '{"round": 3, "clients": ["a", "b"]}'
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = getattr(error, "msg", type(error).__name__)
        hint = "" if text.endswith("\n") else "; is the file truncated?"
        raise ConfigError(f"{path}: line {number}: is not JSON ({problem}), must be like {shape}{hint}") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{path}: line {number}: must be like {shape}, is {shorten(text.strip())}")
    missing = "round" if "round" not in entry else "clients" if not {"clients", "active"} & set(entry) else None
    if missing:
        raise ConfigError(f"{path}: line {number}: key {missing} is missing{suggest(missing, entry)}: {shape}")
    round_, members = entry["round"], entry.get("clients", entry.get("active"))
    if isinstance(round_, bool) or not isinstance(round_, int) or not 0 <= round_ < 10**18:
        raise ConfigError(f"{path}: line {number}: round must be an integer >= 0, is {shorten(round_)}")
    if not isinstance(members, list):
        raise ConfigError(f"{path}: line {number}: clients must be a list of client ids, is {shorten(members)}")
    return round_, members


def _encodable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write
        return False
    return True


def _json_clients(path: Path, number: int, members: list[Any], kinds: dict[type, int]) -> list[str]:
    """Ids of one round as strings; one type, str or int, in the whole file (``kinds``: type -> its first line)."""
    for member in members:
        if type(member) not in (str, int) or member == "":
            raise ConfigError(
                f"{path}: line {number}: a client id must be a string or an integer, is {shorten(member)}"
            )
        kinds.setdefault(type(member), number)
    if len(kinds) > 1:
        line = " and ".join(f"{kind.__name__} from line {first}" for kind, first in kinds.items())
        raise ConfigError(
            f"{path}: line {number}: client ids must be all strings or all integers, are of mixed types ({line})"
        )
    names = [str(member) for member in members]
    for name in names:
        if "\0" in name or len(name.encode("utf-8", "replace")) > 256 or not _encodable(name):
            raise ConfigError(
                f"{path}: line {number}: a client id must be UTF-8 of up to 256 bytes without NUL, "
                f"is {shorten(ascii(name))}"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{path}: line {number}: client {shorten(twice)} stands there twice")
    return names


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


def read_parquet(path: Path, progress: Progress | None = None) -> Table:
    """Columns round (integer), client (string or integer), active (boolean or integer) or none; needs pyarrow."""
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
    used = [name for name in ("round", "client", "active") if name in names]
    _check_types(path, pa, file.schema_arrow, used)
    ignored = [name for name in names if name not in used]
    table = Table(
        iter(()), Names(), gaps_are_empty="active" not in used, lists_inactive="active" in used,
        notes=[f"columns not used: {', '.join(ignored)}"] if ignored else [],
    )  # fmt: skip
    table.pieces = _parquet_pieces(path, pa, file, used, table.names, progress)
    return table


def _check_types(path: Path, pa: Any, schema: Any, used: list[str]) -> None:
    def plain(name: str) -> Any:
        kind = schema.field(name).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def is_client(kind: Any) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))

    allowed: dict[str, tuple[Any, str]] = {
        "round": (pa.types.is_integer, "integers"),
        "client": (is_client, "strings or integers"),
        "active": (lambda kind: pa.types.is_boolean(kind) or pa.types.is_integer(kind), "booleans or 0 and 1"),
    }
    for name in used:
        fits, what = allowed[name]
        if not fits(plain(name)):
            raise ConfigError(f"{path}: column {name} must hold {what}, holds {plain(name)}")


def _parquet_pieces(
    path: Path, pa: Any, file: Any, used: list[str], names: Names, progress: Progress | None
) -> Iterator[Rows]:
    row, total = 0, file.metadata.num_rows
    try:
        for batch in file.iter_batches(batch_size=1 << 19, columns=used):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield _parquet_rows(path, columns, row, names)
            row += batch.num_rows
            if progress:
                progress(row, total)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{path}: row {row}: cannot be read, is it truncated? ({str(error).splitlines()[0]})"
        ) from None


def _parquet_rows(path: Path, columns: dict[str, Any], row: int, names: Names) -> Rows:
    for name, column in columns.items():
        if column.null_count:
            at = row + int(np.argmax(np.asarray(column.is_null())))
            raise ConfigError(f"{path}: row {at}: {name} is missing (null)")
    rounds = np.asarray(columns["round"]).astype(np.int64)
    if np.any(rounds < 0):
        raise ConfigError(f"{path}: row {row + int(np.argmax(rounds < 0))}: round must be an integer >= 0")
    client = columns["client"]
    client = client if hasattr(client, "dictionary") else client.dictionary_encode()
    codes = names.encode([str(value) for value in client.dictionary.to_pylist()])[np.asarray(client.indices)]
    if "active" not in columns:
        return Rows(rounds, codes, np.ones(len(rounds), bool))
    active = np.asarray(columns["active"])
    wrong = (active != 0) & (active != 1)
    if np.any(wrong):
        at = int(np.argmax(wrong))
        raise ConfigError(f"{path}: row {row + at}: active must be 0, 1, true or false, is {active[at]}")
    return Rows(rounds, codes, active.astype(bool))


_ROUND = re.compile(r"\[ROUND (\d+)(?:/\d+)?\]", re.IGNORECASE)
_SAMPLED = re.compile(r"configure_(?:fit|train): .*?sampled \d+ \w+ \(out of (\d+)\)", re.IGNORECASE)
_RECEIVED = re.compile(
    r"(?:aggregate_(?:fit|train):|fit_round \d+) received (\d+) results and (\d+) failures", re.IGNORECASE
)


_TOO_LONG = re.compile(r"(?:ROUND |Received |received |out of )\d{10}")


def read_flower(path: Path) -> ParticipationLog:
    """The console log of a Flower server: how many clients answered in each round, and nothing else.

    A round without a line of results (every client failed, or none was sampled) counts as empty and is noted.
    """
    results: dict[int, int] = {}
    round_, failures, known, other, first = None, 0, 0, 0, None
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            text = decode(path, raw, number)
            if _TOO_LONG.search(text):
                raise ConfigError(f"{path}: line {number}: holds a number of more than nine digits")
            if match := _ROUND.search(text):
                round_ = int(match[1])
                first = round_ if first is None else first
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
    return _flower_log(path, results, round_, first, failures, known, other)


def _flower_log(
    path: Path, results: dict[int, int], last: int | None, first: int | None, failures: int, known: int, other: int
) -> ParticipationLog:
    if not results:
        raise ConfigError(
            f"{path}: holds no line like 'aggregate_train: Received 8 results and 2 failures'; a .log or .txt file "
            "must be the console log of a Flower server"
        )
    if not any(results.values()):
        raise ConfigError(f"{path}: no client is active in any of {len(results):,} rounds; at least one must be")
    begin = min([*results, *([first] if first is not None else [])])
    end = max([*results, *([last] if last is not None else [])])
    if end - begin >= len(results) + 1_000_000:
        raise ConfigError(f"{path}: rounds go from {begin} to {end}, but only {len(results):,} have results")
    counts = np.zeros(end - begin + 1, np.int64)
    counts[np.array(list(results)) - begin] = list(results.values())
    notes = ["the log holds counts only: who took part is not known, so weights cannot be had from it"]
    if failures:
        notes.append(f"{failures:,} failures are reported; they count as not active")
    if len(counts) > len(results):
        notes.append(f"{len(counts) - len(results):,} rounds have no line of results; they count as empty")
    empty = np.empty(0, np.int32)
    return ParticipationLog(
        [], len(counts), begin, empty, empty, counts_only=counts, counts_clients=known or None,
        skipped={"lines of a console log that are no results": other} if other else {},
        source=path.name, format="flower", notes=tuple(notes),
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
