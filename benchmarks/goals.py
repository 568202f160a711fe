"""The goals of goals.toml beside what was measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables import Table

FILE = Path(__file__).with_name("goals.toml")


def goals() -> list[dict[str, Any]]:
    """In the order of the file: group, figure, what, at_least or at_most, unit, cause."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))["goal"]


def met(goal: Mapping[str, Any], value: float) -> bool:
    """A figure reaches its goal."""
    return value >= goal["at_least"] if "at_least" in goal else value <= goal["at_most"]


def target(goal: Mapping[str, Any]) -> str:
    """As in ``>= 3x``."""
    sign, bound = (">=", goal["at_least"]) if "at_least" in goal else ("<=", goal["at_most"])
    return f"{sign} {bound:g}{goal['unit']}"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def goals_table(figures: Mapping[str, float]) -> Table:
    """A row for each goal; the CPU time's ratio beside the clock's where there is one."""
    rows = []
    for goal in goals():
        value, cpu = figures.get(goal["figure"]), figures.get(goal.get("cpu", f"{goal['figure']}.cpu"))
        if value is None:
            rows.append(
                [
                    goal["group"],
                    goal["what"],
                    target(goal),
                    goal.get("measured", "not measured"),
                    "",
                    "",
                    goal.get("cause", ""),
                ]
            )
            continue
        good = met(goal, value)
        in_cpu = f"{number(cpu)}{goal['unit']}" if cpu is not None else ""
        rows.append([
            goal["group"], goal["what"], target(goal), f"{number(value)}{goal['unit']}", in_cpu,
            "met" if good else "**missed**", goal.get("cause", ""),
        ])  # fmt: skip
    return Table("Goals", ["", "what", "goal", "measured", "in CPU time", "", "why, or how"], rows)
