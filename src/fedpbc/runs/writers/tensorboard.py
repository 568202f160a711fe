"""Metrics for TensorBoard. Needs the extra ``tensorboard`` (tensorboardX, which needs no TensorFlow)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpbc.errors import optional
from fedpbc.runs.callbacks import Callback

if TYPE_CHECKING:
    from fedpbc.experiment.grid import CellKey
    from fedpbc.runs.run import CellResult


class TensorBoard(Callback):
    """Write every metric of every cell as scalars, a folder per cell: ``tensorboard --logdir FOLDER`` shows them.

    After a kill the resumed run writes the unfinished cell again from its first row, and TensorBoard hides what stood
    there before. A cell that was finished before is written only where its folder is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        """``folder``: the log directory, created when the first row comes. Needs tensorboardX."""
        optional("tensorboardX", "TensorBoard")  # where it is missing, say so before the run
        self.folder = Path(folder)
        self._cell: CellKey | None = None
        self._writer: Any = None

    def on_rows(self, cell: CellKey, rows: dict[str, np.ndarray]) -> None:
        """Write a row."""
        if cell != self._cell:
            self._open(cell)
        self._write(rows)

    def on_cell_end(self, cell: CellKey, result: CellResult) -> None:
        """Close the file of the cell. If none of its rows were seen, write them all first."""
        if cell != self._cell:
            if any(self._folder(cell).glob("*tfevents*")):
                return
            self._open(cell)
            self._write(result.rows)
        self._close()

    def _folder(self, cell: CellKey) -> Path:
        return self.folder / "_".join((_slug(cell.links), _slug(cell.algorithm), cell.compute, f"seed{cell.seed}"))

    def _open(self, cell: CellKey) -> None:
        from tensorboardX import SummaryWriter

        self._close()
        self._cell, self._writer = cell, SummaryWriter(str(self._folder(cell)), purge_step=0, flush_secs=5)

    def _write(self, rows: dict[str, np.ndarray]) -> None:
        for name, values in rows.items():
            if name != "round":
                for t, value in zip(rows["round"].tolist(), values.tolist(), strict=True):
                    self._writer.add_scalar(name, value, t)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._cell, self._writer = None, None


def _slug(label: str) -> str:
    """A label as part of a folder's name; different labels stay different."""
    plain = re.sub(r"[^A-Za-z0-9.,=()-]+", "-", label)[:60]
    return plain if plain == label else f"{plain}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"
