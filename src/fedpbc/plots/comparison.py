"""What a comparison adds to a table: the best and the tied are marked, and what it took to reach a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpbc.compare.targets import Comparison, Target, reached
from fedpbc.compare.ties import Ties, ties
from fedpbc.core.measures import ACTIVE, WORST
from fedpbc.plots.spread import last_values
from fedpbc.runs.run import Group, Run

BEST, TIED = " *", " ="


class Compared:
    """The runs of a table, compared: methods under the same links, where the same clients compute, within a run."""

    def __init__(self, runs: Sequence[Run], comparison: Comparison) -> None:
        self.runs, self.comparison = runs, comparison
        self._ties: dict[tuple[int, str, str, str], dict[str, str]] = {}

    def metrics(self, shown: Sequence[str]) -> list[str]:
        """Those shown, and those by client that every run measures; beside the active clients' mean that of all."""
        known = [m for m in self.runs[0].measures if all(f"server_{m}" in run.columns for run in self.runs)]
        found = list(shown)
        for name in known:
            if name.startswith(ACTIVE):
                found += [f"{name.removeprefix(ACTIVE)}_by_client", name]
            elif name.startswith(WORST):
                found.append(name)
        return [name for name in dict.fromkeys(found) if name in known]

    def mark(self, run: Run, group: Group, column: str) -> str:
        """Behind a value: best, tied with it, or neither."""
        key = id(run), group.links, group.compute, column
        if key not in self._ties:
            self._ties[key] = marks(run, group, column)
        return self._ties[key].get(group.algorithm, " " * len(BEST) if self._ties[key] else "")

    def columns(self) -> list[tuple[str, str]]:
        """(name, heading) of what it took to reach each target."""
        kinds = {"rounds": "rounds", "gradient_steps": "gradient steps", "bytes_up": "MB up"}
        kinds |= {"seconds": "seconds"} if self.comparison.clock else {}
        return [
            (f"{kind} to {i}", f"{title} to {target.metric.replace('_', ' ')} {target.value:g}")
            for i, target in enumerate(self.comparison.targets)
            for kind, title in kinds.items()
        ]

    def cell(self, run: Run, group: Group, name: str) -> str:
        """The median over the seeds; how many of them reached the target, where not all did."""
        kind, _, place = name.rpartition(" to ")
        target: Target = self.comparison.targets[int(place)]
        values = getattr(reached(run, group, target, self.comparison.clock), kind)
        values = values / 1e6 if kind == "bytes_up" else values
        count = int(np.isfinite(values).sum())
        middle = float(np.median(values))
        text = "never" if np.isinf(middle) else f"{middle:,.3g}" if middle < 100 else f"{middle:,.0f}"
        return text if count in (0, len(values)) else f"{text} ({count}/{len(values)})"

    def notes(self) -> list[str]:
        """What the marks and columns are."""
        counts = sorted({len(run.table["seeds"]) for run in self.runs})
        seeds = " or ".join(map(str, counts))
        if counts[-1] < 2:
            lines = [f"{BEST.strip()} best. One seed: nothing can be tested."]
        else:
            lines = [
                f"{BEST.strip()} best mean; {TIED.strip()} not told apart from it by a paired t-test over {seeds} "
                "seeds at 5 %, corrected for the methods under one link setting (Holm)."
            ]
        if self.comparison.targets:
            lines.append("to a target: until the first evaluated round that reaches it, the median over the seeds; a "
                         "seed that does not counts as infinitely late.")  # fmt: skip
        return lines


def marks(run: Run, group: Group, column: str) -> dict[str, str]:
    """Label of a method -> its mark, under the links of a group; empty where no value is better than another."""
    rivals = [one for one in run.groups if (one.links, one.compute) == (group.links, group.compute)]
    found: Ties = ties([last_values(run, one, column) for one in rivals], run.measure(column).better)
    if found.best is None:
        return {}
    return {rivals[found.best].algorithm: BEST} | {rivals[i].algorithm: TIED for i in found.tied}
