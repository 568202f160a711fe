"""Measure settings: one experiment per rung, kept so that a kill at any moment loses nothing finished."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fedpbc.core.programs import Programs
from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError, shorten, suggest
from fedpbc.experiment.grid import Cell, Experiment
from fedpbc.io.whole import damaged, write_text
from fedpbc.runs.directory import RunDirectory
from fedpbc.runs.run import CellResult
from fedpbc.runs.runner import Grid, Progress, settings_of
from fedpbc.tuning.record import COSTS

Measured = dict[str, Any]
"""Of one setting: ``values``, one per links, compute and seed in this order, and what it cost."""


class _Cells(RunDirectory):
    """The cells of a rung, without their models."""

    def save(self, cell: Cell, result: CellResult) -> None:
        """Only what is measured."""
        super().save(cell, dataclasses.replace(result, models={}))


@dataclass
class Rungs:
    """Where settings are measured, and what is measured already."""

    metric: str
    folder: Path | None
    """For what is finished; None: nothing is kept."""
    devices: int | None
    progress: Progress | None
    measure: Measure = field(default_factory=partial(Measure, ""))
    """What the metric is, once it was looked up."""

    def __post_init__(self) -> None:
        self.programs = Programs(jax.devices())

    def check(self, experiment: Experiment) -> None:
        """Build everything once. Raises ConfigError."""
        with settings_of(experiment):
            self._check(Grid(experiment, self.devices, programs=self.programs))

    def run(self, name: str, experiment: Experiment) -> list[Measured]:
        """Every algorithm of an experiment, in order; what is finished under this name is read."""
        folder = self.folder / name if self.folder else None
        done = folder / "measured.json" if folder else None
        labels = [algorithm.label for algorithm in experiment.algorithms]
        if done and done.is_file():
            found = _read(done, labels, len(experiment.cells()) // len(labels))
            shutil.rmtree(done.parent / "cells", ignore_errors=True)  # of a kill just after it was written
            if self.progress:
                for cell in experiment.cells():
                    self.progress(cell.key, 0, experiment.rounds)
            return found
        directory = _Cells(folder, experiment) if folder else None
        if directory:
            directory.cells.mkdir(parents=True, exist_ok=True)
        with settings_of(experiment):
            grid = Grid(experiment, self.devices, self.progress, self.programs)
            self._check(grid)
            finished = grid.run_cells(experiment.cells(), directory)
        results = {cell.key: finished[cell.key] for cell in experiment.cells()}
        column = f"server_{self.metric}"
        cells: dict[str, list[CellResult]] = {label: [] for label in labels}
        for key, result in results.items():
            cells[key.algorithm].append(result)
        measured = [_measured(cells[label], column) for label in labels]
        if directory and done:
            text = {"rounds": experiment.rounds, "settings": dict(zip(labels, measured, strict=True))}
            write_text(done, json.dumps(text, indent=1))
            shutil.rmtree(directory.cells, ignore_errors=True)
        return measured

    def _check(self, grid: Grid) -> None:
        grid.check()
        if self.metric not in grid.measures:
            hint = suggest(self.metric, grid.measures)
            known = ", ".join(grid.measures)
            raise ConfigError(f"tune.metric = {shorten(self.metric)}: is not measured{hint}; allowed: {known}")
        if grid.measures[self.metric].better == "neither":
            raise ConfigError(f"tune.metric = {shorten(self.metric)}: no value of it is better than another")
        self.measure = grid.measures[self.metric]


def _measured(cells: Sequence[CellResult], column: str) -> Measured:
    values = [
        float(cell.rows[column][-1]) if cell.info["first_nonfinite_round"] is None else math.nan for cell in cells
    ]
    return {
        "values": [value if math.isfinite(value) else None for value in values],
        "rounds": sum(int(cell.rows["round"][-1]) for cell in cells),
        "gradient_steps": sum(int(cell.rows["gradient_steps"][-1]) for cell in cells),
        "seconds": round(sum(cell.info["compile_s"] + cell.info["run_s"] for cell in cells), 3),
    }


def _read(path: Path, labels: Sequence[str], runs: int) -> list[Measured]:
    """What ``_measured`` gave of each setting, of so many runs. Raises FedpbcError."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))["settings"]
        found = [settings[label] for label in labels]
        for label, one in zip(labels, found, strict=True):
            numbers = [*(value for value in one["values"] if value is not None), *(one[name] for name in COSTS)]
            if len(one["values"]) != runs or not all(type(n) in (int, float) and math.isfinite(n) for n in numbers):
                raise ValueError(f"{label}: must hold {runs} values, rounds, gradient_steps and seconds")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise damaged(path, error) from None
    return found
