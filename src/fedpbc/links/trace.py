"""A recorded A^t, replayed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpbc.core.schema import Context, Positive, component
from fedpbc.core.types import Array, Link, LinkProcess
from fedpbc.errors import BadOption
from fedpbc.io.participation import Reading, read_trace


@component
def trace(
    context: Context,
    *,
    path: Path,
    active_column: str | None = None,
    round_seconds: Positive | None = None,
    missing_rounds: Literal["empty"] | None = None,
    drop_duplicates: bool = False,
    columns: str | None = None,
    round_start: str | None = None,
    round_gap: str | None = None,
    active_when: Literal["start", "throughout"] | None = None,
    table: str | None = None,
    query: str | None = None,
) -> LinkProcess:
    """A recorded A^t from a file: any log that ``fedpbc audit`` reads and that names the clients (docs/audit.md).

    The options are the audit's. Rounds and clients must be contiguous and complete. A client's probability is its
    share of active rounds, over the rounds of the run. Raises BadOption.
    """
    m, needed = context.problem.num_clients, context.num_rounds
    reading = Reading(
        active_column, round_seconds, missing_rounds, drop_duplicates, columns, None, table, query, round_start,
        round_gap, active_when,
    )  # fmt: skip
    active = read_trace("path", path, reading, m)
    num_rounds, num_clients = active.shape
    if num_clients != m:
        raise BadOption("path", path, f"has {num_clients} clients, the problem has {m}")
    if num_rounds < needed:
        raise BadOption("path", path, f"has {num_rounds} rounds, the run needs {needed}")
    return replay(active[:needed], context.dtype)


def replay(active: np.ndarray, dtype: Any) -> LinkProcess:
    """A^t as recorded in ``active`` bool[T, m]; p_i is the mean of column i."""
    return LinkProcess({"active": active, "prob": active.mean(axis=0).astype(dtype)}, _init, _step)


def _init(params: dict[str, Array], key: Array) -> tuple[()]:
    return ()


def _step(params: dict[str, Array], key: Array, state: Any, t: Array) -> tuple[Any, Link]:
    return state, Link(params["active"][t], params["prob"])
