"""One run on several processes on loopback: the bytes of one process, also when some are killed on the way."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

START = "import fedpbc.runs.cell as c; c.CHECKPOINT_SECONDS = 0.1; from fedpbc.cli import main; main()"
TABLE = """
name = "shared"
rounds = {rounds}
local_steps = 2
learning_rate = 0.02
seeds = [1]
eval_every = 50
chunk_size = 4
problem = {{ name = "synthetic", num_clients = 10, max_rows = 400 }}
links = [{{ name = "bernoulli", prob = 0.4 }}]
algorithms = [{{ name = "fedpbc" }}, {{ name = "fedavg" }}]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the experiment, and go where it is."""
    monkeypatch.chdir(tmp_path)

    def written(rounds: int) -> None:
        Path("shared.toml").write_text(TABLE.format(rounds=rounds))

    return written


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def started(processes, *arguments, each=lambda i: ()):
    """So many processes of one run, which are ended whatever happens."""
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    port, running = free_port(), []
    command = [sys.executable, "-c", START, "run", "shared.toml", "--quiet", "--devices", "1", *arguments]
    try:
        for i in range(processes):
            shared = ["--processes", processes, "--process", i, "--coordinator", f"127.0.0.1:{port}"]
            shared = list(map(str, shared)) if processes > 1 else []
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running.append(subprocess.Popen([*command, *shared, *each(i)], env=environment, **pipes))
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def complete(processes, *arguments, each=lambda i: ()):
    """(status, stdout, stderr) of each."""
    with started(processes, *arguments, each=each) as running:
        said = [process.communicate(timeout=300) for process in running]
        return [(process.returncode, *text) for process, text in zip(running, said, strict=True)]


def metrics(folder: str) -> bytes:
    return (Path(folder) / "metrics.csv").read_bytes()


@pytest.mark.release
@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.release)])
def test_killed_and_resumed_with_another_number_of_processes(write, killed):
    write(500)
    with started(2, "--out", "two") as running:
        until = time.monotonic() + 200
        while not list(Path("two/cells").glob("*.checkpoint.npz")) and time.monotonic() < until:
            assert all(process.poll() is None for process in running), running[0].stderr.read()
            time.sleep(0.02)
        running[killed].kill()
        _, error = running[1 - killed].communicate(timeout=100)
        assert running[1 - killed].returncode not in (0, None)
        expected = f"error: process {1 - killed} of 2: another process has ended; what was finished is kept, go on"
        assert [line.startswith(expected) for line in error.splitlines()] == [True], error
    assert not Path("two/manifest.json").exists()
    shutil.copytree("two", "three")
    (one,) = complete(1, "--out", "one")
    (resumed,) = complete(1, "--out", "two", "--resume")
    assert one[0] == resumed[0] == 0
    assert metrics("two") == metrics("one")
    if killed == 1:
        each = complete(3, "--out", "three", "--resume")
        assert [status for status, _, _ in each] == [0, 0, 0], each
        assert [bool(out) for _, out, _ in each] == [True, False, False]  # process 0 prints the table
        assert metrics("three") == metrics("one")
        # and what three have finished, two can read
        assert [status for status, _, _ in complete(2, "--out", "three", "--resume")] == [0, 0]


@pytest.mark.release
def test_a_checkpoint_of_one_process_is_resumed_by_two(write):
    write(500)
    with started(1, "--out", "run") as (process,):
        until = time.monotonic() + 200
        while not list(Path("run/cells").glob("*.checkpoint.npz")) and time.monotonic() < until:
            time.sleep(0.02)
        process.kill()
    (one,) = complete(1, "--out", "one")
    assert [status for status, _, _ in complete(2, "--out", "run", "--resume")] == [one[0], 0] == [0, 0]
    assert metrics("run") == metrics("one")
    assert '"processes": 2' in Path("run/manifest.json").read_text()


def test_what_is_wrong_ends_all_with_one_line_each(write):
    write(20)
    unlike = complete(2, "--out", "run", each=lambda i: ("--set", f"rounds={20 + i}"))
    assert [status for status, _, _ in unlike] == [2, 2]
    for _, _, error in unlike:
        assert error.startswith("error: process 1 of 2 differs from process 0: all must have the same experiment")
        assert len(error.splitlines()) == 1
    assert not Path("run").exists()
    Path("full").mkdir()
    Path("full/something").write_text("here")
    first, second = complete(2, "--out", "full")
    assert first[0] == second[0] == 2
    assert first[2].startswith("error: full: is not empty")
    assert second[2].startswith("error: process 0: full: is not empty")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--processes", "2", "--coordinator", "localhost:1"], "--processes 2: needs --process, which of them this is"),
        (["--processes", "2", "--process", "0"], "--processes 2: needs --coordinator HOST:PORT, of process 0"),
        (["--processes", "2", "--process", "2", "--coordinator", "a:1"], "--process 2: must be from 0 to 1"),
        (["--processes", "2", "--process", "0", "--coordinator", "a"], "--coordinator a: must be HOST:PORT"),
        (["--processes", "2", "--process", "0", "--coordinator", "a:0"], "--coordinator a:0: must be HOST:PORT"),
        (["--coordinator", "a:1"], "--coordinator a:1: needs --processes"),
    ],
)
def test_options_that_do_not_go_together(fedpbc, monkeypatch, write, arguments, said):
    for name in ("FEDPBC_PROCESS", "FEDPBC_COORDINATOR", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    write(3)
    status, _, error = fedpbc("run", "shared.toml", "--out", "run", *arguments)
    assert status == 2
    assert error.startswith(f"error: {said}"), error
    assert not Path("run").exists()
