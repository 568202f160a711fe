"""FedAvg on real machines (McMahan et al. 2017; the paper's Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpbc.flower.methods.common.updates import mean_of_replies
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients


@dataclass(kw_only=True, eq=False)
class FedAvg(UnreliableClients):
    """FedAvg over the replies: x^(t+1) = mean over A^t of x_i (McMahan et al. 2017; the paper's Algorithm 1).

    Unlike Flower's it does not weight by num-examples: the objective is the uniform mean over clients, as for the
    other strategies. Biased towards clients that are heard often. Raises ConfigError.
    """

    method: ClassVar[str] = "fedavg"

    def make_rule(self) -> Rule:
        """The mean."""
        return FedAvgRule()


class FedAvgRule(Rule):
    """The mean of the replies."""

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = (1/|A^t|) sum over A^t of x_i; an empty A^t leaves x^t."""
        return Step(mean_of_replies(self.layout, round.model, replies) if replies else None)
