"""A round that fails every time: said, and if asked left out, so that one bad batch does not silence a client."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rivals
from apps import CASES, RATE, STEPS, D, centers, expected, flat, grid_of, play, quadratic_app, record_of, trace
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.errors import ConfigError
from fedpbc.flower import FedPBC, InProcessGrid, fedpbc_mod
from fedpbc.flower.server.failures import Failure, Failures
from fedpbc.flower.wire.protocol import RECORD, SKIP, TRAIN, Order

M, ROUNDS, WHO = 4, 14, 1
U = centers(M)
EVERYBODY = np.ones((ROUNDS, M), bool)


def raises(*rounds: int) -> Callable[[int, int], None]:
    def before(t: int, i: int) -> None:
        if i == WHO and t in rounds:
            raise RuntimeError(f"bad batch\nat step {t}\x1b[31m")

    return before


def diverging(*rounds: int) -> ClientApp:
    """Client WHO returns NaN in these rounds."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["client-id"] == str(WHO) and message.content["config"]["server-round"] - 1 in rounds:
            reply.content["arrays"] = record_of(np.full(D, np.nan))
        return reply

    return quadratic_app(U, mods=(fedpbc_mod, mod))


def without(active: np.ndarray, away: slice) -> np.ndarray:
    found = active.copy()
    found[away, WHO] = False
    return found


class Excused(rivals.Method):
    """A method in whose rounds ``excused`` client WHO takes no local steps."""

    def __init__(self, method: rivals.Method, *excused: int) -> None:
        self.method, self.excused = method, excused

    def memory(self, m: int, x0: np.ndarray) -> dict:
        return self.method.memory(m, x0)

    def round(self, r: rivals.Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        computing = r.computing - {WHO} if r.t in self.excused else r.computing
        return self.method.round(dataclasses.replace(r, computing=computing), server, clients, memory)


class BeginsAnew(rivals.FedPBC):
    """FedPBC whose client WHO receives the server's model at the end of these rounds, heard or not."""

    def __init__(self, *rounds: int) -> None:
        self.rounds = rounds

    def round(self, r: rivals.Round, server: np.ndarray, clients: list, memory: dict) -> tuple[np.ndarray, list]:
        server, clients = super().round(r, server, clients, memory)
        if r.t in self.rounds:
            clients[WHO] = server
        return server, clients


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.levelno == logging.ERROR and "in a row" in r.message]


RAISED = ("RuntimeError", r"RuntimeError: bad batch at step 3\x1b[31m")
NAN = ("NotFinite", "NotFinite: the train function returned a value that is not finite, or huge")


@pytest.mark.parametrize(
    ("app", "what"), [(quadratic_app(U, before=raises(3)), RAISED), (diverging(3), NAN)], ids=["raises", "NaN"]
)
def test_a_round_that_fails_every_time_is_said_aloud(app, what, tmp_path, caplog):
    """In rounds 3, ..., 13, eleven times: after 3 of them and after 6."""
    models = play(CASES["fedpbc"].make(M, directory=tmp_path), grid_of(app, EVERYBODY), ROUNDS)
    np.testing.assert_allclose(models, expected(rivals.FedPBC(), U, without(EVERYBODY, slice(3, None))), atol=1e-9)
    kind, reason = what
    assert said(caplog) == [
        f'client "{WHO}" failed {times} times in a row in the local steps of round 4, always with {kind} ("{reason}"): '
        'it is not heard before that is mended, or on_failure is "skip" or "latest"'
        for times in (3, 6)
    ]
    for t, line in enumerate(lines(tmp_path)):
        assert line["failed"] == ([{"client": str(WHO), "reason": reason}] if t >= 3 else [])
        assert (line["refused"], line["catching_up"], line["left_out"]) == ([], {}, {})


@pytest.mark.every(3)
@pytest.mark.parametrize("case", ["fedpbc", "corrected", "corrected light"])
@pytest.mark.parametrize("kind", ["raises", "NaN"])
@pytest.mark.parametrize("stop", [None, 4, 5, 6, 8])
def test_a_round_may_be_left_out(case, kind, stop, tmp_path, caplog):
    """Rounds 3 and 7 fail; each is left out after two failures, also when the server and the clients begin anew."""
    app = quadratic_app(U, before=raises(3, 7)) if kind == "raises" else diverging(3, 7)
    options = {"directory": tmp_path, "on_failure": "skip", "failure_limit": 2}
    for rounds in [ROUNDS] if stop is None else [stop, ROUNDS]:
        strategy = CASES[case].make(M, **options)
        play(strategy, grid_of(app, EVERYBODY), rounds)
    active = without(without(EVERYBODY, slice(3, 5)), slice(7, 9))
    found = [json.loads(line)["clients"] for line in (tmp_path / "participation.jsonl").read_text().splitlines()]
    assert found == [[str(i) for i in np.flatnonzero(row)] for row in active]
    oracle = expected(Excused(CASES[case].method, 3, 7), U, active)[-1]
    np.testing.assert_allclose(flat(strategy.arrays), oracle, atol=1e-9, rtol=0)
    assert np.abs(oracle - expected(CASES[case].method, U, active)[-1]).max() > 1e-3
    assert [line["left_out"] for line in lines(tmp_path) if line["left_out"]] == [{"1": [[3, 3]]}, {"1": [[7, 7]]}]
    assert lines(tmp_path)[4]["left_out"]
    assert len(said(caplog)) == 2
    assert said(caplog)[0].endswith('from now on it takes no local steps in that round (on_failure = "skip")')


