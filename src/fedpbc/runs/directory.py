"""The run directory: what a run leaves behind, written so that a kill at any moment loses nothing finished.

While running, ``cells/`` holds one file per finished cell and a checkpoint of the running one; at the end they
become metrics.csv, models/, summary.json and manifest.json, and ``cells/`` goes; figure.png/.svg come last. Every file
is written beside itself and renamed. The columns and keys are described in docs/run-directory.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedpbc.core.measures import BEFORE_THE_CONTRACT
from fedpbc.core.types import Measure
from fedpbc.data.arrays import Arrays
from fedpbc.errors import ConfigError, FedpbcError, shorten
from fedpbc.experiment.grid import Cell, CellKey, Experiment
from fedpbc.experiment.part import Part
from fedpbc.io.lock import Lock
from fedpbc.io.whole import damaged, read_arrays, replacing, write_arrays, write_text
from fedpbc.runs.metrics import read_metrics, write_metrics
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
        if found and not resume:
            raise ConfigError(f"{path}: is not empty; go on with --resume, or choose another --out")
        if found - _BEFORE_EXPERIMENT:
            run._check_same()
            if run.complete:
                return run
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be created: {error.strerror}") from None
        run._lock = Lock(path / ".lock", f"{path}: another run is writing there")
        try:
            if not (path / "experiment.toml").exists():
                run._write_part()
                run._write_experiment()
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
            before = _stored_content(stored, self.path)
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

    def _write_experiment(self) -> None:
        """The resolved experiment, with a copy beside it of every file, array and source it rests on."""
        names: dict[Any, str] = {}
        for key, file in self.experiment.files().items():
            name = _copy_name(key, file)
            if _identity(file) in names or name is None:
                continue
            inputs = self.path / "inputs"
            inputs.mkdir(exist_ok=True)
            taken = name in names.values()
            name = re.sub(r"[^A-Za-z0-9]+", "-", key) + Path(name).suffix if taken else name
            names[_identity(file)] = name
            with replacing(inputs / name) as temporary:
                if isinstance(file, Path):
                    shutil.copyfile(file, temporary)
                else:
                    file.write(temporary)

        def written(file: Any) -> str:
            return f"inputs/{names[_identity(file)]}" if _identity(file) in names else str(file)

        table = self.experiment.table(written)
        write_text(self.path / "experiment.toml", tomli_w.dumps(table))

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
        directory.finish(manifest, run.measures, run.cells)
    finally:
        directory.close()
    draw_figure(run, out)
    run.path = out
    return out


def _identity(file: Any) -> Any:
    """Functions of one file, and the file itself, have one copy."""
    return file.path if getattr(file, "path", None) is not None and hasattr(file, "qualname") else file


def _copy_name(key: str, file: Any) -> str | None:
    """The name of a copy under ``inputs/``; None for code in a package, which has no copy."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", key)
    if isinstance(file, Path):
        return file.name if file.suffix == ".py" else plain + file.suffix
    if hasattr(file, "qualname"):
        return file.path.name if file.path is not None and file.found_by_name else None
    return plain + str(file.suffix)


def content_of(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a table, with hashes of the files' contents instead of their names."""
    return experiment.table(_digest)


def _digest(file: Any) -> str:
    """What stands for a file, data or source when two experiments are compared; the same arrays are the same data."""
    if not isinstance(file, Path):
        return f"content with SHA-256 {file.digest()}" if _copy_name("", file) else str(file)
    if file.suffix == ".npz":  # arrays given in Python are compared with the copy of them
        with suppress(FedpbcError):
            return f"content with SHA-256 {Arrays(read_arrays(file)).digest()}"
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    return f"content with SHA-256 {digest}"


def _stored_content(stored: dict[str, Any], base: Path) -> dict[str, Any]:
    """The same of a run directory, without building components that only Python can make."""
    made_in_python = "made in Python" in json.dumps(stored)
    if not made_in_python:
        return content_of(Experiment.from_table(stored, base))
    return content_as_written(stored, base)


def content_as_written(stored: dict[str, Any], base: Path) -> dict[str, Any]:
    """The stored experiment, with hashes of the files in ``inputs/`` instead of their names. Runs no code."""

    def content(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: content(item) for key, item in value.items()}
        if isinstance(value, list):
            return [content(item) for item in value]
        if isinstance(value, str) and value.startswith("inputs/"):
            name, colon, attribute = value.partition(":")
            return _digest(base / name) + colon + attribute
        return value

    table: dict[str, Any] = content(stored)
    return table


def difference(before: Any, now: Any, key: str = "") -> list[str]:
    """The differences between two tables, one line per key."""
    if isinstance(before, dict) and isinstance(now, dict):
        lines = []
        for name in dict.fromkeys([*before, *now]):
            lines += difference(before.get(name), now.get(name), f"{key}.{name}" if key else name)
        return lines
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            line for i, pair in enumerate(zip(before, now, strict=True)) for line in difference(*pair, f"{key}[{i}]")
        ]
    return [] if before == now else [f"{key} was {_shown(before)}, is {_shown(now)}"]


def _shown(value: Any) -> str:
    return "absent" if value is None else shorten(value, 80)


def cell_name(experiment: Experiment, cell: Cell) -> str:
    """A readable file name, unique within the experiment."""
    links = experiment.links.index(cell.links)
    algorithm = experiment.algorithms.index(cell.algorithm)
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
