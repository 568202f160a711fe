"""Debiased FedAvg: updates are divided by how often their client was heard so far (Sun et al., arXiv 2410.01209)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import weighted
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Algorithm, Array, Link, Weighting


class Heard(NamedTuple):
    """What is known of each client, all [m]."""

    count: Array
    """n_i: rounds in which it was heard."""
    weight: Array
    """1/f_i at its last contact; 1 before the first."""


@component
def debiased_fedavg(context: Context, *, server: Server | None = None) -> Algorithm:
    """x += (1/m) sum over the active of update / f_i, f_i the share of rounds in which i was heard (arXiv 2410.01209).

    Made for participation that is correlated in time: f_i tends to the stationary probability of i whatever the
    correlation. Nothing is cut off: the first update of a client that was away for L rounds weighs L + 1.
    """
    return weighted(WEIGHTING, server)


def init(params: Any, num_clients: int, dtype: Any) -> Heard:
    """Nobody was heard yet."""
    return Heard(np.zeros(num_clients, np.int32), np.ones(num_clients, dtype))


def weights(params: Any, state: Heard, link: Link, t: Array) -> tuple[Heard, Array]:
    """n_i += 1 and 1/f_i = (t + 1)/n_i in A^t, then w_i = 1/(m f_i): this round counts, so that nobody is divided by 0.

    E[1_A w_i] = P(n_i > 0) / m where all orders of i's rounds are equally likely: the estimate knows the outcome of
    its own round, and is unbiased all the same. Rounds of the cool-down and rounds without anybody count too.

    Source: abstract and summaries only (the stationary distribution is estimated online, local updates are weighted
    by its reciprocal); the text of the algorithm was not to be had. Ours: that this round counts, and that
    the whole update is weighted instead of every local step. The paper's groups are of one size B, and pi_i, which sums
    to 1 over the clients, is f_i / B; so its 1/B sum of update / (m pi_i) is the step above.

    >>> state, _ = weights((), init((), 2, float), Link(np.array([True, False]), np.ones(2)), 0)
    >>> state, used = weights((), state, Link(np.array([True, True]), np.ones(2)), 1)
    >>> state.count.tolist(), used.tolist()
    ([2, 1], [0.5, 1.0])
    """
    xp, count = link.active.__array_namespace__(), state.count + link.active
    now = (t + 1) / xp.maximum(count, 1).astype(state.weight.dtype)
    weight = xp.where(link.active, now, state.weight).astype(state.weight.dtype)
    return Heard(count, weight), weight / link.active.shape[0]


WEIGHTING = Weighting((), init, weights)
