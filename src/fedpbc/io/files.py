"""Arrays read from the user's files, one clear line when something is wrong; files written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.errors import BadOption, ConfigError, FedpbcError, shorten


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, that becomes ``path`` when all went well: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An .npz that NumPy reads without pickle; the same arrays give the same bytes."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


AGAIN = "delete it to do that run again"


def read_arrays(path: Path, remedy: str = AGAIN) -> dict[str, np.ndarray]:
    """The arrays of an .npz. Raises FedpbcError, which ends with the ``remedy``, when the file is damaged or gone."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # one flipped bit asks for another compression, a password, a dtype that is none, ...
        raise damaged(path, error, remedy) from None


def damaged(path: Path, error: Exception, remedy: str = AGAIN) -> FedpbcError:
    """The error of a file of an unfinished run that cannot be used."""
    return FedpbcError(f"{path}: is damaged ({error}); {remedy}")


class Lock:
    """A file that one process holds at a time; the lock goes with the process, however it ends.

    Forked workers inherit the open file, and would go on holding it when the process is long gone: they let go at once.
    """

    def __init__(self, path: Path, taken: str) -> None:
        """Take it. Raises ConfigError with the text ``taken`` when another process has it."""
        self._file: io.TextIOWrapper | None = None
        try:
            import fcntl
        except ImportError:  # not a POSIX system
            return
        self._file = open(path, "w")  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.drop()
            raise ConfigError(taken) from None
        _held.add(self)

    def release(self) -> None:
        """Let another process take it, even if a process that was forked without Python's knowledge has it open."""
        if self._file is not None:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.drop()

    def drop(self) -> None:
        """Close the file: the lock stays with whoever else has it open."""
        if self._file is not None:
            self._file.close()
            self._file = None


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _drop_inherited() -> None:
    for lock in list(_held):
        lock.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)


class Journal:
    """A file of JSON lines, one per round, each with its ``round``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._count, self._hash, self._synced = 0, hashlib.sha256(), 0

    def append(self, line: dict[str, Any]) -> None:
        """Add a line; a kill of this process does it no harm, ``sync`` saves it from a power cut too."""
        data = (json.dumps(line) + "\n").encode()
        with open(self.path, "ab") as file:
            file.write(data)
        self._count += 1
        self._hash.update(data)

    def sync(self) -> None:
        """All lines are on disk when this returns."""
        if self._synced < self._count:
            with open(self.path, "rb+") as file:
                os.fsync(file.fileno())
            self._synced = self._count

    def mark(self) -> dict[str, Any]:
        """How many lines there are, and a checksum of them: what ``check`` compares with."""
        return {"lines": self._count, "sha256": self._hash.hexdigest()}

    def check(self, mark: dict[str, Any], then: int | None = None) -> int:
        """The bytes of the lines that count: those of the ``mark``, and whole lines of round ``then`` after them.

        What else follows, lines of rounds that were never closed, is for ``cut``. 0 where there is no file at all: the
        journal begins anew. Raises ValueError when lines of the mark are missing or are not what they were.
        """
        if not self.path.is_file():
            return 0
        lines = self.path.read_bytes().splitlines(keepends=True)
        count = int(mark["lines"])
        head, whole = b"".join(lines[:count]), sum(line.endswith(b"\n") for line in lines)
        if whole < count:
            raise ValueError(f"has {whole} of its {count} lines")
        if hashlib.sha256(head).hexdigest() != mark["sha256"]:
            raise ValueError(f"has other lines than the {count} that were written")
        for line in lines[count:] if then is not None else ():
            if not line.endswith(b"\n") or (_parsed(line) or {}).get("round") != then:
                break
            head, count = head + line, count + 1
        self._count, self._hash = count, hashlib.sha256(head)
        return len(head)

    def cut(self, size: int) -> None:
        """Drop what follows the first ``size`` bytes."""
        if self.path.is_file() and self.path.stat().st_size > size:
            os.truncate(self.path, size)

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines; one that a kill cut short is left out."""
        if not self.path.is_file():
            return []
        return [line for text in self.path.read_bytes().splitlines() if (line := _parsed(text)) is not None]


def _parsed(text: bytes) -> dict[str, Any] | None:
    """One line of a journal, or None when it is not one."""
    try:
        line = json.loads(text.decode(errors="replace"))
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("round"), int) else None


def read_matrix(option: str, path: Path) -> np.ndarray:
    """A numeric matrix [rows, columns] from .npy, or from .csv without header; float64, finite.

    Raises BadOption naming ``option`` when the file is missing, unreadable, ragged or not finite.
    """
    values = np.atleast_1d(_load(option, path, lambda: _load_csv(path)))
    if values.dtype.kind not in "fiub":
        raise BadOption(option, path, f"must hold numbers, not {values.dtype}")
    if values.size == 0:
        raise BadOption(option, path, "the file is empty")
    values = values.astype(np.float64)
    if not np.all(np.isfinite(values)):
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise BadOption(option, path, f"row {row} holds a value that is not finite")
    return values


