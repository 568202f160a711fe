"""Clients without a name that are started again and again: noticed, and bounded."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from apps import CASES, OPTIONS, RATE, STEPS, D, centers, expected, flat, record_of
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.flower import FedAvg, FedPBC, InProcessGrid, fedpbc_mod
from fedpbc.flower.server import roster as rosters
from fedpbc.flower.server.roster import Roster

M, ROUNDS = 3, 24
U = centers(M)


def app() -> ClientApp:
    """A node's data is number ``data`` of its config, whatever it is called."""
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        x, eta = flat(message.content["arrays"]), RATE(int(message.content["config"]["server-round"]) - 1)
        for _ in range(STEPS):
            x = x - eta * (x - U[int(context.node_config["data"])])
        return Message(RecordDict({"arrays": record_of(x)}), reply_to=message)

    return app


class Restarting(InProcessGrid):
    """Clients 0 and 1 have names; number 2 has none, and is another node after every second round."""

    def __init__(self) -> None:
        super().__init__(app())
        for i in range(2):
            self.contexts[self.connect(str(i), 10 + i)].node_config["data"] = i
        self.lives = 0
        self.restart()

    def restart(self) -> None:
        self.contexts.pop(1000 + self.lives, None)
        self.lives += 1
        node = self.connect("x", 1000 + self.lives)
        self.contexts[node].node_config = {"data": 2}

    def run(self, kind: Any, rounds: int, sizes: list[tuple[int, int]], **options: Any) -> np.ndarray:
        models: list[np.ndarray] = []
        strategy = kind(**OPTIONS | {"min_available_nodes": 3} | options)

        def after(done: int, arrays: Any) -> None:
            models.append(flat(arrays))
            sizes.append((len(strategy.federation.roster), len(strategy.federation.bases.names())))
            if done and done % 2 == 0:
                self.restart()

        strategy.start(self, record_of(np.zeros(D)), rounds, evaluate_fn=after)
        return np.array(models)


@pytest.mark.parametrize(("kind", "case"), [(FedPBC, "fedpbc"), (FedAvg, "fedavg")])
def test_who_is_started_for_ever_is_known_for_a_while(kind, case, tmp_path, caplog):
    """Bounded, and the models are those of a federation of all the lives, each of which is heard in its two rounds."""
    sizes: list[tuple[int, int]] = []
    grid = Restarting()
    first = grid.run(kind, ROUNDS // 2, sizes, directory=tmp_path, forget_unnamed=4)
    rest = grid.run(kind, ROUNDS, sizes, directory=tmp_path, forget_unnamed=4)
    lives = ROUNDS // 2
    active = np.zeros((ROUNDS, 2 + lives), bool)
    active[:, :2] = True
    for t in range(ROUNDS):
        active[t, 2 + t // 2] = True
    method, data = CASES[case].method, np.concatenate([U[:2], np.repeat(U[2:], lives, axis=0)])
    np.testing.assert_allclose(np.concatenate([first, rest]), expected(method, data, active), atol=1e-9, rtol=0)
    assert max(known for known, _ in sizes) <= 2 + 4
    assert max(bases for _, bases in sizes) <= 2 + 4
    said = [record.getMessage() for record in caplog.records if "without a name are known" in record.getMessage()]
    assert said == []  # two are gone at a time


def test_it_is_said_when_they_are_many(caplog):
    sizes: list[tuple[int, int]] = []
    Restarting().run(FedPBC, ROUNDS, sizes, forget_unnamed=0)
    assert sizes[-1][0] == 2 + ROUNDS // 2
    said = [record.getMessage() for record in caplog.records if "without a name" in record.getMessage()]
    assert [int(line.split()[0]) for line in said] == [3, 6]  # then at twice as many: 12 are not reached
    assert "--node-config 'client-id=\"a\"' gives a name" in said[0]


def test_names_are_never_forgotten():
    grid, sizes = Restarting(), list[tuple[int, int]]()
    strategy = FedPBC(**OPTIONS | {"min_available_nodes": 3, "forget_unnamed": 1})

    def after(done: int, arrays: Any) -> None:
        if done == 2:
            grid.disconnect(11)
        sizes.append((len(strategy.federation.roster), done))

    strategy.start(grid, record_of(np.zeros(D)), 8, evaluate_fn=after)
    assert "1" in strategy.federation.roster.clients
    assert [known for known, _ in sizes] == [0, *[3] * 8]


def test_where_m_is_given_rows_are_of_somebody(caplog):
    """A newcomer is turned away, in a line that says why."""
    grid = Restarting()
    grid.run(FedPBC, 4, [], num_clients=3, forget_unnamed=1)
    assert "not asked, num_clients = 3, and all of them are known" in caplog.text


def test_it_outlives_the_server(tmp_path):
    grid = Restarting()
    grid.run(FedPBC, 4, [], directory=tmp_path, forget_unnamed=50)
    saved = json.loads((tmp_path / "checkpoint.json").read_text())["clients"]
    assert sorted((client["name"], client["unnamed"], client["seen"]) for client in saved) == [
        ("0", False, 3), ("1", False, 3), ("1001", True, 1), ("1002", True, 3),
    ]  # fmt: skip
    assert [client["index"] for client in saved] == [0, 1, 2, 3]


def test_nodes_that_went_are_remembered_up_to_a_number(monkeypatch):
    monkeypatch.setattr(rosters, "MOST_GONE", 5)
    roster = Roster(2)
    for life in range(50):
        online = {life, 1000}
        roster.settle(online, life)
        roster.meet(life, "a", "")
        roster.meet(1000, "b", "")
        roster.meet(5000 + life, "late", "")
    assert len(roster.clients) == 2
    assert len(roster._of_node) <= 8
    assert len(roster.not_asked) <= 8
