"""FedScale's availability trace: when phones were on charge and connected, replayed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.memory import require_memory
from fedpbc.core.schema import Context, Positive, component
from fedpbc.core.types import LinkProcess
from fedpbc.errors import BadOption, shorten
from fedpbc.io.plainpickle import PickleError, load
from fedpbc.links.trace import replay


@component
def fedscale(context: Context, *, path: Path, round_seconds: Positive = 60.0) -> LinkProcess:
    """Active in round t when active[k] <= s <= inactive[k], s = t round_seconds mod finish_time (arXiv 2105.11367).

    ``path``: FedScale's availability trace, a pickle (any other ending) or the same as .json: client id ->
    {active: [seconds], inactive: [seconds], finish_time: seconds}; other keys are ignored. Pickles are read by a
    reader that knows plain data only and runs nothing. Clients are the first m ids in sorted order; a client's
    probability is its share of active rounds, over the rounds of the run. Raises BadOption. Lai et al., ICML 2022.
    """
    clients = _read(path)
    m, rounds = context.problem.num_clients, context.num_rounds
    if len(clients) < m:
        raise BadOption("path", path, f"has {len(clients)} clients, the problem has {m}")
    require_memory("path", path, rounds * (m + 40), f"a trace of {rounds:,} rounds and {m:,} clients")
    seconds = np.arange(rounds) * round_seconds
    active = np.empty((rounds, m), bool)
    for column, client in enumerate(_sorted(path, clients)[:m]):
        starts, ends, finish = _intervals(path, client, clients[client])
        s = np.mod(seconds, finish)
        begun = np.searchsorted(np.sort(starts), s, side="right")
        active[:, column] = begun > np.searchsorted(np.sort(ends), s, side="left")
    return replay(active, context.dtype)


def _read(path: Path) -> Mapping[Any, Any]:
    try:
        if not path.is_file():
            raise BadOption("path", path, "no such file")
        size = path.stat().st_size
        require_memory("path", path, 40 * size, f"a file of {size:,} bytes")
        content = json.loads(path.read_bytes()) if path.suffix == ".json" else load(path.read_bytes())
    except RecursionError:
        raise BadOption("path", path, "cannot be read: nested too deeply") from None
    except (OSError, ValueError, PickleError) as error:
        raise BadOption("path", path, f"cannot be read: {shorten(str(error).splitlines()[0], 200)[1:-1]}") from None
    if not isinstance(content, dict) or not content:
        raise BadOption("path", path, "must hold a table: client id -> {active, inactive, finish_time}")
    return content


def _sorted(path: Path, clients: Mapping[Any, Any]) -> list[Any]:
    """Ids in order: integers, and strings of digits, by value; other strings by their characters."""
    kinds = {type(client) for client in clients}
    if kinds not in ({int}, {str}):
        raise BadOption("path", path, "client ids must be all integers or all strings")
    digits = kinds == {int} or all(c.isascii() and c.isdigit() and len(c) < 19 for c in clients)
    return sorted(clients, key=int if digits else None)


def _intervals(path: Path, client: Any, entry: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """(active, inactive, finish_time) of one client, checked."""
    who = f"client {shorten(client)}"
    if not isinstance(entry, dict):
        raise BadOption("path", path, f"{who} must be a table with active, inactive, finish_time")
    for key in ("active", "inactive", "finish_time"):
        if key not in entry:
            raise BadOption("path", path, f"{who} has no {key}")
    starts, ends = (_seconds(path, f"{who}: {key}", entry[key]) for key in ("active", "inactive"))
    (finish,) = _seconds(path, f"{who}: finish_time", [entry["finish_time"]])
    if finish <= 0:
        raise BadOption("path", path, f"{who}: finish_time must be > 0, is {finish:g}")
    if len(starts) != len(ends):
        raise BadOption("path", path, f"{who} has {len(starts)} active and {len(ends)} inactive times, must be as many")
    if np.any(ends < starts):
        k = int(np.argmax(ends < starts))
        raise BadOption("path", path, f"{who}: active[{k}] = {starts[k]:g} is after inactive[{k}] = {ends[k]:g}")
    return starts, ends, float(finish)


def _seconds(path: Path, what: str, values: Any) -> np.ndarray:
    if not isinstance(values, list | tuple):
        raise BadOption("path", path, f"{what} must be a list of seconds")
    for value in values:
        if type(value) not in (int, float) or abs(value) > 1e15 or math.isnan(value):
            raise BadOption("path", path, f"{what} must hold seconds, holds {shorten(value)}")
    return np.array(values, np.float64)
