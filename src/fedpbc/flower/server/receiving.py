"""Replies arrive: whose they are, and whether they count."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from flwr.app import ConfigRecord, Message

from fedpbc.errors import shorten
from fedpbc.flower.server.federation import Federation
from fedpbc.flower.server.metrics import samples_of
from fedpbc.flower.server.words import first_line
from fedpbc.flower.wire.arrays import Refused
from fedpbc.flower.wire.protocol import RECORD
from fedpbc.flower.wire.threads import share

log = logging.getLogger("flwr")

NOT_FINITE = "holds a value that is not finite, or huge"


def receive(federation: Federation, message: Message) -> None:
    """Take one reply, or refuse it and say why in the log; ``accept`` looks at its numbers."""
    ledger, who = federation.ledger, f"node {message.metadata.src_node_id}"
    try:
        asked = ledger.match(message)
        who = asked.client.name if asked.client else f"node {asked.metadata.dst_node_id}"
        if message.has_error():
            ledger.failed.append((who, first_line(message.error.reason)))
            ledger.crashed(asked, message.error)
        elif asked.client is None:
            _meet(federation, message)
        else:
            ledger.take(asked, message, federation.layout)
    except Refused as refused:
        refuse(federation, who, str(refused))


def introduces(federation: Federation, message: Message) -> bool:
    """Whether ``message`` says who lives in a node."""
    asked = federation.ledger.find(message)
    return asked is not None and asked.client is None


def came_late(federation: Federation, message: Message) -> bool:
    """Whether ``message`` answers an order of an earlier round: a model does not count any more, a name does."""
    late = federation.stragglers.take(message)
    if late is None:
        return False
    asked = late.asked
    if message.has_content() and message.metadata.src_node_id == asked.metadata.dst_node_id:
        if asked.client is not None:
            federation.ledger.late.append((asked.client.name, late.round, time.monotonic() - late.closed))
        else:
            try:
                _meet(federation, message)
            except Refused as refused:
                refuse(federation, f"node {message.metadata.src_node_id}", str(refused))
    return True


def refuse(federation: Federation, who: str, why: str) -> None:
    """A reply of this round does not count."""
    federation.ledger.refuse(who, why)
    log.warning("round %d: reply of %s refused: %s", federation.round + 1, who, why)


def accept(federation: Federation) -> None:
    """Refuse the replies whose numbers cannot be used, where the rule does not find out by what it makes of them."""
    ledger, rule, limits = federation.ledger, federation.rule, federation.layout.learnt.limits
    replies = list(ledger.replies.values())
    if rule.remembers:
        entries = len(replies) * sum(x.size for x in federation.model.values())
        share(lambda reply: reply.largest, replies, entries)
    for reply in replies:
        try:
            rule.check(federation.now(), reply)
            if rule.remembers and not (reply.largest <= limits).all():
                raise Refused(NOT_FINITE)
        except Refused as refused:
            del ledger.replies[reply.client.name]
            refuse(federation, reply.client.name, str(refused))


def weigh(federation: Federation) -> None:
    """Under ``client_weights = "samples"`` a reply counts n_i / (mean of the n known); without n it is refused."""
    options, replies = federation.options, federation.ledger.replies
    if options.client_weights == "uniform":
        return
    for name, reply in list(replies.items()):
        size = samples_of(reply.content, options.weighted_by_key)
        if size is None:
            del replies[name]
            refuse(federation, name, f"tells no {options.weighted_by_key} from 1 to 2^53 to be weighted by")
        else:
            federation.samples[name] = size
    known = federation.samples
    for name, reply in replies.items():
        replies[name] = replace(reply, weight=known[name] * len(known) / sum(known.values()))


def _meet(federation: Federation, message: Message) -> None:
    record = message.content.get(RECORD)
    name = record.get("client-id") if isinstance(record, ConfigRecord) else None
    node = message.metadata.src_node_id
    if not isinstance(name, str):
        raise Refused("does not say who it is: the client app needs @app.train(mods=[fedpbc_mod])")
    if not (name == "" or name.isprintable()) or len(name.encode(errors="replace")) > 256:
        raise Refused(f"calls itself {shorten(name)}: a client-id is up to 256 printable bytes")
    key = federation.keys.get(node, "") if federation.options.pin_names else ""
    client, new = federation.roster.meet(node, name, key)
    if client is not None and new:
        if federation.rule.from_start:  # a client of the paper is there from round 0
            client.version, client.base = 0, federation.first_base
        else:
            client.version, client.base = federation.done, federation.bases.latest
