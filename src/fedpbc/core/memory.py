"""What would not fit into memory is refused before it is allocated."""

from __future__ import annotations

import os
from typing import Any

from fedpbc.errors import BadOption


def total_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's limit if smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(total, int(file.read()))
    except (OSError, ValueError):
        return total


def require_memory(option: str, value: Any, num_bytes: int, what: str) -> None:
    """Refuse, before anything is allocated, what cannot fit.

    Raises BadOption with the estimate when ``num_bytes`` exceeds the machine's memory.
    """
    available = total_memory()
    if num_bytes > available:
        raise BadOption(
            option,
            value,
            f"{what} would need about {num_bytes / 1e9:,.1f} GB; this machine has {available / 1e9:,.1f} GB",
        )
