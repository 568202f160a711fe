"""Who the clients are: node ids come and go, clients stay."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import asdict, dataclass
from typing import Any

from fedpbc.errors import shorten

log = logging.getLogger("flwr")

MOST_GONE = 1000
"""Nodes that went are remembered up to so many: they may come back under their id."""
MANY_GONE = 3
GIVE_NAMES = (
    "are they the same, started again? --node-config 'client-id=\"a\"' gives a name, and a key a node id that stays"
)
SHARED = "two clients share a client-id, or one was started again a moment ago"


@dataclass
class Client:
    """One client, whatever node it lives in."""

    name: str
    index: int
    """Position in the order in which clients were first met: the i of the paper."""
    node: int
    """The node it was last met in."""
    key: str
    """The public key of its SuperNode, hexadecimal; "" where names are not pinned."""
    version: int = 0
    """v_i: the round at whose beginning its base was the server's model."""
    base: str = ""
    """The name of that model."""
    unnamed: bool = False
    """It is called after its node, so that it is another client when it is started again without a key."""
    seen: int = 0
    """The latest round in which its node was online."""


class Roster:
    """The clients by name and by node.

    keep_first: of two nodes with one name, the client is the one that had it first, as long as that is online; else the
    one that came last.
    """

    def __init__(self, num_clients: int | None, keep_first: bool = True) -> None:
        self.num_clients, self.keep_first = num_clients, keep_first
        self.clients: dict[str, Client] = {}
        self._of_node: dict[int, Client] = {}
        """Who says who it is, also while another node has that name."""
        self._online: Container[int] = ()
        self.not_asked: dict[int, str] = {}
        """Nodes that were turned away, and why."""
        self._said = 0
        """How many nodes without a name had gone when that was said last."""

    def __len__(self) -> int:
        return len(self.clients)

    def at(self, node: int) -> Client | None:
        """The client that lives in this node now; None when we have not met it, or it moved."""
        client = self._of_node.get(node)
        return client if client is not None and client.node == node else None

    def here(self, name: str) -> Client | None:
        """The client of this name, where it lives in a node that has said so."""
        client = self.clients.get(name)
        return client if client is not None and self.at(client.node) is client else None

    def settle(self, online: Container[int], t: int) -> None:
        """In round t a client whose node has gone is asked in another one that is online and has its name."""
        self._online = online
        self._forget_gone_nodes()
        for node, client in self._of_node.items():
            if node not in online or client.node == node:
                continue
            if not self._lives(client):
                log.info("client %s is asked in node %d: node %d has gone", shorten(client.name), node, client.node)
                client.node = node
                self.not_asked.pop(node, None)
            elif node not in self.not_asked:
                self._turn_away(
                    node, client.name, f"while node {client.node} is online, which took its place; {SHARED}"
                )
        for client in self.clients.values():
            if client.node in online:
                client.seen = t

    def forget(self, t: int, after: int) -> None:
        """Forget clients without a name whose node is gone for ``after`` rounds; 0: none, nor where m is given.

        Such a node has a new id, and so another name, when it is started again: it would be known twice.
        """
        gone = [c for c in self.clients.values() if c.unnamed and c.node not in self._online]
        if len(gone) >= max(MANY_GONE, 2 * self._said):
            self._said = len(gone)
            log.warning("%d clients without a name are known whose nodes have gone: %s", len(gone), GIVE_NAMES)
        if not after or self.num_clients is not None:
            return
        for client in gone:
            if t - client.seen >= after:
                del self.clients[client.name]
                self._of_node = {node: one for node, one in self._of_node.items() if one is not client}
                log.info("client %s has no name and is gone for %d rounds: forgotten", client.name, t - client.seen)

    def _forget_gone_nodes(self) -> None:
        """Of nodes that went, and in which no client lives, the last MOST_GONE are remembered."""
        for known in (self._of_node, self.not_asked):
            gone = [node for node in known if node not in self._online and self.at(node) is None]
            for node in gone[: max(0, len(gone) - MOST_GONE)]:
                del known[node]

    def unknown(self, node: int) -> bool:
        """Whether nobody knows who lives in this node; nodes that were left or turned away stay known."""
        return node not in self._of_node and node not in self.not_asked

    def is_full(self) -> bool:
        """Whether all the clients that there will be have been met."""
        return self.num_clients is not None and len(self.clients) >= self.num_clients

    def meet(self, node: int, name: str, key: str) -> tuple[Client | None, bool]:
        """(client, whether it is new) of a node that says who it is; None when it is turned away, which is logged.

        A client that is known comes back under a new node id and is the same client; while the node it was last met in
        is online, there are two of that name, and only one is asked. Where names are pinned, a name belongs to the key
        that used it first.
        """
        unnamed, name = not name, name or str(node)
        client = self.clients.get(name)
        if client is None:
            if self.is_full():
                return self._turn_away(node, name, f"num_clients = {self.num_clients}, and all of them are known")
            last = next(reversed(self.clients.values()), None)  # of the highest index: they are in order
            index = 0 if last is None else 1 + last.index
            client = Client(name, index, node, key, unnamed=unnamed)
            self.clients[name] = self._of_node[node] = client
            return client, True
        if client.key != key:
            why = f"the name belongs to a SuperNode with another key, last met as node {client.node}"
            return self._turn_away(node, name, why)
        self._of_node[node] = client
        other = client.node
        if other != node and self._lives(client):
            if self.keep_first:
                return self._turn_away(node, name, f"while node {other} is online, which had the name first; {SHARED}")
            self._turn_away(other, name, f"node {node} came later under that name; {SHARED}")
        elif other != node:
            log.info("client %s is back as node %d (was node %d)", shorten(name), node, other)
        self.not_asked.pop(node, None)
        client.node = node
        return client, False

    def _lives(self, client: Client) -> bool:
        """Whether its node is online, and nobody else by now."""
        return client.node in self._online and self._of_node.get(client.node, client) is client

    def _turn_away(self, node: int, name: str, why: str) -> tuple[None, bool]:
        self.not_asked[node] = f"calls itself {shorten(name)}: {why}"
        log.warning("node %d calls itself %s: not asked, %s", node, shorten(name), why)
        return None, False

    def state(self) -> list[dict[str, Any]]:
        """For the checkpoint."""
        return [asdict(client) for client in self.clients.values()]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """From a checkpoint; node ids are asked anew, they may belong to somebody else now."""
        self.clients = {entry["name"]: Client(**entry) for entry in state}
        self._of_node.clear()
