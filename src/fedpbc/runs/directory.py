"""The run directory: what a run leaves behind, written so that a kill at any moment loses nothing finished.

While running, ``cells/`` holds one file per finished cell and a checkpoint of the running one; at the end they
become metrics.csv, models/, summary.json and manifest.json, and ``cells/`` goes; the pictures come last. Every file is
written beside itself and renamed. The columns and keys are described in docs/run-directory.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.measures import BEFORE_THE_CONTRACT
from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError, FedpbcError, shorten
from fedpbc.experiment.grid import Cell, CellKey, Experiment
from fedpbc.experiment.part import Part
from fedpbc.io.lock import Lock
from fedpbc.io.whole import damaged, make_folder, read_arrays, replacing, write_arrays, write_text
from fedpbc.runs.inputs import content_of, difference, refuse_inside, stored_content, write_experiment
from fedpbc.runs.metrics import read_metrics, write_metrics
from fedpbc.runs.partition import PICTURE, draw_partition, write_partition
from fedpbc.runs.run import KEYS, CellResult, Models, Run, final_values, summarise
from fedpbc.runs.stamps import changed_since
from fedpbc.runs.structure import rebuilt, rebuilt_leaves

PART = "part.json"
"""In the directory of a part of a grid, from its start: which part."""
_BEFORE_EXPERIMENT = {".lock", "inputs", ".experiment.toml.tmp", PART, f".{PART}.tmp"}
"""What a run that was killed at its very start may have left: nothing to compare with."""


class RunDirectory:
    """The run directory of one experiment, as the run that writes it sees it."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path, self.experiment = path, experiment
        self.cells = path / "cells"
        self._lock: Lock | None = None

    @classmethod
    def open(cls, path: Path, experiment: Experiment, resume: bool) -> RunDirectory:
        """Create DIR, or go on in it. Raises ConfigError before anything is written.

        A DIR with files in it needs ``resume``, and then it must hold the same experiment.
        """
        run = cls(path, experiment)
        try:
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{path}: is a file, the output needs a folder")
            found = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        except OSError as error:
            raise ConfigError(f"{shorten(str(path))}: cannot be used: {error.strerror}") from None
        refuse_inside(path, experiment)
        if found and not resume:
            raise ConfigError(f"{path}: is not empty; go on with --resume, or choose another --out")
        if found - _BEFORE_EXPERIMENT:
            run._check_same()
            if run.complete:
                return run
        make_folder(path)
        run._lock = Lock(path / ".lock", f"{path}: another run is writing there")
        try:
            if not (path / "experiment.toml").exists():
                run._write_part()
                write_experiment(experiment, path / "experiment.toml")
            run.cells.mkdir(exist_ok=True)
        except BaseException:
            run.close()
            raise
        return run

    def _check_same(self) -> None:
        stored_path = self.path / "experiment.toml"
        if not stored_path.is_file():
            raise ConfigError(f"{self.path}: holds no experiment.toml, so there is nothing to resume")
        try:
            stored = tomllib.loads(stored_path.read_text(encoding="utf-8"))
            before = stored_content(stored, self.path)
        except (ValueError, OSError, ConfigError) as error:
            raise ConfigError(f"{stored_path}: cannot be read: {error}") from None
        changed = difference(before, content_of(self.experiment))
        if changed:
            raise ConfigError(f"{self.path}: cannot resume, the experiment changed: {'; '.join(changed[:5])}")
        part, wanted = part_of(self.path), self.experiment.part
        if part != wanted:
            holds = f"part {part} of the grid, go on with --cells {part}" if part else "the whole grid, not a part"
            raise ConfigError(f"{self.path}: cannot resume, it holds {holds}" + (f", not {wanted}" if wanted else ""))

    def _write_part(self) -> None:
        if self.experiment.part is not None:
            write_text(self.path / PART, json.dumps(vars(self.experiment.part)) + "\n")
        else:  # of a run that was killed before it had an experiment
            (self.path / PART).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the directory, so that another run can write to it."""
        if self._lock is not None:
            self._lock.release()

    def checkpoint_path(self, cell: Cell) -> Path:
        """The path of the checkpoint of a running cell."""
        return self.cells / f"{cell_name(self.experiment, cell)}.checkpoint.npz"

    def stored(self, cell: Cell) -> dict[str, np.ndarray] | None:
        """A finished cell as ``save`` wrote it, or None."""
        path = self.path_of(cell)
        return read_arrays(path) if path.is_file() else None

    def load(self, cell: Cell) -> CellResult | None:
        """The result of a finished cell, or None."""
        arrays = self.stored(cell)
        return None if arrays is None else unpack(self.path_of(cell), arrays)

    def path_of(self, cell: Cell) -> Path:
        """Where the result of a finished cell is kept until all are."""
        return self.cells / f"{cell_name(self.experiment, cell)}.npz"

    def save(self, cell: Cell, result: CellResult) -> None:
        """Write the result of a finished cell and delete its checkpoint."""
        write_arrays(self.path_of(cell), pack(result))
        self.checkpoint_path(cell).unlink(missing_ok=True)

    def finish(self, manifest: dict[str, Any], measures: Mapping[str, Measure], results: Any = None) -> None:
        """Write the final files. manifest.json is written last and marks the run as complete.

        ``results``: cells in memory, instead of those under ``cells/``.
        """
        cells = self.experiment.cells()
        (self.path / "models").mkdir(exist_ok=True)
        infos: list[dict[str, Any]] = []
        finals: list[dict[str, Any]] = []

        def each() -> Iterator[tuple[CellKey, CellResult]]:
            """Each finished cell once, its models written on the way."""
            for cell in cells:
                result = self._finished(cell) if results is None else results[cell.key]
                write_arrays(self.path / self._models_file(cell), dict(result.models))
                infos.append({**cell.key._asdict(), "models": self._models_file(cell), **result.info})
                finals.append(final_values(cell.key, result))
                yield cell.key, result

        with replacing(self.path / "metrics.csv") as temporary:
            write_metrics(temporary, each())
        summary = summarise(self.experiment.name, finals, measures)
        write_text(self.path / "summary.json", json.dumps(summary, indent=1))
        part = {"part": str(self.experiment.part)} if self.experiment.part else {}
        write_text(self.path / "manifest.json", json.dumps({**manifest, **part, "cells": infos}, indent=1))
        done = self.path / ".cells.done"  # at once, so that a kill leaves all of them or none
        shutil.rmtree(done, ignore_errors=True)
        if self.cells.exists():
            os.replace(self.cells, done)
        shutil.rmtree(done, ignore_errors=True)

    def _models_file(self, cell: Cell) -> str:
        return f"models/{cell_name(self.experiment, cell)}.npz"

    def _finished(self, cell: Cell) -> CellResult:
        result = self.load(cell)
        if result is None:
            raise FedpbcError(f"{self.path}: the result of {cell_name(self.experiment, cell)} is missing")
        return result

    @property
    def complete(self) -> bool:
        """Whether every cell is finished and written."""
        return (self.path / "manifest.json").is_file() and not any(self.cells.glob("*.npz"))

    def tidy(self, run: Run) -> None:
        """Do what was left to do if a complete run was killed at its very end: delete leftovers, draw the figure."""
        shutil.rmtree(self.path / ".cells.done", ignore_errors=True)
        if not (self.path / "figure.svg").is_file():
            draw_figure(run, self.path)
        if not (self.path / PICTURE).is_file():
            draw_partition(self.path)


def part_of(path: Path) -> Part | None:
    """Which part of a grid a run directory holds; None: all of it. Raises ConfigError when it is damaged."""
    try:
        found = json.loads((path / PART).read_text(encoding="utf-8"))
        return Part.parse(f"{found['index']}/{found['count']}", PART)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, ConfigError) as error:
        raise ConfigError(f"{path / PART}: is damaged: {error}") from None


def draw_figure(run: Run, path: Path, named: Path | None = None) -> None:
    """Write figure.png and figure.svg of a run. If drawing fails, warn: the results themselves are safe.

    ``named``: the directory that the warning names.
    """
    try:
        from fedpbc.plots.runs import draw
        from fedpbc.plots.style import save

        save(draw([run]), path, "figure")
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        here = named or path
        text = f"{here}: no figure could be drawn ({reason}); the results are there, try fedpbc report {here}"
        warnings.warn(text, stacklevel=2)


def write_run(run: Run, out: Path) -> Path:
    """Write a run that was computed in memory. Raises ConfigError when ``out`` is taken or the run was read back."""
    if run.experiment is None:
        raise ConfigError(f"{out}: this run was read back from {run.path}; copy that folder instead")
    changed = changed_since(run.stamps, run.experiment)
    if changed:
        raise ConfigError(f"{out}: what the run read has been written to since: {'; '.join(changed[:5])}")
    directory = RunDirectory.open(out, run.experiment, resume=False)
    try:
        manifest = {key: value for key, value in run.manifest.items() if key != "cells"}
        write_partition(out, run.held)
        directory.finish(manifest, run.measures, run.cells)
    finally:
        directory.close()
    draw_figure(run, out)
    draw_partition(out)
    run.path = out
    return out


def cell_name(experiment: Experiment, cell: Cell) -> str:
    """A readable file name, unique within the experiment."""
    links = [entry.label for entry in experiment.links].index(cell.links.label)
    algorithm = [entry.label for entry in experiment.algorithms].index(cell.algorithm.label)
    method = f"{algorithm}-{_slug(cell.algorithm.label)}"
    return f"{links}-{_slug(cell.links.label)}_{method}_{cell.compute}_seed{cell.seed}"


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")[:40]


def pack(result: CellResult) -> dict[str, np.ndarray]:
    """A cell's result as plain arrays, to be saved as .npz."""
    return {
        "info": np.frombuffer(json.dumps(result.info).encode(), np.uint8),
        **{f"rows/{name}": values for name, values in result.rows.items()},
        **{f"models/{name}": values for name, values in result.models.items()},
    }


