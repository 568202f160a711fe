"""About how long a grid will take, told before it starts: one cell is tried for a moment, the rest counted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from fedpbc.core.schema import Component
from fedpbc.experiment.grid import Cell, Experiment
from fedpbc.runs.progress import duration
from fedpbc.runs.runner import Grid, settings_of

TRIED_SECONDS = 0.3
"""For so long rounds are tried."""
SAVED = "/jax/compilation_cache/compile_time_saved_sec"
"""JAX's event for a program that was read from disk: the seconds that compiling it took once, less those of reading."""


@dataclass(frozen=True)
class Estimate:
    """What there is to do, and what it took where it was tried."""

    programs: int
    """To be compiled, or read from disk."""
    rounds: int
    rows: int
    """Evaluations."""
    workers: int
    """Cells side by side."""
    compile_s: float
    """Of one program, here and now."""
    saved_s: float
    """How much longer that takes where it is not on disk."""
    round_s: float
    row_s: float
    tried: str
    """Which cell."""

    @property
    def seconds(self) -> tuple[float, float]:
        """At least and at most: cells side by side cost nothing, or save nothing; programs are all on disk, or none.

        >>> Estimate(3, 100, 10, 2, 1.0, 4.0, 0.5, 0.1, "a").seconds
        (27.0, 66.0)
        """
        work = self.rounds * self.round_s + self.rows * self.row_s
        low = (self.programs * self.compile_s + work) / self.workers
        return low, self.programs * (self.compile_s + self.saved_s) + work

    @property
    def line(self) -> str:
        """In words."""
        low, high = map(duration, self.seconds)
        return (
            f"about {low if low == high else f'{low} to {high}'} on this machine: {self.rounds:,} rounds of "
            f"{1e3 * self.round_s:.3g} ms, {self.rows:,} evaluations of {1e3 * self.row_s:.3g} ms, {self.programs:,} "
            f"programs of {self.compile_s + self.saved_s:.1f} s to compile, up to {self.workers} at a time; tried with "
            f"{self.tried}, others may differ"
        )


def estimate(experiment: Experiment, devices: int | None = None, rounds: int = 0, rows: int = 0) -> Estimate:
    """Of the cells of an experiment: compiles the first one's program and runs it for a moment.

    ``rounds``, ``rows``: how many there are in all, where that is not what the experiment says. Raises ConfigError.
    """
    cells = experiment.cells()
    per_cell = 2 + (experiment.rounds - 1) // experiment.eval_every
    with settings_of(experiment):
        grid = Grid(experiment.replace(eval_every=experiment.rounds), devices)
        grid.check()
        grid.num_workers = grid.room(cells)[0]
        return Estimate(
            num_programs(grid, cells),
            rounds or len(cells) * experiment.rounds,
            rows or len(cells) * per_cell,
            grid.num_workers,
            *_tried(grid, cells[0]),
            tried=cells[0].algorithm.label,
        )


def num_programs(grid: Grid, cells: Sequence[Cell]) -> int:
    """How many programs the cells need: those of one have the same functions and shapes."""
    seed = cells[0].seed
    context = grid.experiment.context(seed, grid.drawn(seed))
    built: dict[int, Any] = {}

    def kind(component: Component[Any]) -> Any:
        if id(component) not in built:
            leaves, tree = jax.tree.flatten(component.build(context))
            shapes = tuple((jax.numpy.shape(leaf), jax.numpy.result_type(leaf)) for leaf in leaves)
            built[id(component)] = (tree, shapes)
        return built[id(component)]

    return len(
        {
            (*map(kind, (c.links, c.algorithm, c.learning_rate)), c.compute, c.local_steps, c.batch_size)
            for c in cells
            if c.seed == seed
        }
    )


def _tried(grid: Grid, cell: Cell) -> tuple[float, float, float, float]:
    """Seconds of compiling, those saved by the disk, of a round, of a row."""
    with _saved() as saved:
        simulation = grid.simulation(cell)
    simulation.start()  # the first time is slower
    simulation.advance(1)
    rounds, began = 1, time.perf_counter()
    simulation.start()
    row_s = time.perf_counter() - began
    while True:
        began = time.perf_counter()
        simulation.advance(rounds)
        took = time.perf_counter() - began
        if took > TRIED_SECONDS or 5 * rounds + 1 >= simulation.num_rounds:
            return simulation.compile_seconds, sum(saved), took / rounds, row_s
        rounds *= 4
        simulation.start()


@contextmanager
def _saved() -> Iterator[list[float]]:
    """The seconds that programs on disk save while the block runs."""
    found: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == SAVED:
            found.append(max(duration_secs, 0.0))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
