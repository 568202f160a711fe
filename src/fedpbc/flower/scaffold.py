"""SCAFFOLD on real machines: control variates held by the server, or by clients that may lose them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.algorithms.scaffold import change_of, renew, renew_mean
from fedpbc.core.aggregation import masked_mean
from fedpbc.flower.arrays import Model
from fedpbc.flower.known import KeptByClients
from fedpbc.flower.ledger import Reply
from fedpbc.flower.options import one_of, positive
from fedpbc.flower.protocol import CONTROL, SHIFT
from fedpbc.flower.roster import Client


class SCAFFOLD(KeptByClients):
    """Local steps along g - c_i + c; x += eta_g mean over A^t of Delta_i (arXiv 1910.06378, option II).

    c_i+ = c_i - c - Delta_i / h_i, h_i the sum of the learning rates of i's local steps; c+ = c + (1/m) sum over A^t
    of (c_i+ - c_i), over m and not |A^t|, so that c is always the mean of all c_i. The train function takes its
    steps through ``drift_correction``; a reply of one that does not is refused.

    controls: "server" keeps all c_i (m + 1 models), sends c - c_i, and clients keep nothing. "client": each keeps
        its own in ``context.state``; the server keeps c and one number per client. c_i+ - c_i = -c - Delta_i / h_i
        follows from the model, so nothing else is sent. A client that lost its c_i (new node, new run) makes the
        server begin a new epoch: c and all c_i start from 0 again.
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

    def check(self, reply: Reply) -> None:
        """Raise Refused when the steps were not taken through ``drift_correction``."""
        if self.round < self.train_rounds:
            self.check_steps(reply, self.flat)

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
            self._follow(t, heard)

    def _renew_all(self, t: int, heard: list[Reply]) -> None:
        """Where the server keeps c_i: c_i+ = c_i - c - Delta_i / h_i, and c stays their mean."""
        updates, length = self.updates(heard), self._lengths(heard)
        for name, block, update in updates.blocks():
            c, rows = self.tables["control"].rows[name][0, block], self.tables["row"].rows[name][:, block]
            c[:], rows[:] = renew(c, rows, update, length.astype(rows.dtype), updates.reported)
        self.tables["row"].wrote(t, updates.reported)
        self.tables["control"].wrote(t, np.array([True]))

    def _lengths(self, heard: list[Reply]) -> np.ndarray:
        """h_i, [m, 1]; 1 for those that were not heard."""
        length = np.ones((self.m, 1))
        length[[reply.client.index for reply in heard], 0] = [reply.answer.length for reply in heard]
        return length

    def _follow(self, t: int, heard: list[Reply]) -> None:
        """Where clients keep c_i: c from the changes of their c_i, or a new epoch when one of them lost it."""
        if self.begin_epoch(t, heard):
            return
        updates, length = self.updates(heard), self._lengths(heard)
        for name, block, update in updates.blocks():
            c = self.tables["control"].rows[name][0, block]
            c[:] = renew_mean(c, change_of(c, update, length.astype(c.dtype)), updates.reported, self.m)
        self.tables["control"].wrote(t, np.array([True]))
        self.count(t, heard)

    def recall(self, memory: dict[str, Any]) -> None:
        """All as it was."""
        super().recall(memory)
        self._sent = None
