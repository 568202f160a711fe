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

    def __init__(self, rng: np.random.Generator, total: int, block: int | None = None) -> None:
        self._rng, self._left, self._block = rng, total, block or BLOCK
        self._buffers = [np.empty(min(self._block, total)) for _ in range(2)]
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
        taken = taken.copy()  # the block that it lies in is filled anew now
        parts, missing = [taken], size - len(taken)
        while missing:
            self._current = self._next.result()
            if not len(self._current):
                raise ValueError(f"{missing} numbers more are wanted than the stream was to have")
            self._at = min(missing, len(self._current))
            self._ahead()
            parts.append(self._current[: self._at])
            missing -= len(parts[-1])
            if missing:
                parts[-1] = parts[-1].copy()
        return np.concatenate(parts)

    def _ahead(self) -> None:
        """Begin to draw the block after the current one, into the buffer that is free."""
        size = min(self._block, self._left)
        self._left -= size
        self._buffers.reverse()
        self._next = self._thread.submit(self._rng.standard_normal, out=self._buffers[0][:size])
