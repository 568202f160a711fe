"""The run directory: what a run leaves behind, written so that a kill at any moment loses nothing finished.

While running, ``cells/`` holds one file per finished cell and a checkpoint of the running one; at the end they
become metrics.csv, models/, summary.json, figure.png/.svg and manifest.json, and ``cells/`` goes. Every file is
written beside itself and renamed. The columns and keys are described in docs/run-directory.md.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedpbc.errors import ConfigError, FedpbcError, shorten
from fedpbc.experiment import Cell, CellKey, Experiment
from fedpbc.files import Lock, damaged, read_arrays, replacing, write_arrays, write_text

KEY_COLUMNS = (*CellKey._fields, "round")


@dataclass
class CellResult:
    """What one run of the grid gave."""

    rows: dict[str, np.ndarray]
    """Column name -> one value per evaluated round; ``round`` is one of them."""
    models: dict[str, np.ndarray]
    """``server``, ``mean`` and ``server_average``, each [d]."""
    info: dict[str, Any]
    """compile_s, run_s, total_s, ms_per_round, num_devices, first_nonfinite_round."""


_BEFORE_EXPERIMENT = {".lock", "inputs", ".experiment.toml.tmp"}
"""What a run that was killed at its very start may have left: nothing to compare with."""


class RunDirectory:
    """DIR of one experiment, for the run that writes it."""

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
            before = Experiment.from_table(stored, self.path)
        except (ValueError, OSError, ConfigError) as error:
            raise ConfigError(f"{stored_path}: cannot be read: {error}") from None
        changed = _difference(_content(before), _content(self.experiment))
        if changed:
            raise ConfigError(f"{self.path}: cannot resume, the experiment changed: {'; '.join(changed[:5])}")

    def _write_experiment(self) -> None:
        """The resolved experiment, with a copy of every file it reads beside it."""
        table = self.experiment.table()
        for key, path in self.experiment.paths().items():
            name = re.sub(r"[^A-Za-z0-9]+", "-", key) + path.suffix
            (self.path / "inputs").mkdir(exist_ok=True)
            with replacing(self.path / "inputs" / name) as temporary:
                shutil.copyfile(path, temporary)
            _replace_value(table, str(path), f"inputs/{name}")
        write_text(self.path / "experiment.toml", tomli_w.dumps(table))

    def close(self) -> None:
        """Let another run write to DIR."""
        if self._lock is not None:
            self._lock.release()

    def checkpoint_path(self, cell: Cell) -> Path:
        """Where the state of a running cell is kept."""
        return self.cells / f"{cell_name(self.experiment, cell)}.checkpoint.npz"

    def load(self, cell: Cell) -> CellResult | None:
        """The result of a finished cell, or None."""
        path = self.cells / f"{cell_name(self.experiment, cell)}.npz"
        return unpack(path, read_arrays(path)) if path.is_file() else None

    def save(self, cell: Cell, result: CellResult) -> None:
        """Keep a finished cell; its checkpoint goes."""
        write_arrays(self.cells / f"{cell_name(self.experiment, cell)}.npz", pack(result))
        self.checkpoint_path(cell).unlink(missing_ok=True)

    def finish(self, manifest: dict[str, Any], draw: Callable[[Path], None]) -> None:
        """Write what others read; manifest.json comes last and says that the run is complete."""
        cells = self.experiment.cells()
        (self.path / "models").mkdir(exist_ok=True)
        infos: list[dict[str, Any]] = []
        finals: list[dict[str, Any]] = []

        def results() -> Iterator[tuple[Cell, CellResult]]:
            """Each finished cell once, its models written on the way."""
            for cell in cells:
                result = self._finished(cell)
                write_arrays(self.path / self._models_file(cell), result.models)
                infos.append({**cell.key._asdict(), "models": self._models_file(cell), **result.info})
                finals.append(final_values(cell.key, result))
                yield cell, result

        with replacing(self.path / "metrics.csv") as temporary:
            write_metrics(temporary, results())
        write_text(self.path / "summary.json", json.dumps(summarise(self.experiment.name, finals), indent=1))
        draw(self.path)
        write_text(self.path / "manifest.json", json.dumps({**manifest, "cells": infos}, indent=1))
        done = self.path / ".cells.done"  # at once, so that a kill leaves all of them or none
        shutil.rmtree(done, ignore_errors=True)
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
        """Every cell is finished and written."""
        return (self.path / "manifest.json").is_file() and not any(self.cells.glob("*.npz"))

    def read_back(self) -> dict[CellKey, CellResult]:
        """Every cell of a complete run, from the files it left. Raises FedpbcError when they are damaged."""
        try:
            return self._read_back()
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise FedpbcError(f"{self.path}: is damaged ({error}); run it anew with another --out") from None

    def _read_back(self) -> dict[CellKey, CellResult]:
        metrics = read_run(self.path).metrics
        infos = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))["cells"]
        results = {}
        for cell, info in zip(self.experiment.cells(), infos, strict=True):
            chosen = np.ones(len(metrics["round"]), bool)
            for column, value in cell.key._asdict().items():
                chosen &= metrics[column] == value
            rows = {name: values[chosen] for name, values in metrics.items() if name not in CellKey._fields}
            info = {key: value for key, value in info.items() if key not in (*CellKey._fields, "models")}
            results[cell.key] = CellResult(rows, read_arrays(self.path / self._models_file(cell)), info)
        return results


def _content(experiment: Experiment) -> dict[str, Any]:
    """The experiment with the content of its files instead of their names."""
    table = experiment.table()
    for path in experiment.paths().values():
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        _replace_value(table, str(path), f"file with SHA-256 {digest}")
    return table


def _replace_value(table: Any, old: str, new: str) -> None:
    items = table.items() if isinstance(table, dict) else enumerate(table)
    for key, value in list(items):
        if value == old:
            table[key] = new
        elif isinstance(value, dict | list):
            _replace_value(value, old, new)


def _difference(before: Any, now: Any, key: str = "") -> list[str]:
    """What changed, one line per key."""
    if isinstance(before, dict) and isinstance(now, dict):
        lines = []
        for name in dict.fromkeys([*before, *now]):
            lines += _difference(before.get(name), now.get(name), f"{key}.{name}" if key else name)
        return lines
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            line for i, pair in enumerate(zip(before, now, strict=True)) for line in _difference(*pair, f"{key}[{i}]")
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
    """A result as plain arrays."""
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


def write_metrics(path: Path, results: Iterable[tuple[Cell, CellResult]]) -> None:
    """metrics.csv: the five key columns, then the metrics; floats as the shortest text that reads back the same."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        header: list[str] = []
        for cell, result in results:
            if not header:
                header = metric_names(result.rows)
                writer.writerow([*KEY_COLUMNS, *header])
            columns = [result.rows[name] for name in ("round", *header)]
            texts = [map(_text_of(column), column.tolist()) for column in columns]
            keys = cell.key
            writer.writerows((*keys, *row) for row in zip(*texts, strict=True))


