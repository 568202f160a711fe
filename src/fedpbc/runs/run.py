"""A run: its metrics, models and manifest, whether just computed or read back from disk. Needs only NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpbc.core.measures import measure_of
from fedpbc.core.types import Measure
from fedpbc.errors import UnknownName, optional, unknown_name
from fedpbc.io.whole import read_arrays

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedpbc.experiment.grid import CellKey, Experiment
    from fedpbc.runs.partition import Held

GROUP = ("links", "algorithm", "compute")
KEYS = (*GROUP, "seed")
BUFFERS = ".buffers."
"""Between the name of a model and the number of a leaf of its buffers, in a file of models."""
COUNTS = ("round", "num_active", "empty_rounds", "gradient_steps", "bytes_up", "bytes_down")
"""Integer columns."""


class Models(Mapping[str, np.ndarray]):
    """The models of a cell by name, read from their file when the first is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays: dict[str, np.ndarray] | None = None

    def _read(self) -> dict[str, np.ndarray]:
        if self._arrays is None:
            self._arrays = read_arrays(self.path, "run the experiment anew with another --out")
        return self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


@dataclass
class CellResult:
    """The results of one cell of the grid."""

    rows: dict[str, np.ndarray]
    """Column name -> one value per evaluated round; ``round`` is one of them."""
    models: Mapping[str, np.ndarray]
    """``server``, ``mean`` and, unless the cell was stopped early, ``server_average``, each [d]."""
    info: dict[str, Any]
    """compile_s, run_s, total_s, ms_per_round, num_devices, first_nonfinite_round, stopped_after, cost."""


class Group(NamedTuple):
    """A group of cells that differ only in their seed."""

    links: str
    algorithm: str
    compute: str


