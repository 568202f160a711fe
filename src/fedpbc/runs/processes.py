"""One run on several processes, on one machine or many, joined by ``jax.distributed``.

All run the same program on the same experiment, and each has devices of its own. Process 0 decides (how long a block
is, whether a callback ends a cell, where to go on) and alone touches the run directory, callbacks and progress; the
others are told. Whatever goes wrong in process 0 is told too, and ends all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedpbc import __version__
from fedpbc.errors import ConfigError, FedpbcError, first_line
from fedpbc.runs.watch import ENDED, MARK, WATCH

T = TypeVar("T")
HEAD = 1024
"""Bytes that are always sent: their number and, mostly, all of them."""
LOST = ("Gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "coordination service", "heartbeat")
"""Words in the errors of a computation whose other side is gone."""


def join(coordinator: str, processes: int, process: int) -> None:
    """Become process ``process`` of so many, which meet at ``coordinator``, HOST:PORT, where process 0 listens.

    Before JAX starts. From here on, what libraries print goes to a watcher, which ends it with one line when another
    process is gone. Raises ConfigError.
    """
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"--coordinator {coordinator}: must be HOST:PORT, where process 0 can be reached")
    if not 0 <= process < processes:
        raise ConfigError(f"--process {process}: must be from 0 to {processes - 1}, of {processes} processes")
    _watch(process, processes)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except Exception as error:
        raise FedpbcError(f"--coordinator {coordinator}: process {process} cannot join: {first_line(error)}") from error


def many() -> bool:
    """There are others."""
    return jax.process_count() > 1


def is_first() -> bool:
    """This is the process that decides and writes."""
    return jax.process_index() == 0


def same_everywhere(content: Callable[[], Any]) -> None:
    """Raise ConfigError, in each, unless all run this version on the experiment that ``content()`` tells of."""
    if not many():
        return
    text = json.dumps([__version__, jax.__version__, jax.local_device_count(), content()], default=str, sort_keys=True)
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    found = np.asarray(multihost_utils.process_allgather(digest))
    unlike = [k for k in range(len(found)) if not np.array_equal(found[k], found[0])]
    if unlike:
        which = ", ".join(map(str, unlike[:5]))
        raise ConfigError(
            f"process {which} of {len(found)} differs from process 0: all must have the same experiment, files, "
            "number of devices and versions of fedpbc and JAX"
        )


def decided(function: Callable[[], T]) -> T:
    """What ``function`` gives in process 0, and is called there alone; of the kind that JSON holds.

    Its errors are raised there, and end the others with a FedpbcError (or ConfigError) that tells of them.
    """
    if not many():
        return function()
    if is_first():
        value = _telling(function)
        _tell(json.dumps({"value": value}).encode())
        return value
    told: T = _told(_tell(b""))["value"]
    return told


def decided_arrays(function: Callable[[], dict[str, np.ndarray] | None]) -> dict[str, np.ndarray] | None:
    """The same for named arrays, or None."""
    if not many():
        return function()
    if is_first():
        arrays = _telling(function)
        _tell(json.dumps({"arrays": arrays is not None}).encode())
        if arrays is not None:
            file = io.BytesIO()
            np.savez(file, **arrays)  # type: ignore[arg-type]
            _tell(file.getvalue())
        return arrays
    if not _told(_tell(b""))["arrays"]:
        return None
    with np.load(io.BytesIO(_tell(b"")), allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def _telling(function: Callable[[], T]) -> T:
    try:
        return function()
    except BaseException as error:
        text = str(error) if isinstance(error, FedpbcError) else first_line(error)
        _tell(json.dumps({"error": text, "config": isinstance(error, ConfigError)}).encode())
        raise


def _told(message: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message)
    if "error" in found:
        raise (ConfigError if found["config"] else FedpbcError)(f"process 0: {found['error']}")
    return found


def _tell(message: bytes) -> bytes:
    """The bytes that process 0 gives, in every process."""
    head = np.zeros(HEAD, np.uint8)
    start = len(message).to_bytes(8, "little") + message[: HEAD - 8]
    head[: len(start)] = np.frombuffer(start, np.uint8)
    head = np.asarray(multihost_utils.broadcast_one_to_all(head))
    length = int.from_bytes(head[:8].tobytes(), "little")
    if length <= HEAD - 8:
        return head[8 : 8 + length].tobytes()
    rest = np.zeros(length, np.uint8)
    if is_first():
        rest[:] = np.frombuffer(message, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(rest)).tobytes()


@contextmanager
def together() -> Iterator[None]:
    """The errors of a computation whose other processes are gone become one. Raises FedpbcError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, FedpbcError) or not many() or not any(word in str(error) for word in LOST):
            raise
        if _watchers:  # the runtime may be about to end this process too: one of both says it
            os.write(2, MARK)
            leave(1)
        raise FedpbcError(ENDED.format(jax.process_index(), jax.process_count())) from error


def leave(status: int) -> None:
    """End this process at once, if there are others: a failure must not wait for those that wait for it."""
    if "jax" in sys.modules and _joined:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


_joined: list[int] = []
"""The number of this process, where ``join`` made it one of several."""
_watchers: list[Any] = []


def _watch(process: int, processes: int) -> None:
    """Lead what libraries write to the error output, and to the output, through the watcher; Python's own stays."""
    _joined.append(process)
    if os.name != "posix":
        return
    command = [sys.executable, "-I", "-S", "-c", WATCH, ENDED.format(process, processes)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert watcher.stdin is not None
    for name, number in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        setattr(sys, name, os.fdopen(os.dup(number), "w", buffering=1, errors="replace"))
        os.dup2(watcher.stdin.fileno(), number)
    _watchers.append(watcher)
