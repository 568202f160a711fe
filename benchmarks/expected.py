"""What the short benchmark compares with expected.toml: ratios, which hardly depend on how fast a machine is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from tables import Table

FILE = Path(__file__).with_name("expected.toml")
SHORT = ("machine", "w1", "w2", "active", "networks")
TOLERANCE = 0.25
KEPT = ("w1.NumPy.cpu", "w2.one.NumPy.cpu", "w2.one.PyTorch.cpu", "w2.one.C, one thread.cpu", "active.PyTorch loop.cpu",
        "mlp 128.PyTorch.cpu", "cnn.PyTorch.cpu")  # fmt: skip
"""How many times as much CPU time others take: higher is better. CPU time, as other work changes it least."""


def compare(figures: Mapping[str, float], write: bool = False) -> tuple[Table, list[str]]:
    """Each figure beside the expected one, and the names of those that are below it by more than its tolerance."""
    if write:
        lines = [
            f'"{name}" = {{ ratio = {figures[name]:.3g}, tolerance = {TOLERANCE} }}' for name in KEPT if name in figures
        ]
        FILE.write_text("\n".join([*_comment(), *lines]) + "\n", encoding="utf-8")
    rows, worse = [], []
    for name, entry in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        value, expected, tolerance = figures.get(name), entry["ratio"], entry["tolerance"]
        if value is None:
            rows.append([name, f"{expected:.3g}", "not measured", "", ""])
            continue
        change = value / expected - 1
        state = "WORSE" if change < -tolerance else "better" if change > tolerance else "same"
        if state == "WORSE":
            worse.append(name)
        rows.append(
            [name, f"{expected:.3g}", f"{value:.3g}", f"{100 * change:+.0f} % (+-{100 * tolerance:.0f})", state]
        )
    return Table("Beside expected.toml", ["ratio", "expected", "measured", "change", ""], rows), worse


def _comment() -> list[str]:
    return [
        "# How many times as much CPU time as fedpbc others take for the same work; written by",
        "# bench.py --short --write-expected, read by bench.py --short. Another processor has other ratios.",
    ]
