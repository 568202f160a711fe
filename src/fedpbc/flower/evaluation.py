"""The model after each round, evaluated by the server and by clients; what a kill prevented is made up for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpbc.flower.exchange import collect, gather
from fedpbc.flower.metrics import as_metrics
from fedpbc.flower.rounds import Rounds

log = logging.getLogger("flwr")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Evaluation:
    """Evaluates x^t and keeps the numbers, in ``result`` and in evaluation.jsonl.

    A line there names who evaluated; null: and gave no numbers. So a model that was not evaluated can be told.
    """

    def __init__(self, strategy: Rounds, grid: Grid, config: ConfigRecord, evaluate_fn: EvaluateFn | None) -> None:
        """With the result of the rounds that the checkpoint has."""
        self.strategy, self.grid, self.config, self.evaluate_fn = strategy, grid, config, evaluate_fn
        self.result = Result(arrays=strategy.arrays)
        self._done: set[tuple[int, str]] = set()
        """(number of rounds, who evaluated the model after them)."""
        for line in strategy.logs.lines("metrics"):
            if line.get("train"):
                self.result.train_metrics_clientapp[line["round"] + 1] = MetricRecord(line["train"])
        for line in strategy.logs.lines("evaluation"):
            for kind, where in self._kinds().items():
                if kind in line:
                    self._done.add((line["round"] + 1, kind))
                if line.get(kind):
                    where[line["round"] + 1] = MetricRecord(line[kind])

    def of_round(self, number: int) -> None:
        """Evaluate the model after the round that was just closed."""
        by_server = {"server": self._central(number)} if self.evaluate_fn is not None else {}
        by_clients = {"clients": self._federated(number)} if self.strategy.fraction_evaluate else {}
        self._keep(number, by_clients | by_server)

    def make_up_by_server(self, number: int) -> None:
        """Evaluate x^0, or the model of the checkpoint if the server was killed before it did."""
        if self.evaluate_fn is not None and (number, "server") not in self._done:
            self._keep(number, {"server": self._central(number)})

    def make_up_by_clients(self, number: int, last: bool) -> None:
        """The same by the clients that were heard in that round, as far as they are here; the ``last`` model of all
        is worth waiting for them, until ``round_deadline``."""
        if number == 0 or not self.strategy.fraction_evaluate or (number, "clients") in self._done:
            return
        if last and self.strategy.heard:
            gather(self.strategy, self.grid, self.strategy.round_deadline)
        metrics = self._federated(number)
        if metrics is None and self.strategy.heard:
            log.warning("round %d: not evaluated by clients, those that were heard are not here", number)
        else:
            self._keep(number, {"clients": metrics})

    def _central(self, number: int) -> MetricRecord | None:
        assert self.evaluate_fn is not None
        return as_metrics(self.evaluate_fn(number, self.result.arrays.copy()))

    def _federated(self, number: int) -> MetricRecord | None:
        """The mean of what the clients measure; those that do not answer before the deadline are left out."""
        strategy = self.strategy
        messages = list(strategy.configure_evaluate(number, strategy.arrays, self.config, self.grid))
        if not messages:
            return None
        deadline = time.monotonic() + strategy.round_deadline
        return strategy.aggregate_evaluate(number, collect(self.grid, messages, deadline, strategy.poll_interval))

    def _kinds(self) -> dict[str, dict[int, MetricRecord]]:
        return {
            "clients": self.result.evaluate_metrics_clientapp,
            "server": self.result.evaluate_metrics_serverapp,
        }

    def _keep(self, number: int, found: dict[str, MetricRecord | None]) -> None:
        line: dict[str, Any] = {"round": number - 1}
        for kind, metrics in found.items():
            line[kind] = None
            if metrics is not None:
                self._kinds()[kind][number], line[kind] = metrics, dict(metrics)
                log.info("round %d: evaluated by the %s: %s", number, kind, line[kind])
        if found:
            self.strategy.logs.evaluation(line)
