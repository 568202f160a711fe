"""How much each client counts: a ``Weighting`` of the simulator, and what it remembers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpbc.core.types import Link, Weighting
from fedpbc.flower.methods.common.sweep import Block, Sweep
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Read, Round, Rule, Step
from fedpbc.flower.wire.arrays import Layout


class Weights:
    """The weights of a round, from who was heard in it and before. The memory is a NamedTuple of vectors [m], or ()."""

    def __init__(self, weighting: Weighting, num_clients: int) -> None:
        self.weighting = weighting
        self.memory = weighting.init(weighting.params, num_clients, np.float64)

    def step(self, reported: np.ndarray, t: int) -> tuple[Any, np.ndarray]:
        """(the memory after round t, w_i f[m]); nobody knows a p_i."""
        after, w = self.weighting.step(self.weighting.params, self.memory, Link(reported, reported * 0.0), t)
        return after, np.asarray(w)

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {name: values.tolist() for name, values in self._vectors().items()}

    def restore(self, memory: dict[str, Any]) -> None:
        """From a checkpoint."""
        begun = self._vectors()
        if begun:
            self.memory = type(self.memory)(**{name: np.array(memory[name], x.dtype) for name, x in begun.items()})

    def _vectors(self) -> dict[str, np.ndarray]:
        return dict(self.memory._asdict()) if self.memory else {}


class WeightedRule(Rule):
    """The rule of a method that only weighs updates: x^(t+1) = x^t + sum over A^t of w_i Delta_i."""

    unweighted = ""

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """Nobody was heard yet."""
        super().init(layout, num_clients)
        self.weights = Weights(self.weighting, self.num_clients)

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^t + the sum; an empty A^t leaves x^t. The weights see every round."""
        sweep, new = Sweep(self.layout, round, replies, self.num_clients), self.layout.empty()
        after, w = self.weights.step(sweep.reported, round.t)

        def commit() -> None:
            self.weights.memory = after

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
        """What the weights remember."""
        return self.weights.state(), {}

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """As it was."""
        self.weights.restore(memory)
