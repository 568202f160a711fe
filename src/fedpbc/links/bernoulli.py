"""Independent links: client i is active in round t with probability p_i^t, whatever happened before."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Array, Link, LinkProcess, TimeFunction
from fedpbc.links.common.probability import Prob
from fedpbc.links.common.variation import Varying, compose


@component
def bernoulli(context: Context, *, prob: Prob, varying: Varying | None = None) -> LinkProcess:
    """Active with probability p_i^t, independently over rounds and clients."""
    return LinkProcess(compose(context, prob, varying), _init, _step)


def _init(params: TimeFunction, key: Array) -> tuple[()]:
    return ()


def _step(params: TimeFunction, key: Array, state: Any, t: Array) -> tuple[Any, Link]:
    prob = params.at(params.params, t)
    return state, Link(draw(key, prob), prob)


def draw(key: Array, prob: Array) -> Array:
    """bool[m]: true with probability prob[i].

    32 random bits are compared with floor(p 2^32) as integers, so that the same seed gives the same A^t in
    float32 and float64, p = 0 is never and p = 1 always; a probability is exact to 2^-32.
    """
    bits = jax.random.bits(key, prob.shape, jnp.uint32)
    threshold = jnp.minimum(prob, np.nextafter(prob.dtype.type(1), prob.dtype.type(0))) * 2.0**32
    return (bits < threshold.astype(jnp.uint32)) | (prob >= 1)


def key_of_init(key: Array) -> Array:
    """The key that ``init`` of a process draws from, apart from the keys of all rounds, which fold in t < 2^31."""
    return jax.random.fold_in(key, 2**31)
