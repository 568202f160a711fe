"""Drift-corrected FedPBC on real machines (ours, docs/drift-correction.md), with the corrections held by the server."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.algorithms.fedpbc_corrected import correct_full, correct_light
from fedpbc.core.aggregation import masked_mean
from fedpbc.flower.methods.common.table import KeepsTables, Updates
from fedpbc.flower.methods.fedpbc import FedPBC
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.options import one_of, require
from fedpbc.flower.server.roster import Client
from fedpbc.flower.wire.protocol import SHIFT


class FedPBCCorrected(KeepsTables, FedPBC):
    """FedPBC whose clients take their steps along g + z_i, so that at a constant step size nothing is biased.

    x^(t+1) = mean over A^t of xhat_i, and z_i += (xhat_i - x^(t+1))/h_A (light; h_A the largest h_i in A^t) or
    z_i += mean over A^t of y - y_i with y_i = (b_i - xhat_i)/h_i (full); b_i is the model i went on from, h_i the sum
    of the learning rates of its steps since. The z_i sum to 0. The train function takes its steps through
    ``drift_correction``. As the server holds the z_i (m models) none can be lost, and no epochs are needed, unlike in
    the simulator's form. Breaks on classifiers when links have a long memory, see docs/drift-correction.md.

    num_clients: required. correction: "full" or "light". The other parameters are those of ``FedPBC``, without
    max_catchup, for the z_i rest on every round having been trained. Raises ConfigError.
    """

    method = "fedpbc_corrected"

    def __init__(
        self,
        *,
        round_deadline: float,
        num_clients: int,
        correction: Literal["full", "light"] = "full",
        **options: Any,
    ) -> None:
        require("num_clients", num_clients, num_clients is not None, "given: the server keeps something per client")
        require("max_catchup", options.get("max_catchup", 0), not options.get("max_catchup", 0), "0")
        super().__init__(round_deadline=round_deadline, num_clients=num_clients, **options)
        self.m, self.correction = num_clients, one_of("correction", correction, ("full", "light"))

    def settings(self) -> dict[str, Any]:
        """Beside those of FedPBC: correction."""
        return super().settings() | {"correction": self.correction}

    def num_rows(self) -> dict[str, int]:
        """The z_i."""
        return {"row": self.m}

    def extras(self, client: Client) -> dict[str, ArrayRecord]:
        """z_i."""
        return {SHIFT: self.layout.companion().record(self.tables["row"].row(client.index))}

    def check(self, reply: Reply) -> None:
        """Raise Refused when steps were not taken through ``drift_correction``."""
        if reply.answer.trained > 0 or reply.answer.length != 0:
            self.check_steps(reply, self.layout.flatten(self.bases.model(reply.client.base)))

    def keep(self, t: int, heard: list[Reply]) -> None:
        """z_i for i in A^t."""
        if not heard:
            return
        zero = {name: x * 0 for name, x in self.flat.items()}
        trained = Updates(self.layout, zero, {r.client.index: r.arrays for r in heard}, self.m)
        bases = {r.client.index: self.bases.model(r.client.base) for r in heard}
        starts = Updates(self.layout, zero, bases, self.m)
        length, active = np.zeros(self.m), trained.reported
        length[[r.client.index for r in heard]] = [r.answer.length for r in heard]
        for (name, block, xhat), (_, _, base) in zip(trained.blocks(), starts.blocks(), strict=True):
            z, h = self.tables["row"].rows[name][:, block], length.astype(xhat.dtype)
            if self.correction == "full":
                z[:] = correct_full(z, base, xhat, h, active)
            else:
                mean = masked_mean(xhat, active, otherwise=self.flat[name][block])
                z[:] = correct_light(z, mean, xhat, h, active)
        self.tables["row"].wrote(t, active)
