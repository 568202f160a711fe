"""A command in a process of its own: how long it takes, and how much memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Measured(NamedTuple):
    """One run of a command, from start to end: seconds on the clock and of the processor, and the peak of memory."""

    wall: float
    cpu: float
    megabytes: float


def measure(arguments: list[str], cache: str | None = None) -> Measured:
    """Run ``python ARGUMENTS`` at the top of the project; compiled programs are kept in ``cache``.

    Raises RuntimeError, with what it said, when it fails.
    """
    environment = os.environ | ({"FEDPBC_CACHE": cache} if cache else {})
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(said.read())
    scale = 1 if sys.platform == "darwin" else 1024
    return Measured(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale / 1e6)
