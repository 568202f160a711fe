"""A recorded A^t, replayed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.schema import Context, component
from fedpbc.core.types import Array, Link, LinkProcess
from fedpbc.errors import BadOption
from fedpbc.io.files import read_trace


@component
def trace(context: Context, *, path: Path) -> LinkProcess:
    """A recorded A^t from a file: .csv with columns round,client,active, or a dense .npy (rounds, clients).

    A client's probability is its share of active rounds, over the rounds of the run.
    """
    active = read_trace("path", path)
    num_rounds, num_clients = active.shape
    m = context.problem.num_clients
    if num_clients != m:
        raise BadOption("path", path, f"has {num_clients} clients, the problem has {m}")
    if num_rounds < context.num_rounds:
        raise BadOption("path", path, f"has {num_rounds} rounds, the run needs {context.num_rounds}")
    return replay(active[: context.num_rounds], context.dtype)


def replay(active: np.ndarray, dtype: Any) -> LinkProcess:
    """A^t as recorded in ``active`` bool[T, m]; p_i is the mean of column i."""
    return LinkProcess({"active": active, "prob": active.mean(axis=0).astype(dtype)}, _init, _step)


def _init(params: dict[str, Array], key: Array) -> tuple[()]:
    return ()


def _step(params: dict[str, Array], key: Array, state: Any, t: Array) -> tuple[Any, Link]:
    return state, Link(params["active"][t], params["prob"])
