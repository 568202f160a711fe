"""Links with memory: every client is a two-state Markov chain, on or off."""

from __future__ import annotations

from typing import NamedTuple

from fedpbc.core.lazy import jnp
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Array, Link, LinkProcess, TimeFunction
from fedpbc.links.bernoulli import draw, key_of_init
from fedpbc.links.common.probability import Prob
from fedpbc.links.common.variation import Varying, compose


class _Params(NamedTuple):
    prob: TimeFunction
    memory: TimeFunction


class _State(NamedTuple):
    on: Array
    share: Array
    """The probability of being on, without knowledge of the chain, [m]."""


@component
def markov(context: Context, *, prob: Prob, memory: Prob, varying: Varying | None = None) -> LinkProcess:
    """A Markov chain with stationary probability p_i whose autocorrelation at lag l is memory_i^l.

    P(on | on) = memory + (1 - memory) p, P(on | off) = (1 - memory) p, started from the stationary law. ``memory`` is a
    number in [0, 1], or one per client, given like ``prob``. When p
    varies the state stays and the transition probabilities change, so the probability of being on follows p
    late: q^t = memory q^(t-1) + (1 - memory) p^t, which is what is reported.
    """
    return LinkProcess(_Params(compose(context, prob, varying), compose(context, memory, None, "memory")), _init, _step)


def _init(params: _Params, key: Array) -> _State:
    prob = params.prob.at(params.prob.params, jnp.int32(0))
    return _State(draw(key_of_init(key), prob), prob)


def _step(params: _Params, key: Array, state: _State, t: Array) -> tuple[_State, Link]:
    prob, memory = (each.at(each.params, t) for each in params)
    on = draw(key, follow(state.on, prob, memory))
    share = follow(state.share, prob, memory)
    return _State(on, share), Link(on, share)


def follow(state: Array, prob: Array, memory: Array) -> Array:
    """memory state + (1 - memory) prob, written so that state = prob = 0 or 1 stays exactly so."""
    return prob + memory * (jnp.asarray(state, prob.dtype) - prob)
