"""FedVARP on real machines (Jhunjhunwala et al., arXiv 2207.14130)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedpbc.flower.methods.common.latest import Keeper, LatestUpdates
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.server.checks import given, positive
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients


@dataclass(kw_only=True, eq=False)
class FedVARP(UnreliableClients):
    """x += eta_g (mean of all latest updates y + mean over A^t of (Delta_i - y_i)) (arXiv 2207.14130).

    Raises ConfigError.

    num_clients: m, required.
    server_learning_rate: eta_g.
    memory: who keeps the y_i. "server": m + 2 models there. "client": each its own in ``context.state``, and 2 models
        on the server, whatever m; the models are the same. A client that lost its y_i (new node, new run) makes
        everybody's start from 0 again.
    """

    method: ClassVar[str] = "fedvarp"
    num_clients: int = field()
    server_learning_rate: float = 1.0
    memory: Keeper = "server"

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        return FedVARPRule(self.server_learning_rate, self.memory)


class FedVARPRule(LatestUpdates):
    """The mean over those heard, its variance reduced by everybody's latest update."""

    def __init__(self, server_learning_rate: float, memory: Keeper) -> None:
        """Raises ConfigError."""
        super().__init__(memory)
        self.server_learning_rate = positive("server_learning_rate", server_learning_rate)

    def settings(self) -> dict[str, Any]:
        """Who keeps the y_i, and eta_g."""
        return super().settings() | {"server_learning_rate": self.server_learning_rate}

    def num_rows(self) -> dict[str, int]:
        """The y_i, unless the clients keep them, and their mean."""
        return super().num_rows() | {"mean": 1}

    def rate(self, t: int) -> float:
        """eta_g."""
        return self.server_learning_rate

    def step_by_server(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = x^t + eta_g surrogate, then y_i = Delta_i for i in A^t, and their mean; no reply: nothing."""
        if not replies:
            return Step(None)
        table, means, eta = self.tables["row"], self.tables["mean"], self.server_learning_rate
        sweep = Sweep(self.layout, round, replies, self.num_clients, table)
        new, after = self.layout.empty(), self.layout.empty()

        def body(block: Block) -> None:
            total = block.zeros()
            for i, update in block.heard():
                y = block.row(i)
                np.subtract(update, y, out=y)
                total += y
                y[:] = update
            mean = means.rows[block.name][0, block.columns]
            step = mean + total / total.dtype.type(sweep.count)
            new[block.name][block.columns] = block.start + step.dtype.type(eta) * step
            after[block.name][block.columns] = mean + total / self.num_clients

        update = sweep.update_bound()
        rows = np.maximum(table.bound(), update)
        change = means.bound() + update + table.bound()
        write = sweep.run(body, lambda: [rows, change, round.largest + eta * change])

        def commit() -> None:
            write()
            table.wrote(round.t, sweep.reported, rows)
            means.replace(round.t, after)

        return Step(new, commit)

    def direction(self, before: np.ndarray, mean: np.ndarray, total: np.ndarray, count: int) -> np.ndarray:
        """The mean of all y_i + mean over A^t of (Delta_i - y_i)."""
        return before + total / total.dtype.type(max(count, 1))

    def moves(self, reported: np.ndarray, known: np.ndarray) -> bool:
        """Unless nobody is heard."""
        return bool(reported.any())