def _text_of(column: np.ndarray) -> Any:
    """float32 values are written as float32, so that 0.1 stays 0.1."""
    return (lambda value: str(np.float32(value))) if column.dtype == np.float32 else str


def metric_names(rows: dict[str, np.ndarray]) -> list[str]:
    """Metric columns in reading order: server and mean of a metric side by side, then the rest."""
    models = [name for name in rows if name.startswith(("server_", "mean_"))]
    pairs = sorted(models, key=lambda name: (name.partition("_")[2], name.startswith("mean_")))
    return pairs + sorted(name for name in rows if name not in models and name != "round")


def final_values(key: CellKey, result: CellResult) -> dict[str, Any]:
    """The last row of a cell."""
    final = {name: result.rows[name][-1].item() for name in metric_names(result.rows)}
    return {**key._asdict(), "round": int(result.rows["round"][-1]), "final": final}


def summarise(name: str, finals: list[dict[str, Any]]) -> dict[str, Any]:
    """Final values per cell, and their mean and standard deviation (ddof 1) over the seeds of a group."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in finals:
        groups.setdefault((cell["links"], cell["algorithm"], cell["compute"]), []).append(cell)
    summary = []
    for (links, algorithm, compute), members in groups.items():
        statistics = {}
        for metric in members[0]["final"]:
            values = np.array([member["final"][metric] for member in members], np.float64)
            sd = values.std(ddof=1) if len(values) > 1 else np.nan
            statistics[metric] = {"mean": _json(values.mean()), "sd": _json(sd)}
        keys = {"links": links, "algorithm": algorithm, "compute": compute}
        summary.append({**keys, "seeds": [member["seed"] for member in members], "final": statistics})
    cells = [{**cell, "final": {k: _json(v) for k, v in cell["final"].items()}} for cell in finals]
    return {"experiment": name, "groups": summary, "cells": cells}


def _json(value: float) -> float | int | None:
    """JSON has no NaN: null."""
    return (value if isinstance(value, int) else float(value)) if np.isfinite(value) else None


@dataclass
class Run:
    """A run directory, read back."""

    path: Path
    experiment: dict[str, Any]
    summary: dict[str, Any]
    metrics: dict[str, np.ndarray]
    """Column -> values; text columns are arrays of str."""

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.experiment["name"])

    def curves(self, links: str, algorithm: str, compute: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """(rounds [n], values [seeds, n]) of one metric."""
        chosen = (
            (self.metrics["links"] == links)
            & (self.metrics["algorithm"] == algorithm)
            & (self.metrics["compute"] == compute)
        )
        rounds = np.unique(self.metrics["round"][chosen])
        return rounds, self.metrics[metric][chosen].reshape(-1, len(rounds))


def read_run(path: str | Path) -> Run:
    """Read a finished run directory. Raises ConfigError when it is none."""
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such run directory")
    missing = [n for n in ("experiment.toml", "metrics.csv", "summary.json") if not (path / n).is_file()]
    if missing:
        unfinished = (path / "cells").is_dir()
        hint = "; the run did not finish, go on with --resume" if unfinished else ""
        raise ConfigError(f"{path}: is not a finished run directory, {missing[0]} is missing{hint}")
    try:
        experiment = tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8"))
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        run = Run(path, experiment, summary, read_metrics(path / "metrics.csv"))
        rounds, every = experiment["rounds"], experiment["eval_every"]
        rows = len(summary["cells"]) * len({*range(0, rounds + 1, every), rounds})
        if len(run.metrics["round"]) != rows or not all(g["final"] for g in summary["groups"]):
            raise ValueError(f"metrics.csv has {len(run.metrics['round'])} rows, not {rows}")
        return run
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: is damaged: {type(error).__name__} {error}") from None


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("links", "algorithm", "compute"), str),
    **dict.fromkeys(
        ("seed", "round", "num_active", "empty_rounds", "gradient_steps", "bytes_up", "bytes_down"), np.int64
    ),
}


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """metrics.csv as columns, read in pieces. Raises ValueError when it is no such file."""
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if tuple(header[: len(KEY_COLUMNS)]) != KEY_COLUMNS:
            raise ValueError(f"metrics.csv must begin with the columns {','.join(KEY_COLUMNS)}")
        pieces = []
        while piece := list(itertools.islice(reader, 50_000)):
            columns = zip(header, zip(*piece, strict=True), strict=True)
            pieces.append({name: np.array(values, _TYPES.get(name, np.float64)) for name, values in columns})
    if not pieces:
        raise ValueError("metrics.csv has no rows")
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in header}
