"""How a federation stands: who is heard, who lags and by how much, how fast it goes, how long it will take."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

UNMET = re.compile(r"node [0-9]{10,}")
"""How a node is called that never said who it is."""
REMEMBERED = 500
"""Rounds that speed and bias are taken from."""
DAY = 86400.0


@dataclass
class Client:
    """One client, after the last round."""

    name: str
    heard: int = 0
    """Rounds in which its reply counted."""
    last: int | None = None
    """The latest of them."""
    state: str = "silent"
    """heard, catching up, at work (on an earlier round), refused, failed, or silent."""
    behind: int = 0
    """Missed rounds that it still has to replay."""
    late: float | None = None
    """Seconds by which its latest late reply missed its round."""
    reason: str = ""
    """Why it was refused or failed last."""
    times: int = 0
    """How often in a row, for the same reason but for its numbers."""


class Standing:
    """Added up over the lines of the logs."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.rounds = 0
        """Rounds that are closed."""
        self.target: int | None = None
        """How many there will be."""
        self.last: Mapping[str, Any] = {}
        """The latest line of metrics.jsonl."""
        self.bytes_down = self.bytes_up = self.empty = 0
        """``empty``: rounds without anybody, the latest in a row."""
        self.began = 0
        """The first round of which the logs tell."""
        self.history: deque[frozenset[str]] = deque(maxlen=REMEMBERED)
        """A^t of the latest rounds."""
        self._closed: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def add(self, line: Mapping[str, Any], heard: Iterable[str]) -> None:
        """One more round is closed."""
        t, here = int(line["round"]), frozenset(heard)
        self.began = t if not self.rounds else self.began
        self.rounds, self.last, self.target = t + 1, line, line.get("of") or self.target
        self.bytes_down += line.get("bytes_down", 0)
        self.bytes_up += line.get("bytes_up", 0)
        self.empty = 0 if here else self.empty + 1
        self.history.append(here)
        if "time" in line:
            self._closed.append((t, float(line["time"])))
        for client in self.clients.values():
            client.state = "silent"
        for name in here:
            client = self._client(name)
            client.heard, client.last, client.state = client.heard + 1, t, "heard"
            client.behind, client.times, client.reason = 0, 0, ""
        self._who_was_not(line, here)

    def _who_was_not(self, line: Mapping[str, Any], here: frozenset[str]) -> None:
        for state in ("failed", "refused"):
            for entry in line.get(state, []):
                if entry["client"] not in here and not UNMET.fullmatch(entry["client"]):
                    self._trouble(self._client(entry["client"]), state, entry["reason"])
        for name, waiting in line.get("catching_up", {}).items():
            client = self._client(name)
            client.state, client.behind = "catching up", waiting
        for name in line.get("busy", []):
            self._client(name).state = "at work"
        for entry in line.get("late", []):
            self._client(entry["client"]).late = entry["seconds"]

    def _trouble(self, client: Client, state: str, reason: str) -> None:
        client.state = "silent" if reason.startswith("no reply within") else state
        kind = re.sub(r"[0-9.]+", "#", reason)
        client.times = client.times + 1 if kind == re.sub(r"[0-9.]+", "#", client.reason) else 1
        client.reason = reason

    def _client(self, name: str) -> Client:
        return self.clients.setdefault(name, Client(name))

    def missed(self, client: Client) -> int:
        """Rounds since it was heard last, or since the logs begin."""
        return self.rounds - 1 - client.last if client.last is not None else self.rounds - self.began

    def rounds_a_day(self) -> float | None:
        """Of the latest rounds; None before there are two that say when they closed."""
        if len(self._closed) < 2 or self._closed[-1][1] <= self._closed[0][1]:
            return None
        (first, then), (last, now) = self._closed[0], self._closed[-1]
        return (last - first) / (now - then) * DAY

    def closed(self) -> float | None:
        """When the latest round was closed, in seconds since 1970."""
        return self._closed[-1][1] if self._closed else None

    def remaining(self) -> float | None:
        """Seconds until the target at this speed."""
        speed = self.rounds_a_day()
        if self.target is None or not speed:
            return None
        return max(0, self.target - self.rounds) / speed * DAY

    def ordered(self) -> list[Client]:
        """The clients, those that were missed for longest first."""
        return sorted(self.clients.values(), key=lambda client: (-self.missed(client), client.name))


def duration(seconds: float | None) -> str:
    """In the largest two units."""
    if seconds is None:
        return "not known"
    whole = int(seconds)
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {name}"
    return f"{whole} s"