def unpack(path: Path, arrays: dict[str, np.ndarray]) -> CellResult:
    """The inverse of ``pack``; other arrays are ignored. Raises FedpbcError when they are no cell."""
    try:
        return _unpack(arrays)
    except (ValueError, LookupError, AttributeError) as error:
        raise damaged(path, error) from None


def _unpack(arrays: dict[str, np.ndarray]) -> CellResult:
    parts: dict[str, dict[str, np.ndarray]] = {"rows": {}, "models": {}}
    for name, values in arrays.items():
        part, _, rest = name.partition("/")
        if part in parts:
            parts[part][rest] = values
    return CellResult(parts["rows"], parts["models"], json.loads(arrays["info"].tobytes()))


def read_run(path: str | Path) -> Run:
    """Read a finished run directory. Raises ConfigError when it is none."""
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such run directory")
    wanted = ("experiment.toml", "metrics.csv", "summary.json", "manifest.json")
    missing = [n for n in wanted if not (path / n).is_file()]
    if missing:
        unfinished = (path / "cells").is_dir()
        hint = "; the run did not finish, go on with --resume" if unfinished else ""
        raise ConfigError(f"{path}: is not a finished run directory, {missing[0]} is missing{hint}")
    try:
        table = tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8"))
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        metrics = read_metrics(path / "metrics.csv", np.dtype(table["precision"]))
        cells = _cells_of(path, metrics, manifest["cells"])
        manifest["cells"] = [{**key._asdict(), **cell.info} for key, cell in cells.items()]
        if not all(group["final"] for group in summary["groups"]):
            raise ValueError("summary.json has no final values")
        described = summary.get("measures")
        measures = {name: Measure(**fields) for name, fields in described.items()} if described else BEFORE_THE_CONTRACT
        _check_rows(table, cells)
        structure = manifest.get("model")
        tree = partial(rebuilt, structure) if structure else None
        kept: Any = manifest.get("buffers")
        as_list = list if "buffers" in manifest else None  # of containers that only their own code can make
        buffers = partial(rebuilt_leaves, kept) if kept else as_list
        return Run(table, cells, dict(measures), manifest, path, tree=tree, buffers=buffers)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: is damaged: {type(error).__name__} {error}") from None


