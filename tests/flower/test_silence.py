"""Who does not answer, or cannot, is named with the reason: in the log, and in metrics.jsonl where there is one."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import numpy as np
import pytest
from apps import CASES, D, centers, expected, grid_of, names, play, quadratic_app, record_of
from flwr.app import Context, Error, Message, MetricRecord, RecordDict

from fedpbc.flower import InProcessGrid, fedpbc_mod
from fedpbc.flower.server import exchange
from fedpbc.flower.server.reasons import MOST_KINDS, Reasons, listed
from fedpbc.flower.server.words import first_line
from fedpbc.flower.wire.protocol import Order

M = 4
U = centers(M)
ALL = np.ones((8, M), bool)


class Slow(InProcessGrid):
    """Some nodes answer late or never. As with a SuperLink, a message that nobody answered in time becomes an error of
    node 1, which comes after the deadline: when the round is closed, that is too late."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seconds: dict[int, float] = {}
        """Node -> how long it takes to answer."""
        self.seen: list[tuple[int, str, float]] = []
        """(node, kind of order, time to live) of all messages."""

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        for message in messages:
            order, metadata = Order.of(message), message.metadata
            self.seen.append((metadata.dst_node_id, order.kind if order else "evaluate", metadata.ttl))
            metadata.__dict__["pushed"] = time.monotonic()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        ready = []
        for key in set(message_ids) & self._waiting.keys():
            metadata = self._waiting[key].metadata
            seconds, waited = self.seconds.get(metadata.dst_node_id, 0.0), time.monotonic() - metadata.pushed
            if waited > min(seconds, metadata.ttl + 3600):
                ready.append(key)
        return super().pull_messages(ready)

    def _answer(self, message: Message) -> Message:
        if self.seconds.get(message.metadata.dst_node_id, 0.0) > message.metadata.ttl:
            error = Message(
                Error(4, "Error: Reply Message Unavailable - The reply message has expired."), reply_to=message
            )
            error.metadata.__dict__["_src_node_id"] = 1
            return error
        return super()._answer(message)


def lines_of(folder: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_client_that_was_asked_and_is_silent_is_listed(tmp_path, caplog):
    """In every round, once, with a reason; so is a node that never said who it is."""
    grid = grid_of(quadratic_app(U), ALL, kind=Slow)
    nodes = list(grid.contexts)

    def after(done: int) -> None:
        if done == 2:
            grid.seconds = {nodes[3]: 1e9, grid.connect("4"): 1e9}

    strategy = CASES["fedpbc"].make(M, directory=tmp_path, round_deadline=1.2)
    models = play(strategy, grid, 4, after=after)
    active = ALL[:4].copy()
    active[2:, 3] = False
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, active), atol=1e-9, rtol=0)
    lines, newcomer = lines_of(tmp_path), f"node {list(grid.contexts)[-1]}"
    assert [line["failed"] for line in lines[:2]] == [[], []]
    for line in lines[2:]:
        assert sorted(entry["client"] for entry in line["failed"]) == ["3", newcomer]
        assert all(re.fullmatch(r"no reply within 1\.?\d* s.*", entry["reason"]) for entry in line["failed"])
        assert line["asked"] == 4
    said = [r.getMessage() for r in caplog.records if "no reply within" in r.getMessage()]
    assert sorted(text[: text.index(": no reply")] for text in said) == [
        "round 3: no model from 3",
        f"round 3: no model from {newcomer}",
    ]


def test_a_client_that_answered_in_another_node_is_not_silent(tmp_path):
    """Its node went while the round was open, and it came back under another id."""
    grid = grid_of(quadratic_app(U), ALL, kind=Slow)
    nodes = list(grid.contexts)
    pull, gone = grid.pull_messages, []

    def move(ids: Any) -> Any:
        found = pull(ids)
        if not gone and nodes[3] in grid.seconds:
            gone.append(grid.contexts.pop(nodes[3]))
            grid.connect("3")
        return found

    grid.pull_messages = move
    strategy = CASES["fedpbc"].make(M, directory=tmp_path, round_deadline=10)
    play(strategy, grid, 3, after=lambda done: done == 1 and grid.seconds.update({nodes[3]: 1e9}))
    assert [(line["active"], line["failed"]) for line in lines_of(tmp_path)] == [(4, [])] * 3


