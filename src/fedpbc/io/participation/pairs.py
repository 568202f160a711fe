"""Rows of a file as pairs of round and client: in order, and every pair once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

BLOCK = 1 << 20
ROOM_A_ROW = 16
"""A table of all pairs is used up to so many cells a row (a byte each); above, the keys are sorted."""


class Found(NamedTuple):
    """The pairs of a file."""

    rounds: np.ndarray
    """int32[k]: of the active pairs, by round, then client."""
    members: np.ndarray
    """int32[k]."""
    distinct: int
    """How many pairs have a row."""
    split: int
    """How many have a row that says active, and another that does not."""


class Pairs(NamedTuple):
    """Row by row: rounds from 0 on int32[n], client numbers int32[n], whether active bool[n]; of ``total`` x ``m``."""

    rounds: np.ndarray
    members: np.ndarray
    active: np.ndarray
    m: int
    total: int

    def keys(self, part: slice | np.ndarray) -> np.ndarray:
        """round m + client, int64."""
        return self.rounds[part].astype(np.int64) * self.m + self.members[part]

    def found(self) -> Found:
        """The pairs in order: as they are where the file is in order, else through a table or by sorting."""
        if self._in_order():
            return Found(self.rounds[self.active], self.members[self.active], len(self.rounds), 0)
        if self.total * self.m <= ROOM_A_ROW * len(self.rounds):
            return self._by_table()
        yes, no = (distinct(self.keys(chosen)) for chosen in (self.active, ~self.active))
        split = len(yes) + len(no) - len(distinct(np.concatenate([yes, no]))) if len(no) else 0
        return Found(*_both(yes, self.m), len(yes) + len(no) - split, split)

    def _blocks(self) -> Iterator[slice]:
        for first in range(0, len(self.rounds), BLOCK):
            yield slice(first, first + BLOCK)

    def _in_order(self) -> bool:
        """Whether every row comes after the one before it, by round, then client."""
        last = -1
        for part in self._blocks():
            keys = self.keys(part)
            if keys[0] <= last or not np.all(keys[1:] > keys[:-1]):
                return False
            last = int(keys[-1])
        return True

    def _by_table(self) -> Found:
        table = np.zeros(self.total * self.m, np.uint8)  # 1: a row says inactive, 2: a row says active, 3: both
        for wanted, bit in ((False, 1), (True, 2)):
            for part in self._blocks():
                keys = self.keys(part)[self.active[part] == wanted]
                table[keys] |= np.uint8(bit)
        rounds, members = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        there = split = 0
        for first in range(0, len(table), BLOCK):
            block = table[first : first + BLOCK]
            there += int(np.count_nonzero(block))
            split += int(np.count_nonzero(block == 3))
            found = _both(np.flatnonzero(block >= 2) + first, self.m)
            rounds.append(found[0])
            members.append(found[1])
        return Found(np.concatenate(rounds), np.concatenate(members), there, split)


def _both(keys: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, clients) int32 of keys."""
    rounds = keys // m
    return rounds.astype(np.int32), (keys - rounds * m).astype(np.int32)


def distinct(values: np.ndarray) -> np.ndarray:
    """np.unique of integers, by sorting; what is in order already is not sorted. (np.unique goes through a hash
    table, which is many times slower on millions of different values.)"""
    if len(values) == 0:
        return values
    step = values[1:] - values[:-1]
    if np.any(step < 0):
        values = np.sort(values)
        step = values[1:] - values[:-1]
    return values[np.concatenate([[True], step != 0])]
