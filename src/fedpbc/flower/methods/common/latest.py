"""What MIFA and FedVARP share: everybody's latest update, kept on the server or by the clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.flower.methods.common.epochs import Epochs
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.methods.common.tables import Tables
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.checks import one_of
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.roster import Client
from fedpbc.flower.server.rule import Read, Round, Rule, Step
from fedpbc.flower.wire.arrays import Layout, Model, to_record
from fedpbc.flower.wire.protocol import UPDATE_SCALE

Keeper = Literal["server", "client"]
"""Who keeps the latest update of a client."""


BY_CLIENTS = (
    'with memory = "client" the server has only the mean of what clients keep, and a weight that changes with what is '
    'known of the others would spoil it; use memory = "server"'
)


class LatestUpdates(Rule):
    """The rule of a method that uses everybody's latest update.

    A client that keeps its own, h_i = Delta_i / scale, sends x^t + Delta_i - scale h_i in place of its model; the
    server reads Delta_i / scale - h_i off it and follows hbar, the mean of the h_i.
    """

    remembers = True

    def __init__(self, memory: Keeper) -> None:
        """Raises ConfigError."""
        self.by_clients = one_of("memory", memory, ("server", "client")) == "client"
        self.unweighted = BY_CLIENTS if self.by_clients else ""

    def settings(self) -> dict[str, Any]:
        """Who keeps them."""
        return {"memory": "client" if self.by_clients else "server"}

    def num_rows(self) -> dict[str, int]:
        """The latest updates, or their mean."""
        return {"mean": 1} if self.by_clients else {"row": self.num_clients}

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """Zeros."""
        super().init(layout, num_clients)
        self.tables, self.epochs = Tables(layout, self.num_rows()), Epochs(self.num_clients)

    def scale(self, t: int) -> float:
        """What Delta_i is divided by before it is kept."""
        return 1.0

    def order(self, round: Round, client: Client) -> dict[str, Any]:
        """Which of what this client keeps is the valid one."""
        return self.epochs.order(client)

    def extras(self, round: Round, client: Client) -> dict[str, ArrayRecord]:
        """The scale, where the client keeps its latest update."""
        return {UPDATE_SCALE: to_record({"scale": np.array(self.scale(round.t))})} if self.by_clients else {}

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) as the method says; the latest updates anew for i in A^t."""
        return self.step_by_clients(round, replies) if self.by_clients else self.step_by_server(round, replies)

    @abstractmethod
    def step_by_server(self, round: Round, replies: list[Reply]) -> Step:
        """Where the server keeps the latest updates."""

    def step_by_clients(self, round: Round, replies: list[Reply]) -> Step:
        """Where the clients do: the step from the differences of those that lost nothing, and hbar, in one pass."""
        fitting = [reply for reply in replies if not reply.answer.lost]
        sweep = Sweep(self.layout, round, fitting, self.num_clients)
        new, mean = self.layout.empty(), self.layout.empty()
        scale, rate = self.scale(round.t), self.rate(round.t)

        def body(block: Block) -> None:
            total, name, columns = block.zeros(), block.name, block.columns
            for _, update in block.heard():
                update /= update.dtype.type(scale)
                total += update
            before = self.tables["mean"].rows[name][0, columns]
            mean[name][columns] = before + total / self.num_clients
            step = self.direction(before, mean[name][columns], total, sweep.count)
            new[name][columns] = block.start + step.dtype.type(rate) * step

        sweep.run(body)
        commit = self._follow(round.t, replies, mean)
        return Step(new if self.moves(sweep.reported, np.array(self.epochs.accepted) >= 0) else None, commit)

    @abstractmethod
    def direction(self, before: np.ndarray, mean: np.ndarray, total: np.ndarray, count: int) -> np.ndarray:
        """Where the model goes, [b]: hbar before and after this round, the sum of the differences, and of how many."""

    @abstractmethod
    def rate(self, t: int) -> float:
        """How far it goes there."""

    @abstractmethod
    def moves(self, reported: np.ndarray, known: np.ndarray) -> bool:
        """Whether the model moves: who is heard now, and who was before, bool[m]."""

    def _follow(self, t: int, heard: list[Reply], mean: Model) -> Callable[[], None]:
        """hbar += (1/m) sum of the differences, or a new epoch when a client lost its h_i."""

        def commit() -> None:
            if heard and not self.epochs.begin_anew(t, heard, self.tables):
                self.tables["mean"].replace(t, mean)
                self.epochs.count(t, heard)

        return commit

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """When the tables were written, and what counted when; the rows."""
        return {"tables": self.tables.state(), **self.epochs.state()}, self.tables.pieces()

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """All as it was."""
        self.tables.restore(memory["tables"], read)
        self.epochs.restore(memory)
