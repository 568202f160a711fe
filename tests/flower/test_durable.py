"""What a kill, a full disk, a power cut or a flipped bit leaves behind: nothing is lost or changed in silence."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import CASES, D, centers, grid_of, quadratic_app, record_of, trace
from flwr.app import Context, Message, MetricRecord, RecordDict

from fedpbc.errors import ConfigError, FedpbcError
from fedpbc.flower import InProcessGrid
from fedpbc.flower.server.checkpoint import unseal
from fedpbc.flower.server.evaluation import Evaluation
from fedpbc.io.journal import Journal
from fedpbc.io.lock import Lock

M, ROUNDS = 4, 6
U = centers(M)
ACTIVE = trace(ROUNDS, M, seed=3)
ACTIVE[-1] = [True, False, True, True]


class Killed(BaseException):
    """The server is gone."""


def evaluating_app() -> Any:
    """Client i measures i."""
    app = quadratic_app(U)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        loss = MetricRecord({"num-examples": 1, "loss": float(context.node_config["client-id"])})
        return Message(RecordDict({"metrics": loss}), reply_to=message)

    return app


def start(folder: Path, rounds: int = ROUNDS, evaluate: Any = None, grid: Any = None, **options: Any) -> Any:
    strategy = CASES["fedpbc"].make(M, directory=folder, **options)
    grid = grid or grid_of(evaluating_app(), ACTIVE)
    return strategy.start(grid, record_of(np.zeros(D)), rounds, evaluate_fn=evaluate)


def measured(number: int, arrays: Any) -> MetricRecord:
    return MetricRecord({"rounds": float(number)})


def killed_at(when: int) -> Any:
    def evaluate(number: int, arrays: Any) -> MetricRecord:
        if number == when:
            raise Killed
        return measured(number, arrays)

    return evaluate


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def journal(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


# Evaluations that a kill prevented.


@pytest.mark.parametrize("when", [0, 3, ROUNDS])
def test_an_evaluation_that_a_kill_prevented_is_made_up_for(when, tmp_path):
    with pytest.raises(Killed):
        start(tmp_path, evaluate=killed_at(when))
    result = start(tmp_path, evaluate=measured)
    expected = {number: {"rounds": float(number)} for number in range(ROUNDS + 1)}
    assert {number: dict(m) for number, m in result.evaluate_metrics_serverapp.items()} == expected
    assert [line["round"] for line in journal(tmp_path, "evaluation")] == list(range(-1, ROUNDS))
    assert dict(start(tmp_path, evaluate=killed_at(ROUNDS)).evaluate_metrics_serverapp[ROUNDS]) == expected[ROUNDS]


@pytest.mark.parametrize("when", [3, 4, ROUNDS])
def test_clients_evaluate_after_the_kill_too(when, tmp_path, monkeypatch):
    """Those that were heard in that round; in the third, nobody was."""
    assert not ACTIVE[2].any()
    of_round = Evaluation.of_round
    with monkeypatch.context() as patch:

        def kill(self: Evaluation, number: int) -> None:
            if number == when:
                raise Killed
            of_round(self, number)

        patch.setattr(Evaluation, "of_round", kill)
        with pytest.raises(Killed):
            start(tmp_path, fraction_evaluate=1.0)
    result = start(tmp_path, fraction_evaluate=1.0)
    heard = {t + 1: np.flatnonzero(row) for t, row in enumerate(ACTIVE) if row.any()}
    found = {number: m["loss"] for number, m in result.evaluate_metrics_clientapp.items()}
    assert found == {number: pytest.approx(who.mean()) for number, who in heard.items()}
    assert [line["round"] for line in journal(tmp_path, "evaluation")] == list(range(ROUNDS))
    before = files_of(tmp_path)
    start(tmp_path, fraction_evaluate=1.0, grid=InProcessGrid(evaluating_app()))  # nothing is left to do
    assert before == files_of(tmp_path)


def test_a_last_model_whose_clients_are_gone_is_not_waited_for(tmp_path, caplog):
    with pytest.raises(Killed):
        start(tmp_path, evaluate=killed_at(ROUNDS), fraction_evaluate=1.0)
    began = time.monotonic()
    start(tmp_path, fraction_evaluate=1.0, round_deadline=0.3, grid=InProcessGrid(evaluating_app()))
    assert time.monotonic() < began + 600
    assert f"round {ROUNDS}: not evaluated by clients, those that were heard are not here" in caplog.text


def test_an_evaluation_without_numbers_is_one(tmp_path):
    """It is not done again."""
    seen = []
    for rounds in (3, ROUNDS, ROUNDS):
        start(tmp_path, rounds, evaluate=lambda number, arrays: seen.append(number))
    assert seen == list(range(ROUNDS + 1))
    assert journal(tmp_path, "evaluation") == [{"round": t, "server": None} for t in range(-1, ROUNDS)]


# Logs and checkpoints that are not what they were.


def drop(lines: list[str]) -> list[str]:
    return lines[:-2]


def drop_inside(lines: list[str]) -> list[str]:
    return lines[:1] + lines[2:]


def change(lines: list[str]) -> list[str]:
    return [lines[0].replace('"0"', '"1"', 1) if '"0"' in lines[0] else lines[0].replace("0", "1", 1), *lines[1:]]


def twice(lines: list[str]) -> list[str]:
    return [lines[0], *lines]


def torn(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1][:-4]]


@pytest.mark.parametrize("name", ["participation", "metrics", "evaluation"])
@pytest.mark.parametrize("damage", [drop, drop_inside, change, twice, torn])
def test_a_log_that_is_not_what_it_was_is_noticed(name, damage, tmp_path, caplog):
    """The checkpoint counts 4 lines, of the evaluations one less than were written after it and one of x^0."""
    start(tmp_path, 4, evaluate=measured)
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))
    if (name, damage) == ("evaluation", torn):
        result = start(
            tmp_path, evaluate=measured
        )  # the last evaluation is newer than the checkpoint: it is made up for
        assert [line["round"] for line in journal(tmp_path, name)] == list(range(-1, ROUNDS))
        assert dict(result.evaluate_metrics_serverapp[4]) == {"rounds": 4.0}
        return
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match=rf"{name}\.jsonl: has .* lines.*restore it from a backup") as caught:
        start(tmp_path, evaluate=measured)
    assert "\n" not in str(caught.value)
    assert files_of(tmp_path) == before
    path.rename(tmp_path / "moved away")
    start(tmp_path, evaluate=measured)
    assert f"{path} is gone: what it said of the first 4 rounds is lost" in caplog.text
    rounds = [line["round"] for line in journal(tmp_path, name)]
    assert rounds == ([3, 4, 5] if name == "evaluation" else [4, 5])
    start(tmp_path, evaluate=measured)


def test_after_the_mark_only_lines_of_one_round_count(tmp_path):
    """The evaluation of the last round may have come since; a line of a later round is of a run that was undone."""
    journal, lines = Journal(tmp_path / "log.jsonl"), [{"round": 0}, {"round": 1}, {"round": 1, "by": 2}, {"round": 2}]
    for line in lines[:2]:
        journal.append(line)
    mark = journal.mark()
    for line in lines[2:]:
        journal.append(line)
    again = Journal(journal.path)
    again.cut(again.check(mark, then=1))
    assert again.lines() == lines[:3]
    assert again.mark()["lines"] == 3
    again.cut(again.check(mark))
    assert again.lines() == lines[:2]


def test_how_many_lines_are_missing(tmp_path):
    start(tmp_path, 5)
    path = tmp_path / "participation.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(ConfigError, match="has 3 of its 5 lines"):
        start(tmp_path)


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path):
    start(tmp_path, 4)
    path = tmp_path / "checkpoint.json"
    good = path.read_bytes()
    assert unseal(good)["rounds"] == 4
    for position in range(8 * len(good)):
        with pytest.raises((ValueError, KeyError)):
            unseal(flipped(good, position))
    before = files_of(tmp_path)
    for position in random.Random(0).sample(range(8 * len(good)), 40):
        path.write_bytes(flipped(good, position))
        with pytest.raises(ConfigError, match=r"checkpoint\.json: cannot be read: ") as caught:
            start(tmp_path)
        assert "\n" not in str(caught.value)
    path.write_bytes(good)
    assert files_of(tmp_path) == before


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def test_flipped_bits_of_arrays_change_no_model(tmp_path):
    start(tmp_path / "good", 4)
    shutil.copytree(tmp_path / "good", tmp_path / "whole")
    expected = start(tmp_path / "whole").arrays
    paths = sorted((tmp_path / "good" / "arrays").iterdir())
    draw, refused = random.Random(1), 0
    for _ in range(60):
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "good", folder)
        path = folder / "arrays" / draw.choice(paths).name
        data = path.read_bytes()
        path.write_bytes(flipped(data, draw.randrange(8 * len(data))))
        try:
            found = start(folder).arrays
        except FedpbcError:
            refused += 1
        else:
            for name in expected:
                np.testing.assert_array_equal(found[name].numpy(), expected[name].numpy())
        shutil.rmtree(folder)
    assert refused > 20


def test_a_checkpoint_from_before_checksums_is_refused(tmp_path):
    start(tmp_path, 3)
    path = tmp_path / "checkpoint.json"
    state = json.loads(path.read_text())
    del state["sha256"], state["logs"]
    path.write_text(json.dumps(state | {"format": 1}))
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match="is of an older version: go on with that, or begin in another directory"):
        start(tmp_path)
    assert files_of(tmp_path) == before


# Power cuts and full disks.


def test_everything_is_on_disk_before_a_round_counts(tmp_path, monkeypatch):
    """When checkpoint.json is replaced, all lines of the logs and all bytes of the checkpoint were synced."""
    synced: dict[str, int] = {}
    counted = []

    def sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced[path.name] = path.stat().st_size

    replace = os.replace

    def look(source: Any, target: Any) -> None:
        if Path(target).name == "checkpoint.json":
            logs = sorted(tmp_path.glob("*.jsonl"))
            counted.append(len(logs))
            for path in [*logs, Path(source)]:
                assert synced[path.name] == path.stat().st_size
        replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", look)
    start(tmp_path, evaluate=measured)
    assert counted == [0] + [3] * ROUNDS
    assert synced["evaluation.jsonl"] == (tmp_path / "evaluation.jsonl").stat().st_size


@pytest.mark.parametrize("name", ["participation.jsonl", "metrics.jsonl", "evaluation.jsonl", ".checkpoint.json.tmp"])
def test_a_full_disk_ends_with_one_line(name, tmp_path):
    """/dev/full takes no byte; with room again, the federation goes on as if nothing had been."""
    kept = tmp_path / "kept"

    def fill(number: int, arrays: Any) -> MetricRecord:
        if number == 3:
            if (tmp_path / "run" / name).exists():
                (tmp_path / "run" / name).rename(kept)
            (tmp_path / "run" / name).symlink_to("/dev/full")
        return measured(number, arrays)

    with pytest.raises(FedpbcError) as caught:
        start(tmp_path / "run", evaluate=fill)
    path = tmp_path / "run" / name.removeprefix(".").removesuffix(".tmp")
    assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    (tmp_path / "run" / name).unlink(missing_ok=True)
    if kept.exists():
        kept.rename(tmp_path / "run" / name)
    same(start(tmp_path / "run", evaluate=measured), start(tmp_path / "whole", evaluate=measured))
    assert journal(tmp_path / "run", "participation") == journal(tmp_path / "whole", "participation")


def same(found: Any, expected: Any) -> None:
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), atol=1e-12)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """30 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=30k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_small_disk(small_disk, tmp_path):
    """Wherever it fills up, one line names the path; and again, until there is room."""
    rounds = 150
    active = np.ones((rounds, M), bool)
    for _ in range(3):
        with pytest.raises(FedpbcError) as caught:
            start(small_disk / "run", rounds, grid=grid_of(quadratic_app(U), active))
        assert str(caught.value).startswith(str(small_disk / "run"))
        assert str(caught.value).endswith(": cannot be written: No space left on device")
    subprocess.run(["mount", "-o", "remount,size=5m", str(small_disk)], check=True)
    found = start(small_disk / "run", rounds, grid=grid_of(quadratic_app(U), active))
    same(found, start(tmp_path / "whole", rounds, grid=grid_of(quadratic_app(U), active)))
    assert journal(small_disk / "run", "participation") == journal(tmp_path / "whole", "participation")


