"""The logs of a directory while a server writes to them: each line once, from wherever it was left."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpbc.errors import ConfigError, shorten


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _entries(key: str, fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A list of tables with a client and, under ``key``, a value that fits."""
    return lambda value: (
        isinstance(value, list)
        and all(isinstance(one, dict) and isinstance(one.get("client"), str) and fits(one.get(key)) for one in value)
    )


_troubles = _entries("reason", lambda value: isinstance(value, str))
FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("round", "active", "known", "bytes_down", "bytes_up"), _count),
    **dict.fromkeys(("time", "seconds"), _number),
    **dict.fromkeys(("clients", "busy"), _names),
    **dict.fromkeys(("failed", "refused"), _troubles),
    "late": _entries("seconds", _number),
    "of": lambda value: value is None or _count(value),
    "catching_up": lambda value: isinstance(value, dict) and all(map(_count, value.values())),
}
"""What is read of a line, where it is there."""


class Tail:
    """The whole lines of a file that were not read yet."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def shrank(self) -> bool:
        """Whether lines that were read are gone: a server that was killed cuts its last ones off."""
        return self._size() < self._offset

    def lines(self) -> list[dict[str, Any]]:
        """New lines; one that is not whole yet is read the next time. Raises ConfigError."""
        if self._size() == self._offset:
            return []
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = [line for line in map(_parsed, whole.splitlines()) if line is not None]
        for line in found:
            self._check(line)
        return found

    def _check(self, line: Mapping[str, Any]) -> None:
        for key, fits in FITS.items():
            if key in line and not fits(line[key]):
                what = f"round {shorten(line['round'])}: {key} = {shorten(line[key])}"
                raise ConfigError(f"{self.path}: {what}: no strategy of fedpbc.flower writes such a line")

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
