"""The cores of the machine, for work on models: NumPy lets go of the interpreter while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

WORTH_A_THREAD = 1 << 22
"""Entries of all models together from which on another thread pays."""
MOST_THREADS = 8
"""More do not go faster: memory is what is waited for."""


def share(function: Callable[[Item], object], items: Sequence[Item], entries: int) -> None:
    """``function`` of every item, by as many threads as there are cores where all of them have many ``entries``."""
    left = iter(items)

    def work() -> None:
        for item in left:
            function(item)

    others = min(cores(), MOST_THREADS, len(items), 1 + entries // WORTH_A_THREAD) - 1
    if others < 1:
        work()
        return
    with ThreadPoolExecutor(others) as pool:
        futures = [pool.submit(work) for _ in range(others)]
        work()
    for future in futures:
        future.result()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
