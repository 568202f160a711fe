"""Which clients measure the model after a round, and what of their answers counts."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from fedpbc.flower.ledger import Ledger
from fedpbc.flower.metrics import average_metrics, spread
from fedpbc.flower.protocol import SERVER_ROUND, Order
from fedpbc.flower.reasons import Reasons
from fedpbc.flower.roster import Roster


class Measures(FlowerFedAvg):
    """The evaluation by clients of a strategy."""

    roster: Roster
    reasons: Reasons
    round_deadline: float
    evaluation: Ledger
    """The book of the last evaluation."""
    heard: list[str]
    """Who was heard in the last round that was closed."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The latest model to ``fraction_evaluate`` of the clients heard in this round, at least min_evaluate_nodes.

        Only those that were just heard: evaluation does not wait for clients that are away.
        """
        self.evaluation = Ledger(server_round - 1, time.monotonic() + self.round_deadline)
        if self.fraction_evaluate == 0.0:
            return []
        heard = [client for name in self.heard if (client := self.roster.here(name))]
        wanted = max(round(self.fraction_evaluate * len(heard)), self.min_evaluate_nodes)
        config = config.copy()
        config[SERVER_ROUND] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [
            self.evaluation.sent(
                Message(content, client.node, MessageType.EVALUATE, ttl=self.round_deadline),
                Order(MessageType.EVALUATE),
                client,
            )
            for client in spread(heard, wanted, server_round)
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean of the metrics, weighted by ``weighted_by_key``."""
        measured = self.evaluation.evaluations(replies)
        metrics, left_out = average_metrics(measured, self.evaluate_metrics_aggr_fn, self.weighted_by_key)
        self.reasons.say(server_round, "no evaluation from", [*self.evaluation.failed, *self.evaluation.refused])
        self.reasons.say(server_round, "left out are the metrics of", left_out)
        return metrics
