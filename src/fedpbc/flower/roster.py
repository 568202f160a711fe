"""Who the clients are: node ids come and go, clients stay."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import asdict, dataclass
from typing import Any

from fedpbc.errors import shorten

log = logging.getLogger("flwr")


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


class Roster:
    """The clients by name and by node."""

    def __init__(self, num_clients: int | None) -> None:
        self.num_clients = num_clients
        self.clients: dict[str, Client] = {}
        self._of_node: dict[int, Client] = {}
        self._turned_away: set[int] = set()

    def __len__(self) -> int:
        return len(self.clients)

    def at(self, node: int) -> Client | None:
        """The client that lives in this node now; None when we have not met it, or it moved."""
        client = self._of_node.get(node)
        return client if client is not None and client.node == node else None

    def settle(self, online: Container[int]) -> None:
        """A client whose node has gone, and that lives in another one that is online, is asked there again."""
        for node, client in self._of_node.items():
            if client.node not in online and node in online:
                client.node = node

    def unknown(self, node: int) -> bool:
        """Whether nobody knows who lives in this node; nodes that were left or turned away stay known."""
        return node not in self._of_node and node not in self._turned_away

    def is_full(self) -> bool:
        """Whether all the clients that there will be have been met."""
        return self.num_clients is not None and len(self.clients) >= self.num_clients

    def meet(self, node: int, name: str, key: str) -> tuple[Client | None, bool]:
        """(client, whether it is new) of a node that says who it is; None when it is turned away, which is logged.

        A client that is known comes back under a new node id and is the same client. Where names are
        pinned, a name belongs to the key that used it first.
        """
        name = name or str(node)
        client = self.clients.get(name)
        if client is None:
            if self.is_full():
                return self._turn_away(node, name, f"num_clients = {self.num_clients}, and all of them are known")
            client = Client(name, len(self.clients), node, key)
            self.clients[name] = self._of_node[node] = client
            return client, True
        if client.key != key:
            return self._turn_away(node, name, "the name belongs to a SuperNode with another key")
        if client.node != node:
            log.info("client %s is back as node %d (was node %d)", shorten(name), node, client.node)
        client.node, self._of_node[node] = node, client
        return client, False

    def _turn_away(self, node: int, name: str, why: str) -> tuple[None, bool]:
        self._turned_away.add(node)
        log.warning("node %d calls itself %s: not asked, %s", node, shorten(name), why)
        return None, False

    def state(self) -> list[dict[str, Any]]:
        """For the checkpoint."""
        return [asdict(client) for client in self.clients.values()]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """From a checkpoint; node ids are asked anew, they may belong to somebody else now."""
        self.clients = {entry["name"]: Client(**entry) for entry in state}
        self._of_node.clear()
