"""Cyclic participation: on for a stretch of every cycle."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, PositiveInt, component
from fedpbc.core.types import Array, Link, LinkProcess
from fedpbc.links.bernoulli import key_of_init
from fedpbc.links.common.probability import Prob


@component
def cyclic(context: Context, *, prob: Prob, period: PositiveInt, reset: bool = False) -> LinkProcess:
    """On for round(p_i period) of every ``period`` rounds, at least one unless p_i = 0, from a random offset.

    A client is active in round t when (t + offset_i) mod period is below that number; offsets are uniform and
    independent. ``reset``: a new offset for each cycle (rounds k period .. (k + 1) period - 1). The reported
    probability is the number over the period, the share of rounds, over the draw of the offset.
    """
    base = np.atleast_2d(np.asarray(prob))
    on = np.where(base > 0, np.maximum(1, np.rint(base * period)), 0)
    params = {"on": on.astype(np.int32), "period": np.int32(period), "prob": (on / period).astype(context.dtype)}
    return LinkProcess(params, _init, _step_reset if reset else _step)


def _offsets(params: dict[str, Array], key: Array) -> Array:
    return jax.random.randint(key, (params["on"].shape[1],), 0, params["period"], jnp.int32)


def _init(params: dict[str, Array], key: Array) -> Array:
    return _offsets(params, key_of_init(key))


def _step(params: dict[str, Array], key: Array, offset: Array, t: Array) -> tuple[Any, Link]:
    period, row = params["period"], jnp.minimum(t, params["on"].shape[0] - 1)
    # both below the period, and compared without their sum, which 32 bits might not hold
    place = t % period - (period - offset)
    active = jnp.where(place < 0, place + period, place) < params["on"][row]
    return offset, Link(active, params["prob"][row])


def _step_reset(params: dict[str, Array], key: Array, offset: Array, t: Array) -> tuple[Any, Link]:
    offset = jnp.where(t % params["period"] == 0, _offsets(params, key), offset)
    return _step(params, key, offset, t)