@dataclass(repr=False)
class Run:
    """One experiment's results: ``fedpbc.simulate(...)`` computes it, ``fedpbc.read_run(DIR)`` reads it back."""

    table: dict[str, Any]
    """The experiment with every default, as in experiment.toml."""
    cells: dict[CellKey, CellResult]
    """(links, algorithm, compute, seed) -> what that run of the grid gave."""
    measures: dict[str, Measure]
    """What each of the problem's metrics is; columns have its name behind ``server_`` or ``mean_``."""
    manifest: dict[str, Any] = field(default_factory=dict)
    """What it was made with, and the times of each cell."""
    path: Path | None = None
    """Its run directory, if it has one."""
    experiment: Experiment | None = None
    """The checked experiment, where the run was computed here."""
    stamps: dict[str, Any] = field(default_factory=dict)
    """Of every file it read, what tells that it was written to since."""
    tree: Callable[[np.ndarray], Any] | None = None
    """Of a vector [d] the model as a pytree."""
    held: Held | None = None
    """Of a run on data that was computed here: who has which samples."""
    buffers: Callable[[Sequence[np.ndarray]], Any] | None = None
    """Of its leaves the pytree of a model's buffers; None: the problem has none."""

    def __repr__(self) -> str:
        where = f" in {self.path}" if self.path else ""
        return f"<Run {self.name}: {len(self.cells)} cells of {self.table['rounds']} rounds{where}>"

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.table["name"])

    @property
    def groups(self) -> list[Group]:
        """Links, algorithm and who computes, in the order of the experiment."""
        return list(dict.fromkeys(Group(*key[:3]) for key in self.cells))

    @property
    def columns(self) -> list[str]:
        """Names of the metric columns, server and mean of a metric side by side, then the rest."""
        return metric_names(next(iter(self.cells.values())).rows)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """All rows as columns: links, algorithm, compute, seed, round and the metrics, as in metrics.csv."""
        lengths = [len(cell.rows["round"]) for cell in self.cells.values()]
        keys = {name: np.repeat([key[i] for key in self.cells], lengths) for i, name in enumerate(KEYS)}
        names = ("round", *self.columns)
        return keys | {n: np.concatenate([cell.rows[n] for cell in self.cells.values()]) for n in names}

    @property
    def summary(self) -> dict[str, Any]:
        """As summary.json: final values per cell, mean and sd over seeds per group."""
        finals = [final_values(key, result) for key, result in self.cells.items()]
        return summarise(self.name, finals, self.measures)

    @property
    def diverged(self) -> dict[CellKey, int]:
        """Cells with a model that is not finite -> the first such round."""
        return self._told("first_nonfinite_round")

    @property
    def stopped(self) -> dict[CellKey, int]:
        """Cells that a callback ended early -> their last round."""
        return self._told("stopped_after")

    def _told(self, name: str) -> dict[CellKey, int]:
        return {key: value for key, result in self.cells.items() if (value := result.info.get(name)) is not None}

    def measure(self, column: str) -> Measure:
        """What a column (``server_loss``) or a metric of either model (``loss``) is. Raises UnknownName."""
        if column not in self.columns and column not in self.measures:
            raise unknown_name("metric", column, [*self.columns, *self.measures])
        return measure_of(column, self.measures)

    def select(self, **where: Any) -> list[CellKey]:
        """The cells that fit: ``select(algorithm="fedpbc", seed=0)``. ``where``: links, algorithm, compute, seed.

        Raises UnknownName for what no cell has.
        """
        for name, value in where.items():
            if name not in KEYS:
                raise unknown_name("key to choose by", name, KEYS)
            known = list(dict.fromkeys(getattr(key, name) for key in self.cells))
            if value not in known:
                raise unknown_name(name, value, known)
        return [key for key in self.cells if all(getattr(key, name) == value for name, value in where.items())]

    def final(self, metric: str, **where: Any) -> float:
        """Mean over seeds of a metric's last value in one group: ``final("server_train_loss", algorithm="fedpbc")``.

        ``where``: links, algorithm, compute, seed. Raises UnknownName when no group or more than one fits.
        """
        cells = self.select(**where)
        groups = {key[:3] for key in cells}
        if len(groups) != 1:
            names = "; ".join(", ".join(f"{k}={v!r}" for k, v in group._asdict().items()) for group in self.groups)
            raise UnknownName(f"{where or 'no choice'} fits {len(groups)} groups; choose one of: {names}")
        self._require_column(metric)
        return float(np.mean([self.cells[key].rows[metric][-1] for key in cells], dtype=np.float64))

    def curves(self, links: str, algorithm: str, compute: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """(rounds [n], values [seeds, n]) of one metric; NaN after the last round of a cell that was stopped early.

        Raises UnknownName when the run has no such cell or metric.
        """
        cells = [self.cells[key] for key in self.select(links=links, algorithm=algorithm, compute=compute)]
        self._require_column(metric)
        if not cells:
            raise UnknownName(f"no run of {algorithm} under {links} where {compute} compute")
        rounds = np.unique(np.concatenate([cell.rows["round"] for cell in cells]))
        values = np.full((len(cells), len(rounds)), np.nan)
        for row, cell in zip(values, cells, strict=True):
            row[np.searchsorted(rounds, cell.rows["round"])] = cell.rows[metric]
        return rounds, values

    def _require_column(self, name: str) -> None:
        if name not in self.columns:
            raise unknown_name("metric", name, self.columns)

    def model(self, name: str = "server", **where: Any) -> Any:
        """A model after the last round, as the pytree its problem was given; (params, buffers) where it has buffers.

        Of a run that is read back as [d], where that tree has other parts than dicts, tuples and lists. ``name``:
        server, mean or server_average; ``where`` must fit one cell: links, algorithm, compute, seed. Raises
        UnknownName.
        """
        cells = self.select(**where)
        if len(cells) != 1:
            what = f"{where or 'no choice'} fits {len(cells)} of {len(self.cells)} cells"
            raise UnknownName(f"{what}; choose one by {', '.join(KEYS)}")
        models = self.cells[cells[0]].models
        if name not in models or BUFFERS in name:
            raise unknown_name("model", name, [known for known in models if BUFFERS not in known])
        flat = models[name]
        params = flat if self.tree is None else self.tree(flat)
        if self.buffers is None:
            return params
        of = "mean" if name == "mean" else "server"
        count = sum(key.startswith(of + BUFFERS) for key in models)
        return params, self.buffers([models[f"{of}{BUFFERS}{i}"] for i in range(count)])

    @property
    def has_buffers(self) -> bool:
        """Its models are (params, buffers)."""
        return self.buffers is not None

    def save_model(self, path: str | Path, name: str = "server", **where: Any) -> Path:
        """Write what ``model`` gives as an .npz: an array for each leaf, named by its place in the tree.

        ``fedpbc.load_model`` reads it; docs/howto/export.md says how other libraries do. Raises ConfigError and
        UnknownName.
        """
        from fedpbc.runs.exported import save_model

        return save_model(Path(path), self.model(name, **where), self.has_buffers)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a DataFrame: the columns of metrics.csv. Needs pandas, and says so."""
        frame: pd.DataFrame = optional("pandas", "to_pandas()").DataFrame(self.metrics)
        return frame

    def to_markdown(self, metrics: str | Sequence[str] | None = None) -> str:
        """The final values as a Markdown table: mean and spread over the seeds."""
        from fedpbc.plots.tables import markdown

        return markdown([self], metrics)

    def to_latex(self, metrics: str | Sequence[str] | None = None) -> str:
        """The final values as a LaTeX table (booktabs)."""
        from fedpbc.plots.tables import latex

        return latex([self], metrics)

    def plot(self, metrics: str | Sequence[str] | None = None) -> Figure:
        """The figure of the run, or of other ``metrics``, for a notebook or to save.

        A metric, or several, is named without its model: ``run.plot("distance")``. Raises UnknownName.
        """
        optional("matplotlib", "plot()")
        from fedpbc.plots.runs import draw

        return draw([self], metrics)

    def save(self, out: str | Path) -> Path:
        """Write a run directory, as ``simulate(..., out=)`` does; ``fedpbc.read_run`` reads it. Raises ConfigError."""
        from fedpbc.runs.directory import write_run

        return write_run(self, Path(out))


def metric_names(rows: Mapping[str, np.ndarray]) -> list[str]:
    """Metric columns in reading order: server and mean of a metric side by side, then the rest."""
    models = [name for name in rows if name.startswith(("server_", "mean_"))]
    pairs = sorted(models, key=lambda name: (name.partition("_")[2], name.startswith("mean_")))
    return pairs + sorted(name for name in rows if name not in models and name != "round")


def final_values(key: CellKey, result: CellResult) -> dict[str, Any]:
    """The last row of a cell."""
    final = {name: result.rows[name][-1].item() for name in metric_names(result.rows)}
    return {**key._asdict(), "round": int(result.rows["round"][-1]), "final": final}


def summarise(name: str, finals: list[dict[str, Any]], measures: Mapping[str, Measure]) -> dict[str, Any]:
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
    described = {metric: vars(measure) for metric, measure in measures.items()}
    return {"experiment": name, "measures": described, "groups": summary, "cells": cells}


def _json(value: float) -> float | int | None:
    """JSON has no NaN: null."""
    return (value if isinstance(value, int) else float(value)) if np.isfinite(value) else None
