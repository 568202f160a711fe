"""One round: what was asked, what came back, and what of it counts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Error, Message, Metadata, RecordDict

from fedpbc.core.aggregation import running_mean
from fedpbc.flower.server.failures import Failure
from fedpbc.flower.server.roster import Client
from fedpbc.flower.server.words import first_line
from fedpbc.flower.wire.arrays import Layout, Model, Refused, largest, sane
from fedpbc.flower.wire.protocol import Answer, Order, one_line, only_arrays

CRASHES = {1, 2, 8}
"""Flower's error codes of a ClientApp that could not be loaded, raised an exception, or died."""
SPARE_BYTES = 1 << 20
"""Metrics and configs of a reply may take this much."""


@dataclass
class Asked:
    """A message to a client."""

    metadata: Metadata
    """Flower writes the message's id here when it is sent."""
    order: Order
    client: Client | None
    """None: it was asked who it is."""
    answered: bool = False


@dataclass(frozen=True)
class Reply:
    """A reply that counts, unless its numbers turn out not to be finite."""

    client: Client
    arrays: Model
    """Without the buffers."""
    answer: Answer
    content: RecordDict
    buffers: Model = field(default_factory=dict)
    weight: float = 1.0
    """What Delta_i counts: 1, or n_i over the mean of the n known."""

    @cached_property
    def largest(self) -> np.ndarray:
        """A bound of |entries| of every array, in the layout's order; inf where one is not finite."""
        return np.array([largest(array) for array in self.arrays.values()])


def mean_of(models: list[Model], layout: Layout, otherwise: Model) -> Model:
    """The mean of models, array by array, flattened, added in place; ``otherwise``, flattened, of none."""
    flat = [layout.flatten(model) for model in models]
    return {name: running_mean((x[name] for x in flat), start) for name, start in otherwise.items()}


