"""FedFade on real machines (ours): control variates that fade as fast as gradients are seen to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.algorithms.fedau import Intervals, init, weights
from fedpbc.algorithms.fedfade import GONE, fade, learn, left
from fedpbc.core.types import Link
from fedpbc.flower.methods.common.epochs import Epochs
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.methods.common.tables import Tables
from fedpbc.flower.methods.common.updates import check_direction, check_steps, lengths
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.checks import given, intervals_may_end, one_of, positive, require, share, whole
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.roster import Client
from fedpbc.flower.server.rule import SCALE_THE_LOSS, Read, Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.wire.arrays import Layout, Model, to_record
from fedpbc.flower.wire.protocol import AROUND, CONTROL_VARIATE, CORRECTION, FADING


@dataclass(kw_only=True, eq=False)
class FedFade(UnreliableClients):
    """SCAFFOLD whose c_i fade with their age, u_i = delta^a_i c_i, with FedAU's weights w_i (ours).

    Local steps along g - u_i + c; g_i = u_i - c - Delta_i / h_i, h_i the sum of the learning rates of i's local steps,
    d_i = g_i - u_i. x -= h (c + (1/m) sum over A^t of w_i d_i), h their mean; c = delta (c + (1/m) sum over A^t of
    d_i); c_i = g_i. In an empty round h is that of the latest round with replies. Raises ConfigError.

    num_clients: m, required.
    controls: "client": each keeps its own c_i in ``context.state``; the server keeps c and five numbers per client. One
        that is lost is 0, and what it left in c fades as controls do: not at all where delta = 1. "server": it keeps
        all c_i (m + 1 models), clients keep nothing, and nothing is lost.
    apply: "every_step": the train function takes its steps through ``drift_correction``; a reply of one that does not
        is refused. "around": the mod corrects around a train function that is left as it is; it must take
        ``local_steps`` plain steps with ``learning_rate``.
    learning_rate: eta_t, a number or a function of the round t = 0, 1, ...; for "around" only.
    local_steps: s, likewise.
    fading: delta, a number in [0, 1], "none" (1), or "learnt" from how much of c_i is found in g_i again.
    weights: "intervals", FedAU's, or "mean": x += mean over A^t of Delta_i, as in SCAFFOLD.
    cutoff: K, an interval ends after K rounds even if the client is still away; 0: never.
    """

    method: ClassVar[str] = "fedfade"
    num_clients: int = field()
    controls: Literal["client", "server"] = "client"
    apply: Literal["every_step", "around"] = "every_step"
    learning_rate: float | Callable[[int], float] | None = None
    local_steps: int | None = None
    fading: float | str = "learnt"
    weights: Literal["intervals", "mean"] = "intervals"
    cutoff: int = 50

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        one_of("controls", self.controls, ("client", "server"))
        one_of("weights", self.weights, ("intervals", "mean"))
        if one_of("apply", self.apply, ("every_step", "around")) == "around":
            require("learning_rate", None, self.learning_rate is not None, 'given with apply = "around"')
            require("local_steps", None, self.local_steps is not None, 'given with apply = "around"')
            self.local_steps = whole("local_steps", self.local_steps, 1)
        if isinstance(self.fading, str):
            require("fading", self.fading, self.fading in ("learnt", "none"), 'a number in [0, 1], "learnt" or "none"')
        else:
            self.fading = share("fading", self.fading)
        self.cutoff = whole("cutoff", self.cutoff)
        if self.weights == "intervals":
            intervals_may_end(self.cutoff, self.fraction_train)
        return FedFadeRule(self)


def _overlap(new: np.ndarray, old: np.ndarray) -> tuple[float, ...]:
    """(<g_i, c_i>, |c_i|^2) of a block, [b], in float64 and not by BLAS, whose order depends on its threads."""
    products = (np.einsum("i,i->", x, old, dtype=np.float64) for x in (new, old))
    return tuple(map(float, products))


class Numbers(NamedTuple):
    """What the server keeps beside models."""

    intervals: Intervals
    since: np.ndarray
    """L_i, f[m]: the log at i's last contact."""
    log: float
    """L: the sum of log delta."""
    sums: np.ndarray
    """f[5], see ``learn``."""
    length: float
    """h of the latest round with replies."""


