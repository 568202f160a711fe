"""A Flower grid inside this process: real ClientApps, messages that get lost on demand, no clock and no network."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import cast

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpbc.flower.wire.protocol import IDENTIFY, Order, bundle

Delivers = Callable[[int, str], bool]
"""(round t, client id) -> whether a message of that round arrives."""

SERVER_NODE = 1
UNAVAILABLE = 3
"""Flower's error code for a message whose time is up."""


class InProcessGrid(Grid):
    """A grid for tests and rehearsals: a ClientApp runs when its reply is pulled.

    ``uplink`` and ``downlink`` say what arrives; they are asked for training messages only, others always arrive.
    A message lost on the downlink never reaches the client; one lost on the uplink does, and its context keeps what
    the client put there. Both come back at once as the error that a SuperLink gives when the time is up, so nobody
    waits for a deadline.
    """

    def __init__(
        self,
        app: ClientApp,
        client_ids: Iterable[str] = (),
        *,
        uplink: Delivers = lambda round, client: True,
        downlink: Delivers = lambda round, client: True,
        run_config: UserConfig | None = None,
    ) -> None:
        self.app, self.uplink, self.downlink = app, uplink, downlink
        self.run_config: UserConfig = run_config or {}
        self.contexts: dict[int, Context] = {}
        self._waiting: dict[str, Message] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER_NODE, 1
        for client in client_ids:
            self.connect(client)

    def connect(self, client: str, node_id: int | None = None) -> int:
        """A new node with an empty context that calls itself ``client``, ``partition-id`` too if a number; its id."""
        node = node_id or uuid.uuid4().int >> 66
        config: UserConfig = {"client-id": client}
        if client.isascii() and client.isdigit():
            config["partition-id"] = int(client)
        self.contexts[node] = Context(1, node, config, RecordDict(), self.run_config)
        return node

    def disconnect(self, node_id: int) -> None:
        """The node is gone, and with it its context."""
        del self.contexts[node_id]

    def set_run(self, run: Run) -> None:
        """There is one run only."""

    @property
    def run(self) -> Run:
        """Unknown here. Raises NotImplementedError."""
        raise NotImplementedError("an in-process grid has no run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message; the constructor does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The nodes that are connected, without keys."""
        return [NodeInfo(node_id=node_id) for node_id in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take the messages; their ids."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self._waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the clients these messages are for, in the order in which they were pushed; their replies."""
        wanted = set(message_ids)
        return [self._answer(self._waiting.pop(i)) for i in list(self._waiting) if i in wanted]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push and pull."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(UNAVAILABLE, "the node is gone"), reply_to=message)
        order = Order.of(message)
        asked = None if order is None or order.kind == IDENTIFY else (order.round, order.client)
        if asked and not self.downlink(*asked):
            return Message(Error(UNAVAILABLE, "lost on the downlink"), reply_to=message)
        received = _copy_of(message)
        try:
            reply = self.app(received, context)
        except Exception as error:
            reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=received)
        if asked and not self.uplink(*asked):
            return Message(Error(UNAVAILABLE, "lost on the uplink"), reply_to=message)
        reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        return reply


def _copy_of(message: Message) -> Message:
    """A message with records of its own: what the client changes in them stays with the client, as over a network."""
    content = bundle({key: cast(ConfigRecord, record).copy() for key, record in message.content.items()})
    copied = Message(content, message.metadata.dst_node_id, message.metadata.message_type, ttl=message.metadata.ttl)
    copied.metadata.__dict__.update(message.metadata.__dict__)
    return copied
