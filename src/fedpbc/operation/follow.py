"""The logs of a directory while a server writes to them: each line once, from wherever it was left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpbc.errors import ConfigError


class Tail:
    """The whole lines of a file that were not read yet."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def shrank(self) -> bool:
        """Whether lines that were read are gone: a server that was killed cuts its last ones off."""
        return self._size() < self._offset

    def lines(self) -> list[dict[str, Any]]:
        """New lines; one that is not whole yet is read the next time."""
        if self._size() == self._offset:
            return []
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in map(_parsed, whole.splitlines()) if line is not None]

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("round"), int) else None


class Logs:
    """metrics.jsonl and participation.jsonl, line by line of the same round."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError when there is no such directory."""
        if not directory.is_dir():
            raise ConfigError(f"{directory}: no such directory; it is the directory=... of a strategy of fedpbc.flower")
        self.directory = directory
        self._begin()

    def _begin(self) -> None:
        self._tails = [Tail(self.directory / f"{name}.jsonl") for name in ("metrics", "participation")]
        self._waiting: list[dict[int, dict[str, Any]]] = [{}, {}]

    def begun_anew(self) -> bool:
        """Whether what was read is no longer there; all is read again then."""
        if any(tail.shrank() for tail in self._tails):
            self._begin()
            return True
        return False

    def rounds(self) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """(numbers, who was heard) of rounds that are closed and were not given yet."""
        for tail, waiting in zip(self._tails, self._waiting, strict=True):
            waiting |= {line["round"]: line for line in tail.lines()}
        numbers, heard = self._waiting
        for t in sorted(numbers.keys() & heard.keys()):
            yield numbers.pop(t), heard.pop(t).get("clients", [])
