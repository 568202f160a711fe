"""One pass over the replies of a round, a block of columns at a time: sums over clients, and the rows they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedpbc.flower.methods.common.tables import Table
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Round, nothing
from fedpbc.flower.wire.arrays import Layout
from fedpbc.flower.wire.threads import share

BLOCK_BYTES = 1 << 19
"""Bytes of a row that are computed at once: all that one client's part of a block needs stays in the cache, and the
interpreter's share is small."""


@dataclass
class Block:
    """Some columns of one array, for all clients."""

    name: str
    columns: slice
    start: np.ndarray
    """x^t, [b]."""
    _replies: Mapping[int, np.ndarray]
    _rows: np.ndarray | None
    _writes: bool
    _weights: Mapping[int, float]
    """Of those that do not count 1."""

    def zeros(self) -> np.ndarray:
        """A sum to begin with, [b]."""
        return np.zeros_like(self.start)

    def heard(self) -> Iterator[tuple[int, np.ndarray]]:
        """(client, its weight times Delta_i, [b]) of those that were heard, in their order; the array is the caller's
        until the next.
        """
        update = np.empty_like(self.start)
        for index, reply in self._replies.items():
            np.subtract(reply[self.columns], self.start, out=update)
            if index in self._weights:
                update *= update.dtype.type(self._weights[index])
            yield index, update

    def everybody(self, num_clients: int) -> Iterator[tuple[int, np.ndarray | None]]:
        """The same of all clients, None for those that were not heard."""
        heard = self.heard()
        for index in range(num_clients):
            yield next(heard) if index in self._replies else (index, None)

    def row(self, index: int) -> np.ndarray:
        """This client's row of the table, [b], to be changed if it was heard: a copy where only the sums are wanted."""
        assert self._rows is not None
        row: np.ndarray = self._rows[index, self.columns]
        return row if self._writes or index not in self._replies else row.copy()


Body = Callable[[Block], None]
"""What a rule makes of a block: it writes the block's part of its sums, and changes rows."""


class Sweep:
    """The replies of a round, read once where they lie; Delta_i = x_i - x^t, times the weight of the reply.

    What is kept must not change before it is certain that the round counts. Bounds of all that is computed say so
    before anything is: then sums and rows are made in the same pass, as the commit. Where they do not (numbers near
    the largest of their type) one pass makes the sums, and the commit is another that writes the rows. The same bits
    both ways, and with any number of threads: each column is added up by one of them, in the order of the clients.
    """

    def __init__(
        self, layout: Layout, round: Round, replies: list[Reply], num_clients: int, table: Table | None = None
    ) -> None:
        """``table``: with a row per client, if rows are changed."""
        self.layout, self.round, self.table = layout, round, table
        by_index = {reply.client.index: reply for reply in replies}
        self._flat = {i: {n: x.reshape(-1) for n, x in by_index[i].arrays.items()} for i in sorted(by_index)}
        self.reported = np.zeros(num_clients, bool)
        """bool[m]: who was heard."""
        self.reported[list(by_index)] = True
        self.count = len(by_index)
        """|A^t|."""
        self._counted = replies
        self._weights = {i: by_index[i].weight for i in sorted(by_index) if by_index[i].weight != 1.0}

    def update_bound(self) -> np.ndarray:
        """A bound of the |Delta_i|, one for every array."""
        most = max((reply.weight for reply in self._counted), default=1.0)
        return most * (self.round.largest + np.max([reply.largest for reply in self._counted], axis=0, initial=0.0))

    def run(self, body: Body, bounds: Callable[[], list[np.ndarray]] | None = None) -> Callable[[], None]:
        """Give ``body`` every block, now or in what is returned, the commit.

        ``bounds``: of all that ``body`` writes, one number for every array; its sums are then there after the commit.
        Without them they are there now, and no row is changed.
        """
        if bounds is None:
            self._pass(body, writes=False)
            return nothing
        limits = self.layout.limits / 2
        if not all((bound <= limits).all() for bound in bounds()):
            self._pass(body, writes=False)
        return lambda: self._pass(body, writes=True)

    def _pass(self, body: Body, writes: bool) -> None:
        def work(block: Block) -> None:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # whoever uses it asks ``sane``
                body(block)

        entries = self.count * sum(x.size for x in self.round.model.values())
        share(work, list(self._blocks(writes)), entries)

    def _blocks(self, writes: bool) -> Iterator[Block]:
        for name, start in self.round.model.items():
            replies = {index: arrays[name] for index, arrays in self._flat.items()}
            rows = self.table.rows[name] if self.table is not None else None
            step = BLOCK_BYTES // start.itemsize
            for first in range(0, start.size, step):
                columns = slice(first, min(first + step, start.size))
                yield Block(name, columns, start[columns], replies, rows, writes, self._weights)
