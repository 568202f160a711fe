"""Turn the rows of a file into a log: convert times to rounds, sort, find duplicates and missing rounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.core.memory import total_memory
from fedpbc.errors import shorten
from fedpbc.io.participation.intervals import length_of_round, likely_length, rounds_of_pauses, spread_over_rounds
from fedpbc.io.participation.log import ParticipationLog, ordered
from fedpbc.io.participation.pairs import Found, Pairs, distinct
from fedpbc.io.participation.reading import BadLog, Reading, Rows, Table
from fedpbc.io.participation.source import Source
from fedpbc.io.participation.times import unit_of

MOST_ROUNDS = 10_000_000
"""More rounds than this are taken for a mistake (a time stamp in the column ``round``)."""
SPARSE = 0.1
"""Where no more than this share of the rounds is there, the numbers are taken for times."""
NO_ROUND = 5 * 10**8
"""A log whose first round has this number, or a larger one, holds times (seconds since 1970, from 1985 on)."""
INT32_MAX = 2**31 - 1


def assemble(path: Source, kind: str, table: Table) -> ParticipationLog:
    """Number and check the rows of a file: a few arrays of n, sorted only where neither the file nor a table does it.

    Raises BadLog on no rows, columns that may say who took part and are not used, numbers that look like times,
    duplicates, missing rounds and missing pairs that were not allowed, and more rows than memory can hold.
    """
    times = not table.columns.roles.end
    if not times:
        spread_over_rounds(path, table)
    pieces = _collect(path, table)
    if not pieces and not len(table.listed_rounds):
        raise BadLog(path, "holds no rows")
    rounds, codes, active, _ = _join(pieces)
    table.notes.extend(table.columns.notes())
    span = _number_rounds(path, rounds, table, times)
    del rounds
    clients, rank = ordered(table.names.codes)
    m = max(len(clients), 1)
    table.columns.check(path, len(codes) == len(span.there) * m and bool(active.all()))
    pairs = Pairs(span.rounds, rank.astype(np.int32)[codes], active, m, span.total)
    del codes
    found = _pairs_of_rows(path, pairs, table, clients, span.first)
    unknown = _gaps(path, span, table)
    absent = (span.total - len(unknown)) * m - found.distinct
    if table.lists_inactive and absent > 0:
        _absent_pairs(path, absent, pairs, found.distinct, span, clients, table)
    skipped = {
        "blank lines": len(table.blank_lines),
        "lines of a server's log that name no result": table.skipped_lines,
    }
    groups = [table.groups.get(table.names.codes[name], "") for name in clients] if table.groups else None
    return ParticipationLog(
        clients, span.total, span.first, found.rounds, found.members,
        skipped={what: lines for what, lines in skipped.items() if lines},
        source=path.name, format=kind, notes=tuple(table.notes), unknown=unknown, groups=groups,
        dropped_duplicates=len(active) - found.distinct, pairs_only=not table.lists_inactive,
    )  # fmt: skip


BYTES_A_ROW = 24
"""What a row needs while a log is assembled, about: its round, client and answer, once more, and the active pair."""


def _collect(path: Source, table: Table) -> list[Rows]:
    """All pieces, in the smallest types; refuses, after the first, more rows than memory can hold."""
    pieces: list[Rows] = []
    for rounds, codes, active, _ in table.pieces:
        if not pieces and table.expected_rows is not None:
            _require_room(path, table.expected_rows)
        small = len(rounds) == 0 or int(rounds.max()) <= INT32_MAX
        pieces.append(Rows(rounds.astype(np.int32) if small else rounds, codes, active))
    return pieces


def _require_room(path: Source, rows: int) -> None:
    needed, available = rows * BYTES_A_ROW, total_memory()
    if needed > available:
        raise BadLog(
            path,
            f"about {rows:,} rows would need about {needed / 1e9:,.1f} GB of memory, this machine has "
            f"{available / 1e9:,.1f} GB, enough for {available // BYTES_A_ROW:,}; audit a part of the rounds",
        )


def _join(pieces: list[Rows]) -> Rows:
    """The pieces as one, a column at a time; ``pieces`` is emptied."""
    columns = [list(column) for column in zip(*(piece[:3] for piece in pieces), strict=True)] or [[], [], []]
    pieces.clear()
    joined = []
    for column, kind in zip(columns, (np.int32, np.int32, bool), strict=True):
        joined.append(np.concatenate(column) if column else np.empty(0, kind))
        column.clear()
    return Rows(*joined)


class Span(NamedTuple):
    """The rounds of a file."""

    rounds: np.ndarray
    """int32[n]: of every row, counted from ``first``."""
    first: int
    total: int
    """From the first to the last."""
    there: np.ndarray
    """int64[k]: those that are there, ascending, as the file calls them."""


def _number_rounds(path: Source, rounds: np.ndarray, table: Table, times: bool) -> Span:
    """What the rows say of when: numbers of rounds, or ``times`` that become rounds."""
    listed = np.array(table.listed_rounds, np.int64)
    seconds = table.reading.round_seconds if times else 1.0
    if times and table.reading.round_gap is not None:
        if not len(rounds):
            raise BadLog(path, f"{table.reading.spell('round_gap')} needs a time in every row")
        rounds, listed = rounds_of_pauses(path, rounds, table), listed[:0]
        seconds = 1.0
    elif times and seconds is not None:
        rounds, listed = _rounds_of_times(path, rounds, listed, table)
    elif times and table.clock is not None and table.columns.roles.is_time:
        raise BadLog(path, _which_length(distinct(rounds.astype(np.int64)), table))
    if table.clock is not None:
        table.notes.extend(table.clock.notes())
    ends = [int(end) for part in (rounds, listed) if len(part) for end in (part.min(), part.max())]
    first, total = min(ends), max(ends) - min(ends) + 1
    if total <= MOST_ROUNDS:
        rounds = (rounds - first).astype(np.int32, copy=False)
        present = np.zeros(total, bool)
        present[rounds] = True
        present[listed - first] = True
        there = np.flatnonzero(present) + first
    else:
        there = distinct(np.concatenate([distinct(rounds), listed]).astype(np.int64))
    if seconds is None and (first >= NO_ROUND or (len(there) > 2 and len(there) <= SPARSE * total)):
        raise BadLog(path, _are_these_times(there, total, table.reading))
    if total > MOST_ROUNDS:
        raise BadLog(
            path,
            f"rounds go from {first} to {first + total - 1}: at most {MOST_ROUNDS:,} rounds are allowed; "
            "number the rounds 0, 1, 2, ..."
            + (f" (are these time stamps? {table.reading.spell('round_seconds', 'N')})" if seconds is None else ""),
        )
    return Span(rounds, first, total, there)


def _which_length(there: np.ndarray, table: Table) -> str:
    """Times without a length of a round: ask, with one that is likely."""
    assert table.clock is not None
    each = table.clock.unit(int(there[-1]))[1]
    unit = table.clock.unit_in_file(int(there[-1]))
    likely = likely_length(there)
    length = f"{float(f'{likely / each:.3g}'):.12g}" if likely else "N"
    return (
        f"column {table.columns.roles.moment} holds times{f' in {unit}' * bool(unit)}: "
        f"{table.reading.spell('round_seconds', length)} "
        f"makes rounds of that length of them, {table.reading.spell('round_gap', 'auto')} tells rounds from pauses"
    )


def _are_these_times(there: np.ndarray, total: int, reading: Reading) -> str:
    """Numbers too large, or with too many gaps, for rounds: ask, with the length of a round that is likely."""
    gaps = np.diff(there)
    unit, each = unit_of(int(there[-1]))
    step = int(np.gcd.reduce(gaps))
    shared = step >= max(each, 2)
    likely = step if shared else int(np.median(gaps)) if len(gaps) else each
    found = f"round goes from {there[0]} to {there[-1]}, and {len(there):,} of these {total:,} numbers are there"
    if len(gaps) and likely > 1:
        found += f", all a multiple of {step:,} apart" if shared else f", half of them {likely:,} apart or less"
    length = f"{likely / each:.12g}" if len(gaps) and likely > 1 else "N"
    return (
        f"{found}: are these times in {unit}? {reading.spell('round_seconds', length)} makes rounds of that length of "
        "them, another length others"
        + (f"; {reading.spell('round_seconds', '1')} takes the numbers as they are" if each == 1 else "")
    )


def _rounds_of_times(
    path: Source, times: np.ndarray, listed: np.ndarray, table: Table
) -> tuple[np.ndarray, np.ndarray]:
    """floor((time - round_start) / step), less that of the first time."""
    ends = [int(end) for part in (times, listed) if len(part) for end in (part.min(), part.max())]
    step, start, unit = length_of_round(path, max(ends), table)
    first = (min(ends) - start) // step
    start_of_round = table.reading.round_start
    time = "time" if start_of_round is None else f"(time - {start_of_round})"
    if table.clock is not None:
        unit = table.clock.unit_in_file(max(ends))
    table.notes.append(
        f"a round is floor({time} / {table.reading.round_seconds:,.12g} s), counted from the first, which is 0"
        + (f"; times are in {unit}" if unit else "")
    )
    return (times.astype(np.int64) - start) // step - first, (listed - start) // step - first


def _pairs_of_rows(path: Source, pairs: Pairs, table: Table, clients: list[str], first: int) -> Found:
    """Every pair once: it took part if one of its rows says so. Refuses duplicates that were not allowed."""
    found = pairs.found()
    dropped = len(pairs.active) - found.distinct
    if not dropped:
        return found
    if not table.reading.drop_duplicates:
        keys = pairs.keys(slice(None))
        in_order = np.sort(keys)
        key = in_order[np.argmax(in_order[1:] == in_order[:-1])]
        rows = np.flatnonzero(keys == key)
        raise BadLog(
            path,
            f"{table.where(int(rows[1]))}: round {key // pairs.m + first}, client {shorten(clients[key % pairs.m])} "
            f"stands there twice, first in {table.where(int(rows[0]))}; {dropped:,} duplicates in all, none is allowed "
            f"({table.reading.spell('drop_duplicates')} counts every pair once)",
        )
    text = "1 duplicate row was dropped" if dropped == 1 else f"{dropped:,} duplicate rows were dropped"
    if found.split:
        text += f"; {found.split:,} of the pairs are active in one row and not in another: they count as active"
    table.notes.append(text)
    return found


def _gaps(path: Source, span: Span, table: Table) -> np.ndarray:
    """The missing rounds that are unknown, int32[u], from 0; none where they count as empty."""
    missing = missing_rounds(span.there - span.first, span.total)
    if not len(missing):
        return np.empty(0, np.int32)
    meaning = table.reading.missing_rounds
    if meaning is None:
        spacing = _spacing(span, table.reading)
        raise BadLog(path, refusal(missing + span.first, span.total, table.reading) + spacing)
    table.notes.append(meaning_of_missing(len(missing), meaning))
    return missing.astype(np.int32) if meaning == "unknown" else np.empty(0, np.int32)


def missing_rounds(there: np.ndarray, total: int) -> np.ndarray:
    """Rounds of 0..total-1 that are not in ``there``."""
    present = np.zeros(total, bool)
    present[there] = True
    return np.flatnonzero(~present)


def refusal(missing: np.ndarray, total: int, reading: Reading) -> str:
    """The message that refuses missing rounds: which they are, and what to do."""
    which = f"round {missing[0]} is" if len(missing) == 1 else f"rounds {named(missing)} are"
    empty, unknown = (reading.spell("missing_rounds", meaning) for meaning in ("empty", "unknown"))
    text = f"{which} missing ({len(missing):,} of {total:,}): {empty} if no client took part in them"
    return text if reading.complete else f"{text}, {unknown} if they were not logged"


def meaning_of_missing(number: int, meaning: str) -> str:
    """The note on missing rounds."""
    what = "has no row: it counts" if number == 1 else "have no row: they count"
    text = f"{number:,} round{'' if number == 1 else 's'} between the first and the last {what}"
    return text + (" as unknown, in no statistic" if meaning == "unknown" else " as empty, without an active client")


def _spacing(span: Span, reading: Reading) -> str:
    step = int(np.gcd.reduce(np.diff(span.there)))
    option = reading.spell("round_seconds", str(step))
    return f"; all are a multiple of {step} apart: {option} numbers them 0, 1, 2, ..." if step > 1 else ""


def named(rounds: np.ndarray) -> str:
    """Ascending numbers as text, with ranges.

    >>> named(np.array([3, 5, 6, 7, 9]))
    '3, 5 to 7, 9'
    >>> named(np.arange(0, 100, 2))
    '0, 2, 4, 6 and 46 more'
    """
    breaks = np.flatnonzero(np.diff(rounds) != 1) + 1
    runs = np.split(rounds, breaks[:4])[:4] if len(breaks) >= 4 else np.split(rounds, breaks)
    text = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    more = len(rounds) - sum(map(len, runs))
    return text + (f" and {more:,} more" if more else "")


def _absent_pairs(
    path: Source, absent: int, pairs: Pairs, num_pairs: int, span: Span, clients: list[str], table: Table
) -> None:
    """Pairs without a row, in a file that lists those who did not take part too: refuse the first, or note them."""
    m = len(clients)
    if table.reading.complete and num_pairs < len(span.there) * m:
        keys = distinct(pairs.keys(slice(None)))
        rounds, members = np.divmod(keys, m)
        place = np.searchsorted(span.there - span.first, rounds) * m + members
        gap = int(np.argmax(np.append(place, -1) != np.arange(len(keys) + 1)))
        raise BadLog(path, f"round {span.there[gap // m]} has no row for client {clients[gap % m]}")
    is_one = absent == 1
    table.notes.append(
        f"{absent:,} pair{'' if is_one else 's'} of round and client "
        + ("has no row; it counts as not active" if is_one else "have no row; they count as not active")
    )
