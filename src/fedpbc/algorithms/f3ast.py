"""F3AST: a budget of slots a round, given to whoever was chosen least (Ribero et al., arXiv 2205.06730)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import weighted
from fedpbc.core.schema import Context, PositiveInt, Range, component
from fedpbc.core.types import Algorithm, Array, Link, Weighting


@component
def f3ast(
    context: Context,
    *,
    slots: PositiveInt = 10,
    beta: Annotated[float, Range(high=0.999, above=0)] = 0.01,
    server: Server | None = None,
) -> Algorithm:
    """x += sum over the chosen of their update / (m r_i), r_i how often i is chosen (arXiv 2205.06730).

    ``slots`` (K): how many active clients are chosen; ``beta``: the weight of the current round in r. r_i is brought
    up to date with the choice of a round before that round's updates are weighed, so no weight exceeds 1/(m beta).

    The sum is divided by 1, which makes its mean the mean update of all clients once r_i is how often i is chosen.
    The authors' program divides it by K as well (``server = 1/K`` here): the same direction, steps K times smaller.
    """
    params = {"slots": np.int32(slots), "beta": np.asarray(beta, context.dtype)}
    return weighted(Weighting(params, init, weights), server, needs="a slot budget")


def init(params: dict[str, Array], num_clients: int, dtype: Any) -> Array:
    """r_i = min(1, K/m): what choosing evenly would give. The paper leaves the start open."""
    share = params["slots"].astype(dtype) / num_clients
    xp = params["beta"].__array_namespace__()
    return xp.full(num_clients, xp.minimum(share, 1), dtype=dtype)


def weights(params: dict[str, Array], rates: Array, link: Link, t: Array) -> tuple[Array, Array]:
    """S = the up to K clients of A^t with the largest (1/(m r_i))^2; r = (1 - beta) r + beta 1_S; then
    w_i = 1/(m r_i) in S with the new r, else 0.

    Order: choose by the old r, update r, use the new r. Source: the authors' program (mriberodiaz/f3ast,
    utils/training_utils.py): ``update_vectors`` takes the K largest p^2/r^2 and assigns r, after it
    ``client_datasets`` divides p by the r it returned, in the same round. The published text of the paper's
    Algorithm 1 could not be had; a second program (CA-Fed's comparison) keeps the same order.

    Clients are chosen by their id, not by their position in A^t; equal rates are told apart by the smaller
    (i - t) mod m, so that nobody has precedence. All of A^t is counted as having computed and sent, though a
    server could ask S alone.

    >>> params = {"slots": np.int32(1), "beta": np.float64(0.5)}
    >>> link = Link(np.array([True, True, True, False]), np.ones(4))
    >>> rates, used = weights(params, np.array([0.5, 0.25, 0.5, 0.1]), link, 0)
    >>> used.tolist(), rates.tolist()
    ([0.0, 0.4, 0.0, 0.0], [0.25, 0.625, 0.25, 0.05])
    """
    xp, m = link.active.__array_namespace__(), link.active.shape[0]
    first = xp.roll(xp.arange(m), -t)  # clients in the order of (i - t) mod m
    key = xp.where(link.active, rates, xp.inf)[first]
    order = first[xp.argsort(key, stable=True)]
    rank = xp.argsort(order, stable=True)
    chosen = link.active & (rank < params["slots"])
    after = (1 - params["beta"]) * rates + params["beta"] * chosen
    return after, xp.where(chosen, 1 / (m * xp.where(chosen, after, 1)), 0)
