"""Cells of a block of CSV, found by comparing bytes; the csv module cuts where quotation marks ask for it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field

import numpy as np

from fedpbc.errors import shorten
from fedpbc.io.participation.cells import PAD, Places
from fedpbc.io.participation.reading import BadLog
from fedpbc.io.participation.source import Source


@dataclass
class Layout:
    """What the lines of a file look like."""

    source: Source
    columns: list[str]
    separator: str
    blank_lines: list[int] = field(default_factory=list)
    """Those met so far."""


def cut(file: Layout, data: bytes, line: int, wanted: list[str]) -> tuple[dict[str, Places], np.ndarray]:
    """The cells of the wanted columns, without surrounding blanks, and the line of every row."""
    buffer = np.frombuffer(data + bytes(PAD), np.uint8)
    quotes = data.count(b'"')
    found = _lines(file, data, buffer, line, may_skip=not quotes)
    if found is None:
        return _quoted(file, data, line, wanted)
    begins, marks, lines = found
    starts = np.column_stack([begins, marks[:, :-1] + 1])
    ends = marks
    ends[:, -1] -= (ends[:, -1] > starts[:, -1]) & (buffer[ends[:, -1] - 1] == 13)
    if quotes:
        around = (ends - starts > 1) & (buffer[starts] == 34) & (buffer[ends - 1] == 34)
        if 2 * int(np.count_nonzero(around)) != quotes or not _is_plain(data):
            return _quoted(file, data, line, wanted)
        starts, ends = starts + around, ends - around
    cells = {}
    for name in wanted:
        k = file.columns.index(name)
        cells[name] = _trimmed(
            buffer, starts[:, k].copy(), ends[:, k].copy(), b" " in data or (b"\t" in data and file.separator != "\t")
        )
    return cells, lines


def _is_plain(data: bytes) -> bool:
    """Nothing that the csv module or ``str.strip`` takes for a blank or a line end, beside space, tab and CR LF."""
    odd = (b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f")
    return data.isascii() and data.count(b"\r") == data.count(b"\r\n") and not any(each in data for each in odd)


def _lines(
    file: Layout, data: bytes, buffer: np.ndarray, line: int, may_skip: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(first byte of every row, its commas and its end [n, columns], its line).

    None for lines that are blank or have the wrong number of commas, unless ``may_skip`` (no comma is part of a cell).
    """
    width = len(file.columns)
    marks = np.flatnonzero((buffer == 10) | (buffer == ord(file.separator)))
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
    file.blank_lines.extend(lines[~filled].tolist())
    wrong = filled & (commas != width - 1)
    if np.any(wrong):
        row = int(np.argmax(wrong))
        text = data[begins[row] : ends[row]].decode().removesuffix("\r")
        raise _wrong_width(file.source, int(lines[row]), text, file.columns, file.separator)
    return begins[filled], marks[np.repeat(filled, commas + 1)].reshape(-1, width), lines[filled]


def _trimmed(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, blanks: bool) -> Places:
    if blanks:
        while np.any(blank := (starts < ends) & np.isin(buffer[starts], (32, 9))):
            starts = starts + blank
        while np.any(blank := (starts < ends) & np.isin(buffer[ends - 1], (32, 9))):
            ends = ends - blank
    return Places(buffer, starts, ends)


def _wrong_width(path: Source, line: int, text: str, columns: list[str], separator: str) -> BadLog:
    count = len(text.split(separator))
    hint = "; is the file truncated?" if count < len(columns) else ""
    return BadLog(
        path, f"line {line}: must have {len(columns)} cells like the header, has {count}: {shorten(text)}{hint}"
    )


def _quoted(file: Layout, data: bytes, line: int, wanted: list[str]) -> tuple[dict[str, Places], np.ndarray]:
    """Like _cut, where quotation marks do more than stand around a cell; no cell may go over a line end."""
    path, columns = file.source, file.columns
    rows, lines = [], []
    reader = csv.reader(io.StringIO(data.decode("utf-8")), strict=True, skipinitialspace=True, delimiter=file.separator)
    try:
        for row in reader:
            here = line + reader.line_num - 1
            if not row:
                file.blank_lines.append(here)
                continue
            if len(row) != len(columns) or any("\n" in cell for cell in row):
                raise _wrong_width(path, here, file.separator.join(row), columns, file.separator)
            rows.append([cell.strip().encode() for cell in row])
            lines.append(here)
    except csv.Error as error:
        raise BadLog(path, f"line {line + reader.line_num - 1}: is not CSV: {error}") from None
    return {name: _joined([row[columns.index(name)] for row in rows]) for name in wanted}, np.array(lines, np.int64)


def _joined(cells: list[bytes]) -> Places:
    ends = np.cumsum([len(cell) for cell in cells], dtype=np.int64)
    return Places(np.frombuffer(b"".join(cells) + bytes(PAD), np.uint8), np.append(0, ends)[:-1], ends)
