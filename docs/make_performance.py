"""Writes the measured part of docs/performance.md from benchmarks/results/*.json.

python benchmarks/bench.py --out benchmarks/results    # measures; parts may be measured one at a time
python docs/make_performance.py                        # writes what lies between the two marks
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin (written by docs/make_performance.py) -->", "<!-- measured: end -->"
ORDER = ("machine", "w1", "w2", "active", "networks", "outside", "scale", "commands", "results", "flower", "audit")
"""Parts shown here."""


def section() -> str:
    """The table of goals, and what each part printed."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from goals import goals_table

    parts = [json.loads(path.read_text()) for name in ORDER if (path := RESULTS / f"{name}.json").is_file()]
    figures = {name: value for part in parts for name, value in part["figures"].items()}
    lines = [goals_table(figures).markdown().replace("### Goals", "## Goals")]
    for part in parts:
        lines += part["markdown"]
        load = f"load average {part['load'][0]} at the end, {part['load'][1]} over 15 minutes"
        lines.append(f"*{part['when']}, {load}, that of this work included; niceness {part['niceness']}.*\n")
    gpu = RESULTS / "gpu.json"
    lines.append("### On a GPU, by benchmarks/gpu.py\n")
    none = "Not measured: none was at hand.\n"
    lines.append("\n".join(json.loads(gpu.read_text())["markdown"]) if gpu.is_file() else none)
    return "\n".join(lines)


def main() -> None:
    """Replace what lies between the marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{section()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
