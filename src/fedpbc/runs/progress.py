"""Progress of a run: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedpbc.experiment.grid import CellKey, Experiment

LINE_SECONDS = 30.0
"""Between two lines where there is no terminal."""


class _Speed(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Any) -> Text:
        return Text(f"{task.speed:,.0f} rounds/s" if task.speed else "- rounds/s", style="cyan")


class _Count:
    """Rounds that are done, and what is being done."""

    def __init__(self, experiment: Experiment) -> None:
        self.cells = len(experiment.cells())
        self.total = self.cells * experiment.rounds
        self.done = 0
        self.seen: set[CellKey] = set()

    def text(self, cell: CellKey, advanced: int, restored: int) -> str:
        """Count, and say which run it is."""
        compiling = cell not in self.seen and advanced == restored == 0
        self.seen.add(cell)
        self.done += advanced
        self.total -= restored
        doing = "compiling" if compiling else "run"
        return f"{doing} {len(self.seen)}/{self.cells} {cell.algorithm}, {cell.links[:24]}, seed {cell.seed}"


@contextmanager
def shown(experiment: Experiment, stream: TextIO, quiet: bool) -> Iterator[Callable[[CellKey, int, int], None] | None]:
    """What ``fedpbc.runs.runner.run`` calls to tell its progress; None when nothing is to be said."""
    if quiet:
        yield None
        return
    console, count = Console(file=stream), _Count(experiment)
    if not console.is_terminal:
        yield _lines(stream, count)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("preparing", total=count.total)

        def update(cell: CellKey, advanced: int, restored: int) -> None:
            text = count.text(cell, advanced, restored)
            progress.update(task, description=text, advance=advanced, total=count.total)

        yield update


def _lines(stream: TextIO, count: _Count) -> Callable[[CellKey, int, int], None]:
    began = last = time.monotonic()

    def update(cell: CellKey, advanced: int, restored: int) -> None:
        nonlocal last
        text, now = count.text(cell, advanced, restored), time.monotonic()
        if now - last >= LINE_SECONDS:
            last = now
            share = count.done / max(count.total, 1)
            left = f", about {(now - began) * (1 - share) / share:,.0f} s left" if share > 0.01 else ""
            stream.write(f"{text}: {count.done:,} of {count.total:,} rounds{left}\n")
            stream.flush()

    return update