def _cells_of(path: Path, metrics: dict[str, np.ndarray], infos: list[dict[str, Any]]) -> dict[CellKey, CellResult]:
    """The rows of each cell, which stand together in metrics.csv, and its models when they are asked for."""
    cells, first, num_rows = {}, 0, len(metrics["round"])
    changes = np.zeros(num_rows, bool)
    for name in KEYS:
        changes[1:] |= metrics[name][1:] != metrics[name][:-1]
    ends = [*np.flatnonzero(changes).tolist(), num_rows]
    for info, last in zip(infos, ends, strict=True):
        key = CellKey(*(info[name] for name in KEYS))
        if any(metrics[name][first] != getattr(key, name) for name in KEYS):
            raise ValueError(f"metrics.csv has no rows of {key} where they should be")
        rows = {name: values[first:last] for name, values in metrics.items() if name not in KEYS}
        if np.any(np.diff(rows["round"]) <= 0):
            raise ValueError(f"the rows of {key} in metrics.csv are not in the order of rounds")
        rest = {k: v for k, v in info.items() if k not in (*KEYS, "models")}
        cells[key] = CellResult(rows, Models(path / info["models"]), rest)
        first = last
    return cells


def _check_rows(table: dict[str, Any], cells: dict[CellKey, CellResult]) -> None:
    """Every cell has the rows that its experiment asks for, unless it was stopped early."""
    for key, cell in cells.items():
        last = cell.info.get("stopped_after", table["rounds"])
        wanted = len({*range(0, last + 1, table["eval_every"]), last})
        if len(cell.rows["round"]) != wanted:
            raise ValueError(f"metrics.csv has {len(cell.rows['round'])} rows of {key}, not {wanted}")
