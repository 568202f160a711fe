"""Progress: a bar on a terminal, lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time

import pytest

from fedpbc.experiment.grid import CellKey
from fedpbc.runs import progress

KEY = CellKey("links " * 20, "a method with a rather long name", "all", 0)


SIZE = 4, 4000
"""Cells, and rounds of all of them."""


def test_a_line_comes_every_so_often_also_while_compiling(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.2)
    stream = io.StringIO()
    with progress.shown(*SIZE, stream, quiet=False) as tell:
        time.sleep(0.3)
        tell(KEY, 0, 0)
        time.sleep(0.5)  # as long as compiling takes, nobody tells anything
        tell(KEY, 0, 0)
        tell(KEY, 400, 0)
        time.sleep(0.4)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "preparing data: 0 of 4,000 rounds"
    compiling = [line for line in lines if line.startswith("compiling 1/4 ")]
    assert len(compiling) >= 2
    assert re.fullmatch(r"run 1/4 a method .*: 400 of 4,000 rounds, about \d+ s left", lines[-1])
    assert not [t for t in threading.enumerate() if "progress" in t.name]


def test_short_runs_and_quiet_ones_say_nothing():
    stream = io.StringIO()
    with progress.shown(*SIZE, stream, quiet=False) as tell:
        tell(KEY, 1000, 0)
    with progress.shown(*SIZE, stream, quiet=True) as tell:
        assert tell is None
    assert stream.getvalue() == ""


def test_a_reader_that_went_away_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)

    class Gone(io.StringIO):
        tries = 0

        def write(self, text):
            self.tries += 1
            raise BrokenPipeError

    stream = Gone()
    with progress.shown(*SIZE, stream, quiet=False) as tell:
        tell(KEY, 1, 0)
        time.sleep(0.3)
    assert stream.tries >= 2


def test_restored_rounds_are_neither_done_nor_left():
    count = progress._Count(*SIZE)
    count.count(KEY, 0, 600)
    count.count(KEY, 100, 0)
    assert (count.done, count.total) == (100, 3400)
    assert count.text().startswith("run 1/4")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_bar_is_one_line_of_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "24")
    code = (
        "import sys, time\nfrom fedpbc.runs import progress\nfrom fedpbc.experiment.grid import CellKey\n"
        "key = CellKey('links ' * 20, 'a method with a rather long name', 'all', 0)\n"
        "with progress.shown(38, 3800000, sys.stderr, False) as tell:\n"
        "    tell(key, 0, 0); time.sleep(.3); tell(key, 700000, 0); time.sleep(.3)\n"
    )
    screen = on_a_terminal([sys.executable, "-c", code])
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in re.split(r"[\r\n]+", screen)]
    assert max(map(len, lines)) <= width
    drawn = [line for line in lines if line.strip()]
    assert any(line.startswith("compiling 1/38") for line in drawn)
    assert any(line.startswith("run 1/38") for line in drawn)
    assert all(re.match(r"(preparing|compiling 1/38|run 1/38)", line) for line in drawn), "no bar goes on below"
    if width >= 60:
        assert any("700000/3800000" in line for line in drawn)


def on_a_terminal(command: list[str]) -> str:
    """What a command writes on a terminal of its own."""
    own, other = pty.openpty()
    process = subprocess.Popen(command, stdout=other, stderr=other, stdin=other, close_fds=True)
    os.close(other)
    data, deadline = b"", time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if select.select([own], [], [], 0.2)[0]:
                try:
                    piece = os.read(own, 65536)
                except OSError:  # the other end is closed
                    break
                data += piece
            elif process.poll() is not None:
                break
        assert process.wait(timeout=30) == 0, data.decode()
    finally:
        process.kill()
        process.wait()
        os.close(own)
    return data.decode()
