"""FedAvg on real machines (McMahan et al. 2017; the paper's Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.methods.common.updates import mean_of_replies
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients


@dataclass(kw_only=True, eq=False)
class FedAvg(UnreliableClients):
    """FedAvg over the replies: x^(t+1) = mean over A^t of x_i (McMahan et al. 2017; the paper's Algorithm 1).

    Unlike Flower's it does not weight by num-examples: the objective is the uniform mean over clients, as for the
    other strategies. With ``client_weights = "samples"`` x^(t+1) = x^t + mean over A^t of (n_i / mean of n) Delta_i,
    which is Flower's where all are heard. Biased towards clients that are heard often. Raises ConfigError.
    """

    method: ClassVar[str] = "fedavg"

    def make_rule(self) -> Rule:
        """The mean."""
        return FedAvgRule()


class FedAvgRule(Rule):
    """The mean of the replies."""

    unweighted = ""

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = (1/|A^t|) sum over A^t of x_i; else x^t + mean of w_i Delta_i."""
        if not replies or all(reply.weight == 1.0 for reply in replies):
            return Step(mean_of_replies(self.layout, round.model, replies) if replies else None)
        new = self.layout.empty()
        sweep = Sweep(self.layout, round, replies, 1 + max(reply.client.index for reply in replies))

        def body(block: Block) -> None:
            total = block.zeros()
            for _, update in block.heard():
                total += update
            new[block.name][block.columns] = block.start + total / total.dtype.type(sweep.count)

        sweep.run(body)
        return Step(new)
