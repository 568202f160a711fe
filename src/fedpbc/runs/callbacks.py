"""Callbacks: code of the user that sees the metrics during a run, and can end a cell early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedpbc.errors import ConfigError, shorten, suggest

if TYPE_CHECKING:
    from fedpbc.experiment.grid import CellKey
    from fedpbc.runs.run import CellResult


class Callback:
    """Override what you need. A callback is told of every cell of the grid, one after another.

    ``side_by_side = True`` in a class says that it can be told of several cells in turn, never of two at the same
    moment: cells then run side by side.

    It is shown results after they are computed: it cannot change them, only end a cell early. A run that was killed
    and is resumed shows the rows of the unfinished cell from the first one again, so that a callback needs no memory of
    its own; cells that were finished before are told of by ``on_cell_end`` alone.
    """

    side_by_side: ClassVar[bool] = False

    def on_start(self, columns: Sequence[str]) -> None:
        """Before anything is computed or written: the columns that rows will have. Raise ConfigError to refuse them."""

    def on_rows(self, cell: CellKey, rows: dict[str, np.ndarray]) -> bool | None:
        """Called for each new row of metrics. Return True to end the cell here.

        ``rows``: columns of one value each, ``round`` among them.
        The cell ends exactly there, on any machine: its later rounds are not in the results.
        """

    def on_cell_end(self, cell: CellKey, result: CellResult) -> None:
        """A cell is finished, or was found finished when a run is resumed."""


class EarlyStop(Callback):
    """End a cell when a metric has not improved by more than ``min_change`` for ``patience`` rounds, or is not finite.

    A round without a row (``eval_every``) cannot end a cell: it ends at the first row that is late enough.
    """

    side_by_side = True

    def __init__(
        self, metric: str, patience: int, min_change: float = 0.0, better: Literal["lower", "higher"] = "lower"
    ) -> None:
        """``metric``: a column, as ``server_train_loss``; ``better``: which way it improves. Raises ConfigError."""
        if not isinstance(metric, str) or not metric:
            raise ConfigError(f"metric = {shorten(metric)}: must be the name of a column, as server_train_loss")
        if not isinstance(better, str) or better not in ("lower", "higher"):
            raise ConfigError(f'better = {shorten(better)}: must be "lower" or "higher"')
        if isinstance(patience, bool) or not isinstance(patience, int | np.integer) or patience < 1:
            raise ConfigError(f"patience = {shorten(patience)}: must be an integer, at least 1 round")
        numeric = isinstance(min_change, int | float | np.integer | np.floating) and not isinstance(min_change, bool)
        if not numeric or not 0 <= min_change < np.inf:
            raise ConfigError(f"min_change = {shorten(min_change)}: must be a number >= 0")
        self.metric, self.patience, self.min_change = metric, patience, min_change
        self.sign = 1.0 if better == "lower" else -1.0
        self._best: dict[CellKey, tuple[float, int]] = {}

    def on_start(self, columns: Sequence[str]) -> None:
        """Raises ConfigError when there is no such metric."""
        if self.metric not in columns:
            known = [name for name in columns if name != "round"]
            hint = suggest(self.metric, known)
            raise ConfigError(f"EarlyStop: no metric {shorten(self.metric)}{hint}; there are {', '.join(known)}")

    def on_rows(self, cell: CellKey, rows: dict[str, np.ndarray]) -> bool | None:
        """True once the metric has stopped improving."""
        t, value = int(rows["round"][0]), self.sign * float(rows[self.metric][0])
        best, since = self._best.get(cell, (np.inf, t)) if t > 0 else (np.inf, t)
        if not np.isfinite(value):
            return True
        if value < best - self.min_change:
            best, since = value, t
        self._best[cell] = best, since
        return t - since >= self.patience
