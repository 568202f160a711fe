"""Two nodes under one name: one of them is the client, the other waits, and the log names both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from apps import OPTIONS, RATE, STEPS, D, centers, flat, record_of
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from fedpbc.errors import ConfigError
from fedpbc.flower import FedPBC, InProcessGrid, fedpbc_mod

U = centers(4)
FIRST, SECOND = 77, 33
"""Node ids; the second answers first."""


def app() -> ClientApp:
    """A node's data is number ``data`` of its config, whatever it calls itself."""
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        x, eta = flat(message.content["arrays"]), RATE(int(message.content["config"]["server-round"]) - 1)
        for _ in range(STEPS):
            x = x - eta * (x - U[int(context.node_config["data"])])
        content = {"arrays": record_of(x), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


class Nodes(InProcessGrid):
    """Nodes that can be offline for a while; they are met in the order of their ids."""

    def __init__(self) -> None:
        super().__init__(app())
        self.offline: set[int] = set()
        self.add("0", 11, 0)
        self.add("2", 22, 2)

    def add(self, client: str, node: int, data: int, key: str = "client-id") -> None:
        self.connect(client, node)
        self.contexts[node].node_config = {key: client, "data": data}

    def get_node_ids(self) -> list[int]:
        return [node for node in self.contexts if node not in self.offline]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]


def run(grid: Nodes, rounds: int, after: Any = lambda done: None, **options: Any) -> np.ndarray:
    strategy = FedPBC(**OPTIONS | {"min_available_nodes": 3} | options)
    result = strategy.start(grid, record_of(np.zeros(D)), rounds, evaluate_fn=lambda done, arrays: after(done))
    return flat(result.arrays)


def by_hand(whose: list[list[int]]) -> np.ndarray:
    """x^T when the clients of round t have the data ``whose[t]`` and all are heard: q x + (1 - q) mean(u)."""
    x = np.zeros(D)
    for t, data in enumerate(whose):
        q = (1 - RATE(t)) ** STEPS
        x = q * x + (1 - q) * U[data].mean(axis=0)
    return x


def turned_away(node: int, other: int) -> str:
    return f'node {node} calls itself "1": not asked, while node {other} is online, which'


@pytest.mark.parametrize("key", ["client-id", "partition-id"])
def test_the_first_is_the_client_while_it_is_online(key, caplog):
    """A client-id and another node's partition-id are names alike."""
    grid = Nodes()
    grid.add("1", FIRST, 1)

    def after(done: int) -> None:
        if done == 2:
            grid.add("1", SECOND, 3, key)
        if done == 5:
            grid.offline.add(FIRST)
        if done == 7:
            grid.offline.discard(FIRST)
        if done == 9:
            grid.offline.add(SECOND)

    final = run(grid, 11, after)
    np.testing.assert_allclose(final, by_hand([[0, 1, 2]] * 5 + [[0, 3, 2]] * 4 + [[0, 1, 2]] * 2), atol=1e-12)
    assert np.abs(final - by_hand([[0, 1, 2]] * 11)).max() > 1e-2
    said = [r.getMessage() for r in caplog.records if '"1"' in r.getMessage()]
    assert [r.levelname for r in caplog.records if '"1"' in r.getMessage()] == ["WARNING", "INFO", "WARNING", "INFO"]
    assert said[0].startswith(turned_away(SECOND, FIRST))
    assert said[1] == f'client "1" is asked in node {SECOND}: node {FIRST} has gone'
    assert said[2].startswith(turned_away(FIRST, SECOND))
    assert said[3] == f'client "1" is asked in node {FIRST}: node {SECOND} has gone'


def test_two_from_the_start(caplog):
    """Then the first is the one with the smaller id, however fast they answer."""
    grid = Nodes()
    grid.add("1", FIRST, 3)
    grid.add("1", SECOND, 1)
    np.testing.assert_allclose(run(grid, 4), by_hand([[0, 1, 2]] * 4), atol=1e-12)
    assert turned_away(FIRST, SECOND) in caplog.text


def test_the_latest_if_asked_for(caplog):
    """From the round on after that in which it came: there, the first was asked already."""
    grid = Nodes()
    grid.add("1", FIRST, 1)
    final = run(grid, 5, lambda done: done == 3 and grid.add("1", SECOND, 3), same_name="latest")
    np.testing.assert_allclose(final, by_hand([[0, 1, 2]] * 4 + [[0, 3, 2]]), atol=1e-12)
    assert f'node {FIRST} calls itself "1": not asked, node {SECOND} came later under that name' in caplog.text
    with pytest.raises(ConfigError, match='same_name = "last": must be "first" or "latest"'):
        run(grid, 5, same_name="last")


def test_a_new_server_keeps_the_first(caplog, tmp_path):
    grid = Nodes()
    grid.add("1", FIRST, 1)
    run(grid, 3, directory=tmp_path)
    grid.add("1", SECOND, 3)
    np.testing.assert_allclose(run(grid, 6, directory=tmp_path), by_hand([[0, 1, 2]] * 6), atol=1e-12)
    assert turned_away(SECOND, FIRST) in caplog.text


def test_a_node_that_has_another_name_by_now_holds_nobody_up(caplog, tmp_path):
    """The node of client 1 was started again as client 3, and client 1 under another id."""
    grid = Nodes()
    grid.add("1", FIRST, 1)
    run(grid, 3, directory=tmp_path)
    grid.add("3", FIRST, 3)
    grid.add("1", SECOND, 1)
    run(grid, 6, directory=tmp_path, min_available_nodes=4)
    lines = (tmp_path / "participation.jsonl").read_text().splitlines()[3:]
    assert len(lines) == 3
    assert all('"clients": ["0", "1", "2", "3"]' in line for line in lines)


def test_who_waits_for_clients_hears_of_double_names(monkeypatch, caplog):
    """Four are waited for, and two of the four nodes have one name; in the end a fourth client comes."""
    monkeypatch.setattr("fedpbc.flower.exchange.SAY_WAITING", 0.02)
    grid = Nodes()
    grid.add("1", FIRST, 1)
    grid.add("1", SECOND, 3)
    nodes = grid.get_nodes

    def later() -> list[NodeInfo]:
        if "waiting for clients: 3 of 4 are here" in caplog.text and 44 not in grid.contexts:
            grid.add("3", 44, 3)
        return nodes()

    monkeypatch.setattr(grid, "get_nodes", later)
    run(grid, 1, min_available_nodes=4)
    assert f'node {FIRST} calls itself "1": while node {SECOND} is online' in caplog.text
