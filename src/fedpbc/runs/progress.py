"""Progress of a run: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedpbc.experiment.grid import CellKey

LINE_SECONDS = 30.0
"""Between two lines where there is no terminal."""


class _Speed(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Any) -> Text:
        return Text(f"{task.speed:,.0f} rounds/s" if task.speed else "- rounds/s", style="cyan")


class _Count:
    """Rounds that are done, and what is being done."""

    def __init__(self, cells: int, rounds: int) -> None:
        self.cells, self.total = cells, rounds
        self.done = 0
        self.seen: set[CellKey] = set()
        self.doing, self.which = "preparing data", ""

    def count(self, cell: CellKey, advanced: int, restored: int) -> None:
        """``restored`` rounds were done by an earlier call: neither done nor left."""
        starts = cell not in self.seen
        self.seen.add(cell)
        self.done += advanced
        self.total -= restored
        self.doing = f"{'compiling' if starts and not restored else 'run'} {len(self.seen)}/{self.cells}"
        self.which = f"{cell.algorithm}, {cell.links}, seed {cell.seed}"

    def text(self, width: int = 200) -> str:
        """What is being done, in at most ``width`` columns."""
        whole = f"{self.doing} {self.which}".rstrip()
        if len(whole) <= width:
            return whole
        room = width - len(self.doing) - 4
        return f"{self.doing} {set_cell_size(self.which, room).rstrip()}..." if room > 8 else self.doing


@contextmanager
def shown(cells: int, rounds: int, stream: TextIO, quiet: bool) -> Iterator[Callable[[CellKey, int, int], None] | None]:
    """Show progress of so many cells, of so many rounds in all, while the block runs.

    Gives the function that the runner calls, or None when quiet.
    """
    if quiet:
        yield None
        return
    console, count = Console(file=stream), _Count(cells, rounds)
    if not console.is_terminal:
        with _lines(stream, count):
            yield count.count
        return
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
    columns += [BarColumn(bar_width=16)] if console.width >= 76 else []
    columns += [MofNCompleteColumn()] if console.width >= 50 else []
    columns += [_Speed()] if console.width >= 90 else []
    columns += [TimeRemainingColumn()]
    rounds = 2 * len(str(count.total)) + 1
    taken = sum((17 * (console.width >= 76), (rounds + 1) * (console.width >= 50), 16 * (console.width >= 90), 9))
    room = max(8, console.width - taken)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(count.text(room), total=count.total)

        def update(cell: CellKey, advanced: int, restored: int) -> None:
            count.count(cell, advanced, restored)
            progress.update(task, description=count.text(room), advance=advanced, total=count.total)

        yield update


@contextmanager
def _lines(stream: TextIO, count: _Count) -> Iterator[None]:
    """A line every LINE_SECONDS from a thread of its own: compiling may take longer than that."""
    ended, began = threading.Event(), time.monotonic()

    def speak() -> None:
        while not ended.wait(LINE_SECONDS):
            share = count.done / max(count.total, 1)
            left = f", about {duration((time.monotonic() - began) * (1 - share) / share)} left" if share > 0.01 else ""
            with suppress(OSError, ValueError):  # nobody reads any more: no reason to end the run
                stream.write(f"{count.text()}: {count.done:,} of {count.total:,} rounds{left}\n")
                stream.flush()

    thread = threading.Thread(target=speak, name="fedpbc progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def duration(seconds: float) -> str:
    """In whole seconds or minutes."""
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
