"""Times become rounds: of fixed length, told from pauses, or from intervals in which a client is up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpbc.core.memory import total_memory
from fedpbc.errors import shorten
from fedpbc.io.participation.columns import Columns
from fedpbc.io.participation.reading import BadLog, BadReading, Names, Reading, Rows, Table
from fedpbc.io.participation.source import Source
from fedpbc.io.participation.times import OPEN, Clock, unit_of

BYTES_A_PAIR = 24
STANDS_OUT = 3.0
"""How many times longer than the next shorter one the shortest pause between rounds must be."""


def length_of_round(source: Source, largest: int, table: Table) -> tuple[int, int, str]:
    """(a round in units of the times, where one begins, the unit). Raises BadReading."""
    reading = table.reading
    assert reading.round_seconds is not None
    unit, each = table.clock.unit(largest) if table.clock is not None else unit_of(largest)
    seconds = reading.round_seconds
    step = round(seconds * each)
    if step < 1 or abs(seconds * each - step) > 1e-6 * step:
        problem = f"must be a whole number of {unit}, for {source} holds times in {unit}"
        raise BadReading(reading, "round_seconds", f"{seconds:g}", problem)
    start = 0
    if reading.round_start is not None:

        def refuse(problem: str) -> BadReading:
            return BadReading(reading, "round_start", shorten(reading.round_start), problem)

        assert table.clock is not None
        start = table.clock.start(reading.round_start, refuse, largest)
    return step, start, unit


def rounds_of_pauses(source: Source, times: np.ndarray, table: Table) -> np.ndarray:
    """0, 1, 2, ...: a pause of more than ``round_gap`` begins a new round. [n] -> [n]."""
    reading = table.reading
    moments = np.unique(times)
    pauses = np.diff(moments)
    each = (table.clock.unit(int(moments[-1])) if table.clock is not None else unit_of(int(moments[-1])))[1]
    if reading.gap_seconds is not None:
        least = reading.gap_seconds * each
    else:
        least = _pause_that_stands_out(source, pauses, reading)
    numbers = np.concatenate([[0], np.cumsum(pauses > least)])
    table.notes.append(f"a pause of more than {least / each:.6g} s begins a round: {numbers[-1] + 1:,} rounds")
    return numbers[np.searchsorted(moments, times)]


def likely_length(moments: np.ndarray) -> float:
    """The median time between the rounds that pauses show, or between the times if none stands out; 0 of one time."""
    pauses = np.diff(moments)
    least = _widest_step(pauses)
    starts = moments[np.concatenate([[True], pauses > least])] if least is not None else moments
    return float(np.median(np.diff(starts))) if len(starts) > 1 else 0.0


def _widest_step(pauses: np.ndarray) -> float | None:
    """Half-way (in the logarithm) over the widest step between the pauses, put in order.

    None where it is narrow, or splits all but a few times from each other: two that are near make no rounds.
    """
    lengths = np.unique(pauses).astype(float)
    ratios = lengths[1:] / lengths[:-1]
    if not len(ratios) or ratios.max() < STANDS_OUT:
        return None
    k = int(np.argmax(ratios))
    least = float(np.sqrt(lengths[k] * lengths[k + 1]))
    rounds = 1 + np.count_nonzero(pauses > least)
    return least if 2 * (len(pauses) + 1) >= 3 * rounds else None


def _pause_that_stands_out(source: Source, pauses: np.ndarray, reading: Reading) -> float:
    found = _widest_step(pauses)
    if found is None:
        raise BadLog(
            source,
            "no pause between the times stands out, so rounds cannot be told from them: "
            f"{reading.spell('round_gap', 'SECONDS')} says how long a pause is, "
            f"{reading.spell('round_seconds', 'N')} a round",
        )
    return found


def spread_over_rounds(source: Source, table: Table) -> None:
    """Replace the intervals of a table by the pairs of round and client that they cover. Raises BadLog."""
    pieces = [piece for piece in table.pieces if len(piece.rounds)]
    if not pieces:
        raise BadLog(source, "holds no rows")
    codes = np.concatenate([piece.codes for piece in pieces])
    starts = np.concatenate([piece.rounds for piece in pieces])
    ends = np.concatenate([piece.ends for piece in pieces if piece.ends is not None])
    active = np.concatenate([piece.active for piece in pieces])
    wrong = np.flatnonzero(ends < starts)
    if len(wrong):
        raise BadLog(source, f"{table.where(int(wrong[0]))}: the interval ends before it begins")
    closed = ends[ends != OPEN]
    first, last = int(starts.min()), max(int(starts.max()), int(closed.max(initial=0)))
    if len(closed) < len(ends):
        table.notes.append(f"{len(ends) - len(closed):,} intervals have no end: they go on to the end of the log")
        ends = np.where(ends == OPEN, last, ends)
    _require_length(source, table, starts, ends, last)
    step, origin, _ = length_of_round(source, last, table)
    throughout = table.reading.active_when == "throughout"
    codes, starts, ends = _merged(codes[active], starts[active], ends[active])
    begin, stop = -((origin - first) // step), -((origin - last) // step)
    if throughout:
        stop = (last - origin) // step
    if stop <= begin:
        raise BadLog(source, f"no round fits into it: {table.reading.spell('round_seconds')} must be shorter")
    lows = -((origin - starts) // step)
    highs = (ends - origin) // step if throughout else -((origin - ends) // step)
    lows, highs = np.maximum(lows, begin) - begin, np.minimum(highs, stop) - begin
    table.listed_rounds = np.arange(stop - begin)
    table.pieces = _pairs(source, codes, lows, np.maximum(highs - lows, 0))
    table.expected_rows = None
    when = "throughout it" if throughout else "when it begins"
    table.notes.append(
        f"intervals: a client is active in a round of {table.reading.round_seconds:,.12g} s if it is up {when}"
    )
    table.clock = None


def _require_length(source: Source, table: Table, starts: np.ndarray, ends: np.ndarray, last: int) -> None:
    reading = table.reading
    if reading.round_seconds is None:
        each = (table.clock.unit(last) if table.clock is not None else unit_of(last))[1]
        median = float(np.median(ends - starts)) / each
        option = reading.spell("round_seconds", "N")
        raise BadLog(
            source, f"holds intervals, half of them {median:,.6g} s or less: {option} says how long a round is"
        )


def _merged(codes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Intervals of a client that overlap or touch, as one; in the order of clients and time."""
    order = np.lexsort((starts, codes))
    codes, starts, ends = codes[order], starts[order], ends[order]
    if not len(codes):
        return codes, starts, ends
    by_end = np.argsort(ends, kind="stable")
    rank = np.empty(len(ends), np.int64)
    rank[by_end] = np.arange(len(ends))
    furthest = np.maximum.accumulate(codes.astype(np.int64) * len(ends) + rank) % len(ends)
    reach = ends[by_end[furthest]]
    new = np.concatenate([[True], (codes[1:] != codes[:-1]) | (starts[1:] > reach[:-1])])
    lasts = np.append(np.flatnonzero(new)[1:] - 1, len(codes) - 1)
    return codes[new], starts[new], reach[lasts]


