"""What needs somebody, as lines with fixed codes: raised once, and cleared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedpbc.errors import shorten
from fedpbc.operation.standing import Standing, duration

SILENT, REPEATS, BIAS, STALLED, EMPTY = "FED101", "FED102", "FED103", "FED104", "FED105"
CODES = {
    SILENT: "a client was not heard for so many rounds (--silent-rounds)",
    REPEATS: "a client failed or was refused so often in a row for the same reason (--repeats)",
    BIAS: "FedAvg would put so much weight on other clients than equal weights, and more than chance (--bias)",
    STALLED: "no round was closed for so many seconds (--stalled)",
    EMPTY: "nobody was heard in three rounds in a row",
}
"""Code -> meaning."""
LEAST = 50
"""Rounds before the bias is looked at."""


@dataclass
class Limits:
    """When an alert is raised."""

    silent_rounds: int = 20
    repeats: int = 5
    bias: float = 0.14
    stalled: float = 3600.0


@dataclass
class Alerts:
    """Those that are raised: (code, client) -> what was said."""

    limits: Limits
    raised: dict[tuple[str, str], str] = field(default_factory=dict)
    _bias: tuple[int, str] = (-1, "")

    def look(self, standing: Standing, now: float) -> list[str]:
        """Lines for what is new and what is over; ``now``: seconds since 1970."""
        found = dict(self._found(standing, now))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        lines = [f"{stamp} ALERT {key[0]} {text}" for key, text in found.items() if key not in self.raised]
        over = [key for key in self.raised if key not in found]
        lines += [f"{stamp} CLEAR {code} {_who(name)}, round {standing.rounds}" for code, name in over]
        self.raised = found
        return lines

    def counts(self) -> dict[str, int]:
        """How many are raised, by code."""
        return {code: sum(key[0] == code for key in self.raised) for code in CODES}

    def _found(self, standing: Standing, now: float) -> Iterator[tuple[tuple[str, str], str]]:
        limits = self.limits
        for client in standing.clients.values():
            who, missed = _who(client.name), standing.missed(client)
            if missed >= limits.silent_rounds:
                since = "never so far" if client.last is None else f"since round {client.last + 1}"
                yield (SILENT, client.name), f"{who} not heard for {missed} rounds, {since}: {client.reason or 'away'}"
            if client.times >= limits.repeats and client.state in ("failed", "refused"):
                yield (REPEATS, client.name), f"{who} {client.state} {client.times} times in a row: {client.reason}"
        if standing.empty >= 3:
            yield (EMPTY, ""), f"nobody was heard in {standing.empty} rounds, up to round {standing.rounds}"
        closed, done = standing.closed(), standing.target is not None and standing.rounds >= standing.target
        if closed is not None and not done and now - closed > limits.stalled:
            yield (STALLED, ""), f"no round was closed for {duration(now - closed)}, after round {standing.rounds}"
        if text := self._biased(standing):
            yield (BIAS, ""), text

    def _biased(self, standing: Standing) -> str:
        """How far FedAvg's weights are from equal ones over the latest rounds, as the audit says; every tenth round."""
        if len(standing.history) < LEAST or len(standing.clients) < 2 or self.limits.bias == 1:
            return ""
        if standing.rounds // 10 != self._bias[0]:
            try:
                from fedpbc.audit import ParticipationLog, audit
            except ModuleNotFoundError as error:
                return f"the bias is not looked at: {error.name} is missing (the extra audit); --bias 1 does without"
            names = sorted(standing.clients)
            table = np.array([[name in here for name in names] for here in standing.history])
            bias = audit(ParticipationLog.from_matrix(table, names)).bias if table.any() else None
            far = bias is not None and bias.total_variation > max(self.limits.bias, bias.total_variation_by_chance)
            text = f"{bias.total_variation:.2f} of FedAvg's weight is misplaced" if bias is not None and far else ""
            self._bias = standing.rounds // 10, text and f"{text}, over {len(table)} rounds up to {standing.rounds}"
        return self._bias[1]


def _who(name: str) -> str:
    return f"client {shorten(name)}" if name else "federation"
