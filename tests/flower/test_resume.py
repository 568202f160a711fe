"""A server that is killed at any point and started again: as if nothing had happened, on the A^t that came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import (
    CASES,
    KEPT_BY_CLIENTS,
    D,
    centers,
    expected,
    flat,
    grid_of,
    names,
    play,
    quadratic_app,
    record_of,
    sealed,
    trace,
)
from waiting import wait_until

from fedpbc.audit import read_log
from fedpbc.errors import ConfigError, FedpbcError
from fedpbc.flower import InProcessGrid

M, ROUNDS = 5, 8
U = centers(M)
ATTEMPTS = [trace(ROUNDS, M, seed) for seed in (1, 2, 4)]
"""A^t of each time the server runs: which of them came true, only participation.jsonl says."""
CLIENTS_KEEP_NOTHING = [case for case in CASES if case not in KEPT_BY_CLIENTS]


class Killed(Exception):
    """The server is gone."""


class Fragile(InProcessGrid):
    """The server dies at one of its calls: before or after messages went out, before or after replies came in."""

    calls_left = 10**9

    def _call(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise Killed

    def push_messages(self, messages: Any) -> Any:
        self._call()
        ids = super().push_messages(messages)
        self._call()
        return ids

    def pull_messages(self, message_ids: Any) -> Any:
        self._call()
        replies = super().pull_messages(message_ids)
        self._call()
        return replies


def realised(folder: Path) -> np.ndarray:
    """A^t as participation.jsonl has it, every round exactly once and in order."""
    lines = [json.loads(line) for line in (folder / "participation.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(len(lines)))
    table = np.array([[name in line["clients"] for name in names(M)] for line in lines])
    log = read_log(folder / "participation.jsonl")
    assert (log.num_rounds, log.first_round) == (len(lines), 0)
    for t, row in enumerate(table):
        assert [log.clients[number] for number in log.round_slice(t)] == [names(M)[i] for i in np.flatnonzero(row)]
    return table


def run(case: str, folder: Path, attempt: int = 0, rounds: int = ROUNDS, **options: Any) -> np.ndarray:
    """Begin or go on, with new contexts on new nodes, and run to the end; the final model."""
    strategy = CASES[case].make(M, directory=folder, **options)
    play(strategy, grid_of(quadratic_app(U), ATTEMPTS[attempt]), rounds)
    return flat(strategy.arrays)


def check(case: str, folder: Path, final: np.ndarray) -> None:
    active = realised(folder)
    assert active.shape == (ROUNDS, M)
    np.testing.assert_allclose(final, expected(CASES[case].method, U, active)[-1], atol=1e-9, rtol=0)


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CLIENTS_KEEP_NOTHING)
def test_killed_at_any_call_of_the_grid(case, tmp_path):
    """Twice: the second time after ``k`` more calls."""
    cut, step = [], 1 if case == "fedpbc" else 5
    for k in range(0, 44, step):
        folder = tmp_path / str(k)
        for attempt, calls in ((0, k), (1, 7)):
            grid = grid_of(quadratic_app(U), ATTEMPTS[attempt], kind=Fragile)
            grid.calls_left = calls
            try:
                play(CASES[case].make(M, directory=folder), grid, ROUNDS)
            except Killed:
                cut.append(k)
        check(case, folder, run(case, folder, 2))
    assert len(cut) > 1.5 * 36 / step


@pytest.mark.every(3)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("case", CLIENTS_KEEP_NOTHING)
def test_killed_while_a_file_is_written(case, when, tmp_path, monkeypatch):
    replace, cut = os.replace, 0
    for k in range(1, 60, 4 if case == "fedpbc" else 13):
        calls = 0

        def fail(source: Any, target: Any, k: int = k) -> None:
            nonlocal calls
            calls += 1
            if calls == k and when == "before":
                raise Killed
            replace(source, target)
            if calls == k:
                raise Killed

        folder = tmp_path / str(k)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            try:
                run(case, folder)
            except Killed:
                cut += 1
        check(case, folder, run(case, folder, 1))
    assert cut >= 2


@pytest.mark.parametrize("name", ["participation.jsonl", "metrics.jsonl"])
def test_half_a_line_does_no_harm(name, tmp_path, monkeypatch):
    from fedpbc.flower.server.checkpoint import Journal

    append = Journal.append

    def torn(self: Journal, line: dict[str, Any]) -> None:
        if self.path.name == name and line["round"] == 5:
            with open(self.path, "a") as file:
                file.write(json.dumps(line)[:9])
            raise Killed
        append(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", torn)
        with pytest.raises(Killed):
            run("fedpbc", tmp_path)
    check("fedpbc", tmp_path, run("fedpbc", tmp_path, 1))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(ROUNDS))


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CASES)
def test_the_clients_live_on_when_the_server_dies(case, tmp_path):
    """Their contexts are ahead of the checkpoint: they did the round that the server forgot."""
    for k in range(5, 36, 6):
        folder = tmp_path / str(k)
        grid = grid_of(quadratic_app(U), ATTEMPTS[0], kind=Fragile)
        grid.calls_left = k
        with pytest.raises(Killed):
            play(CASES[case].make(M, directory=folder), grid, ROUNDS)
        grid.calls_left = 10**9
        grid.uplink = grid_of(quadratic_app(U), ATTEMPTS[1]).uplink
        strategy = CASES[case].make(M, directory=folder)
        play(strategy, grid, ROUNDS)
        check(case, folder, flat(strategy.arrays))


SERVER = """
import sys, time
sys.path[:0] = sys.argv[4:]
from apps import CASES, centers, grid_of, play, quadratic_app, trace
app = quadratic_app(centers(5), before=lambda t, i: time.sleep(0.004 if t < int(sys.argv[3]) else 3600))
play(CASES[sys.argv[1]].make(5, directory=sys.argv[2]), grid_of(app, trace(60, 5)), 60)
"""


def test_killed_for_real(tmp_path):
    """SIGKILL, at some moment of rounds 20 to 25 from the start, until a server gets to the end."""
    here, log = Path(__file__).parent, tmp_path / "run" / "participation.jsonl"
    done = kills = 0
    while True:
        stuck = str(done + 25)  # the round that the server does not get through: it waits there if we are late
        command = [sys.executable, "-c", SERVER, "fedpbc", str(tmp_path / "run"), stuck, str(here), str(here.parent)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

        def due(process: Any = process, lines: int = done + 20) -> bool:
            return process.poll() is not None or (log.is_file() and log.read_bytes().count(b"\n") >= lines)

        try:
            wait_until(due, "no round is closed", pause=0.003)
        finally:
            process.kill()
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        done = log.read_bytes().count(b"\n")
    assert kills >= 2
    active = realised(tmp_path / "run")
    np.testing.assert_array_equal(active, trace(60, 5))
    strategy = CASES["fedpbc"].make(5, directory=tmp_path / "run")
    play(strategy, grid_of(quadratic_app(U), active), 60)
    np.testing.assert_allclose(
        flat(strategy.arrays), expected(CASES["fedpbc"].method, U, active)[-1], atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("case", CASES)
def test_a_finished_run_is_left_alone(case, tmp_path):
    final = run(case, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    grid = Fragile(quadratic_app(U), names(M))
    grid.calls_left = 0
    again = CASES[case].make(M, directory=tmp_path).start(grid, record_of(np.zeros(D)), ROUNDS)
    np.testing.assert_array_equal(flat(again.arrays), final)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CLIENTS_KEEP_NOTHING)
def test_more_rounds_later(case, tmp_path):
    run(case, tmp_path, rounds=3)
    check(case, tmp_path, run(case, tmp_path))


def test_the_result_holds_the_metrics_of_all_rounds(tmp_path):
    whole = CASES["fedpbc"].make(M, directory=tmp_path / "whole")
    halves = [CASES["fedpbc"].make(M, directory=tmp_path / "halves") for _ in range(2)]
    initial = record_of(np.zeros(D))
    expected_result = whole.start(grid_of(quadratic_app(U), ATTEMPTS[0]), initial, ROUNDS)
    halves[0].start(grid_of(quadratic_app(U), ATTEMPTS[0]), initial, 4)
    result = halves[1].start(grid_of(quadratic_app(U), ATTEMPTS[0]), initial, ROUNDS)
    found, wanted = result.train_metrics_clientapp, expected_result.train_metrics_clientapp
    assert list(found) == list(wanted) == [t + 1 for t in range(ROUNDS) if ATTEMPTS[0][t].any()]
    for number in wanted:
        assert found[number]["train-loss"] == pytest.approx(wanted[number]["train-loss"], rel=1e-9)


@pytest.mark.parametrize(
    ("case", "options", "key"),
    [
        ("fedpbc", {"max_catchup": 3}, "max_catchup"),
        ("fedpbc", {"newcomers": "now"}, "newcomers"),
        ("fedpbc", {"num_clients": 7}, "num_clients"),
        ("fedpbc", {"cooldown": 1}, "cooldown"),
        ("fedavg", {}, "strategy"),
        ("fedau", {"cutoff": 3}, "cutoff"),
        ("mifa", {"wait": True}, "wait"),
        ("mifa", {"learning_rate": 0.2}, "learning_rate"),
        ("fedvarp", {"server_learning_rate": 0.5}, "server_learning_rate"),
        ("fedstale", {"beta": 0.4}, "beta"),
        ("scaffold", {"controls": "client"}, "controls"),
        ("fedfade", {"controls": "client"}, "controls"),
        ("fedfade", {"fading": 0.5}, "fading"),
        ("fedfade around", {"local_steps": 4}, "local_steps"),
    ],
)
def test_other_settings_are_another_federation(case, options, key, tmp_path):
    run("fedpbc" if case == "fedavg" else case, tmp_path, rounds=3)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=key):
        run(case, tmp_path, **options)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_another_model_is_another_federation(tmp_path):
    run("fedpbc", tmp_path, rounds=3)
    strategy, other = CASES["fedpbc"].make(M, directory=tmp_path), record_of(np.zeros(D))
    del other["layer.bias"]
    with pytest.raises(ConfigError, match="arrays"):
        strategy.start(grid_of(quadratic_app(U), ATTEMPTS[0]), other, ROUNDS)
    with pytest.raises(ConfigError, match="num_rounds = 2"):
        run("fedpbc", tmp_path, rounds=2)


@pytest.mark.parametrize("case", ["fedpbc", "mifa"])
@pytest.mark.parametrize("damage", ["cut", "gone", "garbage"])
def test_a_damaged_array_file(case, damage, tmp_path):
    run(case, tmp_path, rounds=5)
    for path in (tmp_path / "arrays").iterdir():
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-40] if damage == "cut" else b"garbage")
    with pytest.raises(FedpbcError, match=r"arrays.*\.npz") as caught:
        run(case, tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"format": 9}', '{"format": 1}', '{"format": 1, "settings": {}}', "\x00"],
)
def test_a_damaged_checkpoint(text, tmp_path):
    run("fedpbc", tmp_path, rounds=5)
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(ConfigError, match=r"checkpoint\.json|directory") as caught:
        run("fedpbc", tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "key", ["rounds", "clients", "bases", "latest", "first_base", "memory", "settings", "configs", "failures", "logs"]
)
def test_a_checkpoint_without_one_of_its_parts(key, tmp_path):
    run("mifa", tmp_path, rounds=5)
    state = json.loads((tmp_path / "checkpoint.json").read_text())
    del state[key]
    (tmp_path / "checkpoint.json").write_text(sealed(state))
    with pytest.raises(ConfigError, match=rf"checkpoint\.json: cannot be read: has no {key}"):
        run("mifa", tmp_path)


def test_two_servers_on_one_directory(tmp_path):
    strategy = CASES["fedpbc"].make(M, directory=tmp_path)
    refused = []

    def second(done: int) -> None:
        if done == 2:
            with pytest.raises(ConfigError, match="another server") as caught:
                run("fedpbc", tmp_path, 1)
            refused.append(str(caught.value))

    play(strategy, grid_of(quadratic_app(U), ATTEMPTS[0]), ROUNDS, after=second)
    assert len(refused) == 1
    check("fedpbc", tmp_path, flat(strategy.arrays))


def test_spilled_bases(tmp_path):
    """The same models, and at most two of them in memory, killed half-way or not."""
    most = 0

    def models(folder: Path, spill: bool, rounds: int = ROUNDS) -> np.ndarray:
        strategy = CASES["fedpbc"].make(M, directory=folder, spill=spill)

        def look(done: int) -> None:
            nonlocal most
            most = max(most, strategy.federation.bases.in_memory())

        found = play(strategy, grid_of(quadratic_app(U), ATTEMPTS[0]), rounds, after=look)
        assert len(strategy.federation.bases.names()) > 2
        return found

    np.testing.assert_array_equal(models(tmp_path / "all", False), expected_models := models(tmp_path / "no", False))
    assert most > 2
    most = 0
    np.testing.assert_array_equal(models(tmp_path / "spill", True), expected_models)
    first = models(tmp_path / "halves", True, 6)
    rest = models(tmp_path / "halves", True)
    np.testing.assert_allclose(np.concatenate([first, rest]), expected_models, atol=1e-12)
    assert 1 <= most <= 2


def test_a_newcomer_after_a_restart_begins_with_the_round_it_comes_in(tmp_path):
    """``newcomers = "now"``: from the latest model, and with no round that was over before."""
    trained: list[tuple[int, int]] = []
    app = quadratic_app(U, before=lambda t, i: trained.append((t, i)))
    for clients, rounds in ((M - 1, 4), (M, ROUNDS)):
        strategy = CASES["fedpbc"].make(clients, directory=tmp_path, newcomers="now")
        play(strategy, InProcessGrid(app, names(clients)), rounds)
    assert [t for t, i in trained if i == M - 1] == [4, 5, 6, 7]
