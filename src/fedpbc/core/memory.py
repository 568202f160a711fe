"""What would not fit into memory is refused before it is allocated."""

from __future__ import annotations

import os
from typing import Any

from fedpbc.errors import BadOption

PROGRAM_BYTES = 350_000_000
"""A process with JAX, before any data: interpreter, libraries, the compiler and its programs."""
STATES = 2
"""The state of a method, and the one that a round makes of it."""


def total_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's limit if smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(total, int(file.read()))
    except (OSError, ValueError):
        return total


def require_memory(
    option: str, value: Any, num_bytes: int, what: str, fixed: int = 0, would_fit: str | None = None
) -> None:
    """Refuse, before anything is allocated, what cannot fit.

    ``fixed``: how many of the bytes stay, however small the option is; the rest is taken for proportional to it where
    the value is a number, and the message says how much would fit. ``would_fit``: said instead. Raises BadOption with
    the estimate when ``num_bytes`` exceeds the machine's memory.
    """
    available = total_memory()
    if num_bytes <= available:
        return
    if would_fit is None and isinstance(value, int) and fixed < available:
        most = value * (available - fixed) // (num_bytes - fixed)
        would_fit = f"{option} = {most:d}" if most else None
    needs = f"{what} would need about {num_bytes / 1e9:,.1f} GB; this machine has {available / 1e9:,.1f} GB"
    raise BadOption(option, value, needs + (f": {would_fit} would fit" if would_fit else ""))
