"""Rounds that close early (min_replies), and rounds in which only some clients are asked (fraction_train)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from apps import CASES, D, centers, expected, names, play, quadratic_app, record_of
from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from fedpbc.audit import audit, read_log
from fedpbc.errors import ConfigError
from fedpbc.flower import FedAvg, InProcessGrid, fedpbc_mod
from fedpbc.flower.server import exchange
from fedpbc.flower.server.selection import choose
from fedpbc.flower.wire.protocol import RECORD, TRAIN, Order

M, ROUNDS = 6, 14
U = centers(M)


class Paced(InProcessGrid):
    """A node works through its messages one by one; each takes so many looks of the server."""

    def __init__(self, app: Any, pace: list[int]) -> None:
        super().__init__(app)
        self.pace = {self.connect(str(i), 1000 + i): looks for i, looks in enumerate(pace)}
        self.queues: dict[int, list[list[Any]]] = {node: [] for node in self.pace}
        self.done: dict[str, Message] = {}
        self.longest = 0
        self.asked: list[tuple[int, int]] = []
        """(round, node) of all orders to train."""

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        for key, message in zip(ids, messages, strict=True):
            node, order = message.metadata.dst_node_id, Order.of(message)
            self.queues[node].append([self.pace[node], key])
            self.longest = max(self.longest, len(self.queues[node]))
            if order is not None and order.kind == TRAIN:
                self.asked.append((order.round, node))
        return ids

    def pull_messages(self, message_ids: Any) -> Any:
        for queue in self.queues.values():
            if queue:
                queue[0][0] -= 1
                if queue[0][0] <= 0:
                    (reply,) = super().pull_messages([queue.pop(0)[1]])
                    self.done[reply.metadata.reply_to_message_id] = reply
        return [self.done.pop(key) for key in set(message_ids) & self.done.keys()]


PACES = [1, 1, 2, 3, 5, 9]


def logs(folder: Any, which: str = "participation") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{which}.jsonl").read_text().splitlines()]


def active_of(folder: Any, m: int = M) -> np.ndarray:
    return np.array([[name in line["clients"] for name in names(m)] for line in logs(folder)])


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(exchange, "LOOK_FOR_NODES", 0.001)


FAST = {"poll_interval": 0.0005}


@pytest.mark.parametrize("case", CASES)
def test_a_round_that_closes_early_is_the_method_on_who_was_heard(case, tmp_path):
    """Four of six, and whoever comes later is late: also where clients keep what only counted replies may change."""
    grid = Paced(quadratic_app(U), PACES)
    models = play(CASES[case].make(M, directory=tmp_path, min_replies=4, **FAST), grid, ROUNDS)
    active, lines = active_of(tmp_path), logs(tmp_path, "metrics")
    np.testing.assert_allclose(models, expected(CASES[case].method, U, active), atol=1e-9, rtol=0)
    assert all(line["active"] >= 4 for line in lines)
    assert active[:, :4].mean() > 0.7 > 0.3 > active[:, 5].mean()
    assert all(line["closed_early"] == (line["active"] < M) for line in lines)
    assert [line.get("closed") == "early" for line in logs(tmp_path)] == [line["closed_early"] for line in lines]
    late = Counter(entry["client"] for line in lines for entry in line["late"])
    assert set(late) <= {"2", "3", "4", "5"}
    assert late["5"] >= 1
    assert all(entry["round"] < line["round"] and entry["seconds"] > 0 for line in lines for entry in line["late"])
    assert grid.longest == 1  # who is at work is not given a second order
    assert {"5"} <= set().union(*(line["busy"] for line in lines))
    for line in lines:
        assert not {entry["client"] for entry in line["failed"]} & set(line["busy"])


def test_a_share_is_of_those_that_are_here(tmp_path):
    grid = Paced(quadratic_app(U), PACES)
    play(CASES["fedavg"].make(M, directory=tmp_path, min_replies=0.6, **FAST), grid, ROUNDS)
    counts = [line["active"] for line in logs(tmp_path, "metrics")]
    assert min(counts) == 4  # ceil(.6 * 6), those that are still at work included


def test_the_deadline_is_the_latest(tmp_path):
    """Five are wanted and one is dead, one too slow."""
    grid = Paced(quadratic_app(U), [1] * M)
    strategy = CASES["fedavg"].make(M, directory=tmp_path, min_replies=5, **FAST | {"round_deadline": 0.5})
    play(strategy, grid, 3, after=lambda done: done == 1 and grid.pace.update({1004: 10**9, 1005: 10**9}))
    lines = logs(tmp_path, "metrics")
    assert [line["active"] for line in lines[1:]] == [4, 4]
    assert [line["closed_early"] for line in lines] == [lines[0]["active"] < M, False, False]
    assert all(line["seconds"] >= 0.49 for line in lines[1:])


def test_an_answer_that_will_not_count_closes_nothing(tmp_path):
    """Client 0 answers at once, of a round that nobody asked for."""

    def lie(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["client-id"] == "0" and "answer" in reply.content[RECORD]:
            said = json.loads(reply.content[RECORD]["answer"])
            reply.content[RECORD]["answer"] = json.dumps(said | {"round": said["round"] + 1})
        return reply

    grid = Paced(quadratic_app(U, mods=(lie, fedpbc_mod)), PACES)
    play(CASES["fedavg"].make(M, directory=tmp_path, min_replies=3, **FAST), grid, 4)
    assert [line["active"] for line in logs(tmp_path, "metrics")] == [3] * 4
    assert not active_of(tmp_path)[:, 0].any()


def test_a_client_whose_name_comes_late_is_met(tmp_path):
    """It says who it is when the round in which it was asked is long closed, and is not asked for it again."""
    grid = Paced(quadratic_app(U), [1, 1, 1, 1, 1, 12])
    play(CASES["fedpbc"].make(M, directory=tmp_path, min_replies=4, min_available_nodes=5, **FAST), grid, 20)
    known = [line["known"] for line in logs(tmp_path, "metrics")]
    assert (known[0], known[-1]) == (5, 6)
    assert grid.longest == 1


@pytest.mark.parametrize("case", CASES)
def test_who_is_not_asked_is_not_active(case, tmp_path):
    grid = Paced(quadratic_app(U), [1] * M)
    models = play(CASES[case].make(M, directory=tmp_path, fraction_train=0.5, **FAST), grid, ROUNDS)
    active = active_of(tmp_path)
    np.testing.assert_allclose(models, expected(CASES[case].method, U, active), atol=1e-9, rtol=0)
    assert active.sum(axis=1).tolist() == [3] * ROUNDS
    assert active.any(axis=0).all()
    assert {(t, 1000 + i) for t, i in np.argwhere(active)} == set(grid.asked)
    assert [line["asked"] for line in logs(tmp_path, "metrics")] == [3] * ROUNDS


@pytest.mark.parametrize("case", ["fedpbc", "fedau", "mifa by client"])
def test_the_choice_survives_a_kill(case, tmp_path):
    """The models of a server that is killed are those of one that is not; another seed chooses others."""

    def run(folder: Any, rounds: list[int], **options: Any) -> np.ndarray:
        grid = Paced(quadratic_app(U), [1] * M)
        parts = [
            play(CASES[case].make(M, directory=folder, fraction_train=0.34, **FAST, **options), grid, n)[-1]
            for n in rounds
        ]
        return parts[-1]

    whole = run(tmp_path / "whole", [9])
    np.testing.assert_array_equal(run(tmp_path / "cut", [2, 5, 9]), whole)
    assert np.abs(run(tmp_path / "other", [9], selection_seed=1) - whole).max() > 1e-3
    assert not np.array_equal(active_of(tmp_path / "whole"), active_of(tmp_path / "other"))


def test_every_set_of_clients_is_as_likely():
    """3 of 5: ten sets, 20000 rounds; a chi-square of nine degrees is above 27.9 in one of a thousand."""
    options = FedAvg(round_deadline=1, fraction_train=0.6)
    drawn = Counter(frozenset(choose(names(5), options, t)) for t in range(20_000))
    assert len(drawn) == 10
    assert sum((count - 2000) ** 2 / 2000 for count in drawn.values()) < 27.9


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 2), ({"min_train_nodes": 4}, 4), ({"fraction_train": 0.01}, 1), ({"fraction_train": 1.0}, 7)],
)
def test_how_many_are_asked(options, count):
    chosen = choose(names(7), FedAvg(**{"round_deadline": 1, "fraction_train": 0.4, **options}), 3)
    assert len(chosen) == count


def test_both_at_once(tmp_path):
    grid = Paced(quadratic_app(U), PACES)
    models = play(CASES["fedpbc"].make(M, directory=tmp_path, fraction_train=0.7, min_replies=2, **FAST), grid, ROUNDS)
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, active_of(tmp_path)), atol=1e-9, rtol=0)
    assert grid.longest == 1


def test_the_audit_says_so(tmp_path):
    grid = Paced(quadratic_app(U), PACES)
    play(CASES["fedavg"].make(M, directory=tmp_path, min_replies=3, fraction_train=0.9, **FAST), grid, ROUNDS)
    early = sum("closed" in line for line in logs(tmp_path))
    notes = audit(read_log(tmp_path / "participation.jsonl")).log.notes
    assert f"{early} of {ROUNDS} rounds closed early: clients that were not waited for count as absent" in notes[0]
    assert f"in {ROUNDS} of {ROUNDS} rounds only some clients were asked" in notes[1]
    assert len(notes) == 2


def test_flowers_own_loop():
    """It waits for all who were asked, and knows no round that closes early; it asks whom we choose."""
    grid = Paced(quadratic_app(U), [1] * M)
    strategy = CASES["fedavg"].make(M, min_replies=2)
    with pytest.raises(ConfigError, match=r"min_replies = 2: needs the start\(\) of this strategy"):
        Strategy.start(strategy, grid, record_of(np.zeros(D)), num_rounds=2)
    grid.send_and_receive = lambda messages, timeout=None: InProcessGrid.pull_messages(
        grid, grid.push_messages(messages)
    )
    strategy = CASES["fedavg"].make(M, fraction_train=0.5)
    Strategy.start(strategy, grid, record_of(np.zeros(D)), num_rounds=3)
    assert sorted(Counter(t for t, _ in grid.asked).values()) == [3, 3, 3]
