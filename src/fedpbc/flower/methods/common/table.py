"""Rules over [m, d] on a server: tables with a row per client, gone through block by block."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.strategy import UnreliableClients
from fedpbc.flower.wire.arrays import Layout, Model, Refused, sane
from fedpbc.flower.wire.protocol import LONGEST_WAY, SHORTEST


class Updates:
    """Delta_i = x_i - x^t of the clients that were heard, as the rules want them: [m, b] for b columns at a time."""

    def __init__(self, layout: Layout, server: Model, replies: Mapping[int, Model], num_clients: int) -> None:
        self.layout, self.server, self.num_clients = layout, server, num_clients
        self._flat = {index: layout.flatten(arrays) for index, arrays in replies.items()}
        self.reported = np.zeros(num_clients, bool)
        """bool[m]: who was heard."""
        self.reported[list(replies)] = True

    def blocks(self) -> Iterator[tuple[str, slice, np.ndarray]]:
        """(array, columns, Delta [m, b]); rows of clients that were not heard are 0."""
        for name, block in self.layout.blocks():
            start = self.server[name][block]
            update = np.zeros((self.num_clients, start.size), start.dtype)
            for index, flat in self._flat.items():
                np.subtract(flat[name][block], start, out=update[index])
            yield name, block, update


class Table:
    """A model per client, [m, d], zero until it is written; rows go to the checkpoint when they changed."""

    def __init__(self, layout: Layout, num_rows: int, kind: str = "row") -> None:
        self.kind = kind
        self.rows = layout.empty(num_rows)
        """[m, size] of every array."""
        self._names = [""] * num_rows

    def wrote(self, t: int, which: np.ndarray) -> None:
        """Rows ``which`` bool[m] were written in round t."""
        for index in np.flatnonzero(which):
            self._names[index] = f"{index}-{t}-{secrets.token_hex(4)}"

    def heard(self) -> np.ndarray:
        """bool[m]: rows that were written at least once."""
        return np.array([bool(name) for name in self._names])

    def clear(self) -> None:
        """All rows are 0 again."""
        for rows in self.rows.values():
            rows[:] = 0
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
        self._names = list(state)
        for index, name in enumerate(state):
            if name:
                for array, values in read(f"{self.kind}-{name}").items():
                    self.rows[array][index] = values


class KeepsTables(UnreliableClients):
    """Base of the strategies that keep models: tables by name, and what of them is in a checkpoint.

    ``rule`` reads them, ``keep`` writes them: what is refused leaves no trace.
    """

    remembers = True
    tables: dict[str, Table]

    @abstractmethod
    def num_rows(self) -> dict[str, int]:
        """How many models each table has."""

    def check_steps(self, reply: Reply, start: Model) -> None:
        """Raise Refused unless the local steps from ``start`` were taken through ``drift_correction``."""
        length = reply.answer.length
        if not SHORTEST <= length <= LONGEST_WAY:
            raise Refused(f"reports local steps of total length {length}: its train function must use drift_correction")
        self.check_direction(reply, start, length)

    def check_direction(self, reply: Reply, start: Model, length: float) -> None:
        """Raise Refused when (x_i - start) / length is too large to compute with."""
        end, per = self.layout.flatten(reply.arrays), np.float64(length)
        with np.errstate(all="ignore"):
            if not sane({name: ((end[name] - start[name]) / per).astype(end[name].dtype) for name in end}):
                raise Refused(f"has an update that is too large for local steps of total length {length}")

    def begin(self) -> None:
        """Zeros."""
        self.tables = {kind: Table(self.layout, rows, kind) for kind, rows in self.num_rows().items()}

    def memory(self) -> dict[str, Any]:
        """When each row was written."""
        return {"tables": {kind: table.state() for kind, table in self.tables.items()}}

    def pieces(self) -> Pieces:
        """The rows."""
        return {name: get for table in self.tables.values() for name, get in table.pieces().items()}

    def recall(self, memory: dict[str, Any]) -> None:
        """The rows as they were."""
        assert self.checkpoint is not None
        KeepsTables.begin(self)
        for kind, table in self.tables.items():
            table.restore(memory["tables"][kind], self.checkpoint.read)