def _pairs(source: Source, codes: np.ndarray, lows: np.ndarray, counts: np.ndarray) -> Iterator[Rows]:
    total = int(counts.sum())
    if total * BYTES_A_PAIR > total_memory():
        raise BadLog(source, f"{total:,} pairs of round and client do not fit into memory: make rounds longer")
    before = np.cumsum(counts) - counts
    rounds = np.repeat(lows - before, counts) + np.arange(total)
    yield Rows(rounds, np.repeat(codes, counts), np.ones(total, bool))


class Intervals:
    """Intervals in seconds on their way into a table; fractions are kept to a microsecond."""

    def __init__(self, reading: Reading, names: Names | None = None) -> None:
        self.names = names or Names()
        self._reading = reading
        self._codes: list[int] = []
        self._starts: list[float] = []
        self._ends: list[float] = []

    def __len__(self) -> int:
        return len(self._codes)

    def add(self, client: str, start: float, end: float) -> None:
        """``client`` is up from ``start`` to ``end``."""
        self._codes.append(self.names.codes.setdefault(client, len(self.names.codes)))
        self._starts.append(start)
        self._ends.append(end)

    def table(self, source: Source, first: float | None = None, last: float | None = None) -> Table:
        """The table; ``first`` and ``last``: the log goes from here to there, if that is more than the intervals."""
        if not self._codes:
            raise BadLog(source, "no client is up at any time")
        marks = [each for each in (first, last) if each is not None]
        times = [*self._starts, *self._ends, *marks]
        scale = 1 if all(float(each).is_integer() for each in times) else 10**6
        clock = Clock()
        clock.kind = "whole" if scale == 1 else "fraction"
        columns = Columns(source, ["client", "start", "end"], self._reading)
        table = Table(iter(()), self.names, self._reading, columns, clock=clock)
        starts, ends, edges = (
            np.round(np.array(values, float) * scale).astype(np.int64) for values in (self._starts, self._ends, marks)
        )
        codes = np.concatenate([np.array(self._codes, np.int32), np.zeros(len(edges), np.int32)])
        active = np.arange(len(codes)) < len(starts)
        table.pieces = iter([Rows(np.append(starts, edges), codes, active, np.append(ends, edges))])
        return table
