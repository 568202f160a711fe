"""A participation log: which clients took part in which round, from any format, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedpbc.errors import ConfigError, shorten


@dataclass(frozen=True, eq=False)
class ParticipationLog:
    """Who took part when: T rounds, m clients, n active pairs (round, client), sorted by round, then client."""

    clients: list[str]
    """Every client id, those never seen too; the index is the client's number. Empty when only counts are known."""
    num_rounds: int
    """T; rounds without any active client count, and so do unknown ones."""
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
    """int[T]: how many clients took part, when the log holds nothing else; then rounds and members are empty. 0 in
    unknown rounds."""
    source: str = ""
    """The file's name."""
    format: str = ""
    """The name of its format in ``formats.FORMATS``."""
    notes: tuple[str, ...] = ()
    """What was assumed while reading, in words."""
    counts_clients: int | None = None
    """m, when the log holds counts only and m is known."""
    unknown: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """int32[u], ascending: rounds (0..T-1) of which nothing is known; they enter no statistic."""
    dropped_duplicates: int = 0
    """Rows that said again what another row says, and were dropped because that was allowed."""
    pairs_only: bool = False
    """The file lists those who took part and nobody else: a client that never did is not in it."""
    options: dict[str, str | float | bool] = field(default_factory=dict)
    """The options it was read with, where they are not the default."""

    @property
    def num_clients(self) -> int | None:
        """m, or None when the log holds counts only and nobody said."""
        return self.counts_clients if self.counts_only is not None else len(self.clients)

    @property
    def known_rounds(self) -> int:
        """How many of the T rounds are known."""
        return self.num_rounds - len(self.unknown)

    def known(self) -> np.ndarray:
        """bool[T]: which rounds are known."""
        known = np.ones(self.num_rounds, bool)
        known[self.unknown] = False
        return known

    def stretches(self) -> np.ndarray:
        """Known rounds in a row, int[K, 2]: the first of each stretch and the first after it."""
        gaps = np.concatenate([[-1], self.unknown.astype(np.int64), [self.num_rounds]])
        cut = np.flatnonzero(np.diff(gaps) > 1)
        return np.column_stack([gaps[cut] + 1, gaps[cut + 1]])

    def known_counts(self) -> np.ndarray:
        """|A^t| of the known rounds, int[known_rounds]."""
        return self.active_counts()[self.known()]

    def active_counts(self) -> np.ndarray:
        """|A^t|, int[T]; 0 in unknown rounds."""
        if self.counts_only is not None:
            return self.counts_only
        return np.bincount(self.rounds, minlength=self.num_rounds)

    def round_slice(self, t: int) -> np.ndarray:
        """A^t as sorted client numbers [|A^t|]."""
        first, last = np.searchsorted(self.rounds, [t, t + 1])
        return self.members[first:last]

    @classmethod
    def from_matrix(
        cls, active: np.ndarray, clients: Sequence[str] | None = None, unknown: Sequence[int] = ()
    ) -> ParticipationLog:
        """A log from bool[T, m]; clients are called "0", "1", ... unless named. Raises ConfigError like a file.

        unknown: rounds of which nothing is known; their rows are not looked at.
        """
        active = np.asarray(active)
        if active.ndim != 2 or not np.all((active == 0) | (active == 1)):
            raise ConfigError(f"a matrix of 0 and 1 or booleans (rounds, clients) is needed, has shape {active.shape}")
        names = list(clients) if clients is not None else [str(i) for i in range(active.shape[1])]
        if len(names) != active.shape[1] or len(set(names)) < len(names):
            raise ConfigError(f"clients must be {active.shape[1]} different names, one per column")
        hidden = np.unique(np.array(unknown, np.int64))
        if len(hidden) and not 0 <= hidden[0] <= hidden[-1] < len(active):
            raise ConfigError(f"unknown must hold rounds from 0 to {len(active) - 1}, holds {shorten(list(unknown))}")
        active = active.astype(bool)
        active[hidden] = False
        t, i = np.nonzero(active)
        log = cls(
            names, len(active), 0, t.astype(np.int32), i.astype(np.int32), source="matrix", format="npy",
            unknown=hidden.astype(np.int32),
        )  # fmt: skip
        require_clients(log)
        return log


def require_clients(log: ParticipationLog) -> None:
    """Raise ConfigError when there is nothing to compare: nobody active, or a single client."""
    where = log.source
    if not len(log.rounds) and log.counts_only is None:
        raise ConfigError(f"{where}: no client is active in any of {log.known_rounds:,} rounds; at least one must be")
    if log.num_clients == 1:
        raise ConfigError(f"{where}: holds a single client; an audit compares at least two (--clients N adds unseen)")


def ordered(codes: dict[str, int]) -> tuple[list[str], np.ndarray]:
    """Client ids in numeric order if all are integers, else alphabetic; and the rank of every code [m]."""
    names = sorted(codes, key=int) if all(map(is_integer, codes)) else sorted(codes)
    rank = np.empty(len(names), np.int64)
    rank[[codes[name] for name in names]] = np.arange(len(names))
    return names, rank


def is_integer(name: str) -> bool:
    """Whether a client id is the decimal writing of an integer from 0 to 10^18 - 1."""
    return name.isascii() and name.isdigit() and len(name) < 19 and (name == "0" or name[0] != "0")


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
    if list(names) == log.clients:
        return log
    clients, rank = ordered({name: code for code, name in enumerate(names)})
    if log.groups is not None:
        group_of = dict(zip(log.clients, log.groups, strict=True))
        log = replace(log, groups=[group_of.get(name, "(no group)") for name in clients])
    if np.all(np.diff(rank[: len(log.clients)]) > 0):
        return replace(log, clients=clients, members=rank[: len(log.clients)].astype(np.int32)[log.members])
    keys = log.rounds.astype(np.int64) * len(clients) + rank[: len(log.clients)][log.members]
    keys.sort()
    members = np.remainder(keys, len(clients)).astype(np.int32)
    return replace(log, clients=clients, members=members)


def _names_for(names: dict[str, None], total: int) -> list[str]:
    if names and all(map(is_integer, names)):
        numbers = {int(name) for name in names}
        for start in (0, 1):
            if min(numbers) >= start and max(numbers) < total + start:
                return [str(number) for number in range(start, total + start)]
    return [f"(unseen {number})" for number in range(1, total - len(names) + 1)]
