"""Correlated links: groups of clients that go down together, as behind one base station."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.core.lazy import jax
from fedpbc.core.schema import Context, Fraction, PositiveInt, component
from fedpbc.core.types import Array, Link, LinkProcess, TimeFunction
from fedpbc.errors import BadOption
from fedpbc.links.bernoulli import draw, key_of_init
from fedpbc.links.common.probability import Prob
from fedpbc.links.common.variation import Varying, compose
from fedpbc.links.markov import follow


class _Params(NamedTuple):
    prob: TimeFunction
    group: Array
    """int32[m]: the group of each client."""
    up: Array
    """The probability that a group is up, [groups]."""
    memory: Array


@component
def outages(
    context: Context,
    *,
    prob: Prob,
    groups: PositiveInt,
    outage: Fraction,
    memory: Fraction = 0.0,
    varying: Varying | None = None,
) -> LinkProcess:
    """Bernoulli links, but a group of consecutive clients is down together with probability ``outage``.

    ``groups`` groups of as equal size as possible, up or down independently of each other; ``memory`` is the
    lag-1 autocorrelation of a group's up/down chain, which starts from its stationary law. The marginal
    probability is p_i (1 - outage); two clients of a group have covariance p_i p_j outage (1 - outage). Raises
    BadOption when there are more groups than clients.
    """
    m = context.problem.num_clients
    if groups > m:
        raise BadOption("groups", groups, f"must be at most the number of clients, {m}")
    params = _Params(
        compose(context, prob, varying),
        (np.arange(m) * groups // m).astype(np.int32),
        np.full(groups, 1 - outage, context.dtype),
        np.asarray(memory, context.dtype),
    )
    return LinkProcess(params, _init, _step)


def _init(params: _Params, key: Array) -> Array:
    return draw(key_of_init(key), params.up)


def _step(params: _Params, key: Array, up: Array, t: Array) -> tuple[Array, Link]:
    shared, own = jax.random.split(key)
    up = draw(shared, follow(up, params.up, params.memory))
    prob = params.prob.at(params.prob.params, t)
    active = draw(own, prob) & up[params.group]
    return up, Link(active, prob * params.up[params.group])
