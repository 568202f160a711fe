"""The interface of readers: how a file is to be read, and the rows it gives."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpbc.errors import ConfigError, shorten
from fedpbc.io.participation.source import Source

if TYPE_CHECKING:
    from fedpbc.io.participation.columns import Columns
    from fedpbc.io.participation.log import ParticipationLog
    from fedpbc.io.participation.times import Clock

Progress = Callable[[int, int], None]
"""``progress(done, total)`` in bytes (or rows), called now and then while a file is read."""


class BadLog(ConfigError):
    """Something in a file: ``BadLog(path, "line 3: ...")``."""

    def __init__(self, path: Path | Source, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.problem = problem


class BadReading(ConfigError):
    """An option of ``Reading`` that is not allowed, or not with this file."""

    def __init__(self, reading: Reading, option: str, value: str, problem: str) -> None:
        super().__init__(f"{reading.spell(option, value)}: {problem}")
        self.option, self.problem = option, problem


def as_option(name: str, value: str = "") -> str:
    """How the command line writes it; a shell takes ``value`` as one word.

    >>> as_option("active_column", "status=ok"), as_option("active_column", "*=ok"), as_option("drop_duplicates")
    ('--active-column status=ok', "--active-column '*=ok'", '--drop-duplicates')
    """
    word = value if value.startswith('"') else shlex.quote(value)
    return f"--{name.replace('_', '-')}" + (f" {word}" if value else "")


def as_key(name: str, value: str = "") -> str:
    """How an experiment file writes it.

    >>> as_key("active_column", "status=ok"), as_key("round_seconds", "60"), as_key("drop_duplicates")
    ('active_column = "status=ok"', 'round_seconds = 60', 'drop_duplicates = true')
    """
    if name == "drop_duplicates":
        return f"{name} = true"
    quoted = not value or name == "round_seconds" or value.startswith('"')
    return (f"{name} = {value}" if quoted else f'{name} = "{value}"') if value else name


@dataclass(frozen=True)
class Reading:
    """Options for reading a file, for what the file itself does not say."""

    active_column: str | None = None
    """``NAME``: this column says who took part; ``NAME=VALUE,VALUE``: rows with one of these values took part;
    ``none``: every row did."""
    round_seconds: float | None = None
    """Times instead of rounds: a round is so long."""
    missing_rounds: str | None = None
    """``empty`` or ``unknown``: what rounds that are not there are; None refuses them."""
    drop_duplicates: bool = False
    """A pair of round and client may stand there more than once; it counts once."""
    columns: str | None = None
    """``ROLE=NAME,ROLE=NAME``: what columns are called, or their numbers from 1; the roles are ``columns.ROLES``."""
    group: str | None = None
    """A column that says which group a client belongs to."""
    table: str | None = None
    """The table of a database, or the sheet of a workbook."""
    query: str | None = None
    """The query of a database whose answer is the log."""
    round_start: str | None = None
    """The time at which one of the rounds begins; None: 0, midnight of 1 January 1970 UTC."""
    round_gap: str | None = None
    """Times instead of rounds: a pause of more than so many seconds begins a round; ``auto``: told from the times."""
    active_when: str | None = None
    """Of intervals: ``start``, active in the rounds that begin while it is up (None is this), or ``throughout``."""
    complete: bool = False
    """Every pair must have a row, in a file that lists those who did not take part too."""
    spell: Callable[..., str] = as_option
    """How messages write these options: ``spell(name)``, ``spell(name, value)``."""

    def check(self) -> None:
        """Raise BadReading on values that are not allowed."""
        column = self.active_column
        if column is not None and not (isinstance(column, str) and column):
            raise BadReading(self, "active_column", shorten(column), "must be NAME, NAME=VALUE,VALUE or none")
        if self.missing_rounds not in (None, "empty", "unknown"):
            raise BadReading(self, "missing_rounds", shorten(self.missing_rounds), "must be empty or unknown")
        seconds = self.round_seconds
        numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (numeric and 0 < seconds < 1e9):
            raise BadReading(self, "round_seconds", shorten(self.round_seconds), "must be a number > 0, below 10^9")
        self._check_more()

    def _check_more(self) -> None:
        if self.active_when not in (None, "start", "throughout"):
            raise BadReading(self, "active_when", shorten(self.active_when), "must be start or throughout")
        if self.round_gap is not None and self.gap_seconds == 0:
            problem = "must be auto or a number of seconds > 0, below 10^9"
            raise BadReading(self, "round_gap", shorten(self.round_gap), problem)
        if self.round_gap is not None and (self.round_seconds is not None or self.round_start is not None):
            other = "round_seconds" if self.round_seconds is not None else "round_start"
            raise BadReading(self, "round_gap", self.round_gap, f"choose one of it and {self.spell(other)}")
        if self.round_start is not None and self.round_seconds is None:
            raise BadReading(self, "round_start", self.round_start, f"needs {self.spell('round_seconds', 'N')}")
        if self.table is not None and self.query is not None:
            raise BadReading(self, "query", shorten(self.query), f"choose one of it and {self.spell('table')}")

    @property
    def gap_seconds(self) -> float | None:
        """``round_gap`` as a number; None for ``auto`` or none, 0 for what is no number of seconds."""
        if self.round_gap is None or self.round_gap == "auto":
            return None
        try:
            seconds = float(self.round_gap)
        except ValueError:
            return 0.0
        return seconds if 0 < seconds < 1e9 else 0.0

    @property
    def of_times(self) -> bool:
        """The user says how times become rounds."""
        return self.round_seconds is not None or self.round_gap is not None

    def given(self) -> list[str]:
        """Which of the options are not at their default."""
        return [name for name in OPTIONS if getattr(self, name) not in (None, False)]


OF_TIMES = ("round_seconds", "round_start", "round_gap", "active_when")
"""Options for times instead of rounds."""
OF_ROWS = ("active_column", "columns", "group", "drop_duplicates", "missing_rounds", *OF_TIMES)
"""Options that every file of rows takes."""
OPTIONS = (*OF_ROWS, "table", "query")
"""The options of ``Reading`` that a user has."""
OF_INTERVALS = ("round_seconds", "round_start", "active_when")
"""Options of traces that hold intervals."""


class Rows(NamedTuple):
    """A piece of a file, in its order."""

    rounds: np.ndarray
    """int64[k]: rounds, or times."""
    codes: np.ndarray
    """int32[k]: the client's number in the order of first appearance."""
    active: np.ndarray
    """bool[k]."""
    ends: np.ndarray | None = None
    """int64[k]: of intervals, which ``rounds`` are the begins of, their ends."""


