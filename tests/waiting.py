"""Waiting for what must come, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 1200.0
"""Seconds after which what we wait for will not come: a bound for what is broken, not for what is slow."""


def wait_until(condition: Callable[[], bool], failure: str, pause: float = 0.05) -> None:
    """Look again and again. Raises AssertionError when patience ends."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{failure} within {PATIENCE:g} s"
        time.sleep(pause)
