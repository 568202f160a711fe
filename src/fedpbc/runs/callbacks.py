"""What a user's code is told while a run goes on, and may decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpbc.errors import ConfigError

if TYPE_CHECKING:
    from fedpbc.experiment.grid import CellKey
    from fedpbc.runs.run import CellResult


class Callback:
    """Override what you need. A callback is told of every cell of the grid, one after another."""

    def on_rows(self, cell: CellKey, rows: dict[str, np.ndarray]) -> bool | None:
        """New rows of metrics, a column each, ``round`` among them; returning True ends this cell here.

        Called about twice a second; when a run is resumed, first with all rows so far.
        """

    def on_cell_end(self, cell: CellKey, result: CellResult) -> None:
        """A cell is finished, or was found finished when a run is resumed."""


class EarlyStop(Callback):
    """End a cell when a metric has not improved by ``min_change`` for ``patience`` rounds, or is not finite."""

    def __init__(self, metric: str, patience: int, min_change: float = 0.0, better: str = "lower") -> None:
        """``metric``: a column, as ``server_train_loss``; ``better``: "lower" or "higher". Raises ConfigError."""
        if better not in ("lower", "higher"):
            raise ConfigError(f'better = {better!r}: must be "lower" or "higher"')
        if patience < 1:
            raise ConfigError(f"patience = {patience}: must be at least 1 round")
        self.metric, self.patience, self.min_change = metric, patience, min_change
        self.sign = 1.0 if better == "lower" else -1.0
        self._cell: CellKey | None = None
        self._best, self._best_round = np.inf, 0

    def on_rows(self, cell: CellKey, rows: dict[str, np.ndarray]) -> bool | None:
        """True once the metric has stopped improving."""
        if self.metric not in rows:
            known = ", ".join(name for name in rows if name != "round")
            raise ConfigError(f"EarlyStop: no metric {self.metric}; there are {known}")
        if cell != self._cell:
            self._cell, self._best, self._best_round = cell, np.inf, 0
        for t, value in zip(rows["round"].tolist(), (self.sign * rows[self.metric]).tolist(), strict=True):
            if not np.isfinite(value):
                return True
            if value < self._best - self.min_change:
                self._best, self._best_round = value, t
            elif t - self._best_round >= self.patience:
                return True
        return False
