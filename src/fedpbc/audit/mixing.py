"""Question 4 of an audit: how fast FedPBC's averaging would have brought clients together on this very log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.audit.log import ParticipationLog

EXACT_UP_TO = 2000
"""Clients; above, random probes."""
PROBES = 16
FLOOR = 1e-6
"""A window ends when this share of the squared distance is left."""
WORK = 2e8
"""Numbers that may be averaged, about: windows are spread over the log so that this suffices."""
LONGEST_WORK = 1e9
"""The same for a single window, which then ends unfinished."""


class Window(NamedTuple):
    """Rounds in a row, from clients that all differ."""

    rounds: int
    left: float
    """||W^(first) ... W^(last) - J||_F^2 / (m - 1) at its end."""
    half: float
    """Rounds until 1/2 was left; inf when it never was."""
    thousandth: float
    """Rounds until 1/1000 was left."""


class Mixing(NamedTuple):
    """How the log mixes, among the clients seen."""

    contraction: float | None
    """Share of the squared distance that one round leaves."""
    windows: int
    clients_seen: int
    half_life: float | None
    cooldown: float | None


def mixing(log: ParticipationLog, joined: bool, seed: int = 0) -> Mixing:
    """The contraction (||prod W^t - J||_F^2 / (m-1))^(1/rounds) of the log itself, m the clients seen.

    W^t averages the models of A^t and leaves the rest; it is never built: the product acts on the columns of I - J
    (m up to 2000) or on 16 random ones. A window ends when 1e-6 is left, with the log, or after 10^9 numbers; windows
    are pooled as exp(sum log left / sum rounds). half_life and cooldown are medians over windows of the rounds until
    1/2 and 1/1000 are left, continued at the contraction's speed where a window ended before; None when clients do
    not all meet (``joined``), for then a part of the distance stays forever.
    """
    seen = np.flatnonzero(np.bincount(log.members, minlength=len(log.clients)))
    if len(seen) < 2:
        return Mixing(None, 0, len(seen), None, None)
    place = np.zeros(len(log.clients), np.int64)
    place[seen] = np.arange(len(seen))
    windows = _windows(log, place, _start(len(seen), seed))
    rounds = sum(window.rounds for window in windows)
    contraction = float(np.exp(sum(np.log(window.left) for window in windows) / rounds))
    if not joined or contraction >= 1:
        return Mixing(contraction, len(windows), len(seen), None, None)
    half, cooldown = (_median(windows, contraction, share) for share in (0.5, 1e-3))
    return Mixing(contraction, len(windows), len(seen), half, cooldown)


def _start(m: int, seed: int) -> np.ndarray:
    """Columns whose squared norm is, or estimates, m - 1 in all: those of I - J, or random ones of mean zero."""
    if m <= EXACT_UP_TO:
        return np.eye(m) - 1 / m
    columns = np.random.default_rng(seed).standard_normal((m, PROBES))
    return columns - columns.mean(0)


def _windows(log: ParticipationLog, place: np.ndarray, start: np.ndarray) -> list[Window]:
    """Windows from evenly spread rounds; an unfinished last one only when there is no other."""
    bounds = np.searchsorted(log.rounds, np.arange(log.num_rounds + 1))
    found: list[Window] = []
    first, spacing = 0, 0
    while first < log.num_rounds:
        window = _window(log.members, place, bounds, first, start)
        finished = window.left <= FLOOR
        if finished or not found:
            found.append(window)
        if not finished:
            break
        work = (bounds[first + window.rounds] - bounds[first]) * start.shape[1] + start.size
        spacing = spacing or int(log.num_rounds / max(WORK / work, 1))
        first += max(window.rounds, spacing)
    return found


def _window(members: np.ndarray, place: np.ndarray, bounds: np.ndarray, first: int, start: np.ndarray) -> Window:
    """Average from round ``first`` on until FLOOR is left; the squared norm is kept up to date by what a mean takes."""
    x = start.copy()
    total = norm = float(np.sum(x * x))
    half = thousandth = np.inf
    t, rows_allowed = first, LONGEST_WORK / start.shape[1]
    while t < len(bounds) - 1 and norm > FLOOR * total and bounds[t] - bounds[first] <= rows_allowed:
        active = place[members[bounds[t] : bounds[t + 1]]]
        t += 1
        if len(active) > 1:
            rows = x[active]
            mean = rows.mean(0)
            norm -= float(np.einsum("ij,ij->", rows, rows)) - len(active) * float(np.sum(mean * mean))
            x[active] = mean
        if norm <= 0.5 * total:
            half = min(half, t - first)
        if norm <= 1e-3 * total:
            thousandth = min(thousandth, t - first)
    return Window(t - first, max(float(np.sum(x * x)) / total, 1e-300), half, thousandth)


def _median(windows: list[Window], contraction: float, share: float) -> float:
    """Median over windows of the rounds until ``share`` is left."""
    reached = [window.half if share == 0.5 else window.thousandth for window in windows]
    speed = np.log(contraction)
    return float(
        np.median([
            rounds if np.isfinite(rounds) else window.rounds + max(np.log(share / window.left) / speed, 0)
            for rounds, window in zip(reached, windows, strict=True)
        ])
    )  # fmt: skip
