"""A stream of standard normal numbers that is drawn ahead, in a thread of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np

BLOCK = 2**20
"""Numbers that are drawn at once, 8 MB: with shorter blocks threads wait for the interpreter's lock too often."""


class Normals:
    """The next ``total`` numbers of ``rng.standard_normal``: the same, in the same order, however they are taken.

    NumPy draws without the lock of the interpreter, so that one core draws while another uses what was drawn.
    A context manager, as the thread has to end.
    """

    def __init__(self, rng: np.random.Generator, total: int, block: int = BLOCK) -> None:
        self._rng, self._left = rng, total
        self._buffers = [np.empty(min(block, total)) for _ in range(2)]
        self._thread = ThreadPoolExecutor(1)
        self._current, self._at = np.empty(0), 0
        self._ahead()

    def __enter__(self) -> Normals:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)

    def take(self, size: int) -> np.ndarray:
        """float64[size], to be used, and written to, before the next are taken. Raises ValueError beyond ``total``."""
        taken = self._current[self._at : self._at + size]
        self._at += len(taken)
        if len(taken) == size:
            return taken
        begun = taken.copy()  # the block that it lies in is drawn anew now
        self._current, self._at = self._next.result(), 0
        if not len(self._current):
            raise ValueError(f"{size - len(begun)} numbers more are wanted than the stream was to have")
        self._ahead()
        return np.concatenate([begun, self.take(size - len(begun))])

    def _ahead(self) -> None:
        """Begin to draw the block after the current one, into the buffer that is free."""
        self._buffers.reverse()
        free = self._buffers[0][: self._left]
        self._left -= len(free)
        self._next = self._thread.submit(self._rng.standard_normal, out=free)
