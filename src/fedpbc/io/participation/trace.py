"""A log that can be replayed: who took part is known of every client in every round."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedpbc.core.memory import require_memory
from fedpbc.errors import BadOption
from fedpbc.io.participation.formats import read_participation
from fedpbc.io.participation.log import ParticipationLog, is_integer, with_clients
from fedpbc.io.participation.reading import BadLog, BadReading, Reading, as_key


def read_trace(option: str, path: Path, reading: Reading | None = None, num_clients: int | None = None) -> np.ndarray:
    """A recorded A^t as bool[T, m], from a log of any format that names the clients.

    Rounds are contiguous; where the file lists those who did not take part, every pair of round and client has a row.
    Column i is the i-th id in order; ids that are integers are contiguous too. In a list of active pairs whose ids go
    up to the last of ``num_clients`` (counted from 0 or 1), clients that are not there never took part. Raises
    BadOption: of ``option`` for what is wrong with the file, of its own for a bad ``reading``.
    """
    reading = replace(reading or Reading(), complete=True, spell=as_key)
    try:
        log = read_participation(path, reading)
    except BadLog as error:
        raise BadOption(option, path, error.problem) from None
    except BadReading as error:
        raise BadOption(error.option, getattr(reading, error.option), error.problem) from None
    except OSError as error:
        raise BadOption(option, path, f"cannot be read: {error.strerror or error}") from None
    if log.counts_only is not None:
        raise BadOption(option, path, "holds counts only: who took part is not known")
    if len(log.unknown):
        raise BadOption(option, path, "holds rounds of which nothing is known")
    if all(map(is_integer, log.clients)):
        log = _contiguous(option, path, log, num_clients)
    rounds, m = log.num_rounds, len(log.clients)
    require_memory(option, path, rounds * m, f"a trace of {rounds:,} rounds and {m:,} clients")
    active = np.zeros((rounds, m), bool)
    active[log.rounds, log.members] = True
    return active


def _contiguous(option: str, path: Path, log: ParticipationLog, m: int | None) -> ParticipationLog:
    numbers = list(map(int, log.clients))
    if m is not None and log.pairs_only and numbers:
        first, last = numbers[0], numbers[-1]
        if last == m - 1 or (last == m and first > 0):
            return with_clients(log, m, [])
    for before, number in pairwise(numbers):
        if number != before + 1:
            raise BadOption(option, path, f"client {before + 1} is missing: clients must be contiguous")
    return log
