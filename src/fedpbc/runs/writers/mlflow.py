"""Metrics for MLflow. Needs the extra ``mlflow``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpbc.errors import optional
from fedpbc.runs.callbacks import Callback

if TYPE_CHECKING:
    from fedpbc.experiment.grid import CellKey
    from fedpbc.runs.run import CellResult

MOST = 1000
"""Metrics that MLflow takes in one request."""


class MLflow(Callback):
    """Log every metric of every cell as an MLflow run of its own, in one MLflow experiment.

    The parameters of a run are links, algorithm, compute and seed. Values that are not finite are left out. When a run
    is resumed, the unfinished cell becomes a new MLflow run, with all its rows (the old one stays RUNNING there); cells
    that were finished before are not logged again.
    """

    def __init__(self, experiment: str = "fedpbc", tracking_uri: str | None = None) -> None:
        """``experiment``: its name there; ``tracking_uri``: of the server or folder (default: MLflow's own)."""
        self._client = optional("mlflow", "MLflow").MlflowClient(tracking_uri=tracking_uri)
        self.experiment = experiment
        self._experiment_id: str | None = None
        self._cell: CellKey | None = None
        self._run: str | None = None
        self._waiting: list[Any] = []

    def on_rows(self, cell: CellKey, rows: dict[str, np.ndarray]) -> None:
        """Log a row."""
        from mlflow.entities import Metric

        if cell != self._cell:
            self._start(cell)
        now = int(1000 * time.time())
        for name, values in rows.items():
            for t, value in zip(rows["round"].tolist(), values.tolist(), strict=True):
                if name != "round" and np.isfinite(value):
                    self._waiting.append(Metric(name, float(value), now, t))
        if len(self._waiting) >= MOST // 2:
            self._send()

    def on_cell_end(self, cell: CellKey, result: CellResult) -> None:
        """Finish the MLflow run of the cell."""
        if cell == self._cell:
            self._send()
            self._client.set_terminated(self._run)
            self._cell, self._run = None, None

    def _start(self, cell: CellKey) -> None:
        from mlflow.entities import Param

        if self._experiment_id is None:
            found = self._client.get_experiment_by_name(self.experiment)
            self._experiment_id = found.experiment_id if found else self._client.create_experiment(self.experiment)
        name = f"{cell.algorithm}, {cell.links}, seed {cell.seed}"
        self._run = self._client.create_run(self._experiment_id, run_name=name).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in cell._asdict().items()]
        self._client.log_batch(self._run, params=params)
        self._cell, self._waiting = cell, []

    def _send(self) -> None:
        for first in range(0, len(self._waiting), MOST):
            self._client.log_batch(self._run, metrics=self._waiting[first : first + MOST])
        self._waiting = []
