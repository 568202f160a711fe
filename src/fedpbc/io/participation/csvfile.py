"""CSV (of commas, semicolons or tabs) with round,client,active, the active pairs round,client, times for rounds,
intervals client,start,end, or a column for every client: parsed column-wise with NumPy.

A block of some megabytes is cut at its last line end; commas and line ends are found by comparison, cells of a column
are gathered as 64-bit words, and everything else is arithmetic on these (``cells``). Ten million rows take
two seconds and only their numbers are kept. Quotation marks around whole cells are cut off; a block where they do more
goes through the csv module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedpbc.errors import shorten
from fedpbc.io.participation.cells import Numbering, Places, as_bytes, unique
from fedpbc.io.participation.columns import LONGEST_WATCHED, TIME_NAMES, Columns
from fedpbc.io.participation.cutting import Layout, cut
from fedpbc.io.participation.reading import BadLog, Format, Names, Progress, Reading, Rows, Table, decode
from fedpbc.io.participation.source import Source
from fedpbc.io.participation.times import Clock, NoTime

NEWLINE = b"\n"
BLOCK = 1 << 22
LONGEST_CELL = 256


SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}


def read_csv(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """The rows of a CSV file. Raises BadLog, naming file and line, on anything that is not as documented."""
    separator, names, has_header = _read_header(source, reading)
    columns = Columns(source, names, reading, "line 1: ")
    _no_doubles(source, names, columns)
    table = Table(
        iter(()), Names(), reading, columns, lists_inactive=columns.lists_inactive, first_line=1 + has_header,
        row_width=len(columns.wide) or 1, clock=Clock() if columns.roles.is_time or reading.of_times else None,
    )  # fmt: skip
    if separator != ",":
        table.notes.append(f"cells are separated by a {SEPARATORS[separator]}")
    table.pieces = _pieces(_File(Layout(source, names, separator, table.blank_lines), table, has_header), progress)
    return table


def _no_doubles(source: Source, names: list[str], columns: Columns) -> None:
    needed = [*columns.roles.used, columns.active, columns.group, *columns.wide]
    twice = [name for name in needed if name is not None and names.count(name) > 1]
    if twice:
        raise BadLog(source, f"line 1: column {twice[0]} stands there twice")


def _read_header(source: Source, reading: Reading) -> tuple[str, list[str], bool]:
    """(separator, names of the columns in lower case, whether the first line holds them).

    Where ``--columns`` gives numbers only, and the first line holds a number or a time for when, there is no header.
    """
    with source.open() as file:
        line = file.readline(BLOCK)
    if not line.strip():
        raise BadLog(source, "the file is empty" if not line else "line 1: must be the header, is blank")
    text = decode(source, line, 1).lstrip("\ufeff").strip("\r\n")
    separator = separator_of(text)
    names = [cell.strip().strip('"').lower() for cell in text.split(separator)]
    parts = dict(part.split("=", 1) for part in (reading.columns or "").split(",") if "=" in part)
    if parts and all(name.strip().isdigit() for name in parts.values()):
        place = next((int(parts[role]) for role in ("start", "time", "round") if role in parts), 0)
        if 1 <= place <= len(names) and re.match(r"\d", names[place - 1]):
            return separator, [str(number) for number in range(1, len(names) + 1)], False
    return separator, names, True


def separator_of(line: str) -> str:
    """What stands between the cells of a header: the most frequent of comma, semicolon and tab."""
    return max(SEPARATORS, key=line.count)


def is_csv(source: Source) -> bool:
    """The first line names a column that a log has, or ends like CSV."""
    first = source.text.split("\n", 1)[0].rstrip("\r")
    names = [cell.strip().strip('"').lower() for cell in first.split(separator_of(first))]
    return len(names) > 1 and bool({"round", "client", "start", *TIME_NAMES} & set(names))


def is_table(source: Source) -> bool:
    """The first lines have the same separator, equally often."""
    lines = source.lines(5)
    separator = separator_of(lines[0]) if lines else ","
    return len({line.count(separator) for line in lines}) == 1 and separator in lines[0]


@dataclass
class _File:
    """What the blocks of a file have in common."""

    layout: Layout
    table: Table
    has_header: bool
    clients: Numbering = field(init=False)
    answers: Numbering = field(init=False)
    """The values of the active column, numbered."""
    groups: Numbering = field(init=False)
    group_names: Names = field(default_factory=Names)
    known: list[bool] = field(default_factory=list)
    """What they say."""

    @property
    def source(self) -> Source:
        """Where it comes from."""
        return self.layout.source

    def __post_init__(self) -> None:
        self.clients = Numbering(self._clients)
        self.answers = Numbering(self._answers)
        self.groups = Numbering(lambda values: self.group_names.encode([value.decode("utf-8") for value in values]))

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
    source, table = file.source, file.table
    total, line = source.size, 1 + file.has_header
    with source.open() as stream:
        if file.has_header:
            stream.readline()
        rest = b""
        while True:
            block = stream.read(BLOCK)
            data = rest + block if block else rest + b"\n" * bool(rest)
            last = data.rfind(b"\n") + 1
            data, rest = data[:last], data[last:]
            if len(rest) > BLOCK:
                raise BadLog(source, f"line {line + data.count(NEWLINE)}: is longer than {BLOCK:,} bytes")
            if data:
                rows = _parse(file, data, line)
                if not source.compressed:
                    table.expected_rows = table.expected_rows or len(rows.rounds) * total // len(data)
                yield rows
                line += data.count(b"\n")
            if progress:
                progress(source.position(stream), total)
            if not block:
                return


def _parse(file: _File, data: bytes, line: int) -> Rows:
    source, named = file.source, file.table.columns
    if not data.isascii() or b"\0" in data:
        decode(source, data, line)
    watched, roles = named.watched, named.roles
    used = [name for name in (roles.moment, roles.client, roles.end, named.active, named.group) if name is not None]
    cells, lines = cut(file.layout, data, line, [*used, *named.wide, *watched])
    assert roles.moment is not None
    moments = _moments(file, cells[roles.moment], lines, "time" if roles.is_time else "round")
    named.rows += len(moments)
    if named.wide:
        return _wide(file, moments, cells, lines)
    assert roles.client is not None
    codes = _clients_of(file, cells[roles.client], lines)
    for name in watched:
        words = cells[name].words(min(_longest(source, cells[name], lines, cut=True), LONGEST_WATCHED))
        named.watch(name, map(_text, as_bytes(unique(words)[0])))
    if named.group is not None:
        words = cells[named.group].words(_longest(source, cells[named.group], lines))
        file.table.join_groups(source, codes, file.groups.encode(words), list(file.group_names.codes))
    ends = None if roles.end is None else _moments(file, cells[roles.end], lines, "end")
    if named.active is None:
        return Rows(moments, codes, np.ones(len(moments), bool), ends)
    return Rows(moments, codes, _answers(file, cells[named.active], lines), ends)


def _clients_of(file: _File, cells: Places, lines: np.ndarray) -> np.ndarray:
    words = cells.words(_longest(file.source, cells, lines))
    try:
        return file.clients.encode(words)
    except _NotAllowed:
        row = int(np.argmax(cells.starts == cells.ends))
        raise BadLog(file.source, f"line {lines[row]}: client is empty, must be a client id") from None


def _answers(file: _File, cells: Places, lines: np.ndarray) -> np.ndarray:
    """Whether the cells say active, bool[n]."""
    words = cells.words(_longest(file.source, cells, lines))
    try:
        numbers = file.answers.encode(words)
    except _NotAllowed as error:
        row = as_bytes(words).index(error.value)
        problem = f"{file.table.columns.not_boolean()}, is {_shown(error.value)}"
        raise BadLog(file.source, f"line {lines[row]}: {problem}") from None
    return np.array(file.known, bool)[numbers]


def _wide(file: _File, moments: np.ndarray, cells: dict[str, Places], lines: np.ndarray) -> Rows:
    """A pair for every cell, row by row."""
    wide = file.table.columns.wide
    codes = file.table.names.encode(wide)
    active = np.column_stack([_answers(file, cells[name], lines) for name in wide])
    return Rows(np.repeat(moments, len(wide)), np.tile(codes, len(moments)), active.ravel())


def _moments(file: _File, cells: Places, lines: np.ndarray, what: str) -> np.ndarray:
    """Rounds or times, int64[n]."""
    clock, values = file.table.clock, None
    if clock is None or clock.kind in (None, "whole"):
        values, right = cells.numbers()
        if np.all(right):
            if clock is not None and len(values):
                clock.whole()
            return values
        if clock is None:
            raise _no_round(file.source, cells, int(np.argmin(right)), lines, file.table.reading)
    words = cells.words(_longest(file.source, cells, lines))
    different, numbers = unique(words)
    try:
        return clock.read([_text(value) for value in as_bytes(different)], what == "end")[numbers]
    except NoTime as error:
        row = int(np.argmax(numbers == error.place))
        raise BadLog(file.source, f"line {lines[row]}: {what} {error.problem}") from None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _shown(cell: bytes) -> str:
    return shorten(_text(cell)) if cell else "empty"


def _no_round(path: Source, cells: Places, row: int, lines: np.ndarray, reading: Reading) -> BadLog:
    cell = cells.buffer[cells.starts[row] : cells.ends[row]].tobytes()
    time = b"-" in cell and b":" in cell
    hint = f"; of times, give {reading.spell('round_seconds', 'N')}" if time else ""
    return BadLog(path, f"line {lines[row]}: round must be an integer >= 0, is {_shown(cell)}{hint}")


def _longest(path: Source, cells: Places, lines: np.ndarray, cut: bool = False) -> int:
    """Bytes of the longest cell."""
    lengths = cells.ends - cells.starts
    longest = int(lengths.max(initial=0))
    if longest > LONGEST_CELL and not cut:
        line = lines[int(np.argmax(lengths))]
        raise BadLog(path, f"line {line}: holds a cell of {longest} bytes, at most {LONGEST_CELL} are allowed")
    return longest


FORMAT = Format("csv", "a table of comma, semicolon or tab", read_csv, is_csv, (".csv", ".tsv", ".tab"))
