"""What the server must not forget, on disk after every round: killed at any moment, it goes on from the last one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.errors import ConfigError, shorten
from fedpbc.files import Journal, Lock, read_arrays, write_arrays, write_text
from fedpbc.flower.arrays import Model

FORMAT = 2
LOGS = ("participation", "metrics", "evaluation")
PARTS = ("settings", "rounds", "clients", "bases", "latest", "first_base", "memory", "configs", "failures")
_OWN = re.compile(r"\.?(model|row|mean|control)-[0-9a-f-]+\.npz(\.tmp)?")
"""Files in arrays/ that are ours to delete."""
Pieces = Mapping[str, Callable[[], Model]]
"""Name -> how to get these arrays. What a name stands for never changes, so each piece is written once."""


class Checkpoint:
    """``checkpoint.json`` and the arrays it names in ``arrays/*.npz``; the .json is replaced last, in one step."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.arrays = directory, directory / "arrays"
        self.path = directory / "checkpoint.json"
        try:
            self._require_own()
            self.arrays.mkdir(parents=True, exist_ok=True)
            self.lock = Lock(directory / ".lock", f"directory = {directory}: another server is writing there")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"directory = {shorten(str(directory))}: cannot be used: {why}") from None

    def load(self) -> dict[str, Any] | None:
        """What was saved last, or None. Raises ConfigError when it cannot be read."""
        if not self.path.is_file():
            return None
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
            if state["format"] != FORMAT:
                raise ValueError(f"has format {state['format']}, this version reads {FORMAT}")
            missing = [part for part in PARTS if part not in state]
            if missing:
                raise ValueError(f"has no {missing[0]}")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{self.path}: cannot be read: {error}") from None
        return state

    def read(self, piece: str) -> Model:
        """The arrays of one piece. Raises FedpbcError when the file is damaged or gone."""
        stored = read_arrays(self._file(piece), "restore the directory from a backup, or begin in another")
        names = json.loads(str(stored.pop("names")))
        return {name: stored[f"a{i}"] for i, name in enumerate(names)}

    def write(self, piece: str, model: Model) -> None:
        """Write one piece, unless it is there."""
        path = self._file(piece)
        if not path.is_file():
            arrays = {f"a{i}": array for i, array in enumerate(model.values())}
            write_arrays(path, {"names": np.array(json.dumps(list(model))), **arrays})

    def save(self, state: dict[str, Any], pieces: Pieces) -> None:
        """Make ``state`` and its pieces what a new server begins with; what nobody needs any more goes."""
        for piece, get in pieces.items():
            if not self._file(piece).is_file():
                self.write(piece, get())
        write_text(self.path, json.dumps({"format": FORMAT, **state}) + "\n")
        keep = {self._file(piece).name for piece in pieces}
        for path in self.arrays.iterdir():
            if path.name not in keep and _OWN.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _require_own(self) -> None:
        """Raise ConfigError when what we would write to is somebody else's, or of a lost federation."""
        if self.path.is_file() or not self.directory.is_dir():
            return
        others = {f"{name}.jsonl" for name in LOGS if (self.directory / f"{name}.jsonl").exists()}
        if self.arrays.is_dir():
            others |= {f"arrays/{path.name}" for path in self.arrays.iterdir() if not _OWN.fullmatch(path.name)}
        if others:
            what = f"holds {min(others)} and no checkpoint.json; choose another, or one to go on from"
            raise ConfigError(f"directory = {shorten(str(self.directory))}: {what}")

    def close(self) -> None:
        """Let another server write here."""
        self.lock.release()

    def _file(self, piece: str) -> Path:
        return self.arrays / f"{piece}.npz"


class Logs:
    """participation.jsonl, metrics.jsonl and evaluation.jsonl of a directory; without one nothing is written."""

    def __init__(self, directory: Path | None) -> None:
        self._journals = {name: Journal(directory / f"{name}.jsonl") for name in LOGS} if directory else {}

    def round(self, summary: dict[str, Any], heard: list[str], train: Mapping[str, Any] | None) -> None:
        """A round is closed: A^t for the audit, and its numbers."""
        self._append("participation", {"round": summary["round"], "clients": heard})
        self._append("metrics", summary | {"train": dict(train or {})})

    def evaluation(self, line: dict[str, Any]) -> None:
        """The model after a round was evaluated."""
        self._append("evaluation", line)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of one log."""
        return self._journals[name].lines() if self._journals else []

    def keep_before(self, round: int) -> None:
        """Drop the lines of rounds that did not come to count."""
        for journal in self._journals.values():
            journal.keep_before(round)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        if self._journals:
            self._journals[name].append(line)
