"""A participation log: who took part when, from any of the formats, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpbc.errors import ConfigError, shorten

Progress = Callable[[int, int], None]
"""``progress(done, total)`` in bytes (or rows), called now and then while a file is read."""

MOST_ROUNDS = 10_000_000
"""More rounds than this are taken for a mistake (a time stamp in the column ``round``)."""


@dataclass(frozen=True, eq=False)
class ParticipationLog:
    """Who took part when: T rounds, m clients, n active pairs (round, client), sorted by round, then client."""

    clients: list[str]
    """Every client id, those never seen too; the index is the client's number. Empty when only counts are known."""
    num_rounds: int
    """T; rounds without any active client count."""
    first_round: int
    """What the file calls its first round."""
    rounds: np.ndarray
    """int32[n]: the round (0..T-1) of every active pair."""
    members: np.ndarray
    """int32[n]: the client number of every active pair."""
    sizes: np.ndarray | None = None
    """f[m]: sample sizes."""
    groups: list[str] | None = None
    """A group label per client."""
    skipped: dict[str, int] = field(default_factory=dict)
    """What was skipped -> how many lines."""
    counts_only: np.ndarray | None = None
    """int[T]: how many clients took part, when the log holds nothing else; then rounds and members are empty."""
    source: str = ""
    """The file's name."""
    format: str = ""
    """csv, parquet, npy, jsonl or flower."""
    notes: tuple[str, ...] = ()
    """What was assumed while reading, in words."""
    counts_clients: int | None = None
    """m, when the log holds counts only and m is known."""

    @property
    def num_clients(self) -> int | None:
        """m, or None when the log holds counts only and nobody said."""
        return self.counts_clients if self.counts_only is not None else len(self.clients)

    def active_counts(self) -> np.ndarray:
        """|A^t|, int[T]."""
        if self.counts_only is not None:
            return self.counts_only
        return np.bincount(self.rounds, minlength=self.num_rounds)

    def round_slice(self, t: int) -> np.ndarray:
        """A^t as sorted client numbers [|A^t|]."""
        first, last = np.searchsorted(self.rounds, [t, t + 1])
        return self.members[first:last]

    @classmethod
    def from_matrix(cls, active: np.ndarray, clients: Sequence[str] | None = None) -> ParticipationLog:
        """A log from bool[T, m]; clients are called "0", "1", ... unless named. Raises ConfigError like a file."""
        active = np.asarray(active)
        if active.ndim != 2 or not np.all((active == 0) | (active == 1)):
            raise ConfigError(f"a matrix of 0 and 1 or booleans (rounds, clients) is needed, has shape {active.shape}")
        names = list(clients) if clients is not None else [str(i) for i in range(active.shape[1])]
        if len(names) != active.shape[1] or len(set(names)) < len(names):
            raise ConfigError(f"clients must be {active.shape[1]} different names, one per column")
        t, i = np.nonzero(active)
        log = cls(names, len(active), 0, t.astype(np.int32), i.astype(np.int32), source="matrix", format="npy")
        require_clients(log)
        return log


class Rows(NamedTuple):
    """A piece of a file, in its order."""

    rounds: np.ndarray
    """int64[k]."""
    codes: np.ndarray
    """int32[k]: the client's number in the order of first appearance."""
    active: np.ndarray
    """bool[k]."""


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
    """What a reader hands over: pieces of rows, and what it knows about them."""

    pieces: Iterator[Rows]
    names: Names
    gaps_are_empty: bool
    """A round that no row names had no active client; otherwise it is an error."""
    listed_rounds: list[int] = field(default_factory=list)
    """Rounds that exist although they may have no row."""
    lists_inactive: bool = False
    """There is a row for every pair of round and client, active or not."""
    blank_lines: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_line: int | None = None
    """Line of the first row; None when rows are no lines."""

    def where(self, row: int) -> str:
        """``line 7`` of a row, counted with the blank lines before it."""
        if self.first_line is None:
            return f"row {row}"
        line = row + self.first_line
        for blank in self.blank_lines:
            line += blank <= line
        return f"line {line}"


def assemble(path: Path, kind: str, table: Table) -> ParticipationLog:
    """Sort and check the rows of a file: O(n log n), a few arrays of n.

    Raises ConfigError on no rows, duplicates, missing rounds, one client, nobody active.
    """
    pieces = list(table.pieces)
    if not pieces and not table.listed_rounds:
        raise ConfigError(f"{path}: holds no rows")
    rounds, codes, active = _join(pieces)
    first, num_rounds = _range(path, rounds, table)
    clients, rank = ordered(table.names.codes)
    m = max(len(clients), 1)
    keys = (rounds - first) * m + rank[codes]
    _no_duplicates(path, keys, table, clients, m, first)
    _no_gaps(path, keys, table, num_rounds, m, first)
    if table.lists_inactive and len(keys) < num_rounds * m:
        missing = num_rounds * m - len(keys)
        table.notes.append(f"{missing:,} pairs of round and client have no row; they count as not active")
    keys = np.sort(keys[active])
    members = np.remainder(keys, m).astype(np.int32)
    keys //= m
    skipped = {"blank lines": len(table.blank_lines)} if table.blank_lines else {}
    return ParticipationLog(
        clients, num_rounds, first, keys.astype(np.int32), members,
        skipped=skipped, source=path.name, format=kind, notes=tuple(table.notes),
    )  # fmt: skip


