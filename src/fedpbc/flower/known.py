"""Methods that know m, and those part of whose memory the clients may keep."""

from __future__ import annotations

import logging
from typing import Any

from fedpbc.flower.ledger import Reply
from fedpbc.flower.options import require
from fedpbc.flower.protocol import Order
from fedpbc.flower.roster import Client
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.table import KeepsTables, Updates

log = logging.getLogger("flwr")


class KnownClients(UnreliableClients):
    """Base of the methods that must know m; ``num_clients`` is required. Raises ConfigError."""

    remembers = True

    def __init__(self, *, round_deadline: float, num_clients: int, **options: Any) -> None:
        require("num_clients", num_clients, num_clients is not None, f"given: {self.method} divides by it")
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.m = num_clients

    def updates(self, replies: list[Reply]) -> Updates:
        """Delta_i = x_i - x^t of the replies, for rules over [m, d]."""
        return Updates(self.layout, self.flat, {r.client.index: r.arrays for r in replies}, self.m)


class KeptByClients(KeepsTables, KnownClients):
    """Base of the methods whose clients may keep one model each, of which the server keeps the mean.

    The server notes which round's reply of a client counted last. A client that cannot find what it kept of that
    round says so; the server then begins a new epoch, in which everybody's memory and its mean start from 0.
    """

    accepted: list[int]
    """The latest round whose reply counted in this epoch, per client; -1: none."""
    epoch: int

    def begin(self) -> None:
        """Zeros; nothing counted yet."""
        super().begin()
        self.accepted, self.epoch = [-1] * self.m, 0

    def order(self, client: Client, **fields: Any) -> Order:
        """One round, and which of this client's memories is the valid one."""
        return super().order(client, accepted=self.accepted[client.index], epoch=self.epoch, **fields)

    def begin_epoch(self, t: int, heard: list[Reply]) -> bool:
        """Whether somebody lost its memory: then everything starts from 0, and nothing of this round is kept."""
        lost = [reply.client.name for reply in heard if reply.answer.lost]
        if lost:
            log.info("round %d: %s lost what the method keeps there; all start from 0 again", t + 1, ", ".join(lost))
            self.epoch, self.accepted = self.epoch + 1, [-1] * self.m
            for table in self.tables.values():
                table.clear()
        return bool(lost)

    def count(self, t: int, heard: list[Reply]) -> None:
        """What these clients kept of round t is the valid one from now on."""
        for reply in heard:
            self.accepted[reply.client.index] = t

    def memory(self) -> dict[str, Any]:
        """When the tables were written, and what counted when."""
        return super().memory() | {"accepted": self.accepted, "epoch": self.epoch}

    def recall(self, memory: dict[str, Any]) -> None:
        """All as it was."""
        super().recall(memory)
        self.accepted, self.epoch = list(memory["accepted"]), memory["epoch"]
