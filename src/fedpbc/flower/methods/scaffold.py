"""SCAFFOLD on real machines: control variates held by the server, or by clients that may lose them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from flwr.app import ArrayRecord

from fedpbc.flower.methods.common.epochs import Epochs
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.methods.common.tables import Tables
from fedpbc.flower.methods.common.updates import check_steps, lengths
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.checks import given, one_of, positive
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.roster import Client
from fedpbc.flower.server.rule import SCALE_THE_LOSS, Read, Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.wire.arrays import Layout
from fedpbc.flower.wire.protocol import CONTROL_VARIATE, CORRECTION


@dataclass(kw_only=True, eq=False)
class SCAFFOLD(UnreliableClients):
    """Local steps along g - c_i + c; x += eta_g mean over A^t of Delta_i (arXiv 1910.06378, option II).

    c_i+ = c_i - c - Delta_i / h_i, h_i the sum of the learning rates of i's local steps; c+ = c + (1/m) sum over A^t
    of (c_i+ - c_i), over m and not |A^t|, so that c is always the mean of all c_i. The train function takes its
    steps through ``drift_correction``; a reply of one that does not is refused. Raises ConfigError.

    num_clients: m, required.
    controls: "server" keeps all c_i (m + 1 models), sends c - c_i, and clients keep nothing. "client": each keeps
        its own in ``context.state``; the server keeps c and one number per client. c_i+ - c_i = -c - Delta_i / h_i
        follows from the model, so nothing else is sent. A client that lost its c_i (new node, new run) makes the
        server begin a new epoch: c and all c_i start from 0 again.
    server_learning_rate: eta_g.
    """

    method: ClassVar[str] = "scaffold"
    num_clients: int = field()
    controls: Literal["server", "client"] = "server"
    server_learning_rate: float = 1.0

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        return SCAFFOLDRule(self.controls, self.server_learning_rate)


class SCAFFOLDRule(Rule):
    """The mean over those heard, and the control variates that take the drift out of local steps."""

    remembers = True
    unweighted = f"control variates are of each client's own gradients, which the server cannot scale; {SCALE_THE_LOSS}"

    def __init__(self, controls: Literal["server", "client"], server_learning_rate: float) -> None:
        """Raises ConfigError."""
        self.controls = one_of("controls", controls, ("server", "client"))
        self.by_server = controls == "server"
        self.server_learning_rate = positive("server_learning_rate", server_learning_rate)

    def settings(self) -> dict[str, Any]:
        """Who keeps the c_i, and eta_g."""
        return {"controls": self.controls, "server_learning_rate": self.server_learning_rate}

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """c = c_i = 0."""
        super().init(layout, num_clients)
        self.tables = Tables(layout, {"control": 1, "row": self.num_clients if self.by_server else 0})
        self.epochs = Epochs(self.num_clients)
        self._sent: tuple[int, ArrayRecord] | None = None
        """(t, c as it is sent in round t)."""

    def order(self, round: Round, client: Client) -> dict[str, Any]:
        """Which c_i of this client is the valid one."""
        return self.epochs.order(client)

    def extras(self, round: Round, client: Client) -> dict[str, ArrayRecord]:
        """c - c_i, or c where the client has c_i."""
        c = self.tables["control"].row(0)
        if self.by_server:
            own = self.tables["row"].row(client.index)
            return {CORRECTION: self.layout.computing().record({name: c[name] - own[name] for name in c})}
        if self._sent is None or self._sent[0] != round.t:
            self._sent = round.t, self.layout.computing().record(c)
        return {CONTROL_VARIATE: self._sent[1]}

    def check(self, round: Round, reply: Reply) -> None:
        """Raise Refused when the steps were not taken through ``drift_correction``."""
        if round.trains:
            check_steps(self.layout, reply, round.model, round.largest)

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = x^t + eta_g mean over A^t of Delta_i, and c+ in the same pass; an empty A^t leaves both."""
        if not replies:
            return Step(None)
        table, control = self.tables["row"], self.tables["control"]
        sweep = Sweep(self.layout, round, replies, self.num_clients, table)
        length, eta = lengths(replies, self.num_clients), self.server_learning_rate
        new, after = self.layout.empty(), self.layout.empty()

        def body(block: Block) -> None:
            c, total, changes = control.rows[block.name][0, block.columns], block.zeros(), block.zeros()
            for i, update in block.heard():
                total += update
                update /= update.dtype.type(length[i])
                update += c  # c_i - c_i+, which c moves by too
                changes -= update
                if self.by_server:
                    own = block.row(i)
                    own -= update
            total /= total.dtype.type(sweep.count)
            new[block.name][block.columns] = block.start + total.dtype.type(eta) * total
            after[block.name][block.columns] = c + changes / self.num_clients

        change = control.bound() + sweep.update_bound() / length.min()
        rows = table.bound() + change
        bounds = [rows, control.bound() + change, round.largest + eta * sweep.update_bound()]
        write = sweep.run(body, (lambda: bounds) if self.by_server else None)

        def commit() -> None:
            write()
            if self.by_server:
                table.wrote(round.t, sweep.reported, rows)
            elif self.epochs.begin_anew(round.t, replies, self.tables):
                return
            else:
                self.epochs.count(round.t, replies)
            control.replace(round.t, after)

        return Step(new, commit)

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """When the tables were written, and what counted when; c, and the c_i where the server keeps them."""
        return {"tables": self.tables.state(), **self.epochs.state()}, self.tables.pieces()

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """All as it was."""
        self.tables.restore(memory["tables"], read)
        self.epochs.restore(memory)
