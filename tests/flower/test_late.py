"""Late, aborted, repeated, from the future: what each reply means is said in docs/deployment.md, and shown here."""

from __future__ import annotations

import json
import shutil
from typing import Any, cast

import numpy as np
import pytest
from apps import CASES, KEPT_BY_CLIENTS, centers, expected, grid_of, names, play, quadratic_app, trace
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedpbc.flower import InProcessGrid, fedpbc_mod
from fedpbc.flower.wire.protocol import RECORD, Order

M, ROUNDS, WHO = 4, 8, 2
U = centers(M)
ALL = np.ones((ROUNDS, M), bool)


def logs(folder: Any, which: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{which}.jsonl").read_text().splitlines()]


def saying(lie: Any) -> Any:
    """A mod that changes what client WHO says in its answers: ``lie(answer) -> fields``."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["client-id"] == str(WHO) and "answer" in reply.content[RECORD]:
            said = json.loads(reply.content[RECORD]["answer"])
            reply.content[RECORD] = ConfigRecord({"answer": json.dumps(said | lie(said))})
        return reply

    return mod


LIES = {
    "the next round": lambda said: {"round": said["round"] + 1},
    "the round before": lambda said: {"round": said["round"] - 1},
    "63 bits": lambda said: {"round": 2**62},
    "more than 64 bits": lambda said: {"round": 10**30},
    "a thousand digits": lambda said: {"round": 10**999},
    "minus one": lambda said: {"round": -1},
    "a fraction": lambda said: {"round": 0.5},
    "infinity": lambda said: {"round": float("inf")},
    "nested": lambda said: {"base": [[[[]]]] * 3},
    "a base of nobody": lambda said: {"base": "model-ffffffffffffffff"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_version_that_was_not_asked_is_refused_and_the_next_report_counts(lie, tmp_path):
    """The client lies in rounds 2 and 3; in round 4 it is heard as one that was away."""
    app = quadratic_app(U, mods=(saying(lambda said: LIES[lie](said) if said["round"] in (2, 3) else {}), fedpbc_mod))
    models = play(CASES["fedpbc"].make(M, directory=tmp_path), grid_of(app, ALL), ROUNDS)
    active = ALL.copy()
    active[2:4, WHO] = False
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, active), atol=1e-9, rtol=0)
    lines = logs(tmp_path)
    assert [[entry["client"] for entry in line["refused"]] for line in lines] == [
        [str(WHO)] if t in (2, 3) else [] for t in range(ROUNDS)
    ]
    assert all(len(entry["reason"]) <= 300 for line in lines for entry in line["refused"])


@pytest.mark.parametrize("case", KEPT_BY_CLIENTS)
def test_a_refused_client_that_keeps_something_loses_nothing(case, tmp_path):
    """What it kept of the refused round is pending for ever; that of the round before is valid."""
    app = quadratic_app(U, mods=(saying(lambda said: {"round": 10**30} if said["round"] in (2, 3) else {}), fedpbc_mod))
    models = play(CASES[case].make(M, directory=tmp_path), grid_of(app, ALL), ROUNDS)
    active = ALL.copy()
    active[2:4, WHO] = False
    np.testing.assert_allclose(models, expected(CASES[case].method, U, active), atol=1e-9, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_before_any_aggregation(case, tmp_path):
    """In rounds 0 and 1 every reply is refused: two rounds without anybody, from which a new server goes on."""

    def lie(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if "answer" in reply.content[RECORD] and json.loads(reply.content[RECORD]["answer"])["round"] < 2:
            reply.content[RECORD] = ConfigRecord({"answer": "{}"})
        return reply

    grid = grid_of(quadratic_app(U, mods=(lie, fedpbc_mod)), ALL)
    first = play(CASES[case].make(M, directory=tmp_path), grid, 1)
    rest = play(CASES[case].make(M, directory=tmp_path), grid, 5)
    active = ALL[:5].copy()
    active[:2] = False
    np.testing.assert_allclose(np.concatenate([first, rest]), expected(CASES[case].method, U, active), atol=1e-9)
    assert [line["active"] for line in logs(tmp_path)] == [0, 0, M, M, M]
    assert [len(line["refused"]) for line in logs(tmp_path)] == [M, M, 0, 0, 0]


class Failover(InProcessGrid):
    """Keeps what was pushed and not pulled: the SuperLink outlives the server."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dies_in: int | None = None

    def pull_messages(self, message_ids: Any) -> Any:
        found = list(super().pull_messages(message_ids))
        orders = [Order.of(message) for message in self.sent if message.metadata.message_id in set(message_ids)]
        if self.dies_in is not None and any(order and order.round == self.dies_in for order in orders):
            self.dies_in = None
            self.leftover = found
            raise ServerDies
        return found

    def push_messages(self, messages: Any) -> Any:
        self.sent = list(messages)
        return super().push_messages(self.sent)


class ServerDies(Exception):
    """In mid-round, when the clients have answered."""


@pytest.mark.parametrize("case", CASES)
def test_results_of_a_task_that_a_failover_aborted(case, tmp_path):
    """The clients worked for a round that was never closed: the new server asks again, and is given the same.

    Those that keep their progress compute nothing twice; the results of the aborted task belong to messages that the
    new server did not send, and if they come all the same they are refused.
    """
    calls: list[tuple[int, int]] = []
    active = trace(ROUNDS, M)
    active[4] = True
    app = quadratic_app(U, before=lambda t, i: calls.append((t, i)))
    grid = grid_of(app, active, kind=Failover)
    grid.dies_in, strategy = 4, CASES[case].make(M, directory=tmp_path)
    with pytest.raises(ServerDies):
        play(strategy, grid, ROUNDS)
    before, inner = len(calls), grid.pull_messages
    held = [message for message in grid.leftover if message.has_content()]

    def with_leftovers(ids: Any) -> Any:
        found = list(inner(ids))
        orders = [Order.of(message) for message in grid.sent]
        if held and any(order and order.round == 4 for order in orders):
            found += held
            held.clear()
        return found

    grid.pull_messages = with_leftovers
    models = play(CASES[case].make(M, directory=tmp_path), grid, ROUNDS)
    np.testing.assert_allclose(models, expected(CASES[case].method, U, active)[5:], atol=1e-9, rtol=0)
    again = [call for call in calls[before:] if call[0] <= 4]
    if CASES[case].make(M).rule.replays:
        assert again == []
    else:
        assert sorted(again) == [(4, i) for i in range(M)]
    refused = logs(tmp_path)[4]["refused"]
    assert len(refused) == M
    assert all("answers nothing that was asked in round 5" in entry["reason"] for entry in refused)


@pytest.mark.parametrize("case", ["fedpbc", "corrected", *(case for case in KEPT_BY_CLIENTS if "fedfade" not in case)])
def test_a_server_from_a_backup_does_not_take_what_clients_have_of_a_lost_time(case, tmp_path):
    """Rounds 3 to 5 happened, the directory of round 3 was restored, and from there on A^t is another."""
    lost, active = ALL.copy(), trace(ROUNDS, M, seed=4)
    active[:3] = lost[:3] = trace(ROUNDS, M, seed=2)[:3]
    grid = InProcessGrid(quadratic_app(U), names(M), uplink=lambda t, client: table[0][t, int(client)])
    table = [active]
    play(CASES[case].make(M, directory=tmp_path / "now"), grid, 3)
    shutil.copytree(tmp_path / "now", tmp_path / "backup")
    table[0] = lost
    play(CASES[case].make(M, directory=tmp_path / "now"), grid, 6)
    table[0] = active
    strategy = CASES[case].make(M, directory=tmp_path / "backup")
    models = play(strategy, grid, ROUNDS)
    if case in KEPT_BY_CLIENTS:  # what they keep is of the lost time: they say so, and all start from 0 again
        assert strategy.rule.epochs.epoch == 1
        assert strategy.federation.summary_line["active"] == active[-1].sum()
    else:
        np.testing.assert_allclose(models, expected(CASES[case].method, U, active)[4:], atol=1e-9, rtol=0)


@pytest.mark.parametrize("fields", [{"round": 10**30}, {"round": -7}, {"first": "0"}, {"budget": None}])
def test_an_order_of_nonsense_is_not_obeyed(fields):
    """Whoever claims to be the server: numbers that are none make no order."""
    said = json.loads(cast(str, Order("train", "0", 3, 0, "model-0").record()["order"]))
    good, bad = (
        Message(RecordDict({RECORD: ConfigRecord({"order": json.dumps(each)})}), 1, "train")
        for each in (said, said | fields)
    )
    assert Order.of(good) is not None
    assert Order.of(bad) is None