def test_the_mean_of_all_models_is_that_of_all_steps_but_those_left_out():
    """Constant gradients -u_i: (1/m) sum_i x_i = (eta/m) sum_i n_i u_i, n_i the rounds in which i takes steps.

    That is what a doubly stochastic mixing matrix keeps, whatever the links do; the last round has everybody and no
    local steps, so that the server's model is the mean.
    """
    eta, app = 0.01, ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["client-id"])
        raises(3, 7)(int(message.content["config"]["server-round"]) - 1, i)
        return Message(
            RecordDict({"arrays": record_of(flat(message.content["arrays"]) + eta * U[i])}), reply_to=message
        )

    up, down = trace(40, M, seed=2), trace(40, M, seed=6)
    up[8:], down[8:] = trace(32, M, seed=3), True
    up[-1] = True
    strategy = CASES["fedpbc"].make(M, cooldown=1, on_failure="skip", failure_limit=1)
    last = play(strategy, grid_of(app, up, down), 40)[-1]
    n = np.full(M, 39.0)
    n[WHO] -= 2
    np.testing.assert_allclose(last, eta * (n @ U) / M, atol=1e-12)


@pytest.mark.parametrize("stop", [None, 5, 7])
def test_a_client_may_begin_anew(stop, tmp_path, caplog):
    """From the latest model after rounds 5 and 10, with what it missed left out."""
    options = {"directory": tmp_path, "on_failure": "latest"}
    for rounds in [ROUNDS] if stop is None else [stop, ROUNDS]:
        strategy = CASES["fedpbc"].make(M, **options)
        play(strategy, grid_of(quadratic_app(U, before=raises(3, 8)), EVERYBODY), rounds)
    active = without(without(EVERYBODY, slice(3, 6)), slice(8, 11))
    oracle = expected(BeginsAnew(5, 10), U, active)[-1]
    np.testing.assert_allclose(flat(strategy.arrays), oracle, atol=1e-9, rtol=0)
    assert np.abs(oracle - expected(rivals.FedPBC(), U, active)[-1]).max() > 1e-3
    assert {t: line["left_out"] for t, line in enumerate(lines(tmp_path)) if line["left_out"]} == {
        5: {"1": [[3, 5]]}, 10: {"1": [[8, 10]]}
    }  # fmt: skip
    assert said(caplog)[0].endswith('from the latest model, without the rounds it missed (on_failure = "latest")')


@pytest.mark.parametrize("on_failure", ["skip", "latest"])
def test_what_is_done_about_failures_may_change_in_a_federation(on_failure, tmp_path):
    """Whoever reads the line in the log stops the server, and goes on."""
    app = quadratic_app(U, before=raises(3))
    for rounds, does in ((7, "keep"), (ROUNDS, on_failure)):
        strategy = CASES["fedpbc"].make(M, directory=tmp_path, on_failure=does)
        play(strategy, grid_of(app, EVERYBODY), rounds)
    # rounds 3, ..., 6 failed before, 7 and 8 after: the sixth time is said
    method = Excused(rivals.FedPBC(), 3) if on_failure == "skip" else BeginsAnew(8)
    oracle = expected(method, U, without(EVERYBODY, slice(3, 9)))[-1]
    np.testing.assert_allclose(flat(strategy.arrays), oracle, atol=1e-9, rtol=0)


def test_other_strategies_say_it_too(caplog):
    """Nothing is replayed there, so every round is another one."""
    app = quadratic_app(U, before=raises(*range(3, ROUNDS)))
    play(CASES["fedavg"].make(M, failure_limit=5), grid_of(app, EVERYBODY), ROUNDS)
    assert said(caplog) == [
        f'client "1" failed {times} times in a row, at last in the local steps of round {last}, always with '
        rf'RuntimeError ("RuntimeError: bad batch at step {last - 1}\x1b[31m"): it is asked again in every round'
        for times, last in ((5, 8), (10, 13))
    ]


