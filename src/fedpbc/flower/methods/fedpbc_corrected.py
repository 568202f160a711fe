"""Drift-corrected FedPBC on real machines (ours, docs/drift-correction.md), with the corrections held by the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.algorithms.fedpbc_corrected import correct_full, correct_light
from fedpbc.flower.methods.common.tables import Tables
from fedpbc.flower.methods.common.updates import Updates, check_steps, lengths, mean_of_replies
from fedpbc.flower.methods.fedpbc import FedPBC, FedPBCRule, Newcomers, OnFailure
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.checks import one_of, require
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.roster import Client
from fedpbc.flower.server.rule import Read, Round, Rule, Step
from fedpbc.flower.wire.arrays import Layout, Model, largest
from fedpbc.flower.wire.protocol import CORRECTION


@dataclass(kw_only=True, eq=False)
class FedPBCCorrected(FedPBC):
    """FedPBC whose clients take their steps along g + z_i, so that at a constant step size nothing is biased.

    x^(t+1) = mean over A^t of xhat_i, and z_i += (xhat_i - x^(t+1))/h_A (light; h_A the largest h_i in A^t) or
    z_i += mean over A^t of y - y_i with y_i = (b_i - xhat_i)/h_i (full); b_i is the model i went on from, h_i the sum
    of the learning rates of its steps since. The z_i sum to 0. The train function takes its steps through
    ``drift_correction``. As the server holds the z_i (m models) none can be lost, and no epochs are needed, unlike in
    the simulator's form. Breaks on classifiers when links have a long memory, see docs/drift-correction.md.

    Raises ConfigError.

    num_clients: m, required.
    correction: "full" or "light".
    max_catchup: 0, for the z_i rest on every round having been trained.
    newcomers, on_failure: as in ``FedPBC``.
    """

    method: ClassVar[str] = "fedpbc_corrected"
    num_clients: int = field()
    correction: Literal["full", "light"] = "full"

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        m = self.num_clients
        require("num_clients", m, m is not None, "given: the server keeps something per client")
        require("max_catchup", self.max_catchup, not self.max_catchup, "0")
        return FedPBCCorrectedRule(self.newcomers, self.on_failure, self.correction)


class FedPBCCorrectedRule(FedPBCRule):
    """The mean of the replies, and the corrections z_i of their next steps."""

    remembers = True

    def __init__(self, newcomers: Newcomers, on_failure: OnFailure, correction: Literal["full", "light"]) -> None:
        """Raises ConfigError."""
        super().__init__(0, newcomers, on_failure)
        self.correction = one_of("correction", correction, ("full", "light"))

    def settings(self) -> dict[str, Any]:
        """Those of FedPBC, and the form of the correction."""
        return super().settings() | {"correction": self.correction}

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """z_i = 0."""
        super().init(layout, num_clients)
        self.tables = Tables(layout, {"row": self.num_clients})

    def extras(self, round: Round, client: Client) -> dict[str, ArrayRecord]:
        """z_i."""
        return {CORRECTION: self.layout.computing().record(self.tables["row"].row(client.index))}

    def check(self, round: Round, reply: Reply) -> None:
        """Raise Refused when steps were not taken through ``drift_correction``."""
        if reply.answer.trained > 0 or reply.answer.length != 0:
            start = self.layout.flatten(round.bases.model(reply.client.base))
            check_steps(self.layout, reply, start, np.array([largest(array) for array in start.values()]))

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = mean over A^t of xhat_i, then z_i anew for i in A^t; an empty A^t leaves all."""
        if not replies:
            return Step(None)
        mean = mean_of_replies(self.layout, round.model, replies)
        return Step(mean, lambda: self._correct(round, replies, mean))

    def _correct(self, round: Round, heard: list[Reply], mean: Model) -> None:
        """z_i for i in A^t, from where they went on (b_i), where they arrived (xhat_i), and the mean of that."""
        zero = {name: x * 0 for name, x in round.model.items()}
        trained = Updates.of(self.layout, zero, heard, self.num_clients)
        bases = {reply.client.index: round.bases.model(reply.client.base) for reply in heard}
        starts = Updates(self.layout, zero, bases, self.num_clients)
        active = trained.reported
        length = np.where(active, lengths(heard, self.num_clients), 0)
        for (name, block, xhat), (_, _, base) in zip(trained.blocks(), starts.blocks(), strict=True):
            z, h = self.tables["row"].rows[name][:, block], length.astype(xhat.dtype)
            if self.correction == "full":
                z[:] = correct_full(z, base, xhat, h, active)
            else:
                z[:] = correct_light(z, mean[name][block], xhat, h, active)
        self.tables["row"].wrote(round.t, active)

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """When the z_i were written; the z_i."""
        return {"tables": self.tables.state()}, self.tables.pieces()

    def load(self, memory: dict[str, Any], read: Read) -> None:
        """The z_i as they were."""
        self.tables.restore(memory["tables"], read)
