"""Times in a log: Unix time as a whole number or with a fraction, or ISO 8601 with or without a zone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from fedpbc.errors import shorten

UNITS = ((10**17, "nanoseconds", 10**9), (10**14, "microseconds", 10**6), (10**11, "milliseconds", 10**3))
"""Times from so large a number on are in this unit (seconds reach 10^11 in the year 5138)."""
MICROSECONDS = ("microseconds", 10**6)
OPEN = np.iinfo(np.int64).max
"""The end of an interval that has none."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"\d{1,19}")
_NUMBER = re.compile(r"\d{1,19}(\.\d*)?([eE]\+?\d\d?)?")


def unit_of(largest: int) -> tuple[str, int]:
    """(unit, how many a second) of whole numbers up to ``largest``."""
    return next(((name, each) for least, name, each in UNITS if largest >= least), ("seconds", 1))


class NoTime(Exception):
    """``place``: which of the values; ``problem``: what is wrong with it."""

    def __init__(self, place: int, problem: str) -> None:
        self.place, self.problem = place, problem


class Clock:
    """Reads the times of one file, all written in one way; other ways are refused."""

    def __init__(self) -> None:
        self.kind: str | None = None
        """whole, fraction or iso, from the first value on."""
        self._zoned: bool | None = None
        self._scale = 1.0
        """Microseconds in a unit of the file, where times have fractions."""

    def unit(self, largest: int) -> tuple[str, int]:
        """(unit, how many a second) of the numbers that ``read`` gives."""
        return unit_of(largest) if self.kind in (None, "whole") else MICROSECONDS

    def unit_in_file(self, largest: int) -> str:
        """The unit of the numbers as the file has them; empty for ISO 8601."""
        if self.kind == "fraction":
            return next((name for _, name, each in UNITS if each * self._scale == 10**6), "seconds")
        return "" if self.kind == "iso" else unit_of(largest)[0]

    def notes(self) -> list[str]:
        """What was assumed, in words."""
        return ["times have no zone and are taken as they stand"] if self._zoned is False else []

    def whole(self, place: int = 0) -> None:
        """Take note of whole numbers. Raises NoTime if other times were read before."""
        if self.kind not in (None, "whole"):
            raise NoTime(place, "is a whole number; times before it are not")
        self.kind = "whole"

    def read(self, texts: Sequence[str], may_be_open: bool = False) -> np.ndarray:
        """int64[n]: whole numbers as they are, everything else in microseconds since 1970. Raises NoTime."""
        found = np.empty(len(texts), np.int64)
        for place, text in enumerate(texts):
            found[place] = OPEN if may_be_open and not text else self._one(text, place)
        return found

    def _one(self, text: str, place: int) -> int:
        if self.kind is None:
            self.kind = (
                "whole" if _WHOLE.fullmatch(text) else "fraction" if _NUMBER.fullmatch(text) else "iso"
            )  # fmt: skip
            self._scale = 10**6 / unit_of(int(float(text)))[1] if self.kind == "fraction" else 1.0
        if self.kind == "whole" and _WHOLE.fullmatch(text) and int(text) < 4 * 10**18:
            return int(text)
        if self.kind == "fraction" and _NUMBER.fullmatch(text) and float(text) * self._scale < 4e18:
            return round(float(text) * self._scale)
        if self.kind == "iso":
            return self._iso(text, place)
        ways = {"whole": "a whole number of seconds, milliseconds, ...", "fraction": "a number of seconds"}
        raise NoTime(place, f"must be {ways[self.kind]} like the times before it, is {_shown(text)}")

    def _iso(self, text: str, place: int) -> int:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise NoTime(place, f"must be a time, Unix time or like 2026-03-01T09:30:00Z, is {_shown(text)}") from None
        zoned = moment.tzinfo is not None
        if self._zoned not in (None, zoned):
            before, here = ("none", "one") if zoned else ("one", "none")
            raise NoTime(place, f"has {here} of a time zone, times before it have {before}: {_shown(text)}")
        self._zoned = zoned
        return ((moment if zoned else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)

    def start(self, text: str, refuse: Callable[[str], Exception], largest: int) -> int:
        """``--round-start`` in the unit of the times. Raises what ``refuse(problem)`` makes."""
        each = self.unit(largest)[1]
        if _NUMBER.fullmatch(text):
            seconds = float(text)
            return round(seconds * each / (unit_of(int(seconds))[1]))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise refuse("must be a time, Unix time or like 2026-03-01T09:30:00Z") from None
        if self._zoned is not None and (moment.tzinfo is not None) != self._zoned:
            raise refuse(f"must have {'a' if self._zoned else 'no'} time zone, as the times of the log")
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return ((moment - _EPOCH) // timedelta(microseconds=1)) * each // 10**6


def _shown(text: str) -> str:
    return shorten(text) if text else "empty"
