"""The Gilbert-Elliott channel: a good and a bad state, with losses in both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Array, Link, LinkProcess, TimeFunction
from fedpbc.errors import BadOption
from fedpbc.links.bernoulli import draw, key_of_init
from fedpbc.links.common.probability import Prob
from fedpbc.links.common.variation import compose


class _State(NamedTuple):
    good: Array
    share: Array
    """The probability of being good, without knowledge of the chain, [m]."""


@component
def gilbert_elliott(
    context: Context, *, good_to_bad: Prob, bad_to_good: Prob, good: Prob = 1.0, bad: Prob = 0.0
) -> LinkProcess:
    """A good and a bad state; active with probability ``good`` in the one, ``bad`` in the other (Elliott 1963).

    Good turns bad with probability a = ``good_to_bad`` a round, bad turns good with b = ``bad_to_good``; the
    chain starts from its stationary law, share of good b / (a + b). A bad spell lasts 1/b rounds on average, the
    state's autocorrelation at lag l is (1 - a - b)^l. Each option is a base probability. Raises BadOption when
    a = b = 0 for some client, whose chain would have no stationary law. Elliott, Bell Syst. Tech. J. 1963.
    """
    tiny = np.finfo(context.dtype).tiny
    options = {"good_to_bad": good_to_bad, "bad_to_good": bad_to_good, "good": good, "bad": bad}
    probs = {name: np.asarray(value) * np.ones(context.problem.num_clients) for name, value in options.items()}
    stuck = np.atleast_2d(probs["good_to_bad"] + probs["bad_to_good"])[0] < tiny
    if np.any(stuck):
        client = int(np.argmax(stuck))
        raise BadOption("good_to_bad", 0.0, f"and bad_to_good are both 0 for client {client}, must not both be")
    params = {name: compose(context, prob, None, name) for name, prob in probs.items()}
    return LinkProcess(params, _init, _step)


def _now(params: dict[str, TimeFunction], t: Array) -> tuple[Array, ...]:
    return tuple(params[name].at(params[name].params, t) for name in ("good_to_bad", "bad_to_good", "good", "bad"))


def _init(params: dict[str, TimeFunction], key: Array) -> _State:
    a, b, _, _ = _now(params, jnp.int32(0))
    share = b / (a + b)
    return _State(draw(key_of_init(key), share), share)


def _step(params: dict[str, TimeFunction], key: Array, state: _State, t: Array) -> tuple[_State, Link]:
    a, b, in_good, in_bad = _now(params, t)
    move, loss = jax.random.split(key)
    good = draw(move, jnp.where(state.good, 1 - a, b))
    share = state.share * (1 - a) + (1 - state.share) * b
    active = draw(loss, jnp.where(good, in_good, in_bad))
    return _State(good, share), Link(active, in_good * share + in_bad * (1 - share))
