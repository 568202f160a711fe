"""Find the column that says who took part: ``active``, the one the user names, or none.

A log without such a column is a list of the pairs that took part. If it has other columns, one of them may well say
that half of its rows are failures; so these are watched, and a log that may be misread is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedpbc.errors import shorten, suggest
from fedpbc.io.participation.reading import BadLog, BadReading, Reading

BOOLEANS = {"0": False, "1": True, "true": True, "false": False, "yes": True, "no": False, "0.0": False, "1.0": True}
"""Whether a client took part, as text in lower case, in every file that says so."""
LONGEST_WATCHED = 64
"""Bytes of a cell of an unused column that are looked at."""
KEPT = 6
"""Different values of a column that are remembered."""
OUTCOMES = re.compile(
    r"status|result|outcome|succe|particip|took_?part|fail|error|complet|finish|respon|answer|repl(y|ied)|receiv|activ"
    r"|avail|online|offline|present|absent|reach|connect|heard|deliver|drop|time_?d?_?out|lost|missing|abort|reject|accept"
    r"|(^|[_ .-])(state|ok|done|reason|selected|alive|up|down)($|[_ .-])"
)
"""Names of columns that may say who took part."""
NEGATIVE = re.compile(r"fail|error|drop|time_?d?_?out|lost|miss|absent|offline|reject|abort|inactiv|unavail|down")
POSITIVE = {
    "ok", "success", "succeeded", "successful", "completed", "complete", "done", "received", "responded",
    "participated", "active", "online", "available", "present", "finished", "passed", "accepted", "delivered",
    "connected",
}  # fmt: skip


class Columns:
    """What the columns (or keys) of a log are used for."""

    def __init__(self, path: Path, names: Sequence[str], reading: Reading) -> None:
        """``names``: all columns. Raises BadLog when the one the user names is not there."""
        self._reading = reading
        self.active: str | None = "active" if "active" in names else None
        """The column that says who took part; None: every row did."""
        self.wanted: dict[str, str] | None = None
        """Values that count as active, folded -> as written; None: the column holds booleans."""
        self.decided = False
        """The user said which column it is."""
        if reading.active_column is not None:
            self._choose(path, names, reading.active_column)
        used = {"round", "client", self.active}
        self.unused = list(dict.fromkeys(name for name in names if name not in used))
        self.rows = 0
        """How many rows ``watch`` has seen."""
        self.harmless: set[str] = set()
        """Unused columns that say nothing of single clients."""
        self.lines_are_rounds = False
        """JSON lines with a line for every round."""
        self.what = ""
        """What the file is, where a reader may expect something else."""
        self.met: dict[str, str] = {}
        """Values met in the active column, folded -> as written; at most KEPT others than those wanted."""
        self._values: dict[str, dict[str, None]] = {name: {} for name in self.unused}

    def _choose(self, path: Path, names: Sequence[str], text: str) -> None:
        name, equals, values = (part.strip() for part in text.partition("="))
        self.decided = True
        if name.lower() == "none" and not equals and "none" not in names:
            self.active = None
            return
        found = [each for each in names if each.lower() == name.lower() and each not in ("round", "client")]
        if not found:
            others = [each for each in names if each not in ("round", "client")]
            raise BadLog(
                path,
                f"{self._option(shorten(name))}: no such column{suggest(name, others)}; beside round and client "
                f"there is {', '.join(map(shorten, others[:KEPT])) if others else 'nothing'}",
            )
        self.active = found[0]
        if equals:
            self.wanted = {value.strip().casefold(): value.strip() for value in values.split(",") if value.strip()}
            if not self.wanted:
                problem = f"must name at least one value after =, like {name}=ok,late"
                raise BadReading(self._reading, "active_column", text, problem)

    @property
    def watched(self) -> list[str]:
        """Unused columns whose values are still of interest."""
        return [] if self.decided else [name for name, values in self._values.items() if len(values) <= KEPT]

    def watch(self, name: str, values: Iterable[str]) -> None:
        """Take note of values of an unused column."""
        seen = self._values.setdefault(name, {})
        for value in values:
            if len(seen) > KEPT:
                return
            seen.setdefault(value)

    def add_unused(self, name: str) -> None:
        """A key that turns up later on."""
        if name not in self._values:
            self.unused.append(name)
            self._values[name] = {}

    def is_active(self, value: str) -> bool | None:
        """Whether a value of the active column means active. None if it is not a boolean and no values were named."""
        folded = value.casefold()
        if self.wanted is None:
            return BOOLEANS.get(folded)
        if folded in self.wanted or len(self.met) <= KEPT + len(self.wanted):
            self.met.setdefault(folded, value)
        return folded in self.wanted

    def not_boolean(self) -> str:
        """What to say of a value that is no boolean."""
        return (
            f"{self.active} must be 0, 1, true, false, yes or no "
            f"({self._option(f'{self.active}=VALUE,VALUE')} allows others)"
        )

    def notes(self) -> list[str]:
        """What was used and what not, in words."""
        notes = []
        if self.wanted is not None:
            notes.append(f"rows count as active where {self.active} is {' or '.join(self.wanted.values())}")
            missing = [text for folded, text in self.wanted.items() if folded not in self.met]
            if missing:
                notes.append(f"no row has {self.active} {' or '.join(missing)}")
        elif self.active not in (None, "active"):
            notes.append(f"column {self.active} says who took part")
        if self.unused:
            notes.append(f"columns not used: {', '.join(self.unused)}")
        return notes

    def check(self, path: Path, full: bool) -> None:
        """Refuse what may be misread. ``full``: every client is active in every round."""
        if self.wanted is not None and not set(self.wanted) & set(self.met):
            raise BadLog(
                path,
                f"{self._option()}: no row has {self.active} {' or '.join(self.wanted.values())}; "
                f"it holds {_listing(list(self.met.values()), KEPT)}",
            )
        unused = [name for name in self.unused if name not in self.harmless]
        if self.decided or not unused or (self.active is not None and not full):
            return
        named = [name for name in unused if OUTCOMES.search(name.lower())]
        halves = [name for name in unused if len(self._values[name]) == 2 < self.rows]
        if self.lines_are_rounds and (named or full):
            raise BadLog(
                path,
                f"key {(named or unused)[0]} is not used: does it say which of the clients took part? Then "
                "list only those in clients, or write a line for every client; "
                f"{self._option('none')} if all of them took part",
            )
        every = f"{self._option('none')} if every row is a client that took part"
        if named or halves:
            best = min(named or halves, key=lambda name: len(self._values[name]) != 2)
            values = list(self._values[best])
            holds = f" and holds {_listing(values, KEPT)}" if values else ""
            raise BadLog(
                path,
                f"{self.what}column {best} is not used{holds}: does it say who took part? "
                f"{self._command(best)} reads it so; {every}",
            )
        if full:
            raise BadLog(
                path,
                f"{self.what}every client takes part in every round, and {', '.join(unused)} "
                f"{'is' if len(unused) == 1 else 'are'} not used: does a column say who took part? "
                f"{self._command(unused[0])} reads it so; {every}",
            )

    def _command(self, name: str) -> str:
        """The option that reads this column, as far as it can be guessed."""
        values = list(self._values[name])
        if values and all(value.casefold() in BOOLEANS for value in values):
            no = [value for value in values if not BOOLEANS[value.casefold()]]
            return self._option(name + (f"={no[0]}" if NEGATIVE.search(name.lower()) and no else ""))
        good = [value for value in values if value.casefold() in POSITIVE]
        return self._option(f"{name}={','.join(good) if good else 'VALUE'}")

    def _option(self, value: str = "") -> str:
        return self._reading.spell("active_column", value)


def _listing(values: list[str], most: int) -> str:
    shown = ", ".join(shorten(value) if value else "nothing" for value in values[:most])
    return shown + (", ..." if len(values) > most else "")
