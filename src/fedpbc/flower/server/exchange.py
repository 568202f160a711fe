"""Messages out, replies in: until a deadline, or at the start until enough clients have said who they are."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import zip_longest

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedpbc.flower.server.asking import ask
from fedpbc.flower.server.federation import Federation
from fedpbc.flower.server.ledger import Ledger
from fedpbc.flower.server.reasons import listed
from fedpbc.flower.server.receiving import came_late, introduces, receive
from fedpbc.flower.wire.protocol import IDENTIFY, RECORD

log = logging.getLogger("flwr")

LOOK_FOR_NODES = 1.0
"""Seconds between two looks for nodes that came online during a round."""
SAY_WAITING = 10.0
"""Seconds between two lines in the log that say whom we wait for."""
LONGEST_PATIENCE = 3600.0
"""Seconds that a client may take to start, or round_deadline if that is more."""


@dataclass
class _Asked:
    """A node that was asked who it is."""

    since: float
    until: float
    """When it is asked again, on the monotonic clock."""
    why: str = ""
    """What it answered instead; nothing when it did not answer."""
    slow: bool = True
    """It did not answer in time, rather than something else."""


def gather(federation: Federation, grid: Grid, limit: float = math.inf) -> None:
    """Wait until ``min_available_nodes`` clients are online and have said who they are, at most ``limit`` seconds.

    A node that answers something else is asked again after ``round_deadline``. One that does not answer may be slow to
    start: it is asked again as well, and everybody has twice as long to answer.
    """
    began = said = time.monotonic()
    patience, waiting = federation.options.round_deadline, set[str]()
    ledger, asked = Ledger(federation.round, 0.0), dict[int, _Asked]()
    federation.ledger = ledger
    while True:
        now = time.monotonic()
        ledger.deadline = now + patience
        for group in ask(federation, grid, identify_only=True):
            waiting |= push(grid, group)
            for metadata in (message.metadata for message in group):
                wait = patience if metadata.message_id else LOOK_FOR_NODES
                asked[metadata.dst_node_id] = _Asked(now, now + wait)
        for message in sorted(pull(grid, waiting), key=_claimed_name):
            receive(federation, message)
        nodes = list(grid.get_node_ids())
        met = sum(federation.roster.at(node) is not None for node in nodes)
        if met >= federation.options.clients_at_start or now - began > limit:
            federation.stragglers.leave(ledger, waiting)
            return
        if _ask_late_ones_again(federation, asked, now):
            patience = max(patience, min(2 * patience, LONGEST_PATIENCE))
        if now - said > SAY_WAITING:
            said = now
            log.info("waiting for clients: %d of %d are here", met, federation.options.clients_at_start)
            _say_who_is_not(federation, nodes, asked, now)
        time.sleep(federation.options.poll_interval)


def _ask_late_ones_again(federation: Federation, asked: dict[int, _Asked], now: float) -> bool:
    """Let ``ask`` try those again that did not say who they are; whether some of them are slow."""
    ledger, slow = federation.ledger, False
    answers = dict([*ledger.failed, *ledger.refused])
    ledger.failed.clear()
    ledger.refused.clear()
    for node, one in asked.items():
        if f"node {node}" in answers:
            one.why = answers[f"node {node}"]
            one.slow = now - one.since > 0.9 * (one.until - one.since)  # Flower says that nobody answered in time
            one.until = min(one.until, now + federation.options.round_deadline)
        if now > one.until and federation.roster.unknown(node) and ledger.tried(node, IDENTIFY):
            ledger.again(node, IDENTIFY)
            slow |= one.slow
    return slow


def _say_who_is_not(federation: Federation, nodes: list[int], asked: dict[int, _Asked], now: float) -> None:
    """Which nodes are online and are no clients yet, those with one reason in one line."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node in federation.roster.not_asked:
            log.warning("node %d %s", node, federation.roster.not_asked[node])
        elif node in asked and federation.roster.unknown(node):
            one = asked[node]
            why = f"{one.why}; does the client app have @app.train(mods=[fedpbc_mod])?"
            groups.setdefault("no answer yet" if one.slow else why, []).append(f"node {node}")
    for why, who in groups.items():
        log.warning("%d nodes did not say who they are (%s): %s", len(who), listed(who), why)


def exchange(federation: Federation, grid: Grid, messages: Iterable[Message]) -> list[Message]:
    """The replies of the round: until all who were asked have answered, or ``min_replies`` of them, or the deadline.

    Newcomers are asked too, and who was at work on an order of a round that closed early, as soon as it is free.
    """
    replies: list[Message] = []
    waiting, ledger = push(grid, list(messages)), federation.ledger
    looked, wanted = -float("inf"), federation.options.min_replies
    while True:
        introduced = False
        for message in pull(grid, waiting, federation.stragglers.ids()):
            if came_late(federation, message):
                introduced = True
            elif introduces(federation, message):
                receive(federation, message)
                introduced = True
            else:
                replies.append(message)
                if wanted is not None:
                    ledger.look(message)
        now = time.monotonic()
        if ledger.enough(wanted):
            ledger.closed_early = bool(waiting or ledger.busy)
            break
        if introduced or now - looked > LOOK_FOR_NODES or not waiting:
            looked = now
            for group in ask(federation, grid):
                waiting |= push(grid, group)
        over = not waiting and any(asked.client for asked in ledger.asked) and not (wanted and ledger.busy)
        if over or now >= ledger.deadline:
            break
        if (waiting or ledger.busy) and not introduced:
            _sleep_until(now + federation.options.poll_interval, ledger.deadline)
        elif not waiting and not ledger.busy:
            _sleep_until(now + LOOK_FOR_NODES, ledger.deadline)
    federation.stragglers.leave(ledger, waiting)
    return replies


def collect(grid: Grid, messages: list[Message], deadline: float, poll_interval: float) -> list[Message]:
    """The replies that come before the deadline."""
    waiting, replies = push(grid, messages), list[Message]()
    while waiting:
        replies += pull(grid, waiting)
        now = time.monotonic()
        if now >= deadline:
            break
        if waiting:
            _sleep_until(now + poll_interval, deadline)
    return replies


def push(grid: Grid, messages: list[Message]) -> set[str]:
    """Ids of the messages that went out; those for nodes that have just gone have none."""
    ids = list(grid.push_messages(messages)) if messages else []
    for message, sent in zip_longest(messages, ids):
        if not sent:
            message.metadata.__dict__["_message_id"] = ""
    return {message_id for message_id in ids if message_id}


def pull(grid: Grid, waiting: set[str], others: Collection[str] = ()) -> list[Message]:
    """What has come, of ``others`` too; ``waiting`` loses its ids."""
    wanted = {*waiting, *others}
    messages = list(grid.pull_messages(wanted)) if wanted else []
    waiting.difference_update(message.metadata.reply_to_message_id for message in messages)
    return messages


def _claimed_name(message: Message) -> tuple[str, int]:
    """So that who is met first, which decides in which row of a table a client is, does not depend on the network."""
    record = message.content.get(RECORD) if message.has_content() else None
    name = str(record.get("client-id")) if isinstance(record, ConfigRecord) else ""
    return name, message.metadata.src_node_id


def _sleep_until(then: float, at_most: float) -> None:
    time.sleep(max(0.0, min(then, at_most) - time.monotonic()))
