"""Orders of rounds that closed early (``min_replies``): who works on one is not asked again, and its reply is late."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from flwr.app import Message

from fedpbc.flower.server.ledger import Asked, Ledger


@dataclass(frozen=True)
class Late:
    """An order that was not answered when its round closed."""

    asked: Asked
    round: int
    closed: float
    """When that was, on the monotonic clock."""
    until: float
    """When its time is up."""


class Stragglers:
    """Who was not waited for. A node works through its messages one by one, so that a second order would only queue."""

    def __init__(self) -> None:
        self._late: dict[str, Late] = {}

    def leave(self, ledger: Ledger, waiting: Collection[str]) -> None:
        """A round closes, and nothing has come for the messages in ``waiting``: it may still come."""
        now = time.monotonic()
        for asked in ledger.asked:
            if asked.metadata.message_id in waiting and now < ledger.deadline:
                self._late[asked.metadata.message_id] = Late(asked, ledger.round, now, ledger.deadline)

    def ids(self) -> set[str]:
        """The orders that may still be answered."""
        now = time.monotonic()
        self._late = {key: late for key, late in self._late.items() if now < late.until}
        return set(self._late)

    def busy(self) -> set[int]:
        """The nodes that work on an order of an earlier round."""
        now = time.monotonic()
        return {late.asked.metadata.dst_node_id for late in self._late.values() if now < late.until}

    def take(self, message: Message) -> Late | None:
        """What ``message`` answers too late: its node is free again. None when it answers nothing of the kind."""
        return self._late.pop(message.metadata.reply_to_message_id, None)
