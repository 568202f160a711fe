"""A log of JSON lines that survives a kill."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """A file of JSON lines, one per round, each with its ``round``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._count, self._hash, self._synced = 0, hashlib.sha256(), 0

    def append(self, line: dict[str, Any]) -> None:
        """Append a line. It survives a kill of this process; after ``sync`` it survives a power cut too."""
        data = (json.dumps(line) + "\n").encode()
        with open(self.path, "ab") as file:
            file.write(data)
        self._count += 1
        self._hash.update(data)

    def sync(self) -> None:
        """Flush all lines to disk."""
        if self._synced < self._count:
            with open(self.path, "rb+") as file:
                os.fsync(file.fileno())
            self._synced = self._count

    def mark(self) -> dict[str, Any]:
        """How many lines there are, and a checksum of them: what ``check`` compares with."""
        return {"lines": self._count, "sha256": self._hash.hexdigest()}

    def check(self, mark: dict[str, Any], then: int | None = None) -> int:
        """The bytes of the lines that count: those of the ``mark``, and whole lines of round ``then`` after them.

        What else follows, lines of rounds that were never closed, is for ``cut``. 0 where there is no file at all: the
        journal begins anew. Raises ValueError when lines of the mark are missing or are not what they were.
        """
        if not self.path.is_file():
            return 0
        lines = self.path.read_bytes().splitlines(keepends=True)
        count = int(mark["lines"])
        head, whole = b"".join(lines[:count]), sum(line.endswith(b"\n") for line in lines)
        if whole < count:
            raise ValueError(f"has {whole} of its {count} lines")
        if hashlib.sha256(head).hexdigest() != mark["sha256"]:
            raise ValueError(f"has other lines than the {count} that were written")
        for line in lines[count:] if then is not None else ():
            if not line.endswith(b"\n") or (_parsed(line) or {}).get("round") != then:
                break
            head, count = head + line, count + 1
        self._count, self._hash = count, hashlib.sha256(head)
        return len(head)

    def cut(self, size: int) -> None:
        """Delete everything after the first ``size`` bytes."""
        if self.path.is_file() and self.path.stat().st_size > size:
            os.truncate(self.path, size)

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines; one that a kill cut short is left out."""
        if not self.path.is_file():
            return []
        return [line for text in self.path.read_bytes().splitlines() if (line := _parsed(text)) is not None]


def _parsed(text: bytes) -> dict[str, Any] | None:
    """One line of a journal, or None when it is not one."""
    try:
        line = json.loads(text.decode(errors="replace"))
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("round"), int) else None
