"""A run that is kept going: submitted again when it failed, through SuperLinks that are away, until it is complete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedpbc.errors import FedpbcError
from fedpbc.io.whole import write_text
from fedpbc.operation.flwr import Failed, Flwr
from fedpbc.operation.standing import duration

HOUR = 3600.0
LONGEST_WAIT = 600.0
"""Seconds between two tries, at most."""
STATE = "supervisor.json"


@dataclass
class Patience:
    """How often it looks, and what it puts up with."""

    every: float = 10.0
    """Seconds between two looks."""
    silent: float = 1800.0
    """A run that closes no round for so long is said to be silent."""
    stop_silent: bool = False
    """It is then stopped and submitted again."""
    give_up: int = 10
    """After so many failures in a row without a round in between; 0: never."""


class Supervisor:
    """One federation: its ``directory`` has the logs, from which progress is told, and ``supervisor.json``."""

    def __init__(
        self, flwr: Flwr, directory: Path, patience: Patience, say: Callable[[str], None],
        clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.flwr, self.directory, self.patience = flwr, directory, patience
        self._say, self._clock, self._sleep = say, clock, sleep
        self.run_id: int | None = self._restored()
        self.submitted = self.failures = 0
        """Runs that this process submitted; failures in a row without a round that closed."""
        self._rounds, self._progress, self._said = self.rounds(), clock(), clock()
        self._at_said = self._rounds
        self._silent_said = 0.0

    def say(self, text: str) -> None:
        """A line with the time."""
        self._say(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self._clock()))} {text}")

    def rounds(self) -> int:
        """Rounds that are closed, as participation.jsonl says."""
        path = self.directory / "participation.jsonl"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def run(self) -> None:
        """Until a run is complete. Raises FedpbcError when somebody stopped it, or when it fails again and again."""
        if self.run_id is not None:
            self.say(f"run {self.run_id} was submitted by an earlier supervisor: going on with it")
        while True:
            status = self._status()
            if status == "finished:completed":
                self.say(f"run {self.run_id} is complete: {self.rounds()} rounds are closed")
                self._keep(None)
                return
            if status == "finished:stopped":
                run = self.run_id
                self._keep(None)
                raise FedpbcError(f"run {run} was stopped by somebody: it is not submitted again")
            if status is None or status.startswith("finished"):
                self._again(status)
            else:
                self._watch(status)
                self._sleep(self.patience.every)

    def _status(self) -> str | None:
        """Of the run; None when there is none, or the SuperLink does not know it any more."""
        if self.run_id is None:
            return None
        try:
            return self.flwr.status(self.run_id)
        except Failed:
            self._wait_for_superlink()
        try:
            return self.flwr.status(self.run_id)
        except Failed as failed:
            self.say(f"run {self.run_id} is not known to the SuperLink any more ({failed})")
            return None

    def _wait_for_superlink(self) -> None:
        """Until it answers; said when it begins, and every hour."""
        began, said, pause = self._clock(), -HOUR, self.patience.every
        while True:
            try:
                self.flwr.reachable()
            except Failed as failed:
                if self._clock() - said >= HOUR:
                    away = "" if said == -HOUR else f" for {duration(self._clock() - began)}"
                    said = self._clock()
                    self.say(f"the SuperLink does not answer{away} ({failed}): waiting for it")
                self._sleep(pause)
                pause = min(2 * pause, 60.0)
            else:
                if said != -HOUR:
                    self.say(f"the SuperLink answers again, after {duration(self._clock() - began)}")
                    self._progress = self._clock()
                return

    def _again(self, status: str | None) -> None:
        """Submit, after a while if it failed before."""
        if status is not None:
            self.failures = 1 if self.rounds() > self._rounds else self.failures + 1
            if self.patience.give_up and self.failures >= self.patience.give_up:
                why = f"run {self.run_id} {status}: {self.failures} failures in a row without a round in between"
                why = f"{why}; flwr log {self.run_id} --show says why"
                self._keep(None)
                raise FedpbcError(why)
            pause = min(self.patience.every * 2 ** (self.failures - 1), LONGEST_WAIT)
            self.say(f"run {self.run_id} {status} after round {self.rounds()}: submitted again in {duration(pause)}")
            self._sleep(pause)
        self._wait_for_superlink()
        try:
            run = self.flwr.submit()
        except Failed as failed:
            if not self.submitted and self.run_id is None:
                raise FedpbcError(f"the run was not accepted: {failed}") from None
            self.say(f"the run was not accepted ({failed})")
            self.run_id = None
            self._sleep(min(60.0, LONGEST_WAIT))
            return
        self._keep(run)
        self.submitted += 1
        self._rounds, self._progress, self._silent_said = self.rounds(), self._clock(), 0.0
        self.say(f"run {run} is submitted; {self._rounds} rounds are closed")

    def _watch(self, status: str) -> None:
        """Notice progress and silence; say every hour how it is."""
        now, rounds = self._clock(), self.rounds()
        if rounds > self._rounds:
            self._rounds, self._progress, self._silent_said, self.failures = rounds, now, 0.0, 0
        if now - self._said >= HOUR:
            self.say(f"run {self.run_id} is {status}: round {rounds}, {rounds - self._at_said} closed in the last hour")
            self._said, self._at_said = now, rounds
        silent = now - self._progress
        if silent < self.patience.silent or silent < 2 * self._silent_said:
            return
        self._silent_said = silent
        self.say(f"run {self.run_id} is {status} but closed no round for {duration(silent)}, after round {rounds}")
        if self.patience.stop_silent:
            try:
                self.flwr.stop(self.run_id or 0)
            except Failed as failed:
                self.say(f"it could not be stopped ({failed})")
                return
            self.say(f"run {self.run_id} was stopped")
            self._keep(None)

    def _restored(self) -> int | None:
        try:
            run = json.loads((self.directory / STATE).read_text())["run"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return run if isinstance(run, int) else None

    def _keep(self, run: int | None) -> None:
        """So that a supervisor that is killed goes on with the same run, and submits no second one."""
        self.run_id = run
        write_text(self.directory / STATE, json.dumps({"run": run}) + "\n")
