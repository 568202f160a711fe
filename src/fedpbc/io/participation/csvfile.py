"""CSV with the columns round,client,active, or the active pairs round,client: parsed column-wise with NumPy.

A block of some megabytes is cut at its last line end; commas and line ends are found by comparison, cells of a column
are gathered into a byte matrix [rows, width], and everything else is arithmetic on that matrix. Ten million rows take
seconds and only their numbers are kept. A block that holds a quotation mark goes through the csv module.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedpbc.errors import shorten, suggest
from fedpbc.io.participation.columns import LONGEST_WATCHED, Columns
from fedpbc.io.participation.reading import BadLog, Format, Names, Progress, Reading, Rows, Table, decode

NEWLINE = b"\n"
BLOCK = 1 << 22
LONGEST_CELL = 256


def read_csv(path: Path, reading: Reading, progress: Progress | None = None) -> Table:
    """The rows of a CSV file. Raises BadLog, naming file and line, on anything that is not as documented."""
    names = _read_header(path)
    columns = Columns(path, names, reading)
    _no_doubles(path, names, columns)
    table = Table(
        iter(()), Names(), reading, columns, lists_inactive=columns.active is not None, first_line=2,
    )  # fmt: skip
    table.pieces = _pieces(path, names, table, progress)
    return table


def _no_doubles(path: Path, names: list[str], columns: Columns) -> None:
    twice = [name for name in ("round", "client", columns.active) if name is not None and names.count(name) > 1]
    if twice:
        raise BadLog(path, f"line 1: column {twice[0]} stands there twice")


def _read_header(path: Path) -> list[str]:
    with open(path, "rb") as file:
        line = file.readline(BLOCK)
    if not line.strip():
        raise BadLog(path, "the file is empty" if not line else "line 1: must be the header, is blank")
    names = [cell.strip().strip('"').lower() for cell in decode(path, line, 1).lstrip("\ufeff").strip().split(",")]
    missing = [name for name in ("round", "client") if name not in names]
    if missing:
        raise BadLog(
            path,
            f"line 1: column {missing[0]} is missing{suggest(missing[0], names)}; the first line must be "
            f"round,client,active or round,client, is {shorten(','.join(names))}",
        )
    return names


def _pieces(path: Path, columns: list[str], table: Table, progress: Progress | None) -> Iterator[Rows]:
    total, line = path.stat().st_size, 2
    with open(path, "rb") as file:
        file.readline()
        rest = b""
        while True:
            block = file.read(BLOCK)
            data = rest + block if block else rest + b"\n" * bool(rest)
            cut = data.rfind(b"\n") + 1
            data, rest = data[:cut], data[cut:]
            if len(rest) > BLOCK:
                raise BadLog(path, f"line {line + data.count(NEWLINE)}: is longer than {BLOCK:,} bytes")
            if data:
                yield _parse(path, data, line, columns, table)
                line += data.count(b"\n")
            if progress:
                progress(file.tell(), total)
            if not block:
                return


def _parse(path: Path, data: bytes, line: int, columns: list[str], table: Table) -> Rows:
    if not data.isascii() or b"\0" in data:
        decode(path, data, line)
    named, watched = table.columns, table.columns.watched
    used = ["round", "client", *([named.active] if named.active is not None else [])]
    cut = _cut_quoted if b'"' in data else _cut
    cells, lines = cut(path, data, line, columns, used, watched, table)
    rounds = _integers(path, cells["round"], lines, table.reading)
    codes = _encode(path, cells["client"], lines, table.names)
    named.rows += len(rounds)
    for name in watched:
        named.watch(name, (_text(value) for value in unique(cells[name])[0].tolist()))
    if named.active is None:
        return Rows(rounds, codes, np.ones(len(rounds), bool))
    return Rows(rounds, codes, _booleans(path, cells[named.active], lines, named))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _cut(
    path: Path, data: bytes, line: int, columns: list[str], used: list[str], watched: list[str], table: Table
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Cells of the used and the watched columns as byte strings S[n], and the line of every row."""
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == 10)
    starts = np.concatenate([[0], ends[:-1] + 1])
    commas = np.flatnonzero(buffer == 44)
    num_commas = np.diff(np.searchsorted(commas, ends), prepend=0)
    ends = ends - ((ends > starts) & (buffer[ends - 1] == 13))
    filled = ends > starts
    lines = line + np.arange(len(ends))
    table.blank_lines.extend(lines[~filled].tolist())
    wrong = filled & (num_commas != len(columns) - 1)
    if np.any(wrong):
        row = int(np.argmax(wrong))
        raise _wrong_width(path, int(lines[row]), data[starts[row] : ends[row]].decode(), columns)
    starts, ends, lines = starts[filled], ends[filled], lines[filled]
    inner = commas.reshape(len(lines), len(columns) - 1)
    edges_from, edges_to = np.column_stack([starts, inner + 1]), np.column_stack([inner, ends])
    cells = {}
    for name in [*used, *watched]:
        k = columns.index(name)
        cells[name] = _gather(path, buffer, edges_from[:, k], edges_to[:, k], lines, cut=name in watched)
    return cells, lines


def _wrong_width(path: Path, line: int, text: str, columns: list[str]) -> BadLog:
    count = len(text.split(","))
    hint = "; is the file truncated?" if count < len(columns) else ""
    return BadLog(
        path, f"line {line}: must have {len(columns)} cells like the header, has {count}: {shorten(text)}{hint}"
    )


