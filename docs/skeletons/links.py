"""A link process: copy this file, and change ``example``, ``init`` and ``step``."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import fedpbc
from fedpbc.core.schema import Context, PositiveInt
from fedpbc.core.types import Array, Link, LinkProcess, TimeFunction
from fedpbc.links.bernoulli import draw
from fedpbc.links.common.probability import Prob
from fedpbc.links.common.variation import Varying, compose


class Params(NamedTuple):
    """The settings as arrays."""

    prob: TimeFunction
    """p_i^t, however it was written."""
    phase: Array
    """int[m]."""
    period: Array


@fedpbc.register
def example(context: Context, *, prob: Prob, period: PositiveInt = 10, varying: Varying | None = None) -> LinkProcess:
    """Active with p_i^t, and never in one round of ``period``, a client's own: what, and its reference."""
    m = context.problem.num_clients
    phase = context.rng("example phase").integers(period, size=m)  # what is known of a client comes from the seed
    return LinkProcess(Params(compose(context, prob, varying), phase.astype(np.int32), np.int32(period)), init, step)


def init(params: Params, key: Array) -> tuple[()]:
    """The state before round 0; a random one draws from ``fedpbc.links.bernoulli.key_of_init(key)``."""
    return ()


def step(params: Params, key: Array, state: Any, t: Array) -> tuple[Any, Link]:
    """A^t, and the probability of being in it as the settings state it; ``key`` belongs to round t."""
    pause = (t + params.phase) % params.period == 0
    prob = jnp.where(pause, 0, params.prob.at(params.prob.params, t))
    return state, Link(draw(key, prob), prob)
