"""Lines of a server's log that name the round and the client: NVIDIA FLARE and OpenFL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from fedpbc.io.participation.columns import Columns
from fedpbc.io.participation.reading import BadLog, Names, Progress, Reading, Rows, Table, decode
from fedpbc.io.participation.source import Source

LOOKED_AT = 1 << 23
"""Bytes of a log that are looked at for a line that tells whose it is."""
TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that no log holds."""


def says(pattern: re.Pattern[str]) -> Callable[[Source], bool]:
    """Whether a line of the first LOOKED_AT bytes matches."""

    def recognises(source: Source) -> bool:
        if source.path.is_dir() or TEXT.search(source.head[:4096]):
            return False
        with source.open() as stream:
            return pattern.search(stream.read(LOOKED_AT).decode("utf-8", "replace")) is not None

    return recognises


class Results:
    """Which client sent the result of which task in which round, put together from lines."""

    def __init__(self) -> None:
        self.names = Names()
        self.rounds: list[int] = []
        self._found: dict[str, dict[tuple[int, str], None]] = {}
        self.other = 0
        """Lines that say nothing of it."""

    def begin(self, round_: int) -> None:
        """A round began."""
        self.rounds.append(round_)

    def add(self, task: str, round_: int, client: str) -> None:
        """A result came."""
        self.names.encode([client])
        self._found.setdefault(task, {})[round_, client] = None

    def drop(self, task: str, round_: int, client: str) -> None:
        """It came too late and does not count."""
        self._found.get(task, {}).pop((round_, client), None)

    def table(self, source: Source, reading: Reading) -> Table:
        """The results of the task that trains: ``train``, or ``--active-column task=NAME``."""
        task = self._task(source, reading)
        pairs = list(self._found.get(task, {}))
        columns = Columns(source, [], reading if reading.active_column is None else Reading())
        table = Table(iter(()), self.names, reading, columns)
        table.listed_rounds = list(dict.fromkeys(self.rounds))
        table.notes.append(f"a client took part if its result of task {task} came in that round")
        others = sorted(set(self._found) - {task})
        if others:
            table.notes.append(f"results of other tasks are not counted: {', '.join(others)}")
        codes = self.names.encode([client for _, client in pairs])
        rounds = np.array([round_ for round_, _ in pairs], np.int64)
        table.pieces = iter([Rows(rounds, codes, np.ones(len(codes), bool))])
        table.skipped_lines = self.other
        return table

    def _task(self, source: Source, reading: Reading) -> str:
        counts = Counter({task: len(found) for task, found in self._found.items()})
        option = reading.spell("active_column", "task=NAME")
        if reading.active_column is not None:
            name, _, task = reading.active_column.partition("=")
            if name.strip() != "task" or task.strip() not in counts:
                raise BadLog(source, f"{option}: there are results of {', '.join(sorted(counts))}")
            return task.strip()
        training = [task for task in counts if not re.search(r"valid|eval|test", task.lower())]
        if "train" in counts or len(training) == 1:
            return "train" if "train" in counts else training[0]
        raise BadLog(source, f"which task trains? {option}; there are results of {', '.join(sorted(counts)) or 'none'}")


def numbered_lines(source: Source, progress: Progress | None) -> Iterator[tuple[int, str]]:
    """(number, text) of every line."""
    with source.open() as stream:
        for number, raw in enumerate(stream, start=1):
            if progress and number % 4096 == 0:
                progress(source.position(stream), source.size)
            yield number, decode(source, raw, number)
