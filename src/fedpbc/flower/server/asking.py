"""A round begins: whom the server asks what."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpbc.flower.server.federation import Federation
from fedpbc.flower.server.ledger import Ledger
from fedpbc.flower.server.roster import Client
from fedpbc.flower.server.selection import choose
from fedpbc.flower.wire.protocol import BUFFERS, IDENTIFY, RECORD, SERVER_ROUND, TRAIN, Order, bundle


def open_round(federation: Federation, t: int, config: ConfigRecord) -> None:
    """Begin round t."""
    federation.round, federation.config = t, config.copy()
    federation.configs.open(t, config)
    federation.ledger = Ledger(t, time.monotonic() + federation.options.round_deadline)


def ask(federation: Federation, grid: Grid, identify_only: bool = False) -> Iterator[list[Message]]:
    """Messages to the nodes that are online and were not asked yet, those with the same arrays together."""
    roster, ledger = federation.roster, federation.ledger
    nodes = federation.keys = {node.node_id: node.public_key.hex() for node in grid.get_nodes()}
    roster.settle(nodes, federation.round)
    busy = federation.stragglers.busy()
    unknown = [node for node in nodes if node not in busy and roster.unknown(node) and not ledger.tried(node, IDENTIFY)]
    groups: dict[str, list[Client]] = {}
    for client in [] if identify_only else _clients(federation, nodes, busy):
        if client.node not in busy and not ledger.tried(client.node, TRAIN):
            groups.setdefault(client.base, []).append(client)
    ttl = max(1.0, ledger.deadline - time.monotonic())
    if unknown:
        yield [_identify(ledger, node, ttl) for node in unknown]
    for clients in groups.values():
        yield [_train(federation, client, ttl) for client in clients]


def _clients(federation: Federation, nodes: Iterable[int], busy: set[int]) -> list[Client]:
    """Those that live in these nodes and may be asked in this round; notes who of them is busy."""
    here, ledger, options = [c for c in map(federation.roster.at, nodes) if c], federation.ledger, federation.options
    if options.fraction_train < 1:
        if not ledger.chosen:
            ledger.chosen = choose((client.name for client in here), options, ledger.round)
        here = [client for client in here if client.name in ledger.chosen]
    ledger.busy = {client.name for client in here if client.node in busy}
    return here


def _identify(ledger: Ledger, node: int, ttl: float) -> Message:
    order = Order(IDENTIFY)
    content = RecordDict({RECORD: order.record()})
    return ledger.sent(Message(content, node, MessageType.TRAIN, ttl=ttl), order, None)


def _train(federation: Federation, client: Client, ttl: float) -> Message:
    rule, now, options = federation.rule, federation.now(), federation.options
    if not rule.replays:
        client.version, client.base = now.t, federation.bases.latest
    usual: dict[str, Any] = {
        "round": now.t, "first": client.version, "base": client.base,
        "train_rounds": federation.train_rounds, "budget": ttl, "arrays_key": options.arrayrecord_key,
        "config_key": options.configrecord_key, "keep_progress": rule.replays,
    }  # fmt: skip
    order = Order(TRAIN, client.name, **usual | rule.order(now, client))
    config, record = federation.config.copy(), order.record()
    config[SERVER_ROUND] = now.t + 1
    for more in (federation.configs.since(client.version, now.t), federation.failures.order(client.name)):
        for key, value in more.items():
            record[key] = value
    if rule.remembers and federation.layout.buffers:
        record[BUFFERS] = list(federation.layout.buffers)
    content = bundle(
        {
            options.arrayrecord_key: federation.bases.get(client.base),
            options.configrecord_key: config,
            RECORD: record,
            **(rule.extras(now, client) if federation.learns() else {}),
        }
    )
    return federation.ledger.sent(Message(content, client.node, MessageType.TRAIN, ttl=ttl), order, client)
