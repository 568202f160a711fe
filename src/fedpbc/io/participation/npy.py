"""A dense array (rounds, clients) of 0 and 1."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading
from fedpbc.io.participation.source import Source

BLOCK_CELLS = 1 << 22


def read_npy(path: Source, reading: Reading, progress: Progress | None = None) -> ParticipationLog:
    """A dense 0/1 or boolean array (rounds, clients); read in blocks, never whole. Clients are "0", "1", ..."""
    try:
        table = _load(path)
    except (ValueError, OSError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadLog(path, f"cannot be read as .npy, is it truncated? ({reason})") from None
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.size == 0:
        raise BadLog(path, f"must have shape (rounds, clients), has {getattr(table, 'shape', 'no shape')}")
    if table.dtype.kind not in "biuf":
        raise BadLog(path, f"must hold only 0 and 1, holds {table.dtype}")
    pairs = list(_npy_pairs(path, table, progress))
    rounds, members = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    return ParticipationLog(
        [str(i) for i in range(table.shape[1])], table.shape[0], 0, rounds, members, source=path.name, format="npy"
    )


def _load(path: Source) -> Any:
    if path.compressed:
        with path.open() as stream:
            return np.load(io.BytesIO(stream.read()), allow_pickle=False)
    return np.load(path.path, mmap_mode="r", allow_pickle=False)


def _npy_pairs(path: Source, table: np.ndarray, progress: Progress | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    step = max(BLOCK_CELLS // table.shape[1], 1)
    for first in range(0, len(table), step):
        block = np.asarray(table[first : first + step])
        wrong = np.argwhere((block != 0) & (block != 1)) if block.dtype != bool else np.empty((0, 2))
        if len(wrong):
            row, column = wrong[0].tolist()
            raise BadLog(path, f"row {first + row}, column {column}: must be 0 or 1, is {block[row, column]}")
        t, i = np.nonzero(block)
        yield (t + first).astype(np.int32), i.astype(np.int32)
        if progress:
            progress(min(first + step, len(table)), len(table))


FORMAT = Format(
    "npy", "a table of rounds and clients", read_npy, lambda source: source.head.startswith(b"\x93NUMPY"), (".npy",), ()
)
