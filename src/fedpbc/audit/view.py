"""The findings of a log that names its clients, as the page looks at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpbc.audit.types import Bias, Findings, Floats, Mixing, Participation, Stationarity
from fedpbc.io.participation.log import ParticipationLog


@dataclass(frozen=True, eq=False)
class View:
    """A log and its findings, each of them there."""

    log: ParticipationLog
    participation: Participation
    bias: Bias
    stationarity: Stationarity
    mixing: Mixing

    @classmethod
    def of(cls, findings: Findings, log: ParticipationLog) -> View | None:
        """None for a log of counts only."""
        found, bias, mixing = findings.participation, findings.bias, findings.mixing
        if not isinstance(found, Participation) or bias is None or mixing is None:
            return None
        return cls(log, found, bias, findings.stationarity, mixing)

    @property
    def m(self) -> int:
        """How many clients there are."""
        return len(self.log.clients)

    @property
    def rate(self) -> Floats:
        """Share of the known rounds with the client, [m]."""
        return self.participation.rate

    @property
    def outside(self) -> float:
        """Share of clients whose interval leaves out the mean rate."""
        mean = float(self.rate.mean())
        return float(np.mean((self.participation.rate_low > mean) | (self.participation.rate_high < mean)))

    @property
    def by_chance(self) -> bool:
        """Whether no more clients than expected by chance are off the mean rate."""
        alpha = 1 - self.participation.confidence
        return self.outside <= alpha + 2 * (alpha / self.m) ** 0.5
