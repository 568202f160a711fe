"""Cells side by side: threads that take the cells of a grid in turn.

A cell that is alone shares its rounds between devices; of several, each runs in one thread, on one device. Threads are
enough: compiled programs run without the interpreter's lock, and share what is compiled and the data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence

from fedpbc.experiment.grid import Cell


class Stopped(Exception):
    """Another cell failed, or the user wants to stop."""


class Queue:
    """The cells that are left, in order; those of one seed before those of the next, unless the data of all fit."""

    def __init__(self, cells: Sequence[Cell], program: Callable[[Cell], Hashable], seeds_at_once: int) -> None:
        """``program``: equal for cells that will likely share a compiled program."""
        self._left, self._program, self._seeds_at_once = list(cells), program, seeds_at_once
        self._all_at_once = seeds_at_once >= len({cell.seed for cell in cells})
        self._running: list[Cell] = []
        self._compiling: set[Hashable] = set()
        self._compiled: set[Hashable] = set()
        self._changed = threading.Condition()
        self._stopping = False

    def take(self) -> Cell | None:
        """The next cell, or None when there is none left. Raises Stopped.

        One whose program is being compiled for another cell comes later, where there is a choice; one of a further
        seed waits until the data of so many seeds fit.
        """
        with self._changed:
            while self._left and not self._stopping:
                seeds = {cell.seed for cell in self._running}
                first = self._left[0].seed
                if first in seeds or len(seeds) < self._seeds_at_once:
                    ready = self._left if self._all_at_once else [cell for cell in self._left if cell.seed == first]
                    free = [cell for cell in ready if self._program(cell) not in self._compiling]
                    cell = (free or ready)[0]
                    self._left.remove(cell)
                    self._running.append(cell)
                    if self._program(cell) not in self._compiled:
                        self._compiling.add(self._program(cell))
                    return cell
                self._changed.wait()
            if self._stopping:
                raise Stopped
            return None

    def compiled(self, cell: Cell) -> None:
        """The program of a cell is there."""
        with self._changed:
            self._compiled.add(self._program(cell))
            self._compiling.discard(self._program(cell))

    def finished(self, cell: Cell) -> set[int]:
        """A cell is over; the seeds that are still needed."""
        with self._changed:
            self._running.remove(cell)
            self._changed.notify_all()
            return {c.seed for c in (*self._left, *self._running)}

    def stop(self) -> None:
        """Nobody goes on: ``go_on`` and ``take`` raise Stopped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def go_on(self) -> None:
        """Raises Stopped."""
        if self._stopping:
            raise Stopped


def by_program(cells: Sequence[Cell], program: Callable[[Cell], Hashable]) -> list[Cell]:
    """Those that share a program after one another, so that it is still there: a process keeps some of many."""
    places: dict[Hashable, int] = {}
    for cell in cells:
        places.setdefault(program(cell), len(places))
    return sorted(cells, key=lambda cell: places[program(cell)])


def work(queue: Queue, num_workers: int, loop: Callable[[int], None]) -> None:
    """``loop(worker)`` in so many threads (one: in this one) until each has returned; the first error ends all."""
    if num_workers == 1:
        loop(0)
        return
    errors: list[BaseException] = []

    def guarded(worker: int) -> None:
        try:
            loop(worker)
        except Stopped:
            pass
        except BaseException as error:  # of any kind: it is raised again below
            errors.append(error)
            queue.stop()

    threads = [threading.Thread(target=guarded, args=(i,), name=f"cell {i}", daemon=True) for i in range(num_workers)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        queue.stop()
        for thread in threads:
            thread.join()
        raise
    if errors:
        raise errors[0]
