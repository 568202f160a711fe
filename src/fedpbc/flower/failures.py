"""Clients whose local steps fail in the same way again and again, and what is done about it.

Where clients go on from their own base every order replays the round that fails, so that one bad batch would
silence a client for ever: somebody has to be told, or to decide.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import ConfigRecord

from fedpbc.errors import shorten
from fedpbc.flower.protocol import SKIP

_KIND = re.compile(r"<class '(?:\w+\.)*(\w+)'>|(\w+)")


@dataclass(frozen=True)
class Failure:
    """What a client said of a failure."""

    round: int
    """The round whose local steps failed; -1: it could not say."""
    reason: str

    @property
    def kind(self) -> str:
        """The type of the exception."""
        found = _KIND.match(self.reason)
        return next(filter(None, found.groups())) if found else "unknown"


@dataclass(frozen=True)
class Trouble:
    """Failures of one client in a row that are the same: by the same exception type, in the same round if replayed."""

    round: int
    kind: str
    reason: str
    times: int
    same_round: bool
    """Always this round, as with strategies that replay it; else it is that of the last failure."""

    def describe(self, name: str, consequence: str) -> str:
        """The line in the log; rounds count from 1 there."""
        at = "" if self.same_round else ", at last"
        where = (
            f"{at} in the local steps of round {self.round + 1}" if self.round >= 0 else " outside its train function"
        )
        said = f"failed {self.times} times in a row{where}, always with {self.kind}"
        return f"client {shorten(name)} {said} ({shorten(self.reason, 200)}): {consequence}"


class Failures:
    """The failures of all clients since they were last heard, and the rounds whose local steps they leave out."""

    def __init__(self, limit: int, replays: bool) -> None:
        self.limit, self.replays = limit, replays
        self.left_out: dict[str, list[list[int]]] = {}
        """What was decided in this round: client -> [first, last] of rounds whose local steps never count."""
        self._troubles: dict[str, Trouble] = {}
        self._skips: dict[str, list[int]] = {}

    def heard(self, name: str) -> None:
        """It works again, and goes on from another model."""
        self._troubles.pop(name, None)
        self._skips.pop(name, None)

    def note(self, name: str, failure: Failure) -> Trouble | None:
        """Count one; the trouble when it is to be said: after ``limit`` of them, then after 2, 4, 8, ... times that."""
        before = self._troubles.get(name)
        same = before is not None and before.kind == failure.kind
        if same and self.replays:
            same = before is not None and before.round == failure.round
        times = 1 + (before.times if same and before is not None else 0)
        trouble = self._troubles[name] = Trouble(failure.round, failure.kind, failure.reason, times, self.replays)
        rest, power = times % self.limit, times // self.limit
        return trouble if rest == 0 and power & (power - 1) == 0 else None

    def leave_out(self, name: str, first: int, last: int) -> None:
        """Say in the logs that local steps of rounds first, ..., last never count."""
        self.left_out.setdefault(name, []).append([first, last])

    def skip(self, name: str, round: int) -> None:
        """From now on the client takes no local steps in this round, until it is heard."""
        self._skips[name] = sorted({*self._skips.get(name, []), round})
        self.leave_out(name, round, round)

    def order(self, name: str) -> ConfigRecord:
        """What is sent beside an order."""
        skips = self._skips.get(name)
        return ConfigRecord({SKIP: list(skips)} if skips else {})

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"skips": self._skips, "troubles": {name: asdict(trouble) for name, trouble in self._troubles.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._skips = {name: list(rounds) for name, rounds in state["skips"].items()}
        self._troubles = {name: Trouble(**trouble) for name, trouble in state["troubles"].items()}


def one_line(text: str) -> str:
    """All that is said in one printable line of at most 300 characters."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split())[:300])
    return line if len(line) <= 300 else f"{line[:297]}..."
