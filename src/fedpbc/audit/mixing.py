"""Question 4 of an audit: how fast FedPBC's averaging would have brought clients together on this very log.

Squared or not: averaging shrinks ||X (I - J)||_F^2, the squared distance of the models X [d, m] from their mean, by
||W^(0) ... W^(n-1) - J||_F^2 / (m - 1) when the columns of X are independent and alike. Readers think of the distance
itself, which shrinks by the root of that: a thousandth of the distance is a millionth of the squared distance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.io.participation.log import ParticipationLog

EXACT_UP_TO = 2000
"""Clients; above, random probes."""
PROBES = 16
FLOOR = 1e-6
"""A window ends when this share of the squared distance is left: a thousandth of the distance."""
WORK = 2e8
"""Numbers that may be averaged, about: windows are spread over the log so that this suffices."""
LONGEST_WORK = 1e9
"""The same for a single window, which then ends unfinished, and for all windows together."""


class Window(NamedTuple):
    """Rounds in a row, from clients that all differ."""

    rounds: int
    left: float
    """||W^(first) ... W^(last) - J||_F^2 / (m - 1) at its end, not below FLOOR: the share of the squared distance."""
    half: int | None = None
    """Rounds until half of the distance was left, a quarter of its square."""
    tenth: int | None = None


class Speed(NamedTuple):
    """How the log mixes, among the clients seen."""

    squared_left: float | None
    """Share of the squared distance that a round leaves, on the average over the way to FLOOR."""
    half_life: float | None
    """Rounds that halve the distance (not its square), at that speed."""
    cooldown: float | None
    """Rounds until a thousandth of the distance is left, a millionth of its square, at that speed."""
    extrapolated: bool
    """No window reached FLOOR: the log is shorter than its cool-down."""
    left_for_good: float
    """Share of the squared distance that no number of rounds takes away; 0 where all clients meet."""
    windows: int
    clients_seen: int
    halved_after: float | None = None
    """Rounds until half of the distance was left, measured: the median over the windows that got there."""
    tenth_after: float | None = None


def mixing(log: ParticipationLog, groups: int, seed: int = 0) -> Speed:
    """The speed (share left)^(1/rounds) of the log itself; the share is ||prod W^t - J||_F^2 / (m-1), m clients seen.

    W^t averages the models of A^t and leaves the rest; it is never built: the product acts on the columns of I - J
    (m up to 2000) or on 16 random ones. A window ends when 1e-6 is left, with its stretch of known rounds, or after
    10^9 numbers; windows are pooled as c = exp(sum log left / sum rounds). Everything else follows from c: half-life
    log(1/4) / log c, cool-down log(1e-6) / log c, which is the mean length of a window. groups: of clients seen that
    never meet; with more than one a share (groups - 1) / (m - 1) stays for good, and there is no speed.
    """  # fmt: skip
    seen = np.flatnonzero(np.bincount(log.members, minlength=len(log.clients)))
    if len(seen) < 2:
        return Speed(None, None, None, False, 0.0, 0, len(seen))
    if groups > 1:
        return Speed(None, None, None, False, (groups - 1) / (len(seen) - 1), 0, len(seen))
    place = np.zeros(len(log.clients), np.int64)
    place[seen] = np.arange(len(seen))
    windows = _windows(log, place, _start(len(seen), seed))
    finished = [window for window in windows if window.left <= FLOOR]
    used = finished or windows
    speed = sum(np.log(window.left) for window in used) / sum(window.rounds for window in used)
    if speed >= 0:
        return Speed(1.0, None, None, True, 0.0, len(used), len(seen))
    reached = [_median([window.half for window in windows]), _median([window.tenth for window in windows])]
    half, cooldown = (float(np.log(share**2) / speed) for share in (0.5, 1e-3))
    return Speed(float(np.exp(speed)), half, cooldown, not finished, 0.0, len(used), len(seen), *reached)


def _median(rounds: list[int | None]) -> float | None:
    known = [each for each in rounds if each is not None]
    return float(np.median(known)) if known else None


def _start(m: int, seed: int) -> np.ndarray:
    """Columns whose squared norm is, or estimates, m - 1 in all: those of I - J, or random ones of mean zero."""
    if m <= EXACT_UP_TO:
        return np.eye(m) - 1 / m
    columns = np.random.default_rng(seed).standard_normal((m, PROBES))
    return columns - columns.mean(0)


def _windows(log: ParticipationLog, place: np.ndarray, start: np.ndarray) -> list[Window]:
    """Windows from evenly spread rounds, each within a stretch of known rounds; the last of a stretch is unfinished."""
    meetings, total = _meetings(log), float(np.sum(start * start))
    found: list[Window] = []
    spacing, spent = 0, 0
    for begin, end in log.stretches().tolist():
        first = begin
        while first < end and spent <= LONGEST_WORK:
            window = _window(log, meetings, place, first, end, start, total)
            if window.left <= FLOOR or first == begin:
                found.append(window)
            before, after = np.searchsorted(log.rounds, [first, first + window.rounds]).tolist()
            work = (after - before) * start.shape[1] + start.size
            spent += work
            if window.left > FLOOR:
                break
            spacing = spacing or int(log.num_rounds / max(WORK / work, 1))
            first += max(window.rounds, spacing)
    return found


class Meetings(NamedTuple):
    """The rounds with two or more active clients: in all others FedPBC changes nothing."""

    rounds: np.ndarray
    """int32[k], ascending."""
    first: np.ndarray
    """int64[k]: place of its first active pair in the log."""
    after: np.ndarray
    """int64[k]: the place after its last."""


def _meetings(log: ParticipationLog) -> Meetings:
    begins = np.flatnonzero(np.concatenate([[True], log.rounds[1:] != log.rounds[:-1]]))
    ends = np.append(begins[1:], len(log.rounds))
    several = ends - begins > 1
    return Meetings(log.rounds[begins[several]], begins[several], ends[several])


def _window(
    log: ParticipationLog, meetings: Meetings, place: np.ndarray, first: int, end: int, start: np.ndarray, total: float
) -> Window:
    """Average from round ``first`` on until FLOOR is left; the squared norm is kept up to date by what a mean takes."""
    at = int(np.searchsorted(log.rounds, first)) + int(LONGEST_WORK / start.shape[1])
    end = min(end, int(log.rounds[at]) + 1) if at < len(log.rounds) else end
    here = slice(*np.searchsorted(meetings.rounds, [first, end]).tolist())
    if here.start == here.stop:
        return Window(end - first, 1.0)
    x, norm = start.copy(), total
    marks: list[int | None] = [None, None]
    for t, begin, after in zip(*(column[here].tolist() for column in meetings), strict=True):
        active = place[log.members[begin:after]]
        rows = x[active]
        mean = rows.mean(0)
        norm -= float(np.einsum("ij,ij->", rows, rows)) - len(active) * float(np.sum(mean * mean))
        x[active] = mean
        for k, share in enumerate((0.25, 0.01)):
            if marks[k] is None and norm <= share * total:
                marks[k] = t + 1 - first
        if norm <= FLOOR * total:
            end = t + 1
            break
    return Window(end - first, max(float(np.sum(x * x)) / total, FLOOR), *marks)
