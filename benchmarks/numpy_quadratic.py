"""FedPBC on the counterexample in NumPy: all clients at once, in place, evaluated every round."""

from __future__ import annotations

from typing import Any

import numpy as np
from setting import WrongResult


class NumpyQuadratic:
    """The first cell of an experiment: F_i(x) = 1/2 ||x - u_i||^2, float64."""

    def __init__(self, experiment: Any) -> None:
        from fedpbc.core.engine import draw_links
        from fedpbc.runs.runner import settings_of

        with settings_of(experiment):
            (self.cell, *_), seed = experiment.cells(), experiment.seeds[0]
            problem = experiment.problem.build(experiment.context(seed))
            links = self.cell.links.build(experiment.context(seed, problem))
            blocks = draw_links(links, seed, experiment.rounds, problem.num_clients, 1000)
            self.active = np.concatenate(list(blocks))
        self.centers, self.minimiser = np.asarray(problem.params["centers"]), np.asarray(problem.params["mean"])
        self.spread, self.steps = float(problem.params["spread"]), experiment.local_steps
        self.rate = experiment.learning_rate.options["value"]
        self.pull = self.rate * self.centers
        self.clients, self.server = np.zeros_like(self.centers), np.zeros(self.centers.shape[1])
        self.round, self.rows = 0, [self._measured()]

    def advance(self, rounds: int) -> int:
        """``rounds`` more rounds, a row of metrics after each; A^t from the beginning again where they end."""
        keep = 1 - self.rate
        for _ in range(rounds):
            for _ in range(self.steps):  # x - eta (x - u)
                self.clients *= keep
                self.clients += self.pull
            active = self.active[self.round % len(self.active)]
            if active.any():
                self.server = self.clients[active].mean(axis=0)
                self.clients[active] = self.server
            self.round += 1
            self.rows.append(self._measured())
        return rounds

    def _measured(self) -> dict[str, float]:
        mean = self.clients.mean(axis=0)
        row = {"consensus_distance": float(((self.clients - mean) ** 2).sum() / len(self.clients))}
        for name, model in (("server", self.server), ("mean", mean)):
            distance = float(np.linalg.norm(model - self.minimiser))
            row |= {f"{name}_grad_norm": distance, f"{name}_train_loss": 0.5 * distance**2 + self.spread}
        return row


def check(rival: NumpyQuadratic, result: Any) -> None:
    """After every round the rival's metrics are the simulator's, given the same A^t. Raises WrongResult."""
    rows = result.cells[rival.cell.key].rows
    rival.advance(len(rows["round"]) - 1)
    for name in rival.rows[0]:
        found = np.array([row[name] for row in rival.rows])
        if not np.allclose(found, rows[name], rtol=1e-9, atol=1e-9):
            raise WrongResult(f"NumPy: {name} is not the simulator's")
