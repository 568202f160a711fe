"""Findings as the page needs them: arrays per client, None where something is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedpbc.io.participation.log import ParticipationLog


def value_at(findings: dict[str, Any], *keys: str) -> Any:
    """What is under these keys, None when any of them is missing or null."""
    value: Any = findings
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


class View:
    """Findings as arrays; what is missing is None."""

    def __init__(self, findings: dict[str, Any], log: ParticipationLog) -> None:
        self.findings, self.log = findings, log
        self.m = len(log.clients)
        rate = self.array("participation", "rate")
        self.counted = np.bincount(log.members, minlength=self.m) / max(log.known_rounds, 1)
        self.rate = self.counted if rate is None else rate
        low, high = self.array("participation", "rate_low"), self.array("participation", "rate_high")
        self.low, self.high = (low, high) if low is not None and high is not None else (self.rate, self.rate)
        self.intervals = low is not None and high is not None
        self.weight = self.array("bias", "realised_weight")
        self.theory = self.array("bias", "theoretical_weight")
        self.absence = self.array("participation", "longest_absence")
        self.number = {client: i for i, client in enumerate(log.clients)}

    def at(self, *keys: str) -> Any:
        """What is under these keys of the findings, or None."""
        return value_at(self.findings, *keys)

    def array(self, *keys: str) -> np.ndarray | None:
        """A list of one number per client; None when it is missing, of another length or has nulls."""
        values = self.at(*keys)
        if values is None or len(values) != self.m or any(value is None for value in values):
            return None
        return np.asarray(values, float)

    @property
    def outside(self) -> float | None:
        """Share of clients whose interval leaves out the mean rate."""
        if not self.intervals:
            return None
        mean = float(self.rate.mean())
        return float(np.mean((self.low > mean) | (self.high < mean)))

    @property
    def by_chance(self) -> bool:
        """Whether no more clients than expected by chance are off the mean rate."""
        alpha = 1 - (self.at("participation", "confidence") or 0.95)
        outside = self.outside
        return outside is not None and outside <= alpha + 2 * (alpha / self.m) ** 0.5
