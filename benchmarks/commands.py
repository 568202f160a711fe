"""How long a user waits for commands as they are typed: the first words, all rivals, and the page of results."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from process import measure
from tables import Options, Table, median_and_range

RIVALS = Path(__file__).with_name("rivals_before.toml")
BEFORE_S = 240
"""What `fedpbc run rivals_before.toml` took at commit d8bedcd, before programs were kept and cells ran side by side."""


def commands(options: Options) -> list[Table]:
    """``fedpbc --help`` and ``list``; ``run rivals`` with nothing compiled and with programs on disk."""
    rows, figures = [], {}
    for word in ("--help", "list"):
        taken = [measure(["-m", "fedpbc.cli", word]).wall for _ in range(options.repetitions)]
        rows.append([f"fedpbc {word}", *median_and_range(taken)])
        figures[f"commands.{word}"] = statistics.median(taken)
    with tempfile.TemporaryDirectory() as folder:
        for number, state in enumerate(("nothing compiled", "programs on disk")):
            run = ["-m", "fedpbc.cli", "run", str(RIVALS), "--out", f"{folder}/run{number}"]
            taken = measure(run, f"{folder}/cache").wall
            rows.append([f"fedpbc run rivals_before.toml, {state}", f"{taken:.0f}", f"before: {BEFORE_S}"])
            figures[f"commands.rivals, {state}"] = taken / BEFORE_S
    note = (
        f"Medians of {options.repetitions}; single runs of 24 variants, five seeds, 1000 rounds. "
        "Before: the same file at commit d8bedcd, with the same JAX on the same machine."
    )
    return [Table("Commands, s", ["", "s", "range, or before"], rows, [note], figures)]


def results(options: Options) -> list[Table]:
    """``make results``, all its runs anew: writes docs/results.md too."""
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(["docs/make_results.py", "--runs", f"{folder}/runs"], f"{folder}/cache").wall
    figures = {"results.minutes": taken / 60}
    return [Table("make results", ["", "min"], [["with nothing compiled", f"{taken / 60:.1f}"]], [], figures)]
