"""The supervisor, against a SuperLink made up here whose clock is ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpbc.errors import FedpbcError
from fedpbc.operation.flwr import Failed
from fedpbc.operation.supervisor import HOUR, Patience, Supervisor

AWAY, FAILED, DONE, STOPPED, FORGOTTEN = (
    "away",
    "finished:failed",
    "finished:completed",
    "finished:stopped",
    "forgotten",
)


class SuperLink:
    """What happens at which second: ``(since, status of the latest run, rounds closed)``; the last holds for ever."""

    def __init__(self, folder: Path, story: list[tuple[float, str, int]], most: float = 10 * HOUR) -> None:
        self.folder, self.story, self.most = folder, story, most
        self.now = 0.0
        self.runs: list[float] = []
        """When runs were submitted; their ids are 1, 2, ..."""
        self.stopped: list[int] = []
        self.lines: list[str] = []
        folder.mkdir(exist_ok=True)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0.1
        self.now += seconds
        assert self.now < self.most, self.lines
        (self.folder / "participation.jsonl").write_text("{}\n" * self.at()[1])

    def at(self) -> tuple[str, int]:
        since = self.runs[-1] if self.runs else 0.0
        _, status, rounds = [part for part in self.story if part[0] <= self.now][-1]
        if status in (FAILED, DONE, STOPPED, FORGOTTEN) and since >= [p for p in self.story if p[0] <= self.now][-1][0]:
            status = "running"  # it was submitted since
        return status, rounds

    def reachable(self) -> None:
        if self.at()[0] == AWAY:
            raise Failed("flwr list: connection refused")

    def submit(self) -> int:
        self.reachable()
        self.runs.append(self.now)
        return len(self.runs)

    def status(self, run: int) -> str:
        self.reachable()
        status = self.at()[0]
        if status == FORGOTTEN:
            raise Failed(f"run {run} not found")
        return status

    def stop(self, run: int) -> None:
        self.stopped.append(run)

    def supervise(self, **patience: Any) -> Supervisor:
        return Supervisor(self, self.folder, Patience(**patience), self.lines.append, self.clock, self.sleep)

    def said(self) -> str:
        return "\n".join(line.split(" ", 1)[1] for line in self.lines)


def test_a_run_that_is_complete_ends_it(tmp_path):
    link = SuperLink(tmp_path / "f", [(0, "pending", 0), (30, "running", 3), (100, DONE, 9)])
    link.supervise().run()
    assert link.runs == [0.0]
    assert link.said() == "run 1 is submitted; 0 rounds are closed\nrun 1 is complete: 9 rounds are closed"
    assert json.loads((tmp_path / "f" / "supervisor.json").read_text()) == {"run": None}


def test_a_run_that_failed_is_submitted_again(tmp_path):
    story = [(0, "running", 0), (50, "running", 4), (100, FAILED, 4), (150, "running", 6), (300, DONE, 9)]
    link = SuperLink(tmp_path / "f", story)
    link.supervise().run()
    assert link.runs == [0.0, 110.0]
    assert "run 1 finished:failed after round 4: submitted again in 10 s" in link.said()


def test_failures_in_a_row_wait_longer_and_end_it(tmp_path):
    """A new failure at every look: 10, 20, 40 s, then enough."""
    link = SuperLink(tmp_path / "f", [(0, "running", 2), *((t, FAILED, 2) for t in range(1, 2000, 1))])
    with pytest.raises(
        FedpbcError, match=r"^run 4 finished:failed: 4 failures in a row .*; flwr log 4 --show says why$"
    ):
        link.supervise(give_up=4).run()
    assert [b - a for a, b in zip(link.runs, link.runs[1:], strict=False)] == [20.0, 30.0, 50.0]


def test_a_superlink_that_is_away_is_waited_for(tmp_path):
    story = [
        (0, AWAY, 0),
        (40, "running", 0),
        (60, "running", 3),
        (100, AWAY, 3),
        (100 + 3 * HOUR, "running", 3),
        (4 * HOUR, DONE, 9),
    ]
    link = SuperLink(tmp_path / "f", story)
    link.supervise(silent=HOUR).run()
    assert len(link.runs) == 1
    waiting = [line for line in link.said().splitlines() if "waiting for it" in line]
    assert len(waiting) == 2 + 2  # at once, at once, and after one and two hours
    assert "does not answer for 1 h" in waiting[2]
    assert link.said().count("answers again, after") == 2
    assert "closed no round" not in link.said()


def test_a_run_that_the_superlink_forgot_is_submitted_again(tmp_path):
    link = SuperLink(tmp_path / "f", [(0, "running", 0), (100, FORGOTTEN, 5), (200, DONE, 9)])
    link.supervise().run()
    assert len(link.runs) == 2
    assert "run 1 is not known to the SuperLink any more" in link.said()


def test_a_run_that_somebody_stopped_stays_so(tmp_path):
    link = SuperLink(tmp_path / "f", [(0, "running", 0), (100, STOPPED, 5)])
    with pytest.raises(FedpbcError, match="run 1 was stopped by somebody: it is not submitted again"):
        link.supervise().run()


def test_every_hour_it_says_how_it_is(tmp_path):
    link = SuperLink(
        tmp_path / "f", [(0, "running", 0), *((t * 60.0, "running", t) for t in range(1, 200)), (12000, DONE, 200)]
    )
    link.supervise(every=60.0).run()
    hourly = [line for line in link.said().splitlines() if "closed in the last hour" in line]
    assert hourly == [
        "run 1 is running: round 60, 60 closed in the last hour",
        "run 1 is running: round 120, 60 closed in the last hour",
        "run 1 is running: round 180, 60 closed in the last hour",
    ]


@pytest.mark.parametrize("stop", [False, True])
def test_silence_is_noticed(stop, tmp_path):
    """Said at 10, 20, 40, ... minutes; stopped if asked for, and submitted again."""
    link = SuperLink(tmp_path / "f", [(0, "running", 0), (60, "running", 5), (3500, "running", 6), (3600, DONE, 9)])
    link.supervise(silent=600, stop_silent=stop).run()
    silent = [line for line in link.said().splitlines() if "closed no round" in line]
    if stop:
        assert link.stopped == list(range(1, len(link.stopped) + 1))
        assert len(link.runs) == len(link.stopped) + 1 >= 5
    else:
        assert [line.split(" for ")[1] for line in silent] == [
            "10 min 0 s, after round 5", "20 min 0 s, after round 5", "40 min 0 s, after round 5",
        ]  # fmt: skip
        assert (link.runs, link.stopped) == ([0.0], [])


def test_a_supervisor_that_is_killed_goes_on_with_the_same_run(tmp_path):
    class Killed(Exception):
        pass

    link = SuperLink(tmp_path / "f", [(0, "running", 0), (1000, DONE, 9)])
    inner, naps = link.sleep, iter([10.0] * 3)

    def sleep(seconds: float, naps: Iterator[float] = naps) -> None:
        if next(naps, None) is None:
            raise Killed
        inner(seconds)

    with pytest.raises(Killed):
        Supervisor(link, link.folder, Patience(), link.lines.append, link.clock, sleep).run()
    link.supervise().run()
    assert link.runs == [0.0]
    assert "run 1 was submitted by an earlier supervisor: going on with it" in link.said()


def test_what_is_not_accepted_at_first_is_an_error(tmp_path):
    link = SuperLink(tmp_path / "f", [(0, "running", 0)])
    link.submit = lambda: (_ for _ in ()).throw(Failed("flwr run: no such app"))
    with pytest.raises(FedpbcError, match=r"^the run was not accepted: flwr run: no such app$"):
        link.supervise().run()


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "pyproject.toml: cannot be read: No such file"), ("[tool", "pyproject.toml: cannot be read: "),
     ("[tool.flwr.app.config]\nlr = 1\n", "pyproject.toml: has no directory under [tool.flwr.app.config]")],
)  # fmt: skip
def test_an_app_that_cannot_go_on_is_refused(fedpbc, tmp_path, text, message):
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    status, _, error = fedpbc("flower", "run", str(tmp_path), "--directory", str(tmp_path / "out"))
    assert (status, error.count("\n")) == (2, 1)
    assert message in error
    assert not (tmp_path / "out").exists()
