"""SCAFFOLD on real machines: control variates held by the server, or by clients that may lose them."""

from __future__ import annotations

import logging
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.algorithms.scaffold import renew, renew_mean
from fedpbc.core.aggregation import masked_mean
from fedpbc.flower.arrays import Model, Refused
from fedpbc.flower.ledger import Reply
from fedpbc.flower.methods import KnownClients
from fedpbc.flower.options import one_of, positive
from fedpbc.flower.protocol import CONTROL, SHIFT, Order
from fedpbc.flower.roster import Client
from fedpbc.flower.table import KeepsTables

log = logging.getLogger("flwr")


class SCAFFOLD(KeepsTables, KnownClients):
    """Local steps along g - c_i + c; x += eta_g mean over A^t of Delta_i (arXiv 1910.06378, option II).

    c_i+ = c_i - c - Delta_i / h_i, h_i the sum of the learning rates of i's local steps; c+ = c + (1/m) sum over A^t
    of (c_i+ - c_i), over m and not |A^t|, so that c is always the mean of all c_i. The train function takes its
    steps through ``drift_correction``; a reply of one that does not is refused.

    controls: "server" keeps all c_i (m + 1 models), sends c - c_i, and clients keep nothing. "client": each keeps
        its own in ``context.state`` and sends the change; the server keeps c and one number per client. A client
        that lost its c_i (new node, new run) makes the server begin a new epoch: c and all c_i start from 0 again.
    server_learning_rate: eta_g. The other parameters are those of ``UnreliableClients``; ``num_clients`` is
        required. Raises ConfigError.
    """

    method = "scaffold"

    def __init__(
        self,
        *,
        round_deadline: float,
        num_clients: int,
        controls: Literal["server", "client"] = "server",
        server_learning_rate: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.controls = one_of("controls", controls, ("server", "client"))
        self.server_learning_rate = positive("server_learning_rate", server_learning_rate)

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: controls and server_learning_rate."""
        own = {"controls": self.controls, "server_learning_rate": self.server_learning_rate}
        return super().settings() | own

    def num_rows(self) -> dict[str, int]:
        """c, and the c_i where the server keeps them."""
        return {"control": 1, "row": self.m if self.controls == "server" else 0}

    def begin(self) -> None:
        """c = c_i = 0."""
        super().begin()
        self.accepted, self.epoch = [-1] * self.m, 0
        self._sent: tuple[int, ArrayRecord] | None = None

    def extras(self, client: Client) -> dict[str, ArrayRecord]:
        """c - c_i, or c where the client has c_i."""
        if self.round >= self.train_rounds:
            return {}
        c = self.tables["control"].row(0)
        if self.controls == "server":
            own = self.tables["row"].row(client.index)
            return {SHIFT: self.layout.companion().record({name: c[name] - own[name] for name in c})}
        if self._sent is None or self._sent[0] != self.round:
            self._sent = self.round, self.layout.companion().record(c)
        return {CONTROL: self._sent[1]}

    def order(self, client: Client, **fields: Any) -> Order:
        """One round, through ``drift_correction``."""
        return super().order(client, accepted=self.accepted[client.index], epoch=self.epoch, **fields)

    def check(self, reply: Reply) -> None:
        """Raise Refused when the steps were not taken through ``drift_correction``."""
        if self.round >= self.train_rounds:
            return
        self.check_steps(reply, self.flat)
        if self.controls == "client" and reply.change is None and not reply.answer.lost:
            raise Refused("has no change of its control variate")

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = x^t + eta_g mean over A^t of Delta_i; an empty A^t leaves it."""
        if not replies:
            return None
        updates = self.updates(replies)
        new = self.layout.empty()
        for name, block, update in updates.blocks():
            zero = np.zeros_like(update[0])
            step = masked_mean(update, updates.reported, otherwise=zero)
            new[name][block] = self.flat[name][block] + step.dtype.type(self.server_learning_rate) * step
        return new

    def keep(self, t: int, heard: list[Reply]) -> None:
        """c and c_i after this round."""
        if heard and self.controls == "server":
            self._renew_all(t, heard)
        elif heard:
            self._take_changes(t, heard)

    def _renew_all(self, t: int, heard: list[Reply]) -> None:
        """Where the server keeps c_i: c_i+ = c_i - c - Delta_i / h_i, and c stays their mean."""
        updates = self.updates(heard)
        length = np.ones((self.m, 1))
        length[[reply.client.index for reply in heard], 0] = [reply.answer.length for reply in heard]
        for name, block, update in updates.blocks():
            c, rows = self.tables["control"].rows[name][0, block], self.tables["row"].rows[name][:, block]
            c[:], rows[:] = renew(c, rows, update, length.astype(rows.dtype), updates.reported)
        self.tables["row"].wrote(t, updates.reported)
        self.tables["control"].wrote(t, np.array([True]))

    def _take_changes(self, t: int, heard: list[Reply]) -> None:
        """Where clients keep c_i: c from their changes, or a new epoch when one of them lost it."""
        lost = [reply.client.name for reply in heard if reply.answer.lost]
        if lost:
            log.info("round %d: %s lost the control variate; all start from 0 again", t + 1, ", ".join(lost))
            self.epoch, self.accepted = self.epoch + 1, [-1] * self.m
            self.tables["control"].clear()
            return
        changes = [self.layout.flatten(reply.change) for reply in heard if reply.change is not None]
        for name, block in self.layout.blocks():
            c, change = self.tables["control"].rows[name][0, block], np.stack([model[name][block] for model in changes])
            c[:] = renew_mean(c, change, np.ones(len(change), bool), self.m)
        self.tables["control"].wrote(t, np.array([True]))
        for reply in heard:
            self.accepted[reply.client.index] = t

    def memory(self) -> dict[str, Any]:
        """When c and the c_i were written, and what was accepted when."""
        return super().memory() | {"accepted": self.accepted, "epoch": self.epoch}

    def recall(self, memory: dict[str, Any]) -> None:
        """All as it was."""
        super().recall(memory)
        self.accepted, self.epoch, self._sent = list(memory["accepted"]), memory["epoch"], None
