"""Debiased FedAvg on real machines (Sun et al., arXiv 2410.01209)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fedpbc.algorithms.debiased_fedavg import WEIGHTING
from fedpbc.flower.methods.common.weights import WeightedRule
from fedpbc.flower.server.checks import given
from fedpbc.flower.server.rule import Rule
from fedpbc.flower.strategy import UnreliableClients


@dataclass(kw_only=True, eq=False)
class DebiasedFedAvg(UnreliableClients):
    """x += (1/m) sum over A^t of Delta_i / f_i, f_i the share of rounds in which i was heard (arXiv 2410.01209).

    Server memory: two numbers per client. The first update of a client that comes in round t weighs t + 1. Raises
    ConfigError.

    num_clients: m, required.
    """

    method: ClassVar[str] = "debiased_fedavg"
    num_clients: int = field()

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        return WeightedRule(WEIGHTING)
