"""The three commands of Flower's that a supervisor needs, as subprocesses with JSON answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from fedpbc.errors import ConfigError

PATIENCE = 120.0
"""Seconds that one command may take."""


class Failed(Exception):
    """A command failed, and what it said."""


class Flwr(Protocol):
    """What the supervisor asks for; each raises Failed."""

    def reachable(self) -> None:
        """Ask the SuperLink for anything."""

    def submit(self) -> int:
        """Start a run; its id."""

    def status(self, run: int) -> str:
        """Of a run: pending, starting, running, finished:completed, finished:failed, finished:stopped."""

    def stop(self, run: int) -> None:
        """End a run."""


class Command:
    """``flwr`` itself, of this environment if it has one."""

    def __init__(self, app: str, superlink: str | None, run_config: list[str]) -> None:
        """Raises ConfigError when there is no such command."""
        beside = Path(sys.executable).with_name("flwr")
        found = str(beside) if beside.is_file() else shutil.which("flwr")
        if found is None:
            raise ConfigError("flwr: no such command; pip install 'fedpbc[flower]'")
        self._flwr, self._app, self._superlink = found, app, [superlink] if superlink else []
        self._config = [word for text in run_config for word in ("--run-config", text)]

    def reachable(self) -> None:
        """``flwr list``."""
        self._call("list", *self._superlink, "--limit", "1")

    def submit(self) -> int:
        """``flwr run``."""
        return int(self._call("run", self._app, *self._superlink, *self._config)["run-id"])

    def status(self, run: int) -> str:
        """``flwr list --run-id``."""
        return str(self._call("list", *self._superlink, "--run-id", str(run))["runs"][0]["status"])

    def stop(self, run: int) -> None:
        """``flwr stop``."""
        self._call("stop", str(run), *self._superlink)

    def _call(self, *words: str) -> dict[str, Any]:
        command = [self._flwr, *words, "--format", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
            answer = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            raise Failed(f"flwr {words[0]} gave no answer within {PATIENCE:g} s") from None
        except ValueError:
            raise Failed(f"flwr {words[0]}: {_last(done.stderr or done.stdout)}") from None
        if not answer.get("success"):
            raise Failed(f"flwr {words[0]}: {_last(str(answer.get('error-message', answer)))}")
        return dict(answer)


def _last(text: str) -> str:
    """The last line that says something, in at most 300 characters."""
    lines = [line.strip(" │╭╮╰╯─") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")[:300]
