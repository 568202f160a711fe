"""FedStale on real machines (Rodio & Neglia, arXiv 2405.04171)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from fedpbc.algorithms.fedau import weighting
from fedpbc.algorithms.fedavg import WEIGHTING as MEAN
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.methods.common.tables import Tables
from fedpbc.flower.methods.common.weights import Weights
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.checks import given, intervals_may_end, one_of, positive, share, whole
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Read, Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.wire.arrays import Layout


@dataclass(kw_only=True, eq=False)
class FedStale(UnreliableClients):
    """x += eta_g (beta mean of all latest updates h + sum over A^t of w_i (Delta_i - beta h_i)) (arXiv 2405.04171).

    Server memory: m + 2 models. Raises ConfigError.

    num_clients: m, required.
    beta: how much stale updates count, in [0, 1]; 0: FedAU or FedAvg; 1 with "mean": FedVARP.
    weights: "intervals", FedAU's over m; or "mean", 1/|A^t|.
    cutoff: FedAU's K; 0: none.
    server_learning_rate: eta_g.
    """

    method: ClassVar[str] = "fedstale"
    num_clients: int = field()
    beta: float = 0.5
    weights: Literal["intervals", "mean"] = "intervals"
    cutoff: int = 50
    server_learning_rate: float = 1.0

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        self.beta, self.cutoff = share("beta", self.beta), whole("cutoff", self.cutoff)
        one_of("weights", self.weights, ("intervals", "mean"))
        if self.weights == "intervals":
            intervals_may_end(self.cutoff, self.fraction_train)
        self.server_learning_rate = positive("server_learning_rate", self.server_learning_rate)
        return FedStaleRule(self)


class FedStaleRule(Rule):
    """FedAvg or FedAU that takes a part of what is known of everybody along."""

    remembers = True
    unweighted = ""

    def __init__(self, options: FedStale) -> None:
        self.beta, self.rate, self.cutoff = options.beta, options.server_learning_rate, options.cutoff
        self.intervals = options.weights == "intervals"

    def settings(self) -> dict[str, Any]:
        """All options."""
        weights = "intervals" if self.intervals else "mean"
        return {"beta": self.beta, "weights": weights, "cutoff": self.cutoff, "server_learning_rate": self.rate}

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """h_i = 0, and nobody was heard yet."""
        super().init(layout, num_clients)
        self.tables = Tables(layout, {"row": self.num_clients, "mean": 1})
        self.weights = Weights(weighting(self.cutoff) if self.intervals else MEAN, self.num_clients)

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = x^t + eta_g direction, then h_i = Delta_i for i in A^t, and their mean.

        An empty A^t: x^t + eta_g beta mean of the h_i with "intervals", which see every round; x^t with "mean".
        """
        if not (replies or self.intervals):
            return Step(None)
        table, means = self.tables["row"], self.tables["mean"]
        sweep = Sweep(self.layout, round, replies, self.num_clients, table)
        memory, w = self.weights.step(sweep.reported, round.t)
        new, after = self.layout.empty(), self.layout.empty()

        def body(block: Block) -> None:
            number = block.start.dtype.type
            total, changes, part = block.zeros(), block.zeros(), block.zeros()
            for i, update in block.heard():
                h = block.row(i)
                np.multiply(h, number(-self.beta), out=part)
                part += update
                part *= number(w[i])
                total += part
                np.subtract(update, h, out=part)
                changes += part
                h[:] = update
            mean = means.rows[block.name][0, block.columns]
            new[block.name][block.columns] = block.start + number(self.rate) * (number(self.beta) * mean + total)
            after[block.name][block.columns] = mean + changes / self.num_clients

        update, stale = sweep.update_bound(), table.bound()
        rows, change = np.maximum(stale, update), means.bound() + update + stale
        step = self.beta * means.bound() + w[sweep.reported].sum() * (update + self.beta * stale)
        bounds = [rows, self.num_clients * change, step, round.largest + self.rate * step]
        write = sweep.run(body, lambda: bounds)

        def commit() -> None:
            write()
            table.wrote(round.t, sweep.reported, rows)
            means.replace(round.t, after)
            self.weights.memory = memory

        return Step(new, commit)

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """When the tables were written, what the weights remember; the rows."""
        return {"tables": self.tables.state(), "weights": self.weights.state()}, self.tables.pieces()

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """All as it was."""
        self.tables.restore(memory["tables"], read)
        self.weights.restore(memory["weights"])
