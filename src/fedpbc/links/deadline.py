"""Clients that are too slow: active when the round trip ends before the deadline."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedpbc.core.schema import Context, NonNegative, Positive, Range, component
from fedpbc.core.types import LinkProcess
from fedpbc.links.bernoulli import bernoulli


@component
def deadline(
    context: Context,
    *,
    deadline: Positive = 20.0,
    compute: NonNegative = 10.0,
    payload: Positive = 8e6,
    rate: Positive = 1e6,
    spread: Annotated[float, Range(above=0, high=100)] = 0.5,
    client_spread: Annotated[float, Range(0, 100)] = 0.5,
) -> LinkProcess:
    """Active when a lognormal round-trip time is below the deadline; independent over rounds and clients.

    Time = median_i LogNormal(0, ``spread``), median_i = (compute + payload / rate) LogNormal(0, ``client_spread``),
    the latter drawn once from the seed: p_i = Phi(log(deadline / median_i) / spread). deadline, compute: seconds;
    payload: bits; rate: bits per second; the spreads are standard deviations of the logarithm. Unreliability from
    slowness rather than from loss.
    """
    from scipy.special import ndtr  # here, as it takes long to import

    slowness = client_spread * context.rng("deadline medians").standard_normal(context.problem.num_clients)
    with np.errstate(over="ignore"):
        log_median = np.log(compute + payload / np.float64(rate)) + slowness
    return bernoulli.function(context, prob=ndtr((np.log(deadline) - log_median) / spread))