# The lock.


FORKING = """
import multiprocessing, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import numpy as np
from apps import CASES, D, centers, grid_of, quadratic_app, record_of
from fedpbc.errors import ConfigError
from fedpbc.io.lock import Lock

folder, fork = Path(sys.argv[1]), multiprocessing.get_context("fork")
"""
"""These fork, in a process of their own: one with as many threads as that of the tests should not."""

AFTER_CLOSE = """
worker = fork.Process(target=time.sleep, args=(3600,), daemon=True)

def start(rounds):
    grid = grid_of(quadratic_app(centers(4)), np.ones((6, 4), bool))
    begin = lambda number, arrays: worker.start() if number == 1 else None
    CASES["fedpbc"].make(4, directory=folder).start(grid, record_of(np.zeros(D)), rounds, evaluate_fn=begin)

start(3)
assert worker.is_alive()
start(6)
assert worker.is_alive()
"""

RELEASED_BY_A_WORKER = """
lock = Lock(folder / ".lock", "taken")
worker = fork.Process(target=lock.release)
worker.start()
worker.join(600)
assert worker.exitcode == 0
try:
    Lock(folder / ".lock", "taken")
except ConfigError as error:
    assert str(error) == "taken"
else:
    raise AssertionError("the worker let go of it")
lock.release()
Lock(folder / ".lock", "taken").release()
"""


