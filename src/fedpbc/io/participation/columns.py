"""Find what the columns are: the round or the time, the client, and the one that says who took part, if there is one.

A log without such a column is a list of the pairs that took part. If it has other columns, one of them may well say
that half of its rows are failures; so these are watched, and a log that may be misread is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedpbc.errors import shorten, suggest
from fedpbc.io.participation.reading import BadLog, BadReading, Reading
from fedpbc.io.participation.source import Source

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

    def __init__(self, path: Path | Source, names: Sequence[str], reading: Reading, where: str = "") -> None:
        """``names``: all columns. Raises BadLog, beginning with ``where``, when one that is needed is not there."""
        self._reading = reading
        self.roles = Roles(path, names, reading)
        self.active: str | None = self.roles.active
        """The column that says who took part; None: every row did."""
        self.wanted: dict[str, str] | None = None
        """Values that count as active, folded -> as written; None: the column holds booleans."""
        self.decided = False
        """The user said which column it is."""
        self.group = _named(path, names, reading, "group", reading.group) if reading.group else None
        """The column that says the group of a client."""
        if reading.active_column is not None:
            self._choose(path, names, reading.active_column)
        used = {*self.roles.used, self.active, self.group}
        self.wide = self._wide([name for name in names if name not in used])
        """Columns that are clients, in a table with a column for every client."""
        self.unused = [] if self.wide else list(dict.fromkeys(name for name in names if name not in used))
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
        if names and not (self.roles.complete or self.wide):
            raise BadLog(path, where + self.roles.missing(names))

    @property
    def lists_inactive(self) -> bool:
        """There is a row for who did not take part too."""
        return (self.active is not None or bool(self.wide)) and self.roles.end is None

    def _wide(self, others: list[str]) -> list[str]:
        """The clients of a table with a column for each: no other column can be the client, or say who took part."""
        roles = self.roles
        if roles.client is not None or roles.moment is None or roles.end is not None or len(others) < 2:
            return []
        if self.active is not None or self._reading.active_column == "none":
            return []
        if (self._reading.active_column or "").startswith("*"):
            return others
        clients = [name for name in others if LIKE_A_CLIENT.search(name.lower())]
        return [] if len(clients) == 1 or any(OUTCOMES.search(name.lower()) for name in others) else others

    def _choose(self, path: Path | Source, names: Sequence[str], text: str) -> None:
        name, equals, values = (part.strip() for part in text.partition("="))
        self.decided = True
        if name.lower() == "none" and not equals and "none" not in names:
            self.active = None
            return
        if name != "*":
            self.active = _named(path, names, self._reading, "active_column", name, self.roles.used)
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
        option = self._option(f"{self.active or '*'}=VALUE,VALUE")
        return f"{self._what_says} must be 0, 1, true, false, yes or no ({option} allows others)"

    def notes(self) -> list[str]:
        """What was used and what not, in words."""
        notes = []
        if self.wanted is not None:
            notes.append(f"rows count as active where {self._what_says} is {' or '.join(self.wanted.values())}")
            missing = [text for folded, text in self.wanted.items() if folded not in self.met]
            if missing:
                notes.append(f"no row has {self._what_says} {' or '.join(missing)}")
        elif self.active not in (None, "active"):
            notes.append(f"column {self.active} says who took part")
        if self.wide:
            shown = self.wide if len(self.wide) < 6 else [*self.wide[:2], "...", *self.wide[-2:]]
            notes.append(
                f"a table with a column for every client: {len(self.wide):,} of them ({', '.join(shown)}); "
                "a column that is none counts as one, drop it from the table"
            )
        if self.unused:
            notes.append(f"columns not used: {', '.join(self.unused)}")
        return notes

    @property
    def _what_says(self) -> str:
        return self.active or "a cell"

    def check(self, path: Path | Source, full: bool) -> None:
        """Refuse what may be misread. ``full``: every client is active in every round."""
        if self.wanted is not None and not set(self.wanted) & set(self.met):
            raise BadLog(
                path,
                f"{self._option()}: no row has {self._what_says} {' or '.join(self.wanted.values())}; "
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


class Roles:
    """Which column is the round or the time, the client, the begin and end of an interval, and who took part."""

    def __init__(self, path: Path | Source, names: Sequence[str], reading: Reading) -> None:
        self._columns = reading.spell("columns", "round=NAME,client=NAME")
        self.chosen = by_the_user(path, names, reading)
        self.round = self._name("round", names)
        self.client = self._name("client", names)
        self.active = self._name("active", names)
        self.start, self.end = (self._name(role, names) for role in ("start", "end"))
        if self.start is None or self.end is None or (self.round is not None and "end" not in self.chosen):
            self.start = self.end = None
        self.time = self.chosen.get("time")
        if self.time is None and self.round is None and self.end is None:
            self.time = next((name for name in names if name.lower() in TIME_NAMES), None)
        if self.round is None and self.time is None and self.end is None and names[:1] == [""]:
            self.round = ""  # the index of a table that pandas wrote

    def _name(self, role: str, names: Sequence[str]) -> str | None:
        return self.chosen.get(role, role if role in names else None)

    @property
    def moment(self) -> str | None:
        """The column of the round, the time, or the begin of an interval."""
        return self.start if self.end is not None else self.time if self.time is not None else self.round

    @property
    def is_time(self) -> bool:
        """``moment`` holds times, not rounds."""
        return self.end is not None or self.time is not None

    @property
    def used(self) -> set[str]:
        """The columns that are round or time, client and end."""
        return {name for name in (self.moment, self.client, self.end) if name is not None}

    @property
    def complete(self) -> bool:
        """There is a moment and a client."""
        return self.moment is not None and self.client is not None

    def missing(self, names: Sequence[str]) -> str:
        """What to say of columns that are not there."""
        role = "client" if self.moment is not None else "round"
        shown = shorten(",".join(names))
        return (
            f"column {role} is missing{suggest(role, names)}; the first line must be round,client,active or "
            "round,client (time may stand for round, start,end for an interval, a column for every client for "
            f"client), is {shown}; {self._columns} says what they are called"
            + (
                ", and numbers, round=1,client=2, where there is no such line"
                if any(each.isdigit() for each in names)
                else ""
            )
        )


ROLES = ("round", "time", "client", "active", "start", "end")
"""What a column can be said to be."""
TIME_NAMES = ("time", "timestamp", "ts")
"""Names of columns that hold times, where there is no round."""
LIKE_A_CLIENT = re.compile(
    r"client|device|node|site|worker|participant|cid|(^|[_ .-])(id|ids|name|user|host|uid)($|[_ .-])"
)
"""Names of columns that may well be the client, in a file without a column of that name."""


def by_the_user(path: Path | Source, names: Sequence[str], reading: Reading) -> dict[str, str]:
    """``--columns``: role -> column."""
    chosen: dict[str, str] = {}
    for part in reading.columns.split(",") if reading.columns is not None else []:
        role, equals, name = (text.strip() for text in part.partition("="))
        if role not in ROLES or not equals or not name:
            problem = f"must be like round=r,client=device_id, with {', '.join(ROLES)} before ="
            raise BadReading(reading, "columns", str(reading.columns), problem)
        chosen[role] = _named(path, names, reading, "columns", name)
    return chosen


def _named(
    path: Path | Source, names: Sequence[str], reading: Reading, option: str, name: str, beside: Iterable[str] = ()
) -> str:
    """The column of that name, in any case, or of that number from 1. Raises BadLog when there is none."""
    others = [each for each in names if each not in set(beside)]
    found = [each for each in others if each.lower() == name.lower()]
    if found:
        return found[0]
    if option == "columns" and name.isascii() and name.isdigit() and 1 <= int(name) <= len(names):
        return names[int(name) - 1]
    spelled = reading.spell(option, shorten(name))
    there = ", ".join(map(shorten, others[:KEPT])) + (", ..." if len(others) > KEPT else "") if others else "nothing"
    place = "beside round and client " if beside else ""
    raise BadLog(path, f"{spelled}: no such column{suggest(name, others)}; {place}there is {there}")


def _listing(values: list[str], most: int) -> str:
    shown = ", ".join(shorten(value) if value else "nothing" for value in values[:most])
    return shown + (", ..." if len(values) > most else "")
