"""A method for real machines, to copy: FedAvg with momentum on the server (Hsu et al., arXiv 1909.06335).

Copy it to src/fedpbc/flower/methods/, and import the strategy in src/fedpbc/flower/__init__.py: then it is in
``STRATEGIES``. In an app of your own the file works as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedpbc.flower.methods.common.tables import Tables
from fedpbc.flower.methods.common.updates import mean_of_replies
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.checks import share
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Read, Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.wire.arrays import Layout


@dataclass(kw_only=True, eq=False)
class FedAvgM(UnreliableClients):
    """v = beta v + mean over A^t of Delta_i; x += v (arXiv 1909.06335). Raises ConfigError.

    beta: how much of the last v stays, in [0, 1].
    """

    method: ClassVar[str] = "fedavgm"
    """The name in logs, in checkpoints and in STRATEGIES."""
    beta: float = 0.9

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError for options that are not allowed."""
        return FedAvgMRule(share("beta", self.beta))


class FedAvgMRule(Rule):
    """The mean over those heard, with momentum."""

    remembers = True  # v is made of what clients sent: all of it is looked through for NaN before

    def __init__(self, beta: float) -> None:
        self.beta = beta

    def settings(self) -> dict[str, Any]:
        """What must be the same when a checkpoint is taken up again."""
        return {"beta": self.beta}

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """v = 0."""
        super().init(layout, num_clients)
        self.tables = Tables(layout, {"mean": 1})

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = x^t + v; an empty A^t leaves x^t and v."""
        if not replies:
            return Step(None)
        mean, before = mean_of_replies(self.layout, round.model, replies), self.tables["mean"].row(0)
        velocity = {name: self.beta * before[name] + mean[name] - x for name, x in round.model.items()}
        new = {name: x + velocity[name] for name, x in round.model.items()}
        return Step(new, lambda: self.tables["mean"].replace(round.t, velocity))

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """v."""
        return {"tables": self.tables.state()}, self.tables.pieces()

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """v as it was."""
        self.tables.restore(memory["tables"], read)
