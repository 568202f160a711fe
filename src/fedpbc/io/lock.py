"""A lock between processes."""

from __future__ import annotations

import io
import os
import weakref
from pathlib import Path

from fedpbc.errors import ConfigError


class Lock:
    """A file that one process holds at a time; the lock goes with the process, however it ends.

    Forked workers inherit the open file, and would go on holding it when the process is long gone: they let go at once.
    """

    def __init__(self, path: Path, taken: str) -> None:
        """Take it. Raises ConfigError with the text ``taken`` when another process has it."""
        self._file: io.TextIOWrapper | None = None
        try:
            import fcntl
        except ImportError:  # not a POSIX system
            return
        self._file = open(path, "w")  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.drop()
            raise ConfigError(taken) from None
        _held.add(self)

    def release(self) -> None:
        """Release the lock, even if a process forked without Python's knowledge still has the file open."""
        if self._file is not None:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.drop()

    def drop(self) -> None:
        """Close the file: the lock stays with whoever else has it open."""
        if self._file is not None:
            self._file.close()
            self._file = None


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _drop_inherited() -> None:
    for lock in list(_held):
        lock.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
