"""CSV with the columns round,client,active, or the active pairs round,client: parsed column-wise with NumPy.

A block of some megabytes is cut at its last line end; commas and line ends are found by comparison, cells of a column
are gathered as 64-bit words, and everything else is arithmetic on these (``cells``). Ten million rows take
two seconds and only their numbers are kept. Quotation marks around whole cells are cut off; a block where they do more
goes through the csv module.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedpbc.errors import shorten, suggest
from fedpbc.io.participation.cells import PAD, Numbering, Places, as_bytes, unique
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
    table.pieces = _pieces(_File(path, names, table), progress)
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


@dataclass
class _File:
    """What the blocks of a file have in common."""

    path: Path
    columns: list[str]
    table: Table
    clients: Numbering = field(init=False)
    answers: Numbering = field(init=False)
    """The values of the active column, numbered."""
    known: list[bool] = field(default_factory=list)
    """What they say."""

    def __post_init__(self) -> None:
        self.clients = Numbering(self._clients)
        self.answers = Numbering(self._answers)

    def _clients(self, values: list[bytes]) -> np.ndarray:
        if b"" in values:
            raise _NotAllowed(b"")
        return self.table.names.encode([value.decode("utf-8") for value in values])

    def _answers(self, values: list[bytes]) -> np.ndarray:
        for value in values:
            says = self.table.columns.is_active(_text(value))
            if says is None:
                raise _NotAllowed(value)
            self.known.append(says)
        return np.arange(len(self.known) - len(values), len(self.known), dtype=np.int32)


class _NotAllowed(Exception):
    """A value of a column."""

    def __init__(self, value: bytes) -> None:
        self.value = value


def _pieces(file: _File, progress: Progress | None) -> Iterator[Rows]:
    path, table = file.path, file.table
    total, line = path.stat().st_size, 2
    with open(path, "rb") as stream:
        stream.readline()
        rest = b""
        while True:
            block = stream.read(BLOCK)
            data = rest + block if block else rest + b"\n" * bool(rest)
            cut = data.rfind(b"\n") + 1
            data, rest = data[:cut], data[cut:]
            if len(rest) > BLOCK:
                raise BadLog(path, f"line {line + data.count(NEWLINE)}: is longer than {BLOCK:,} bytes")
            if data:
                rows = _parse(file, data, line)
                table.expected_rows = table.expected_rows or len(rows.rounds) * total // len(data)
                yield rows
                line += data.count(b"\n")
            if progress:
                progress(stream.tell(), total)
            if not block:
                return


def _parse(file: _File, data: bytes, line: int) -> Rows:
    path, table, named = file.path, file.table, file.table.columns
    if not data.isascii() or b"\0" in data:
        decode(path, data, line)
    watched = named.watched
    used = ["round", "client", *([named.active] if named.active is not None else [])]
    cells, lines = _cut(file, data, line, [*used, *watched])
    rounds, right = cells["round"].numbers()
    if not np.all(right):
        raise _no_round(path, cells["round"], int(np.argmin(right)), lines, table.reading)
    words = cells["client"].words(_longest(path, cells["client"], lines))
    try:
        codes = file.clients.encode(words)
    except _NotAllowed:
        row = int(np.argmax(cells["client"].starts == cells["client"].ends))
        raise BadLog(path, f"line {lines[row]}: client is empty, must be a client id") from None
    named.rows += len(rounds)
    for name in watched:
        words = cells[name].words(min(_longest(path, cells[name], lines, cut=True), LONGEST_WATCHED))
        named.watch(name, map(_text, as_bytes(unique(words)[0])))
    if named.active is None:
        return Rows(rounds, codes, np.ones(len(rounds), bool))
    words = cells[named.active].words(_longest(path, cells[named.active], lines))
    try:
        numbers = file.answers.encode(words)
    except _NotAllowed as error:
        row = as_bytes(words).index(error.value)
        raise BadLog(path, f"line {lines[row]}: {named.not_boolean()}, is {_shown(error.value)}") from None
    return Rows(rounds, codes, np.array(file.known, bool)[numbers])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _shown(cell: bytes) -> str:
    return shorten(_text(cell)) if cell else "empty"


def _no_round(path: Path, cells: Places, row: int, lines: np.ndarray, reading: Reading) -> BadLog:
    cell = cells.buffer[cells.starts[row] : cells.ends[row]].tobytes()
    time = b"-" in cell and b":" in cell
    hint = f"; of times, write Unix seconds and give {reading.spell('round_seconds', 'N')}" if time else ""
    return BadLog(path, f"line {lines[row]}: round must be an integer >= 0, is {_shown(cell)}{hint}")


def _longest(path: Path, cells: Places, lines: np.ndarray, cut: bool = False) -> int:
    """Bytes of the longest cell."""
    lengths = cells.ends - cells.starts
    longest = int(lengths.max(initial=0))
    if longest > LONGEST_CELL and not cut:
        line = lines[int(np.argmax(lengths))]
        raise BadLog(path, f"line {line}: holds a cell of {longest} bytes, at most {LONGEST_CELL} are allowed")
    return longest


def _cut(file: _File, data: bytes, line: int, wanted: list[str]) -> tuple[dict[str, Places], np.ndarray]:
    """The cells of the wanted columns, without surrounding blanks, and the line of every row."""
    buffer = np.frombuffer(data + bytes(PAD), np.uint8)
    quotes = data.count(b'"')
    found = _lines(file, data, buffer, line, may_skip=not quotes)
    if found is None:
        return _cut_quoted(file, data, line, wanted)
    begins, marks, lines = found
    starts = np.column_stack([begins, marks[:, :-1] + 1])
    ends = marks
    ends[:, -1] -= (ends[:, -1] > starts[:, -1]) & (buffer[ends[:, -1] - 1] == 13)
    if quotes:
        around = (ends - starts > 1) & (buffer[starts] == 34) & (buffer[ends - 1] == 34)
        if 2 * int(np.count_nonzero(around)) != quotes or not _is_plain(data):
            return _cut_quoted(file, data, line, wanted)
        starts, ends = starts + around, ends - around
    cells = {}
    for name in wanted:
        k = file.columns.index(name)
        cells[name] = _trimmed(buffer, starts[:, k].copy(), ends[:, k].copy(), b" " in data or b"\t" in data)
    return cells, lines


def _is_plain(data: bytes) -> bool:
    """Nothing that the csv module or ``str.strip`` takes for a blank or a line end, beside space, tab and CR LF."""
    odd = (b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f")
    return data.isascii() and data.count(b"\r") == data.count(b"\r\n") and not any(each in data for each in odd)


def _lines(
    file: _File, data: bytes, buffer: np.ndarray, line: int, may_skip: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(first byte of every row, its commas and its end [n, columns], its line).

    None for lines that are blank or have the wrong number of commas, unless ``may_skip`` (no comma is part of a cell).
    """
    width = len(file.columns)
    marks = np.flatnonzero((buffer == 10) | (buffer == 44))
    is_end = buffer[marks] == 10
    table = is_end.reshape(-1, width) if len(marks) % width == 0 else None
    if table is not None and table[:, -1].all() and np.count_nonzero(is_end) == len(table):
        cells = marks.reshape(-1, width)
        return np.concatenate([[0], cells[:-1, -1] + 1]), cells, line + np.arange(len(cells))
    if not may_skip:
        return None
    ends = marks[is_end]
    begins = np.concatenate([[0], ends[:-1] + 1])
    commas = np.diff(np.flatnonzero(is_end), prepend=-1) - 1
    filled = ends - ((ends > begins) & (buffer[ends - 1] == 13)) > begins
    lines = line + np.arange(len(ends))
    file.table.blank_lines.extend(lines[~filled].tolist())
    wrong = filled & (commas != width - 1)
    if np.any(wrong):
        row = int(np.argmax(wrong))
        text = data[begins[row] : ends[row]].decode().removesuffix("\r")
        raise _wrong_width(file.path, int(lines[row]), text, file.columns)
    return begins[filled], marks[np.repeat(filled, commas + 1)].reshape(-1, width), lines[filled]