@pytest.mark.parametrize("script", [AFTER_CLOSE, RELEASED_BY_A_WORKER], ids=["close", "worker"])
def test_a_forked_worker_and_the_lock(script, tmp_path):
    """It neither holds the lock when the server has closed, nor lets go of it while the server has not."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", FORKING + script, str(tmp_path), str(here), str(here.parent)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_worker_forked_behind_pythons_back_does_not_hold_the_lock(tmp_path):
    lock = Lock(tmp_path / ".lock", "taken")
    copy = os.dup(lock._file.fileno())  # as a process forked by a library in C has it
    try:
        with pytest.raises(ConfigError, match="taken"):
            Lock(tmp_path / ".lock", "taken")
        lock.release()
        Lock(tmp_path / ".lock", "taken").release()
    finally:
        os.close(copy)


ORPHAN = """
import os, sys, time
from pathlib import Path
from fedpbc.io.lock import Lock
lock = Lock(Path(sys.argv[1]), "taken")
begun, begin = os.pipe()
worker = os.fork()
if worker == 0:
    os.write(begin, b"!")
    time.sleep(3600)
os.read(begun, 1)
print(worker, flush=True)
os._exit(1)
"""


def test_the_worker_of_a_killed_server_does_not_hold_its_lock(tmp_path):
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / ".lock")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        assert process.wait(600) == 1
        os.kill(worker, 0)
        Lock(tmp_path / ".lock", "taken").release()
    finally:
        os.kill(worker, 9)
        process.stdout.close()