def _load_csv(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file without a number is an error of ours, not a warning of NumPy's
        return np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8-sig")


def read_vector(option: str, path: Path) -> np.ndarray:
    """A vector [n] from .npy, or from .csv without header as one row or one column."""
    values = read_matrix(option, path)
    if values.ndim > 2 or (values.ndim == 2 and min(values.shape) != 1):
        raise BadOption(option, path, f"must be one row or one column, has shape {values.shape}")
    return values.ravel()


def _load(option: str, path: Path, load_csv: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        if not path.is_file():
            raise BadOption(option, path, "no such file")
        if path.suffix not in (".csv", ".npy"):
            raise BadOption(option, path, "must end in .csv or .npy")
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("it is an archive of arrays, not one array")
            return array
        if path.stat().st_size == 0:
            raise ValueError("the file is empty")
        return load_csv()
    except BadOption:
        raise
    except Exception as error:  # a damaged .npy header raises whatever the parser of its text raises
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadOption(option, path, f"cannot be read: {first_line}") from None


def read_trace(option: str, path: Path) -> np.ndarray:
    """A recorded A^t as bool[T, m].

    From .npy of shape (rounds, clients) holding 0/1 or booleans, or from .csv with the header
    ``round,client,active``: every pair of a contiguous range of rounds and a contiguous range of clients
    exactly once, in any order. Raises BadOption on gaps, duplicates and values other than 0/1/true/false/yes/no.
    """
    table = _load(option, path, lambda: _read_trace_csv(option, path))
    if table.ndim != 2 or table.size == 0:
        raise BadOption(option, path, f"must have shape (rounds, clients), has {table.shape}")
    if table.dtype != bool and not np.all((table == 0) | (table == 1)):
        raise BadOption(option, path, "must hold only 0 and 1")
    return table.astype(bool)


_ID_MAX = 10**15
BOOLEANS = {"0": False, "1": True, "true": True, "false": False, "yes": True, "no": False, "0.0": False, "1.0": True}
"""Whether a client was active, as text in lower case, in every file that says so."""


def _read_trace_csv(option: str, path: Path) -> np.ndarray:
    with open(path, encoding="utf-8-sig") as file:
        header = [cell.strip().lower() for cell in file.readline(1000).split(",")]
        if sorted(header) != ["active", "client", "round"]:
            raise BadOption(option, path, "the first line must be: round,client,active")
        columns = {name: header.index(name) for name in header}
        rounds, clients, active = [], [], []
        for number, line in enumerate(file, start=2):
            if not line.strip():
                continue
            try:
                cells = [cell.strip() for cell in line.split(",")]
                rounds.append(int(cells[columns["round"]]))
                clients.append(int(cells[columns["client"]]))
                active.append(BOOLEANS[cells[columns["active"]].lower()])
                if len(cells) != 3 or max(abs(rounds[-1]), abs(clients[-1])) > _ID_MAX:
                    raise ValueError
            except (ValueError, KeyError, IndexError):
                raise BadOption(
                    option,
                    path,
                    f"line {number} must be two integers and 0 or 1 (true, false, yes, no), is {shorten(line.strip())}",
                ) from None
    if not rounds:
        raise BadOption(option, path, "holds no rows")
    return _dense(option, path, np.array(rounds), np.array(clients), np.array(active))


def _dense(option: str, path: Path, rounds: np.ndarray, clients: np.ndarray, active: np.ndarray) -> np.ndarray:
    t, i = rounds - rounds.min(), clients - clients.min()
    num_rounds, num_clients = int(t.max()) + 1, int(i.max()) + 1
    if num_rounds * num_clients > len(t):
        raise BadOption(option, path, _first_gap(rounds, clients))
    cell = t * num_clients + i
    values, counts = np.unique(cell, return_counts=True)
    if counts.max() > 1:
        row = int(values[counts.argmax()])
        pair = f"round {row // num_clients + rounds.min()}, client {row % num_clients + clients.min()}"
        raise BadOption(option, path, f"{pair} stands there twice")
    table = np.zeros(num_rounds * num_clients, bool)
    table[cell] = active
    return table.reshape(num_rounds, num_clients)


def _first_gap(rounds: np.ndarray, clients: np.ndarray) -> str:
    """Name the first missing (round, client) pair without building the dense table."""
    known = np.unique(clients)
    if np.any(np.diff(known) > 1):
        return f"client {known[np.argmax(np.diff(known) > 1)] + 1} is missing: clients must be contiguous"
    known_rounds = np.unique(rounds)
    if np.any(np.diff(known_rounds) > 1):
        times = " (are these times? Number the rounds 0, 1, 2, ...)" if np.min(np.diff(known_rounds)) > 1 else ""
        missing = known_rounds[np.argmax(np.diff(known_rounds) > 1)] + 1
        return f"round {missing} is missing: rounds must be contiguous{times}"
    order = np.lexsort((clients, rounds))
    pairs = list(dict.fromkeys(zip(rounds[order].tolist(), clients[order].tolist(), strict=True)))
    first, width = int(known[0]), len(known)
    for position, (t, i) in enumerate(pairs):
        expected = (int(known_rounds[0]) + position // width, first + position % width)
        if (t, i) != expected:
            return f"round {expected[0]} has no row for client {expected[1]}"
    t, i = int(known_rounds[0]) + len(pairs) // width, first + len(pairs) % width
    return f"round {t} has no row for client {i}"