class FedFadeRule(Rule):
    """The weighted step, and controls that fade."""

    remembers = True
    unweighted = f"control variates are of each client's own gradients, which the server cannot scale; {SCALE_THE_LOSS}"

    def __init__(self, options: FedFade) -> None:
        """Raises ConfigError."""
        self.controls, self.by_server = options.controls, options.controls == "server"
        self.around = options.apply == "around"
        self.local_steps, self._learning_rate = options.local_steps or 0, options.learning_rate
        self.fading, self.intervals, self.cutoff = options.fading, options.weights == "intervals", options.cutoff
        self._first = self.rate(0, "learning_rate") if self.around else 0.0

    def rate(self, t: int, key: str = "") -> float:
        """eta_t. Raises ConfigError."""
        value = self._learning_rate(t) if callable(self._learning_rate) else self._learning_rate
        return positive(key or f"learning_rate in round {t}", value)

    def settings(self) -> dict[str, Any]:
        """All options; of the learning rate that of round 0."""
        return {
            "controls": self.controls,
            "apply": "around" if self.around else "every_step",
            "learning_rate in round 0": self._first,
            "local_steps": self.local_steps,
            "fading": self.fading,
            "weights": "intervals" if self.intervals else "mean",
            "cutoff": self.cutoff,
        }

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """c = c_i = 0, and nobody was away yet."""
        super().init(layout, num_clients)
        m = self.num_clients
        self.tables = Tables(layout, {"control": 1, "row": m if self.by_server else 0})
        self.epochs = Epochs(m)
        """The last contacts; of epochs there is one."""
        self.numbers = Numbers(init(None, m, np.float64), np.zeros(m), 0.0, np.zeros(5), 0.0)
        self._sent: tuple[int, ArrayRecord] | None = None
        """(t, c as it is sent in round t)."""

    def order(self, round: Round, client: Client) -> dict[str, Any]:
        """Which c_i of this client is the valid one."""
        return {} if self.by_server else self.epochs.order(client)

    def extras(self, round: Round, client: Client) -> dict[str, ArrayRecord]:
        """c - u_i, or c and what is left of c_i where the client has it; around: how far to go along it."""
        c, layout = self.tables["control"].row(0), self.layout.computing()
        if self.by_server:
            u = self._left(client.index, self.tables["row"].row(client.index))
            found = {AROUND if self.around else CORRECTION: layout.record({name: c[name] - u[name] for name in c})}
            return found | self._told(round.t, 0.0) if self.around else found
        if self._sent is None or self._sent[0] != round.t:
            self._sent = round.t, layout.record(c)
        factor = float(np.exp(self.numbers.log - self.numbers.since[client.index]))
        return {CONTROL_VARIATE: self._sent[1], **self._told(round.t, factor)}

    def _told(self, t: int, factor: float) -> dict[str, ArrayRecord]:
        """The numbers of this client's order."""
        eta, s = (self.rate(t), self.local_steps) if self.around else (0.0, 1)
        told = {"left": factor, "before": eta * (s - 1) / 2, "length": eta * s}
        return {FADING: to_record({name: np.array(value) for name, value in told.items()})}

    def _left(self, index: int, own: Model) -> Model:
        """u_i = exp(L - L_i) c_i."""
        factor = np.exp(self.numbers.log - self.numbers.since[index])
        return {name: x * x.dtype.type(factor) for name, x in own.items()}

    def check(self, round: Round, reply: Reply) -> None:
        """Raise Refused when the steps were not taken through ``drift_correction``, or led too far."""
        if round.trains and self.around:
            length = self.rate(round.t) * self.local_steps
            check_direction(self.layout, reply, round.model, round.largest, length)
        elif round.trains:
            check_steps(self.layout, reply, round.model, round.largest)

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = x^t - h (c + (1/m) sum over A^t of w_i d_i), c and c_i of the next round in the same pass.

        How much of the c_i is found again is known after the pass, and so is delta: it multiplies c in the commit.
        """
        table, control = self.tables["row"], self.tables["control"]
        sweep = Sweep(self.layout, round, replies, self.num_clients, table)
        reported, length = sweep.reported, self._lengths(round.t, replies)
        limit = np.int64(self.cutoff or np.iinfo(np.int32).max)
        intervals, w = weights(limit, self.numbers.intervals, Link(reported, reported * 0.0), round.t)
        h = float(length[reported].mean()) if replies else self.numbers.length
        factor = np.exp(self.numbers.log - self.numbers.since)
        known = reported & (np.array(self.epochs.accepted) >= 0) & (self.fading == "learnt")
        found: dict[tuple[str, int], np.ndarray] = {}  # <g_i, c_i> and |c_i|^2, f[2, m], of every block
        new, after = self.layout.empty(), self.layout.empty()

        def body(block: Block) -> None:
            number = block.start.dtype.type
            c, total, changes = control.rows[block.name][0, block.columns], block.zeros(), block.zeros()
            part, overlaps = block.zeros(), np.zeros((2, self.num_clients))
            for i, update in block.heard():
                if not self.intervals:
                    total += update
                update *= number(-1 / length[i])
                update -= c  # d_i, whatever c_i is
                changes += update
                if self.intervals:
                    total += np.multiply(update, number(w[i]), out=part)
                if self.by_server:
                    own = block.row(i)
                    np.multiply(own, number(factor[i]), out=part)
                    part += update  # g_i = u_i + d_i
                    if known[i]:
                        overlaps[:, i] = _overlap(part, own)
                    own[:] = part
            step = -number(h) * (c + total) if self.intervals else total / number(max(sweep.count, 1))
            new[block.name][block.columns] = block.start + step
            after[block.name][block.columns] = c + changes / self.num_clients
            found[block.name, block.columns.start] = overlaps

        change = control.bound() + sweep.update_bound() / length.min()  # of the |d_i|
        rows = table.bound() + change if replies else table.bound()
        step = h * (control.bound() + w[reported].sum() * change) if self.intervals else sweep.update_bound()
        bounds = [rows, control.bound() + change, round.largest + step]
        write = sweep.run(body, (lambda: bounds) if self.by_server else None)

        def commit() -> None:
            write()
            if self.by_server:
                table.wrote(round.t, reported, rows)
            sums = self._learnt(round.t, replies, known, found)
            log_delta = self._log_delta(sums)
            for x in after.values():
                x *= x.dtype.type(np.exp(log_delta))
            since = np.where(reported, self.numbers.log, self.numbers.since)
            self.numbers = Numbers(intervals, since, self.numbers.log + log_delta, sums, h)
            self.epochs.count(round.t, replies)
            control.replace(round.t, after)

        return Step(new if replies or self.intervals else None, commit)

    def _lengths(self, t: int, replies: list[Reply]) -> np.ndarray:
        """h_i, [m]."""
        return (
            np.full(self.num_clients, self.rate(t) * self.local_steps)
            if self.around
            else lengths(replies, self.num_clients)
        )

    def _log_delta(self, sums: np.ndarray) -> float:
        """log delta of this round."""
        if isinstance(self.fading, str):
            return float(fade(sums)) if self.fading == "learnt" else 0.0
        return float(np.log(self.fading)) if self.fading > 0 else GONE

    def _learnt(
        self, t: int, replies: list[Reply], known: np.ndarray, found: dict[tuple[str, int], np.ndarray]
    ) -> np.ndarray:
        """The sums with this round's samples, of the clients in ``known`` bool[m]."""
        product, square = np.zeros((2, self.num_clients))
        lost = np.zeros(self.num_clients, bool)
        with np.errstate(all="ignore"):  # clients may tell anything; ``left`` takes what is finite
            if self.by_server:
                for key in sorted(found):  # an order that does not depend on threads
                    product, square = product + found[key][0], square + found[key][1]
            else:
                for reply in replies:
                    index, answer = reply.client.index, reply.answer
                    product[index], square[index], lost[index] = answer.product, answer.square, answer.lost
            log_r, measured = left(product, square, known & ~lost)
        return learn(self.numbers.sums, t - np.array(self.epochs.accepted), log_r, measured)

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """The numbers, when the tables were written, what counted when; c, and the c_i where the server has them."""
        n = self.numbers
        numbers = {
            "intervals": {name: values.tolist() for name, values in n.intervals._asdict().items()},
            "since": n.since.tolist(),
            "log": n.log,
            "sums": n.sums.tolist(),
            "length": n.length,
        }
        return {"numbers": numbers, "tables": self.tables.state(), **self.epochs.state()}, self.tables.pieces()

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """All as it was."""
        self.tables.restore(memory["tables"], read)
        self.epochs.restore(memory)
        kept, begun = memory["numbers"], self.numbers.intervals._asdict()
        intervals = Intervals(**{name: np.array(kept["intervals"][name], begun[name].dtype) for name in begun})
        since, sums = np.array(kept["since"], np.float64), np.array(kept["sums"], np.float64)
        self.numbers = Numbers(intervals, since, kept["log"], sums, kept["length"])
