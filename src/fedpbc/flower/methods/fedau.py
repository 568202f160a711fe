"""FedAU on real machines (Wang & Ji, arXiv 2306.03401)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedpbc.algorithms.fedau import Intervals, init, weights
from fedpbc.core.types import Link
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.checks import given, intervals_may_end, whole
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Read, Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.wire.arrays import Layout


@dataclass(kw_only=True, eq=False)
class FedAU(UnreliableClients):
    """x += (1/m) sum over the active of w_i Delta_i, w_i the mean interval between i's rounds (arXiv 2306.03401).

    Server memory: three numbers per client. Raises ConfigError.

    num_clients: m, required.
    cutoff: K, an interval ends after K rounds even if the client is still away; 0: never.
    """

    method: ClassVar[str] = "fedau"
    num_clients: int = field()
    cutoff: int = 50

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        given(self.method, self.num_clients)
        self.cutoff = whole("cutoff", self.cutoff)
        intervals_may_end(self.cutoff, self.fraction_train)
        return FedAURule(self.cutoff)


class FedAURule(Rule):
    """Weights learnt from how long each client was away."""

    unweighted = ""

    def __init__(self, cutoff: int) -> None:
        self.cutoff = cutoff

    def settings(self) -> dict[str, Any]:
        """K."""
        return {"cutoff": self.cutoff}

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """Nobody was away yet."""
        super().init(layout, num_clients)
        self.intervals: Intervals = init(None, self.num_clients, np.float64)

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = x^t + sum over A^t of w_i Delta_i / m; an empty A^t leaves x^t. The intervals see every round."""
        sweep, new = Sweep(self.layout, round, replies, self.num_clients), self.layout.empty()
        limit, reported = np.int64(self.cutoff or np.iinfo(np.int32).max), sweep.reported
        after, w = weights(limit, self.intervals, Link(reported, reported * 0.0), round.t)

        def commit() -> None:
            self.intervals = after

        def body(block: Block) -> None:
            total = block.zeros()
            for i, update in block.heard():
                update *= update.dtype.type(w[i])
                total += update
            np.add(block.start, total, out=new[block.name][block.columns])

        if not replies:
            return Step(None, commit)
        sweep.run(body)
        return Step(new, commit)

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """S_i, M_i, w_i."""
        return {name: values.tolist() for name, values in self.intervals._asdict().items()}, {}

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """S_i, M_i, w_i as they were."""
        dtypes = self.intervals._asdict()
        self.intervals = Intervals(**{name: np.array(memory[name], dtypes[name].dtype) for name in dtypes})