def _join(pieces: list[Rows]) -> Rows:
    empty = Rows(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, bool))
    return Rows(*(np.concatenate(column) for column in zip(empty, *pieces, strict=True)))


def _range(path: Path, rounds: np.ndarray, table: Table) -> tuple[int, int]:
    listed = table.listed_rounds
    ends = [*([int(rounds.min()), int(rounds.max())] if len(rounds) else []), *listed]
    first, last = min(ends), max(ends)
    if last - first >= MOST_ROUNDS:
        raise ConfigError(
            f"{path}: rounds go from {first} to {last}: at most {MOST_ROUNDS:,} rounds are allowed; number the rounds "
            "0, 1, 2, ... (are these time stamps?)"
        )
    return first, last - first + 1


def ordered(codes: dict[str, int]) -> tuple[list[str], np.ndarray]:
    """Client ids in numeric order if all are integers, else alphabetic; and the rank of every code [m]."""
    names = sorted(codes, key=int) if all(map(_is_integer, codes)) else sorted(codes)
    rank = np.empty(len(names), np.int64)
    rank[[codes[name] for name in names]] = np.arange(len(names))
    return names, rank


def _is_integer(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 19 and (name == "0" or name[0] != "0")


def _no_duplicates(path: Path, keys: np.ndarray, table: Table, clients: list[str], m: int, first: int) -> None:
    ordered_keys = np.sort(keys)
    twice = np.flatnonzero(ordered_keys[1:] == ordered_keys[:-1])
    if len(twice):
        key = ordered_keys[twice[0]]
        rows = np.flatnonzero(keys == key)
        raise ConfigError(
            f"{path}: {table.where(int(rows[1]))}: round {key // m + first}, client {shorten(clients[key % m])} stands "
            f"there twice, first in {table.where(int(rows[0]))}; {len(twice):,} duplicates in all, none is allowed"
        )


def _no_gaps(path: Path, keys: np.ndarray, table: Table, num_rounds: int, m: int, first: int) -> None:
    present = np.zeros(num_rounds, bool)
    present[keys // m] = True
    present[np.array(table.listed_rounds, np.int64) - first] = True
    missing = np.flatnonzero(~present)
    if len(missing) and not table.gaps_are_empty:
        raise ConfigError(
            f"{path}: round {missing[0] + first} is missing ({len(missing):,} of {num_rounds:,} rounds are): rounds "
            "must be contiguous; a round without an active client needs its own row or line too"
        )
    if len(missing):
        table.notes.append(
            f"{len(missing):,} rounds between the first and the last have no row; they count as rounds without an "
            "active client"
        )


def require_clients(log: ParticipationLog) -> None:
    """Raise ConfigError when there is nothing to compare: nobody active, or a single client."""
    where = log.source
    if not len(log.rounds) and log.counts_only is None:
        raise ConfigError(f"{where}: no client is active in any of {log.num_rounds:,} rounds; at least one must be")
    if log.num_clients == 1:
        raise ConfigError(f"{where}: holds a single client; an audit compares at least two (--clients N adds unseen)")


CLIENTS_MAX = 10_000_000
"""The largest number of clients: each has a name and a row of statistics."""


def with_clients(log: ParticipationLog, total: int | None, known: Sequence[str]) -> ParticipationLog:
    """Add clients that were never seen: those named in ``known`` (sizes, groups), then up to ``total`` unnamed ones.

    If the ids are integers from 0 (or 1) up to ``total``, the missing numbers are their names. Raises ConfigError
    when ``total`` is smaller than the number of ids.
    """
    if total is not None and total > CLIENTS_MAX:
        raise ConfigError(f"--clients {shorten(total)}: must be at most {CLIENTS_MAX:,}")
    if log.counts_only is not None:
        least = max(int(log.counts_only.max()), log.counts_clients or 0)
        if total is not None and total < least:
            raise ConfigError(f"--clients {total}: must be at least {least}, so many does {log.source} speak of")
        return replace(log, counts_clients=total or log.counts_clients)
    names = dict.fromkeys([*log.clients, *known])
    if total is not None and total < len(names):
        raise ConfigError(f"--clients {total}: must be at least {len(names)}, so many ids stand in {log.source}")
    for name in _names_for(names, total or 0):
        names.setdefault(name)
    clients, rank = ordered({name: code for code, name in enumerate(names)})
    keys = log.rounds.astype(np.int64) * len(clients) + rank[: len(log.clients)][log.members]
    keys.sort()
    members = np.remainder(keys, len(clients)).astype(np.int32)
    return replace(log, clients=clients, members=members)


def _names_for(names: dict[str, None], total: int) -> list[str]:
    if names and all(map(_is_integer, names)):
        numbers = {int(name) for name in names}
        for start in (0, 1):
            if min(numbers) >= start and max(numbers) < total + start:
                return [str(number) for number in range(start, total + start)]
    return [f"(unseen {number})" for number in range(1, total - len(names) + 1)]
