"""What parts of the benchmark return: tables to read, and figures by name to compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Table:
    """One table of results."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """What goals.toml and expected.toml are compared with, by name: ``part.what``."""

    def markdown(self) -> str:
        """As Markdown."""
        cells = [self.header, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.header))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
            for row in cells
        ]
        lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"### {self.title}\n", *lines, *notes]) + "\n"


@dataclass(frozen=True)
class Options:
    """What the parts are given."""

    repetitions: int
    devices: int
    short: bool = False
    """Fewer rounds, and only what expected.toml holds."""


@dataclass
class Times:
    """Milliseconds per round, one number per turn."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """User and system, all threads of the process."""


def take_turns(contestants: Mapping[str, Callable[[], int]], repetitions: int) -> dict[str, Times]:
    """Times of functions that each return how many rounds they made; a turn of each before that is not counted."""
    times = {name: Times() for name in contestants}
    for turn in range(repetitions + 1):
        for name, run in contestants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            rounds = run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn:
                times[name].wall.append(1e3 * wall / rounds)
                times[name].cpu.append(1e3 * cpu / rounds)
    return times


def ratio(of: list[float], to: list[float]) -> float:
    """Of the medians."""
    return statistics.median(of) / statistics.median(to)


def median_and_range(values: list[float], digits: int = 2) -> list[str]:
    """Two cells."""
    return [f"{statistics.median(values):.{digits}f}", f"{min(values):.{digits}f} to {max(values):.{digits}f}"]


def compared(title: str, times: Mapping[str, Times], own: str, part: str, notes: list[str]) -> Table:
    """A row for each contestant; how many times as long as ``own`` it takes, on the clock and in CPU time."""
    rows, figures = [], {}
    for name, taken in times.items():
        wall, cpu = ratio(taken.wall, times[own].wall), ratio(taken.cpu, times[own].cpu)
        each = [a / b for a, b in zip(taken.wall, times[own].wall, strict=True)]
        rows.append([name, *median_and_range(taken.wall), f"{statistics.median(taken.cpu):.2f}", f"{wall:.2f}",
                     median_and_range(each)[1], f"{cpu:.2f}"])  # fmt: skip
        if name != own:
            figures |= {f"{part}.{name}": wall, f"{part}.{name}.cpu": cpu}
    header = ["", "ms per round (median)", "range", "CPU, ms", "ratio", "range of ratio", "ratio of CPU"]
    return Table(title, header, rows, notes, figures)


def verdict(value: float, target: float, unit: str, at_least: bool = False) -> str:
    """A target, and whether it is met."""
    met = value >= target if at_least else value <= target
    return f"{'>=' if at_least else '<='} {target:g}{unit}: {'met' if met else 'MISSED'}"