def test_a_message_that_cannot_be_sent_is_listed(tmp_path):
    """The last node goes between two looks: the SuperLink takes no message for it."""

    class Gone(InProcessGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            lost = [(order := Order.of(m)) is not None and (order.client, order.round) == ("3", 1) for m in messages]
            ids = iter(super().push_messages([m for m, gone in zip(messages, lost, strict=True) if not gone]))
            return [None if gone else next(ids) for gone in lost]

    began = time.monotonic()
    play(CASES["fedpbc"].make(M, directory=tmp_path), grid_of(quadratic_app(U), ALL, kind=Gone), 3)
    why = "could not be sent to: its node has just gone, or the message is too large"
    assert [line["failed"] for line in lines_of(tmp_path)] == [[], [{"client": "3", "reason": why}], []]
    assert time.monotonic() < began + 600


def test_who_starts_slowly_is_waited_for_longer(caplog, monkeypatch):
    """A client that needs 1.6 s to say who it is, where rounds close after one."""
    monkeypatch.setattr(exchange, "SAY_WAITING", 0.3)
    grid = grid_of(quadratic_app(U), ALL, kind=Slow)
    nodes = list(grid.contexts)
    grid.seconds = {nodes[1]: 1.6, nodes[2]: 1.6}
    strategy, stop = CASES["fedpbc"].make(M, round_deadline=1.0), time.monotonic() + 1200
    monkeypatch.setattr(grid, "get_node_ids", lambda: nodes if time.monotonic() < stop else pytest.fail("for ever"))
    strategy.prepare(record_of(np.zeros(D)))
    exchange.gather(strategy.federation, grid)
    identify = [ttl for node, kind, ttl in grid.seen if node == nodes[1] and kind == "identify"]
    assert identify[0] <= 1.0 < 1.6 < identify[-1]
    assert [strategy.federation.roster.at(node).name for node in nodes] == names(M)
    line = f"2 nodes did not say who they are (node {nodes[1]} and node {nodes[2]}): no answer yet"
    assert line in caplog.text
    assert "waiting for clients: 2 of 4 are here" in caplog.text


def test_errors_of_the_superlink_are_about_the_node_that_was_asked(tmp_path, caplog, monkeypatch):
    """They come from node 1, whichever nodes they are about."""
    monkeypatch.setattr(exchange, "SAY_WAITING", 0.05)

    class Unavailable(InProcessGrid):
        dead: tuple[int, ...] = ()

        def _answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id not in self.dead:
                return super()._answer(message)
            error = Message(Error(5, "Error: Node Unavailable"), reply_to=message)
            error.metadata.__dict__["_src_node_id"] = 1
            return error

        def get_nodes(self) -> Any:
            if "did not say who they are" in caplog.text:
                self.dead = self.dead[1:] if len(self.dead) == 2 else self.dead
            return super().get_nodes()

    grid = grid_of(quadratic_app(U), ALL, kind=Unavailable)
    nodes = list(grid.contexts)
    grid.dead = (nodes[1], nodes[2])
    play(CASES["fedpbc"].make(M - 1, directory=tmp_path, round_deadline=0.5), grid, 2)
    line = f"2 nodes did not say who they are (node {nodes[1]} and node {nodes[2]}): Error: Node Unavailable"
    assert line in caplog.text
    failed = [{"client": f"node {nodes[2]}", "reason": "Error: Node Unavailable"}]
    assert [line["failed"] for line in lines_of(tmp_path)] == [failed] * 2


FAILING = [
    ("<class 'ZeroDivisionError'>:<'division by zero'>", "ZeroDivisionError: division by zero"),
    ("<class 'my.module.TrainError'>:<'a\nb'>", "TrainError: a b"),
    ("<class 'KeyError'>:<''>", "KeyError"),
    (
        "<class 'flwr.clientapp.client_app.ClientAppException'>:<'\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=7)\n"
        '  File "app.py", line 3, in train\nZeroDivisionError: division by zero\n\nThe above exception was the direct '
        "cause of the following exception:\n\n\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=7)\n"
        "flwr.clientapp.client_app.ClientAppException: \nException ClientAppException occurred. "
        "Message: division by zero'>",
        "ZeroDivisionError: division by zero",
    ),
    ("RuntimeError: boom\nsecond line\x1b[31m", "RuntimeError: boom second line\\x1b[31m"),
    ("Traceback (most recent call last):\n  File x\nValueError: y: z\n", "ValueError: y: z"),
    ("Error: Node Unavailable", "Error: Node Unavailable"),
    (None, "no reason given"),
    ("\n", "no reason given"),
]


@pytest.mark.parametrize(("reason", "line"), FAILING)
def test_a_reason_is_one_line_that_begins_with_the_type_of_the_exception(reason, line):
    assert first_line(reason) == line


def test_a_long_reason_is_cut():
    assert len(first_line("ValueError: " + "\x00" * 1000)) <= 300


def test_the_log_says_why_without_a_directory(caplog):
    """The first of each kind, with its type and who it was; at the end, how often."""

    def before(t: int, i: int) -> None:
        if i == 3:
            raise KeyError("weights")
        raise ZeroDivisionError(f"division by zero in step {t}")

    play(CASES["fedpbc"].make(M), grid_of(quadratic_app(U, before=before), ALL), 3)
    said = [r.getMessage() for r in caplog.records if re.search("no model from|no reply counted", r.getMessage())]
    zero, key = "ZeroDivisionError: division by zero in step 0", "KeyError: 'weights'"
    assert said == [
        f"round 1: no model from 0, 1 and 2: {zero}",
        f"round 1: no model from 3: {key}",
        f"no reply counted in 3 rounds: 9 times {zero}; 3 times {key}",
    ]


def test_a_run_without_clients_says_so(caplog, monkeypatch):
    """They leave as soon as all of them have said who they are."""
    grid = grid_of(quadratic_app(U), ALL)
    strategy, nodes = CASES["fedpbc"].make(M, round_deadline=0.05), grid.get_nodes
    monkeypatch.setattr(grid, "get_nodes", lambda: [] if len(strategy.federation.roster) == M else nodes())
    play(strategy, grid, 2)
    assert "no reply counted in 2 rounds: no client was online" in caplog.text


def test_refused_replies_are_counted_too(caplog):
    def nan(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if "arrays" in reply.content:
            reply.content["arrays"] = record_of(np.full(D, np.nan))
        return reply

    play(CASES["fedpbc"].make(M), grid_of(quadratic_app(U, mods=(nan, fedpbc_mod)), ALL), 2)
    assert "no reply counted in 2 rounds: 8 times holds a value that is not finite, or huge" in caplog.text


def test_why_a_client_did_not_evaluate(caplog):
    app = quadratic_app(U)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        if context.node_config["client-id"] == "2":
            raise ValueError("no test data")
        loss = MetricRecord({"num-examples": 1, "loss": float(context.node_config["client-id"])})
        return Message(RecordDict({"metrics": loss}), reply_to=message)

    grid = grid_of(app, ALL, kind=Slow)
    strategy = CASES["fedpbc"].make(M, fraction_evaluate=1.0, round_deadline=1.2)
    result = strategy.start(grid, record_of(np.zeros(D)), 2)
    assert {t: m["loss"] for t, m in result.evaluate_metrics_clientapp.items()} == {1: 4 / 3, 2: 4 / 3}
    said = [r.getMessage() for r in caplog.records if "no evaluation" in r.getMessage()]
    assert said == ["round 1: no evaluation from 2: ValueError: no test data"]
    caplog.clear()
    strategy = CASES["fedpbc"].make(M, fraction_evaluate=1.0, round_deadline=1.2)
    aggregate = strategy.aggregate_train
    nodes = list(grid.contexts)
    strategy.aggregate_train = lambda *given: [aggregate(*given), grid.seconds.update({nodes[0]: 1e9})][0]
    result = strategy.start(grid, record_of(np.zeros(D)), 1)
    assert result.evaluate_metrics_clientapp[1]["loss"] == 2.0
    assert "round 1: no evaluation from 0: no reply within 1.2 s" in caplog.text


def test_reasons_that_somebody_makes_up_do_not_fill_the_log(caplog):
    reasons = Reasons()
    for letter in range(10 * MOST_KINDS):
        reasons.say(1, "no model from", [("0", "x" * letter)])
    assert len(caplog.records) == MOST_KINDS
    assert reasons.summary().startswith(f"{9 * MOST_KINDS} times others; 1 times")


@pytest.mark.parametrize(
    ("many", "words"), [(1, "0"), (2, "0 and 1"), (5, "0, 1, 2, 3 and 4"), (8, "0, 1, 2, 3, 4 and 3 more")]
)
def test_names_in_words(many, words):
    assert listed(names(many)) == words
