"""What rules are given of the replies: means over them, and updates [m, d] block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fedpbc.flower.server.ledger import Reply, mean_of
from fedpbc.flower.wire.arrays import Layout, Model, Refused, sane
from fedpbc.flower.wire.protocol import LONGEST_WAY, SHORTEST


def mean_of_replies(layout: Layout, model: Model, replies: list[Reply]) -> Model:
    """The mean of the replies, array by array, flattened, added in place; ``model``: x^t, flattened."""
    return mean_of([reply.arrays for reply in replies], layout, model)


class Updates:
    """Delta_i = x_i - x^t of the clients that were heard, as the rules want them: [m, b] for b columns at a time."""

    def __init__(self, layout: Layout, start: Model, models: Mapping[int, Model], num_clients: int) -> None:
        """``models``: x_i by the client's index. ``start``: x^t, flattened."""
        self.layout, self.start, self.num_clients = layout, start, num_clients
        self._flat = {index: layout.flatten(arrays) for index, arrays in models.items()}
        self.reported = np.zeros(num_clients, bool)
        """bool[m]: who was heard."""
        self.reported[list(models)] = True

    @classmethod
    def of(cls, layout: Layout, start: Model, replies: list[Reply], num_clients: int) -> Updates:
        """Those of the replies."""
        return cls(layout, start, {reply.client.index: reply.arrays for reply in replies}, num_clients)

    def blocks(self) -> Iterator[tuple[str, slice, np.ndarray]]:
        """(array, columns, Delta [m, b]); rows of clients that were not heard are 0."""
        for name, block in self.layout.blocks():
            start = self.start[name][block]
            update = np.zeros((self.num_clients, start.size), start.dtype)
            for index, flat in self._flat.items():
                np.subtract(flat[name][block], start, out=update[index])
            yield name, block, update


def lengths(replies: list[Reply], num_clients: int) -> np.ndarray:
    """h_i, [m]: the sum of the learning rates of i's local steps; 1 for those that were not heard."""
    found = np.ones(num_clients)
    found[[reply.client.index for reply in replies]] = [reply.answer.length for reply in replies]
    return found


def check_steps(layout: Layout, reply: Reply, start: Model, bound: np.ndarray) -> None:
    """Raise Refused unless the local steps from ``start`` were taken through ``drift_correction``."""
    length = reply.answer.length
    if not SHORTEST <= length <= LONGEST_WAY:
        raise Refused(f"reports local steps of total length {length}: its train function must use drift_correction")
    check_direction(layout, reply, start, bound, length)


def check_direction(layout: Layout, reply: Reply, start: Model, bound: np.ndarray, length: float) -> None:
    """Raise Refused when (x_i - start) / length is too large to compute with; ``bound``: of |start|, every array."""
    with np.errstate(all="ignore"):
        if ((reply.largest + bound) / length <= layout.working_limits / 2).all():
            return
    end, per = layout.flatten(reply.arrays), np.float64(length)
    with np.errstate(all="ignore"):
        if not sane({name: ((end[name] - start[name]) / per).astype(end[name].dtype) for name in end}):
            raise Refused(f"has an update that is too large for local steps of total length {length}")