def _trimmed(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, blanks: bool) -> Places:
    if blanks:
        while np.any(blank := (starts < ends) & np.isin(buffer[starts], (32, 9))):
            starts = starts + blank
        while np.any(blank := (starts < ends) & np.isin(buffer[ends - 1], (32, 9))):
            ends = ends - blank
    return Places(buffer, starts, ends)


def _wrong_width(path: Path, line: int, text: str, columns: list[str]) -> BadLog:
    count = len(text.split(","))
    hint = "; is the file truncated?" if count < len(columns) else ""
    return BadLog(
        path, f"line {line}: must have {len(columns)} cells like the header, has {count}: {shorten(text)}{hint}"
    )


def _cut_quoted(file: _File, data: bytes, line: int, wanted: list[str]) -> tuple[dict[str, Places], np.ndarray]:
    """Like _cut, where quotation marks do more than stand around a cell; no cell may go over a line end."""
    path, columns = file.path, file.columns
    rows, lines = [], []
    reader = csv.reader(io.StringIO(data.decode("utf-8")), strict=True, skipinitialspace=True)
    try:
        for row in reader:
            here = line + reader.line_num - 1
            if not row:
                file.table.blank_lines.append(here)
                continue
            if len(row) != len(columns) or any("\n" in cell for cell in row):
                raise _wrong_width(path, here, ",".join(row), columns)
            rows.append([cell.strip().encode() for cell in row])
            lines.append(here)
    except csv.Error as error:
        raise BadLog(path, f"line {line + reader.line_num - 1}: is not CSV: {error}") from None
    return {name: _joined([row[columns.index(name)] for row in rows]) for name in wanted}, np.array(lines, np.int64)


def _joined(cells: list[bytes]) -> Places:
    ends = np.cumsum([len(cell) for cell in cells], dtype=np.int64)
    return Places(np.frombuffer(b"".join(cells) + bytes(PAD), np.uint8), np.append(0, ends)[:-1], ends)


FORMAT = Format("csv", (".csv",), read_csv)
