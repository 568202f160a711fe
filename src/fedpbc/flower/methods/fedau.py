"""FedAU on real machines (Wang & Ji, arXiv 2306.03401)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedpbc.algorithms.fedau import weighting
from fedpbc.flower.methods.common.weights import WeightedRule
from fedpbc.flower.server.checks import given, intervals_may_end, whole
from fedpbc.flower.server.rule import Rule
from fedpbc.flower.strategy import UnreliableClients


@dataclass(kw_only=True, eq=False)
class FedAU(UnreliableClients):
    """x += (1/m) sum over the active of w_i Delta_i, w_i the mean interval between i's rounds (arXiv 2306.03401).

    Server memory: three numbers per client. Raises ConfigError.

    num_clients: m, required.
    cutoff: K, an interval ends after K rounds even if the client is still away; 0: never.
    """

    method: ClassVar[str] = "fedau"
    num_clients: int = field()
    cutoff: int = 50

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        self.cutoff = whole("cutoff", self.cutoff)
        intervals_may_end(self.cutoff, self.fraction_train)
        return FedAURule(self.cutoff)


class FedAURule(WeightedRule):
    """Weights learnt from how long each client was away."""

    def __init__(self, cutoff: int) -> None:
        super().__init__(weighting(cutoff))
        self.cutoff = cutoff

    def settings(self) -> dict[str, Any]:
        """K."""
        return {"cutoff": self.cutoff}