class Names:
    """Client ids in the order of first appearance, numbered."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def encode(self, names: Sequence[str]) -> np.ndarray:
        """Numbers of ``names``, int32[k]; new ones get the next number."""
        codes = self.codes
        return np.array([codes.setdefault(name, len(codes)) for name in names], np.int32)


@dataclass
class Table:
    """What a reader of rows hands over: pieces of them, and what it knows about them."""

    pieces: Iterator[Rows]
    names: Names
    reading: Reading
    columns: Columns
    listed_rounds: list[int] | np.ndarray = field(default_factory=list)
    """Rounds that exist although they may have no row."""
    clock: Clock | None = None
    """What the times of the file are in; None where it holds rounds."""
    groups: dict[int, str] = field(default_factory=dict)
    """The group of a client's number, where a column says it."""
    skipped_lines: int = 0
    """Lines of a server's log that say nothing of clients."""
    row_width: int = 1
    """How many pairs stand in a line, in a table with a column for every client."""
    lists_inactive: bool = False
    """There is a row for every pair of round and client, active or not."""
    blank_lines: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_line: int | None = None
    """Line of the first row; None when rows are no lines."""
    expected_rows: int | None = None
    """About how many rows there are, said with the first piece at the latest; None: not known."""

    def join_groups(self, path: Source, codes: np.ndarray, groups: np.ndarray, names: Sequence[str]) -> None:
        """Take note of the group of every row, numbers into ``names``. Raises BadLog when a client has two."""
        both = np.unique(codes.astype(np.int64) * len(names) + groups)
        for code, group in zip(*(part.tolist() for part in np.divmod(both, len(names))), strict=True):
            if self.groups.setdefault(code, names[group]) != names[group]:
                client = next(name for name, number in self.names.codes.items() if number == code)
                raise BadLog(
                    path,
                    f"client {shorten(client)} is in two groups, {shorten(self.groups[code])} and "
                    f"{shorten(names[group])}; column {self.columns.group} must say one",
                )

    def where(self, row: int) -> str:
        """``line 7`` of a row, counted with the blank lines before it."""
        row //= self.row_width
        if self.first_line is None:
            return f"row {row}"
        line = row + self.first_line
        for blank in self.blank_lines:
            line += blank <= line
        return f"line {line}"


@dataclass(frozen=True)
class Format:
    """A format of participation logs: one file of this folder, and one line in ``formats.FORMATS``."""

    name: str
    what: str
    """What a file is, where options are refused, and in the table of formats."""
    read: Callable[[Source, Reading, Progress | None], Table | ParticipationLog]
    """Rows, which are then sorted and checked; or a log, from a file without rows."""
    recognises: Callable[[Source], bool]
    """Whether the content is this format: the first format that says so reads the file."""
    endings: tuple[str, ...] = ()
    """Of file names, lower case: who reads a file that nobody recognises, and says what is wrong with it."""
    options: tuple[str, ...] = OF_ROWS
    """The options of ``Reading`` that make sense here; the others are refused."""
    folder: bool = False
    """Reads a folder of files too."""


def decode(path: Path | Source, data: bytes, line: int) -> str:
    """Text of ``data``, which begins in ``line``. Raises BadLog when it is not UTF-8 or holds a zero byte."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        byte = data[error.start]
        raise BadLog(path, f"line {line}: is not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8") from None
    if "\0" in text:
        line += data.count(b"\n", 0, data.index(b"\0"))
        raise BadLog(path, f"line {line}: holds a zero byte, must be UTF-8 text")
    return text
