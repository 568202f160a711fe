"""Which clients measure the model after a round, and what of their answers counts."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedpbc.flower.server.federation import Federation
from fedpbc.flower.server.ledger import Ledger
from fedpbc.flower.server.metrics import average_metrics, spread
from fedpbc.flower.wire.protocol import SERVER_ROUND, Order


def ask_to_evaluate(
    federation: Federation, server_round: int, arrays: ArrayRecord, config: ConfigRecord
) -> list[Message]:
    """The latest model to ``fraction_evaluate`` of the clients heard in this round, at least min_evaluate_nodes."""
    options, roster = federation.options, federation.roster
    book = federation.evaluation = Ledger(server_round - 1, time.monotonic() + options.round_deadline)
    if options.fraction_evaluate == 0.0:
        return []
    heard = [client for name in federation.heard if (client := roster.here(name))]
    wanted = max(round(options.fraction_evaluate * len(heard)), options.min_evaluate_nodes)
    config = config.copy()
    config[SERVER_ROUND] = server_round
    content = RecordDict({options.arrayrecord_key: arrays, options.configrecord_key: config})
    return [
        book.sent(
            Message(content, client.node, MessageType.EVALUATE, ttl=options.round_deadline),
            Order(MessageType.EVALUATE),
            client,
        )
        for client in spread(heard, wanted, server_round)
    ]


def measured(federation: Federation, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
    """Mean of the metrics, weighted by ``weighted_by_key``."""
    options, book, reasons = federation.options, federation.evaluation, federation.reasons
    found = book.evaluations(replies)
    metrics, left_out = average_metrics(found, options.evaluate_metrics_aggr_fn, options.weighted_by_key)
    reasons.say(server_round, "no evaluation from", [*book.failed, *book.refused])
    reasons.say(server_round, "left out are the metrics of", left_out)
    return metrics
