"""How base probabilities vary in time: p_i^t = clip(p_i f_i(t), minimum, 1), then 0 where below the cutoff.

``compose`` makes one TimeFunction of base probabilities and a variation; times are in rounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from fedpbc.core.lazy import jnp
from fedpbc.core.schema import (
    Component,
    Context,
    Fraction,
    Kind,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Range,
    component,
)
from fedpbc.core.types import Array, TimeFunction
from fedpbc.errors import BadOption
from fedpbc.links.common.probability import Prob

DAY = 86_400.0
"""Seconds."""


class Variation(NamedTuple):
    """What happens to base probabilities over time."""

    factor: TimeFunction
    """f(t), [m] or a scalar."""
    minimum: Array
    """p_min: products below are lifted to it."""
    cutoff: Array
    """Probabilities below are set to 0, after the minimum; 0 for none."""


def _variation(context: Context, factor: TimeFunction, minimum: float = 0.0, cutoff: float = 0.0) -> Variation:
    return Variation(factor, np.asarray(minimum, context.dtype), np.asarray(cutoff, context.dtype))


@component
def none(context: Context) -> Variation:
    """Probabilities that do not change in time."""
    return _variation(context, TimeFunction((), _one))


def _one(params: tuple[()], t: Array) -> Array:
    return jnp.ones(())


@component
def sine(
    context: Context,
    *,
    amplitude: Fraction = 0.4,
    period: Annotated[float, Range(1e-3, 1e9)] = 40.0,
    phase: Literal["common", "random"] = "common",
    minimum: Fraction = 0.0,
) -> Variation:
    """A factor amplitude sin(2 pi t / period + phase) + 1 - amplitude, phase 0 or random per client.

    The factor lies in [1 - 2 amplitude, 1]: FedAWE's "sine dynamics" (arXiv 2409.17446). Products below
    ``minimum`` are lifted to it. ``period`` is in rounds; random phases are uniform, from the seed.
    """
    return _variation(context, _wave(context, amplitude, period, phase), minimum)


@component
def interleaved(
    context: Context,
    *,
    amplitude: Fraction = 0.4,
    period: Annotated[float, Range(1e-3, 1e9)] = 40.0,
    phase: Literal["common", "random"] = "common",
    cutoff: Fraction = 0.1,
) -> Variation:
    """The factor of ``sine``, and probabilities below ``cutoff`` set to 0.

    Breaks the assumption p_i^t >= c > 0 on purpose: FedAWE's "interleaved sine" (arXiv 2409.17446).
    """
    return _variation(context, _wave(context, amplitude, period, phase), cutoff=cutoff)


def _wave(context: Context, amplitude: float, period: float, phase: str) -> TimeFunction:
    turns = context.rng("sine phases").random(context.problem.num_clients) if phase == "random" else np.zeros(())
    params = {
        "amplitude": np.array(amplitude),
        "period": context.number("period", period),
        "phase": np.asarray(2 * np.pi * turns, context.dtype),
    }
    return TimeFunction(params, _sine)


def _sine(params: dict[str, Array], t: Array) -> Array:
    wave = jnp.sin(2 * jnp.pi * t / params["period"] + params["phase"])
    return params["amplitude"] * wave + 1 - params["amplitude"]


@component
def staircase(context: Context, *, low: Fraction = 0.4, half_period: PositiveInt = 10) -> Variation:
    """A factor 1 for ``half_period`` rounds, then ``low`` for as many, and so on (FedAWE, arXiv 2409.17446)."""
    params = {"low": np.asarray(low, context.dtype), "half_period": np.int32(half_period)}
    return _variation(context, TimeFunction(params, _staircase))


def _staircase(params: dict[str, Array], t: Array) -> Array:
    return jnp.where((t // params["half_period"]) % 2 == 0, 1, params["low"])


@component
def diurnal(
    context: Context,
    *,
    round_seconds: Positive,
    zones: PositiveInt = 24,
    swing: Annotated[float, Range(low=1)] = 4.0,
) -> Variation:
    """A sine over a day whose largest value, 1, is ``swing`` times its smallest; each client in a random time zone.

    The period is 86400 / ``round_seconds`` rounds; a client's phase is one of ``zones`` equal parts of a day,
    from the seed. round_seconds: seconds of a round.
    """
    zone = context.rng("diurnal zones").integers(zones, size=context.problem.num_clients)
    params = {
        "amplitude": np.array((1 - 1 / swing) / 2),
        "period": np.asarray(DAY, context.dtype) / context.number("round_seconds", round_seconds),
        "phase": np.asarray(2 * np.pi * zone / zones, context.dtype),
    }
    return _variation(context, TimeFunction(params, _sine))


@component
def absence(
    context: Context,
    *,
    first: NonNegativeInt,
    rounds: PositiveInt,
    share: Annotated[float, Range(above=0, high=1)] = 0.1,
) -> Variation:
    """A factor 0 in rounds first .. first + rounds - 1 for a random share of the clients, at least one; else 1.

    round(``share`` m) clients, drawn from the seed. Not in the paper: a long outage, as of a region.
    """
    m = context.problem.num_clients
    chosen = context.rng("absence").permutation(m) < max(1, round(share * m))
    return _variation(context, TimeFunction((chosen, np.int32(first), np.int32(rounds)), _absence))


def _absence(params: tuple[Array, Array, Array], t: Array) -> Array:
    chosen, first, rounds = params
    away = chosen & (t >= first) & (t - first < rounds)
    return jnp.where(away, 0, jnp.ones(()))


VARIATIONS: Kind = Kind(
    "variation in time",
    {
        "none": none,
        "sine": sine,
        "staircase": staircase,
        "interleaved": interleaved,
        "diurnal": diurnal,
        "absence": absence,
    },
    gives=Variation,
    shorthand=lambda value: {"name": value} if isinstance(value, str) else None,
    allowed='"none" or a table with a name',
)

Varying = Annotated[Variation | Component[Variation], VARIATIONS]


def compose(context: Context, prob: Prob, varying: Varying | None, option: str = "prob") -> TimeFunction:
    """p^t, [m], from base probabilities, a number, [m] or [T, m], and a variation: see the top of this file."""
    table = _checked(option, prob, context.problem.num_clients).astype(context.dtype, copy=False)
    return TimeFunction({"table": table, "varying": varying or none.function(context)}, _product)


def _checked(option: str, prob: Any, m: int) -> np.ndarray:
    """Base probabilities, which may come from outside, as [T, m]. Raises BadOption."""
    try:
        table = np.atleast_2d(np.asarray(prob, np.float64))
        table = np.repeat(table, m, axis=1) if np.ndim(prob) == 0 else table
    except (TypeError, ValueError):
        raise BadOption(option, prob, "must be numbers, one per client") from None
    if table.ndim != 2 or table.shape[1] != m or not len(table):
        raise BadOption(option, prob, f"has shape {np.shape(prob)}, must have one probability per client, ({m},)")
    if not np.all((table >= 0) & (table <= 1)):
        t, i = np.argwhere(~((table >= 0) & (table <= 1)))[0]
        raise BadOption(option, prob, f"is {table[t, i]:g} for client {i}, must be in [0, 1]")
    return table


def _product(params: dict[str, Any], t: Array) -> Array:
    table, varying = params["table"], params["varying"]
    base = table[jnp.minimum(t, table.shape[0] - 1)]
    factor = varying.factor.at(varying.factor.params, t).astype(base.dtype)
    prob = jnp.clip(base * factor, varying.minimum, 1)
    return jnp.where(prob < varying.cutoff, 0, prob)