def _gather(
    path: Path, buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, lines: np.ndarray, cut: bool
) -> np.ndarray:
    """buffer[starts[i]:ends[i]] without surrounding blanks, as byte strings S[n]; ``cut``: their first 64 bytes."""
    while np.any(blank := (starts < ends) & np.isin(buffer[starts], (32, 9))):
        starts = starts + blank
    while np.any(blank := (starts < ends) & np.isin(buffer[ends - 1], (32, 9))):
        ends = ends - blank
    lengths = np.minimum(ends - starts, LONGEST_WATCHED) if cut else ends - starts
    width = max(int(lengths.max(initial=0)), 1)
    if width > LONGEST_CELL:
        line = lines[int(np.argmax(lengths))]
        raise BadLog(path, f"line {line}: holds a cell of {width} bytes, at most {LONGEST_CELL} are allowed")
    cells = np.zeros((len(starts), width), np.uint8)
    last = len(buffer) - 1
    for k in range(width):
        cells[:, k] = np.where(lengths > k, buffer[np.minimum(starts + k, last)], 0)
    return cells.view(f"S{width}").ravel()


def _cut_quoted(
    path: Path, data: bytes, line: int, columns: list[str], used: list[str], watched: list[str], table: Table
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Like _cut, for a block that holds quotation marks; no cell may go over a line end."""
    rows, lines = [], []
    reader = csv.reader(io.StringIO(data.decode("utf-8")), strict=True, skipinitialspace=True)
    try:
        for row in reader:
            here = line + reader.line_num - 1
            if not row:
                table.blank_lines.append(here)
                continue
            if len(row) != len(columns) or any("\n" in cell for cell in row):
                raise _wrong_width(path, here, ",".join(row), columns)
            rows.append([cell.strip().encode() for cell in row])
            lines.append(here)
    except csv.Error as error:
        raise BadLog(path, f"line {line + reader.line_num - 1}: is not CSV: {error}") from None
    cells = {name: np.array([row[columns.index(name)] for row in rows], np.bytes_) for name in used}
    for column in cells.values():
        if column.dtype.itemsize > LONGEST_CELL:
            raise BadLog(path, f"a cell is longer than {LONGEST_CELL} bytes")
    for name in watched:
        cells[name] = np.array([row[columns.index(name)][:LONGEST_WATCHED] for row in rows], np.bytes_)
    return cells, np.array(lines, np.int64)


def _integers(path: Path, cells: np.ndarray, lines: np.ndarray, reading: Reading) -> np.ndarray:
    """int64[n] of decimal digits, below 4 10^18; refuses anything else."""
    digits = np.ascontiguousarray(cells).view(np.uint8).reshape(len(cells), -1)
    values = np.zeros(len(cells), np.int64)
    right = digits[:, 0] != 0 if digits.shape[1] else np.zeros(len(cells), bool)
    for column in digits.T:
        is_digit = (column >= 48) & (column <= 57)
        right &= is_digit | (column == 0)
        np.multiply(values, 10, out=values, where=is_digit)
        np.add(values, column.astype(np.int64) - 48, out=values, where=is_digit)
    if digits.shape[1] > 18:
        right &= (digits[:, 18] == 0) | (digits[:, 0] < 52)
        right &= np.all(digits[:, 19:] == 0, axis=1)
    if not np.all(right):
        row = int(np.argmin(right))
        time = b"-" in cells[row] and b":" in cells[row]
        hint = f"; of times, write Unix seconds and give {reading.spell('round_seconds', 'N')}" if time else ""
        raise BadLog(path, f"line {lines[row]}: round must be an integer >= 0, is {_shown(cells[row])}{hint}")
    return values


def _shown(cell: bytes) -> str:
    return shorten(cell.decode("utf-8", "replace")) if cell else "empty"


def unique(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """np.unique(cells, return_inverse=True) up to order, through a 64-bit hash that is checked."""
    width = -(-cells.dtype.itemsize // 8)
    words = cells.astype(f"S{8 * width}").view(np.uint64).reshape(len(cells), width)
    hashes = words[:, 0].copy()
    for word in words.T[1:]:
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
        hashes += word
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    values = cells[first]
    if width > 1 and not np.array_equal(values[inverse], cells):
        return np.unique(cells, return_inverse=True)
    return values, inverse


def _encode(path: Path, cells: np.ndarray, lines: np.ndarray, names: Names) -> np.ndarray:
    values, inverse = unique(cells)
    codes = names.encode([value.decode("utf-8") for value in values.tolist()])
    if b"" in values.tolist():
        row = int(np.argmax(cells == b""))
        raise BadLog(path, f"line {lines[row]}: client is empty, must be a client id")
    return codes[inverse]


def _booleans(path: Path, cells: np.ndarray, lines: np.ndarray, columns: Columns) -> np.ndarray:
    values, inverse = unique(cells)
    known = [columns.is_active(_text(value)) for value in values.tolist()]
    if None in known:
        row = int(np.argmax(np.isin(inverse, [k for k, value in enumerate(known) if value is None])))
        raise BadLog(path, f"line {lines[row]}: {columns.not_boolean()}, is {_shown(cells[row])}")
    return np.array(known, bool)[inverse]


FORMAT = Format("csv", (".csv",), read_csv)