def test_an_app_that_fails_outside_its_train_function(caplog):
    """It cannot say in which round: to begin anew is possible, to leave out a round is not."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        order = Order.of(message)
        at_work = order is not None and order.kind == TRAIN
        if at_work and context.node_config["client-id"] == str(WHO) and message.content["config"]["server-round"] < 8:
            return Message(Error(8, "<class 'a.b.Crash'>:<'killed'>"), reply_to=message)
        return call_next(message, context)

    app = quadratic_app(U, mods=(mod, fedpbc_mod))
    play(CASES["fedpbc"].make(M, on_failure="skip"), grid_of(app, EVERYBODY), 7)
    (line,) = said(caplog)[:1]
    assert line.startswith('client "1" failed 3 times in a row outside its train function, always with Crash (')
    assert line.endswith('it is not heard before that is mended, or on_failure is "latest"')
    models = play(CASES["fedpbc"].make(M, on_failure="latest"), grid_of(app, EVERYBODY), ROUNDS)
    active = without(EVERYBODY, slice(0, 7))
    np.testing.assert_allclose(models, expected(BeginsAnew(2, 5), U, active), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("failures", "times"),
    [
        ([(3, "A: x"), (3, "A: y"), (3, "A")], [3]),
        ([(3, "A: x"), (3, "B: x"), (3, "A: x"), (3, "B: x")], []),
        ([(3, "A: x"), (3, "A: x"), (4, "A: x"), (4, "A: x"), (4, "A: x")], [5]),
        ([(3, "A: x"), (3, "A: x"), None, (3, "A: x"), (3, "A: x")], []),
        ([(3, "<class 'm.A'>:<'x'>"), (3, "A: y"), (3, "<class 'A'>")], [3]),
        ([(3, "A")] * 26, [3, 6, 12, 24]),
    ],
)
def test_what_counts_as_the_same_failure(failures, times):
    """Which of the failures, counted from 1, are said with a limit of three. None: the client was heard."""
    book, found = Failures(3, replays=True), []
    for number, failure in enumerate(failures, start=1):
        if failure is None:
            book.heard("a")
        elif book.note("a", Failure(*failure)) is not None:
            found.append(number)
    assert found == times


@pytest.mark.parametrize("failed", [2, 9, -1])
def test_a_client_cannot_give_up_rounds_that_were_not_asked(failed, tmp_path):
    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if "answer" in reply.content[RECORD]:
            answer = json.loads(reply.content[RECORD]["answer"])
            if answer["failed"] == 3:
                reply.content[RECORD]["answer"] = json.dumps(answer | {"failed": failed})
        return reply

    app = quadratic_app(U, mods=(mod, fedpbc_mod), before=raises(3))
    play(CASES["fedpbc"].make(M, directory=tmp_path, on_failure="skip", failure_limit=1), grid_of(app, EVERYBODY), 5)
    for line in lines(tmp_path)[3:]:
        assert line["refused"][0]["reason"] == f"says that round {failed} failed, which was not asked"
        assert line["left_out"] == {}


def test_an_order_says_nothing_of_rounds_left_out_where_there_are_none():
    asked: list[dict[str, Any]] = []

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        if context.node_config["client-id"] == str(WHO):
            asked.append(dict(message.content[RECORD]))
        return call_next(message, context)

    app = quadratic_app(U, mods=(mod, fedpbc_mod), before=raises(3))
    play(CASES["fedpbc"].make(M, on_failure="skip"), grid_of(app, EVERYBODY), 9)
    assert [record.get(SKIP) for record in asked[1:]] == [None] * 6 + [[3]] + [None] * 2


def test_progress_made_with_a_round_is_none_for_an_order_without_it():
    """As after a server that was restored from a backup; what was done before that round stays."""
    calls: list[int] = []
    grid = InProcessGrid(quadratic_app(U, before=lambda t, i: calls.append(t)), ["0"])
    (node,) = grid.get_node_ids()
    for last, skip, trained in ((2, [], [0, 1, 2]), (4, [3], [4]), (5, [3], [5]), (6, [3, 4], [0, 1, 2, 5, 6])):
        record = Order(TRAIN, "0", round=last, base="a", budget=1e9, keep_progress=True).record()
        record[SKIP] = list(skip)
        content = RecordDict({"arrays": record_of(np.zeros(D)), "config": ConfigRecord(), RECORD: record})
        calls.clear()
        (reply,) = grid.send_and_receive([Message(content, node, MessageType.TRAIN)])
        assert calls == trained
        x = np.zeros(D)
        for t in sorted({*range(last + 1)} - {*skip}):
            for _ in range(STEPS):
                x = x - RATE(t) * (x - U[0])
        np.testing.assert_allclose(flat(reply.content["arrays"]), x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_failure": "stop"}, 'on_failure = "stop": must be "keep" or "skip" or "latest"'),
        ({"failure_limit": 0}, "failure_limit = 0: must be an integer >= 1"),
        ({"failure_limit": True}, "failure_limit = true: must be an integer >= 1"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        FedPBC(round_deadline=1, **options)


def test_rate_and_steps_matter():
    """Otherwise the rounds left out would change nothing."""
    assert all(RATE(t) * STEPS > 0.1 for t in (3, 7))