@dataclass
class Ledger:
    """The book of round t."""

    round: int
    deadline: float
    """On the monotonic clock."""
    chosen: set[str] | None = None
    """Who may be asked, by name; None: everybody, or it is not drawn yet."""
    busy: set[str] = field(default_factory=set)
    """Who is not asked because it works on an order of an earlier round, by name."""
    ready: set[str] = field(default_factory=set)
    """Whose answer is there and looks as if it will count, by name."""
    late: list[tuple[str, int, float]] = field(default_factory=list)
    """(name, round, seconds after it closed) of answers to earlier rounds that came in this one."""
    closed_early: bool = False
    """Somebody was not waited for."""
    asked: list[Asked] = field(default_factory=list)
    replies: dict[str, Reply] = field(default_factory=dict)
    unfinished: dict[str, Answer] = field(default_factory=dict)
    """Clients that are still catching up, by name."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Errors that clients and Flower report; among them clients whose time was up."""
    failures: dict[str, Failure] = field(default_factory=dict)
    """By name, clients that were reached and whose app failed."""
    bytes_down: int = 0
    bytes_up: int = 0
    started: float = field(default_factory=time.monotonic)
    _tried: set[tuple[int, str]] = field(default_factory=set)
    _by_id: dict[str, Asked] = field(default_factory=dict)

    def sent(self, message: Message, order: Order, client: Client | None) -> Message:
        """Note that ``message`` goes out."""
        self.asked.append(Asked(message.metadata, order, client))
        self._tried.add((message.metadata.dst_node_id, order.kind))
        self.bytes_down += sum(size(message.content))
        return message

    def tried(self, node: int, kind: str) -> bool:
        """Whether this node was asked for this already."""
        return (node, kind) in self._tried

    def find(self, message: Message) -> Asked | None:
        """What ``message`` answers; None when this round did not ask."""
        wanted = message.metadata.reply_to_message_id
        if wanted not in self._by_id:  # ids are known only after sending
            self._by_id = {asked.metadata.message_id: asked for asked in self.asked if asked.metadata.message_id}
        return self._by_id.get(wanted)

    def match(self, message: Message) -> Asked:
        """What ``message`` is the answer to. Raises Refused for whatever this round did not ask, or asked once."""
        asked = self.find(message)
        if asked is None:
            raise Refused(f"answers nothing that was asked in round {self.round + 1}")
        if message.has_content() and message.metadata.src_node_id != asked.metadata.dst_node_id:
            raise Refused("answers what another node was asked")
        if asked.answered:
            raise Refused("answers what was answered already")
        asked.answered = True
        return asked

    def look(self, message: Message) -> None:
        """Note who is ``ready``."""
        asked = self.find(message)
        if asked is None or asked.client is None or message.has_error():
            return
        order, answer = asked.order, Answer.of(message)
        own = message.metadata.src_node_id == asked.metadata.dst_node_id
        if own and answer is not None and answer.finished and answer.asked_by(order):
            self.ready.add(order.client)

    def enough(self, min_replies: int | float | None) -> bool:
        """Whether so many are ``ready``, or such a share of those that were asked or are busy."""
        if min_replies is None:
            return False
        here = {asked.client.name for asked in self.asked if asked.client} | self.busy
        wanted = min_replies if isinstance(min_replies, int) else math.ceil(min_replies * len(here))
        return len(self.ready) >= max(wanted, 1)

    def take(self, asked: Asked, message: Message, layout: Layout) -> None:
        """Count the reply of a client. Raises Refused unless it is what was asked for."""
        client = asked.client
        assert client is not None
        arrays, rest = size(message.content)
        self.bytes_up += arrays + rest
        answer = Answer.of(message)
        if answer is None:
            raise Refused(
                "has no record of fedpbc that can be read: the client app needs @app.train(mods=[fedpbc_mod])"
            )
        order = asked.order
        if not answer.asked_by(order):
            raise Refused(f"is for client {answer.client!r}, round {answer.round}, which was not asked"[:200])
        if max(answer.trained, answer.waiting) > order.round + 1:
            raise Refused("speaks of more rounds than there were")
        if rest > SPARE_BYTES:
            raise Refused(f"has more than {SPARE_BYTES} bytes beside its arrays")
        if answer.error:
            self._take_failure(order, answer)
            return
        if not answer.finished:
            self.unfinished[client.name] = answer
            return
        if client.name in self.replies:
            raise Refused("is the second of its client in this round")
        self.replies[client.name] = self._read(client, answer, message, layout)

    def _take_failure(self, order: Order, answer: Answer) -> None:
        if not order.first <= answer.failed <= order.round:
            raise Refused(f"says that round {answer.failed} failed, which was not asked"[:200])
        reason = one_line(answer.error)
        self.failures[order.client] = Failure(answer.failed, reason)
        self.failed.append((order.client, reason))

    def crashed(self, asked: Asked, error: Error) -> None:
        """Note that an app failed outside its train function: it could not be loaded, or its process died."""
        if asked.client is not None and error.code in CRASHES:
            self.failures[asked.client.name] = Failure(-1, first_line(error.reason))

    def _read(self, client: Client, answer: Answer, message: Message, layout: Layout) -> Reply:
        found = only_arrays(message)
        if found is None:
            raise Refused("must hold one ArrayRecord with all arrays")
        model = layout.read(found[1])
        learnt, buffers = ({name: model[name] for name in part.shapes} for part in (layout.learnt, layout.averaged))
        if not sane(buffers):
            raise Refused("has a buffer that holds a value that is not finite, or huge")
        return Reply(client, learnt, answer, message.content, buffers)

    def evaluations(self, replies: Iterable[Message]) -> list[tuple[str, RecordDict]]:
        """(client, what it measured) of the replies to a request to evaluate; the others are noted with a reason."""
        found = []
        for message in replies:
            try:
                asked = self.match(message)
            except Refused as refused:
                self.refuse(f"node {message.metadata.src_node_id}", str(refused))
                continue
            who = asked.client.name if asked.client else ""
            if message.has_error():
                self.failed.append((who, first_line(message.error.reason)))
            else:
                found.append((who, message.content))
        self.close()
        return found

    def again(self, node: int, kind: str) -> None:
        """This node may be asked for this once more."""
        self._tried.discard((node, kind))

    def close(self) -> None:
        """List who was asked and did not answer: Flower reports that only when the round is over."""
        who = [asked.client.name if asked.client else f"node {asked.metadata.dst_node_id}" for asked in self.asked]
        answered = {name for name, asked in zip(who, self.asked, strict=True) if asked.answered}
        for name, asked in zip(who, self.asked, strict=True):
            if name not in answered:
                answered.add(name)
                self.failed.append((name, self._silence(asked)))

    def _silence(self, asked: Asked) -> str:
        if not asked.metadata.message_id:
            return "could not be sent to: its node has just gone, or the message is too large"
        within = time.monotonic() - self.started if self.closed_early else asked.metadata.ttl
        early = ", when the round closed early" if self.closed_early else ""
        return f"no reply within {within:.3g} s{early}" + ("" if asked.client else ", did not say who it is")

    def refuse(self, who: str, why: str) -> None:
        """Note a reply that does not count."""
        self.refused.append((who, why))

    def summary(self, known: int) -> dict[str, Any]:
        """One line of metrics.jsonl."""
        trained = [reply.answer.trained for reply in self.replies.values()]
        return {
            "round": self.round,
            "time": round(time.time(), 3),
            "active": len(self.replies),
            "known": known,
            "asked": len({a.client.name for a in self.asked if a.client}),
            "caught_up": sum(max(0, n - 1) for n in trained),
            "catching_up": {name: answer.waiting for name, answer in self.unfinished.items()},
            "closed_early": self.closed_early,
            "busy": sorted(self.busy),
            "late": [{"client": who, "round": t, "seconds": round(after, 3)} for who, t, after in self.late],
            "refused": [{"client": who, "reason": why} for who, why in self.refused],
            "failed": [{"client": who, "reason": why} for who, why in self.failed],
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "seconds": round(time.monotonic() - self.started, 4),
        }


def size(content: RecordDict) -> tuple[int, int]:
    """(bytes of the arrays, bytes of the rest, numbers at 8 each) of a message."""
    arrays = rest = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            arrays += record.count_bytes()
        else:
            items: Iterable[tuple[str, Any]] = record.items()
            rest += sum(len(key) + _weight(value) for key, value in items)
    return arrays, rest


def _weight(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_weight, value))
    return len(value) if isinstance(value, (str, bytes)) else 8
