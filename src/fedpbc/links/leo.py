"""Clients served by satellites in a low Earth orbit: active while one passes."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from fedpbc.core.lazy import jnp
from fedpbc.core.schema import Context, PositiveInt, Range, component
from fedpbc.core.types import Array, Link, LinkProcess

EARTH_RADIUS = 6378.137
"""Re, km (equatorial)."""
MU = 398_600.4418
"""Gravitational parameter of the Earth, km^3/s^2."""


@component
def leo(
    context: Context,
    *,
    altitude: Annotated[float, Range(above=0, high=1e6)] = 500.0,
    elevation: Annotated[float, Range(0, 89)] = 10.0,
    satellites: PositiveInt = 1,
    round_seconds: Annotated[float, Range(above=0, high=1e9)] = 60.0,
) -> LinkProcess:
    """Active while a satellite is above the client's horizon, at the time of the round, t round_seconds.

    Circular orbit of period T = 2 pi sqrt(a^3 / mu), a = Re + altitude; a pass takes
    (T / pi) (arccos(Re cos e / a) - e), e the least elevation. ``satellites`` follow each other evenly on the
    orbit; each client's phase is random, from the seed. The probability, over the phase, is satellites pass / T.
    altitude: km; elevation: degrees; round_seconds: seconds. Idealised: every orbit brings the longest pass.
    """
    period, longest = orbit(altitude, elevation)
    share = min(1.0, satellites * longest / period)
    step = (round_seconds * satellites / period) % 1.0
    params = {
        "offset": context.rng("leo phases").integers(2**32, size=context.problem.num_clients, dtype=np.uint32),
        "step": np.uint32(int(step * 2**32)),
        "length": np.uint32(min(round(share * 2**32), 2**32 - 1)),
        "always": np.asarray(share == 1),
        "prob": np.full(context.problem.num_clients, share, context.dtype),
    }
    return LinkProcess(params, _init, _step)


def orbit(altitude: float, elevation: float) -> tuple[float, float]:
    """(period, longest pass) in seconds, for an altitude in km and a least elevation in degrees.

    >>> [round(seconds / 60, 1) for seconds in orbit(500, 10)]
    [94.6, 7.4]
    """
    axis, e = EARTH_RADIUS + altitude, np.radians(elevation)
    period = 2 * np.pi * np.sqrt(axis**3 / MU)
    return float(period), float(period / np.pi * (np.arccos(EARTH_RADIUS * np.cos(e) / axis) - e))


def _init(params: dict[str, Array], key: Array) -> tuple[()]:
    return ()


def _step(params: dict[str, Array], key: Array, state: Any, t: Array) -> tuple[Any, Link]:
    """The place in the cycle is 32 bits of a turn, whose overflow is the end of the turn."""
    place = params["offset"] + t.astype(jnp.uint32) * params["step"]
    return state, Link((place < params["length"]) | params["always"], params["prob"])
