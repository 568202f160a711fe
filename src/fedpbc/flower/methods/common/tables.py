"""Models that a rule keeps, a row each: what of them is in a checkpoint."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import numpy as np

from fedpbc.flower.server.checkpoint import KINDS, Pieces
from fedpbc.flower.wire.arrays import Layout, Model, largest


class Table:
    """Models [n, d], zero until they are written; rows go to the checkpoint when they changed."""

    def __init__(self, layout: Layout, num_rows: int, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind = {kind!r}: must be one of {', '.join(KINDS)}")
        self.kind = kind
        self.rows = layout.empty(num_rows)
        """[n, size] of every array."""
        self._names = [""] * num_rows
        self._bound: np.ndarray | None = np.zeros(len(self.rows))

    def bound(self) -> np.ndarray:
        """Of |entries| of every array, in the layout's order."""
        if self._bound is None:
            self._bound = np.array([largest(rows) for rows in self.rows.values()])
        return self._bound

    def wrote(self, t: int, which: np.ndarray, bound: np.ndarray | None = None) -> None:
        """Rows ``which`` bool[n] were written in round t; ``bound``: of all entries now, if it is known."""
        self._bound = bound
        for index in np.flatnonzero(which):
            self._names[index] = f"{index}-{t}-{secrets.token_hex(4)}"

    def replace(self, t: int, model: Model) -> None:
        """The one row of this table is ``model``, flattened, from round t on."""
        for name, values in model.items():
            self.rows[name][0] = values
        self.wrote(t, np.array([True]))

    def heard(self) -> np.ndarray:
        """bool[n]: rows that were written at least once."""
        return np.array([bool(name) for name in self._names])

    def clear(self) -> None:
        """All rows are 0 again."""
        for rows in self.rows.values():
            rows[:] = 0
        self._bound = np.zeros(len(self.rows))
        self._names = [""] * len(self._names)

    def state(self) -> list[str]:
        """For the checkpoint: the names of the rows, "" for those never written."""
        return self._names

    def pieces(self) -> Pieces:
        """The rows that were written, by name."""
        return {f"{self.kind}-{name}": partial(self.row, i) for i, name in enumerate(self._names) if name}

    def row(self, index: int) -> Model:
        """One row of every array, flattened."""
        return {name: rows[index] for name, rows in self.rows.items()}

    def restore(self, state: list[str], read: Callable[[str], Model]) -> None:
        """From a checkpoint. Raises FedpbcError when a row is damaged."""
        self._names, self._bound = list(state), None
        for index, name in enumerate(state):
            if name:
                for array, values in read(f"{self.kind}-{name}").items():
                    self.rows[array][index] = values


class Tables(dict[str, Table]):
    """The tables of a rule by kind, one of ``KINDS``."""

    def __init__(self, layout: Layout, num_rows: dict[str, int]) -> None:
        super().__init__({kind: Table(layout, rows, kind) for kind, rows in num_rows.items()})

    def wipe(self) -> None:
        """All of them are 0 again."""
        for table in self.values():
            table.clear()

    def state(self) -> dict[str, list[str]]:
        """For the checkpoint: when each row was written."""
        return {kind: table.state() for kind, table in self.items()}

    def pieces(self) -> Pieces:
        """The rows."""
        return {name: get for table in self.values() for name, get in table.pieces().items()}

    def restore(self, state: dict[str, list[str]], read: Callable[[str], Model]) -> None:
        """From a checkpoint. Raises FedpbcError when a row is damaged."""
        for kind, table in self.items():
            table.restore(state[kind], read)
