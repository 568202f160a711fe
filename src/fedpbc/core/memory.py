"""What would not fit into memory is refused before it is allocated."""

from __future__ import annotations

import os
from typing import Any

from fedpbc.errors import BadOption, ConfigError

PROGRAM_BYTES = 450_000_000
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


def require_program(compiled: Any, shared: int, num_clients: int, devices: list[Any]) -> None:
    """Refuse a compiled program whose arguments, results and intermediate arrays do not fit, before it runs.

    ``shared``: bytes of arguments that devices of one machine hold once, as they are never written. Where the backend
    does not say what a program needs, nothing is refused. Raises ConfigError with the estimate.
    """
    found, available, where, needed = compiled.memory_analysis(), total_memory(), "machine", PROGRAM_BYTES
    if found is None:
        return
    own = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    own += found.temp_size_in_bytes
    if devices[0].platform == "cpu":
        needed += shared + len(devices) * (own - shared)
    else:
        available, where, needed = (devices[0].memory_stats() or {}).get("bytes_limit", own), "device", own
    if needed > available:
        base = PROGRAM_BYTES if where == "machine" else 0
        most = num_clients * (available - base) // (needed - base)
        fits = f": about {most:,} clients would fit" if most > 0 else ""
        raise ConfigError(
            f"{num_clients:,} clients: data, models and a round would need about {needed / 1e9:,.1f} GB; "
            f"this {where} has {available / 1e9:,.1f} GB{fits}"
        )
