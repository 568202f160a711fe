"""What the clients keep for a method: which of it is valid, and what happens when a client lost it."""

from __future__ import annotations

import logging
from typing import Any

from fedpbc.flower.methods.common.tables import Tables
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.roster import Client

log = logging.getLogger("flwr")


class Epochs:
    """The server's side of what each client keeps, of which the server has the mean.

    The server notes which round's reply of a client counted last. A client that cannot find what it kept of that
    round says so; the server then begins a new epoch, in which everybody's and its mean start from 0.
    """

    def __init__(self, num_clients: int) -> None:
        self.accepted = [-1] * num_clients
        """The latest round whose reply counted in this epoch, per client; -1: none."""
        self.epoch = 0

    def order(self, client: Client) -> dict[str, Any]:
        """Fields of an order: which of what this client keeps is the valid one."""
        return {"accepted": self.accepted[client.index], "epoch": self.epoch}

    def begin_anew(self, t: int, heard: list[Reply], tables: Tables) -> bool:
        """Whether somebody lost what it kept: then everything starts from 0, and nothing of this round is kept."""
        lost = [reply.client.name for reply in heard if reply.answer.lost]
        if lost:
            log.info("round %d: %s lost what the method keeps there; all start from 0 again", t + 1, ", ".join(lost))
            self.epoch, self.accepted = self.epoch + 1, [-1] * len(self.accepted)
            tables.wipe()
        return bool(lost)

    def count(self, t: int, heard: list[Reply]) -> None:
        """What these clients kept of round t is the valid one from now on."""
        for reply in heard:
            self.accepted[reply.client.index] = t

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"accepted": self.accepted, "epoch": self.epoch}

    def restore(self, memory: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.accepted, self.epoch = list(memory["accepted"]), memory["epoch"]
