"""Learning rates eta_t: a number, or a function of the round."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedpbc.core.lazy import jnp
from fedpbc.core.schema import Component, Context, Kind, Positive, component
from fedpbc.core.types import Array, TimeFunction


@component
def constant(context: Context, *, value: Positive) -> TimeFunction:
    """eta_t = value."""
    number = context.number("value", value)
    # As inverse_sqrt with an endless period, value / sqrt(t / inf + 1), so that both share a compiled program.
    return TimeFunction(np.stack([number, np.full_like(number, np.inf)]), _inverse_sqrt)


@component
def inverse_sqrt(context: Context, *, initial: Positive, period: Positive = 10.0) -> TimeFunction:
    """eta_t = initial / sqrt(t / period + 1); ``period`` in rounds."""
    params = [context.number("initial", initial), context.number("period", period)]
    return TimeFunction(np.stack(params), _inverse_sqrt)


def _inverse_sqrt(params: Array, t: Array) -> Array:
    return params[0] / jnp.sqrt(t.astype(params.dtype) / params[1] + 1)


SCHEDULES = Kind(
    "learning rate schedule",
    {"constant": constant, "inverse_sqrt": inverse_sqrt},
    shorthand=lambda value: {"name": "constant", "value": value} if type(value) in (int, float) else None,
    gives=TimeFunction,
    allowed="a number > 0 or a table with a name",
)
Schedule = Annotated[float | TimeFunction | Component[TimeFunction], SCHEDULES]
