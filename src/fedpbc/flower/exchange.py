"""Messages out, replies in: until a deadline, or at the start until enough clients have said who they are."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedpbc.flower.ledger import Ledger
from fedpbc.flower.protocol import IDENTIFY, RECORD
from fedpbc.flower.reasons import listed
from fedpbc.flower.rounds import Rounds

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


def gather(strategy: Rounds, grid: Grid, limit: float = math.inf) -> None:
    """Wait until ``min_available_nodes`` clients are online and have said who they are, at most ``limit`` seconds.

    A node that answers something else is asked again after ``round_deadline``. One that does not answer may be slow to
    start: it is asked again as well, and everybody has twice as long to answer.
    """
    began = said = time.monotonic()
    patience, waiting = strategy.round_deadline, set[str]()
    ledger, asked = Ledger(strategy.round, 0.0), dict[int, _Asked]()
    strategy.ledger = ledger
    while True:
        now = time.monotonic()
        ledger.deadline = now + patience
        for group in strategy.ask(grid, identify_only=True):
            waiting |= push(grid, group)
            for metadata in (message.metadata for message in group):
                wait = patience if metadata.message_id else LOOK_FOR_NODES
                asked[metadata.dst_node_id] = _Asked(now, now + wait)
        for message in sorted(pull(grid, waiting), key=_claimed_name):
            strategy.receive(message)
        nodes = list(grid.get_node_ids())
        met = sum(strategy.roster.at(node) is not None for node in nodes)
        if met >= strategy.min_available_nodes or now - began > limit:
            return
        if _ask_late_ones_again(strategy, asked, now):
            patience = max(patience, min(2 * patience, LONGEST_PATIENCE))
        if now - said > SAY_WAITING:
            said = now
            log.info("waiting for clients: %d of %d are here", met, strategy.min_available_nodes)
            _say_who_is_not(strategy, nodes, asked, now)
        time.sleep(strategy.poll_interval)


def _ask_late_ones_again(strategy: Rounds, asked: dict[int, _Asked], now: float) -> bool:
    """Let ``ask`` try those again that did not say who they are; whether some of them are slow."""
    ledger, slow = strategy.ledger, False
    answers = dict([*ledger.failed, *ledger.refused])
    ledger.failed.clear()
    ledger.refused.clear()
    for node, ask in asked.items():
        if f"node {node}" in answers:
            ask.why = answers[f"node {node}"]
            ask.slow = now - ask.since > 0.9 * (ask.until - ask.since)  # Flower says that nobody answered in time
            ask.until = min(ask.until, now + strategy.round_deadline)
        if now > ask.until and strategy.roster.unknown(node) and ledger.tried(node, IDENTIFY):
            ledger.again(node, IDENTIFY)
            slow |= ask.slow
    return slow


def _say_who_is_not(strategy: Rounds, nodes: list[int], asked: dict[int, _Asked], now: float) -> None:
    """Which nodes are online and are no clients yet, those with one reason in one line."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node in strategy.roster.not_asked:
            log.warning("node %d %s", node, strategy.roster.not_asked[node])
        elif node in asked and strategy.roster.unknown(node):
            ask = asked[node]
            why = f"{ask.why}; does the client app have @app.train(mods=[fedpbc_mod])?"
            groups.setdefault("no answer yet" if ask.slow else why, []).append(f"node {node}")
    for why, who in groups.items():
        log.warning("%d nodes did not say who they are (%s): %s", len(who), listed(who), why)


def exchange(strategy: Rounds, grid: Grid, messages: Iterable[Message]) -> list[Message]:
    """The replies of the round: until all who were asked have answered, or the deadline. Newcomers are asked too."""
    replies: list[Message] = []
    waiting, ledger = push(grid, list(messages)), strategy.ledger
    looked = -float("inf")
    while True:
        introduced = False
        for message in pull(grid, waiting):
            if strategy.introduces(message):
                strategy.receive(message)
                introduced = True
            else:
                replies.append(message)
        now = time.monotonic()
        if introduced or now - looked > LOOK_FOR_NODES or not waiting:
            looked = now
            for group in strategy.ask(grid):
                waiting |= push(grid, group)
        if now >= ledger.deadline or (not waiting and any(asked.client for asked in ledger.asked)):
            return replies
        if waiting and not introduced:
            _sleep_until(now + strategy.poll_interval, ledger.deadline)
        elif not waiting:
            _sleep_until(now + LOOK_FOR_NODES, ledger.deadline)


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


def pull(grid: Grid, waiting: set[str]) -> list[Message]:
    """What has come; ``waiting`` loses its ids."""
    messages = list(grid.pull_messages(set(waiting))) if waiting else []
    waiting.difference_update(message.metadata.reply_to_message_id for message in messages)
    return messages


def _claimed_name(message: Message) -> tuple[str, int]:
    """So that who is met first, which decides in which row of a table a client is, does not depend on the network."""
    record = message.content.get(RECORD) if message.has_content() else None
    name = str(record.get("client-id")) if isinstance(record, ConfigRecord) else ""
    return name, message.metadata.src_node_id


def _sleep_until(then: float, at_most: float) -> None:
    time.sleep(max(0.0, min(then, at_most) - time.monotonic()))
