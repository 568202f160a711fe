"""What the server must not forget, on disk after every round: killed at any moment, it goes on from the last one."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.errors import ConfigError, FedpbcError, shorten
from fedpbc.flower.wire.arrays import Model
from fedpbc.io.journal import Journal
from fedpbc.io.lock import Lock
from fedpbc.io.whole import read_arrays, write_arrays, write_text

log = logging.getLogger("flwr")

FORMAT = 2
LOGS = ("participation", "metrics", "evaluation")
PARTS = ("settings", "rounds", "clients", "bases", "latest", "first_base", "memory", "configs", "failures", "logs")
RESTORE = "restore the directory from a backup, or begin in another"
_SEALED = re.compile(rb'\{"sha256": "([0-9a-f]{64})", (.*)', re.DOTALL)
KINDS = ("row", "mean", "control")
"""Kinds of models that rules keep; with their names, and those of server models, files in arrays/ begin."""
_OWN = re.compile(rf"\.?(model|{'|'.join(KINDS)})-[0-9a-f-]+\.npz(\.tmp)?")
"""Files in arrays/ that are ours to delete."""
Pieces = Mapping[str, Callable[[], Model]]
"""Name -> how to get these arrays. What a name stands for never changes, so each piece is written once."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises FedpbcError, one line that names ``path``, for what the system refuses to write: a full disk ends so."""
    try:
        yield
    except OSError as error:
        raise FedpbcError(f"{path}: cannot be written: {error.strerror or error}") from None


def seal(values: dict[str, Any]) -> str:
    """One line of JSON that begins with the checksum of what comes after it."""
    rest = json.dumps(values)[1:] + "\n"
    return f'{{"sha256": "{hashlib.sha256(rest.encode()).hexdigest()}", {rest}'


def unseal(data: bytes) -> dict[str, Any]:
    """The values of ``seal``. Raises ValueError, and says what to do, for anything else: one flipped bit is enough."""
    found = _SEALED.fullmatch(data)
    if found is None or hashlib.sha256(found[2]).hexdigest().encode() != found[1]:
        if _is_older(data):
            raise ValueError("is of an older version: go on with that, or begin in another directory")
        raise ValueError(f"its checksum does not match; {RESTORE}")
    values: dict[str, Any] = json.loads(data)
    if values["format"] != FORMAT:
        raise ValueError(f"has format {values['format']}, this version reads {FORMAT}")
    missing = [part for part in PARTS if part not in values]
    if missing:
        raise ValueError(f"has no {missing[0]}; {RESTORE}")
    return values


def _is_older(data: bytes) -> bool:
    """Whether this is a checkpoint from before there were checksums."""
    try:
        return bool(json.loads(data)["format"] == 1)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


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
            return unseal(self.path.read_bytes())
        except (ValueError, KeyError, OSError) as error:
            raise ConfigError(f"{self.path}: cannot be read: {error}") from None

    def read(self, piece: str) -> Model:
        """The arrays of one piece. Raises FedpbcError when the file is damaged or gone."""
        stored = read_arrays(self._file(piece), RESTORE)
        names = json.loads(str(stored.pop("names")))
        return {name: stored[f"a{i}"] for i, name in enumerate(names)}

    def write(self, piece: str, model: Model) -> None:
        """Write one piece, unless it is there."""
        path = self._file(piece)
        if not path.is_file():
            arrays = {f"a{i}": array for i, array in enumerate(model.values())}
            with writing(path):
                write_arrays(path, {"names": np.array(json.dumps(list(model))), **arrays})

    def save(self, state: dict[str, Any], pieces: Pieces) -> None:
        """Make ``state`` and its pieces what a new server begins with; what nobody needs any more goes."""
        for piece, get in pieces.items():
            if not self._file(piece).is_file():
                self.write(piece, get())
        with writing(self.path):
            write_text(self.path, seal({"format": FORMAT, **state}))
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

    def round(
        self, summary: dict[str, Any], heard: list[str], train: Mapping[str, Any] | None, chosen: dict[str, int]
    ) -> None:
        """A round is closed: A^t for the audit, and its numbers. Both logs say when not everybody could be heard."""
        early = {"closed": "early"} if summary["closed_early"] else {}
        self._append("participation", {"round": summary["round"], "clients": heard, **early, **chosen})
        self._append("metrics", summary | {"train": dict(train or {})})

    def evaluation(self, line: dict[str, Any]) -> None:
        """The model after a round was evaluated."""
        self._append("evaluation", line)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of one log."""
        return self._journals[name].lines() if self._journals else []

    def heard(self, round: int) -> list[str]:
        """Who was heard in this round; nobody where the log does not say."""
        return next((line["clients"] for line in self.lines("participation") if line["round"] == round), [])

    def marks(self) -> dict[str, Any]:
        """For the checkpoint: how many lines each log has, and their checksums. All of them are on disk from now on."""
        self.sync()
        return {name: journal.mark() for name, journal in self._journals.items()}

    def sync(self) -> None:
        """Make all lines outlive a power cut."""
        for journal in self._journals.values():
            with writing(journal.path):
                journal.sync()

    def take_up(self, marks: dict[str, Any], rounds: int) -> None:
        """Go on after the lines that the checkpoint counts; those of rounds that did not come to count are dropped.

        The model of the last round may have been evaluated since. A log that is not there begins anew, which is
        logged. Raises ConfigError, and changes nothing, when lines are missing or are not what they were.
        """
        sizes = {}
        for name, journal in self._journals.items():
            try:
                sizes[name] = journal.check(marks[name], rounds - 1 if name == "evaluation" else None)
            except ValueError as error:
                remedy = "restore it from a backup, or move it away to go on without these lines"
                raise ConfigError(f"{journal.path}: {error}; {remedy}") from None
            if marks[name]["lines"] and not journal.path.is_file():
                log.warning("%s is gone: what it said of the first %d rounds is lost", journal.path, rounds)
        for name, journal in self._journals.items():
            with writing(journal.path):
                journal.cut(sizes[name])

    def _append(self, name: str, line: dict[str, Any]) -> None:
        if self._journals:
            with writing(self._journals[name].path):
                self._journals[name].append(line)
