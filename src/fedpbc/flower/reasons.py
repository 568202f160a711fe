"""Why replies do not count, for the log: the first of each kind when it happens, all of them in numbers at the end."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable

log = logging.getLogger("flwr")

MOST_KINDS = 100
"""Further kinds are neither said nor told apart: whoever makes up reasons does not fill the log."""
SHOWN = 5
"""So many names stand in a line, and so many reasons."""


class Reasons:
    """Reasons by kind. Of one kind are reasons that differ in their numbers only."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        """Kind -> the first reason of that kind."""
        self._counts: Counter[str] = Counter()

    def count(self, entries: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
        """Count (who, why); reasons of a kind that was not there before, and who gave them."""
        new: dict[str, tuple[str, list[str]]] = {}
        for who, why in entries:
            kind = re.sub(r"[0-9]+", "#", why)
            if kind not in self._first and len(self._first) < MOST_KINDS:
                self._first[kind], new[kind] = why, (why, [])
            self._counts[kind if kind in self._first else "others"] += 1
            if kind in new:
                new[kind][1].append(who)
        return dict(new.values())

    def say(self, number: int, what: str, entries: Iterable[tuple[str, str]]) -> None:
        """Count, and log what is new: "round 3: no model from 0 and 1: ValueError: ..."; rounds count from 1."""
        for why, who in self.count(entries).items():
            log.warning("round %d: %s %s: %s", number, what, listed(who), why)

    def summary(self) -> str:
        """The most frequent reasons, or nothing."""
        return "; ".join(f"{n} times {self._first.get(kind, kind)}" for kind, n in self._counts.most_common(SHOWN))


def listed(names: list[str]) -> str:
    """Names in words, the first few of many."""
    shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:SHOWN]]
    if len(names) > SHOWN:
        shown.append(f"{len(names) - SHOWN} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
