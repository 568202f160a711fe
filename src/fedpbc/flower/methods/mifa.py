"""MIFA on real machines (Gu et al., arXiv 2106.04159)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedpbc.flower.methods.common.latest import Keeper, LatestUpdates
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.methods.common.updates import check_direction
from fedpbc.flower.server.checks import given, positive, switch
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients


@dataclass(kw_only=True, eq=False)
class MIFA(UnreliableClients):
    """x -= (eta_t/m) sum over ALL clients of G_i, their latest update divided by its eta (arXiv 2106.04159).

    Raises ConfigError.

    num_clients: m, required.
    learning_rate: eta_t, a number or a function of the round t = 0, 1, ...; the one that the clients use.
    wait: the server does not move before everybody was heard once.
    memory: who keeps the G_i. "server": m + 1 models there. "client": each its own in ``context.state``, and 2 models
        on the server, whatever m; the models are the same. A client that lost its G_i (new node, new run) makes
        everybody's start from 0 again.
    """

    method: ClassVar[str] = "mifa"
    num_clients: int = field()
    learning_rate: float | Callable[[int], float]
    wait: bool = False
    memory: Keeper = "server"

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        return MIFARule(self.learning_rate, self.wait, self.memory)


class MIFARule(LatestUpdates):
    """Everybody's latest update, whoever is heard."""

    def __init__(self, learning_rate: float | Callable[[int], float], wait: bool, memory: Keeper) -> None:
        """Raises ConfigError."""
        super().__init__(memory)
        self._learning_rate = learning_rate
        self.wait, self._first_rate = switch("wait", wait), self.rate(0, "learning_rate")

    def settings(self) -> dict[str, Any]:
        """Who keeps the G_i, wait, and the learning rate of round 0."""
        return super().settings() | {"wait": self.wait, "learning_rate in round 0": self._first_rate}

    def rate(self, t: int, key: str = "") -> float:
        """eta_t. Raises ConfigError."""
        value = self._learning_rate(t) if callable(self._learning_rate) else self._learning_rate
        return positive(key or f"learning_rate in round {t}", value)

    def scale(self, t: int) -> float:
        """eta_t."""
        return self.rate(t)

    def check(self, round: Round, reply: Reply) -> None:
        """Raise Refused when G_i would be too large to compute with."""
        check_direction(self.layout, reply, round.model, round.largest, self.rate(round.t) / max(reply.weight, 1.0))

    def step_by_server(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = x^t - (eta_t/m) sum_i G_i with the G_i after round t, in an empty round too."""
        table, rate, new = self.tables["row"], self.rate(round.t), self.layout.empty()
        sweep = Sweep(self.layout, round, replies, self.num_clients, table)

        def body(block: Block) -> None:
            total, eta = block.zeros(), block.start.dtype.type(rate)
            for i, update in block.everybody(self.num_clients):
                latest = block.row(i)
                if update is not None:
                    np.divide(update, -eta, out=latest)
                total += latest
            total /= self.num_clients
            new[block.name][block.columns] = block.start - eta * total

        rows = np.maximum(table.bound(), sweep.update_bound() / rate)
        write = sweep.run(body, lambda: [rows, round.largest + rate * rows])

        def commit() -> None:
            write()
            table.wrote(round.t, sweep.reported, rows)

        return Step(new if self.moves(sweep.reported, table.heard()) else None, commit)

    def direction(self, before: np.ndarray, mean: np.ndarray, total: np.ndarray, count: int) -> np.ndarray:
        """The mean of Delta_i / eta_t = -G_i after this round."""
        return mean

    def moves(self, reported: np.ndarray, known: np.ndarray) -> bool:
        """In every round, or when everybody was heard once."""
        return not self.wait or bool((known | reported).all())
