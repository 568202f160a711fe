"""Links that fail as recorded: a mod that rehearses the failures of a trace in any Flower run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedpbc.errors import ConfigError, shorten
from fedpbc.flower.client.mod import client_id
from fedpbc.flower.wire.protocol import IDENTIFY, SERVER_ROUND, Order
from fedpbc.io.participation import Reading, read_trace
from fedpbc.io.participation.reading import as_key

DROPPED = 100
"""Error code of a reply that stands for silence. Flower's own codes are below 10."""
DROPPED_REASON = "dropped by the trace"


def drop_by_trace(
    uplink: str | Path | None = None,
    downlink: str | Path | None = None,
    *,
    active_column: str | None = None,
    round_seconds: float | None = None,
    missing_rounds: Literal["empty"] | None = None,
    drop_duplicates: bool = False,
    columns: str | None = None,
    round_start: str | None = None,
    round_gap: str | None = None,
    active_when: Literal["start", "throughout"] | None = None,
    table: str | None = None,
    query: str | None = None,
) -> Mod:
    """Flower mod that loses messages as a trace says: the first of the list, ``mods=[drop_by_trace(...), fedpbc_mod]``.

    ``uplink``, ``downlink``: files as ``fedpbc links`` writes them (.csv with round,client,active, or .npy of shape
    (rounds, clients)), or any that ``fedpbc audit`` reads and that names the clients; round 0 is Flower's
    ``server-round`` 1, and the trace begins anew where it ends. Client i is the one whose ``partition-id`` or
    ``client-id`` is i, counted from 0. A message lost on the downlink never reaches the train function; one lost on the
    uplink does, and its result stays with the client. Either way the server is told at once, by an error reply: a
    rehearsal does not wait for deadlines. The path may also stand in the run config, as ``trace`` and
    ``downlink-trace``. All other options say how both files are read, as for the links called ``trace`` and in the
    audit. Raises ConfigError for a bad option, and on the first message for a missing or bad file, or a client the
    trace does not have.
    """
    reading = Reading(
        active_column, round_seconds, missing_rounds, drop_duplicates, columns, None, table, query, round_start,
        round_gap, active_when, spell=as_key,
    )  # fmt: skip
    reading.check()
    traces: dict[str, np.ndarray] = {}

    def active(which: str, path: str | Path | None, context: Context, round: int) -> bool:
        path = path or str(context.run_config.get(which, ""))
        if not path:
            return True
        trace = traces.get(str(path))
        if trace is None:
            trace = traces[str(path)] = read_trace(which, Path(path), reading)
        return bool(trace[round % len(trace), _column(trace, path, context)])

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        round = _round_of(message)
        if round is None:
            return call_next(message, context)
        if not active("downlink-trace", downlink, context, round):
            return _silence(message)
        reply = call_next(message, context)
        return reply if active("trace", uplink, context, round) else _silence(message)

    return mod


def _round_of(message: Message) -> int | None:
    order = Order.of(message)
    if order is not None:
        return None if order.kind == IDENTIFY else order.round
    for config in message.content.config_records.values():
        if SERVER_ROUND in config:
            return int(config[SERVER_ROUND]) - 1  # type: ignore[arg-type]
    return None


def _column(trace: np.ndarray, path: str | Path, context: Context) -> int:
    name = client_id(context)
    if not (name.isascii() and name.isdigit() and int(name) < trace.shape[1]):
        allowed = f"the partition-id or client-id must be 0..{trace.shape[1] - 1}, a client of {path}"
        raise ConfigError(f"drop_by_trace: {allowed}; this client's is {shorten(name)}")
    return int(name)


def _silence(message: Message) -> Message:
    return Message(Error(DROPPED, DROPPED_REASON), reply_to=message)
