"""What the methods share that send the server's model out before the round; their clients keep only a model."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedpbc.core.aggregation import select
from fedpbc.core.types import Array, Models, Round


class Trained(NamedTuple):
    """The clients of a round, before and after their local steps."""

    start: Array
    """x_i^(t,0), [m, d]."""
    end: Array
    """x_i^(t,s), [m, d]."""

    @property
    def update(self) -> Array:
        """Delta_i = x_i^(t,s) - x_i^(t,0), [m, d]."""
        return self.end - self.start


def broadcast_and_train(
    server: Array, clients: Array, round: Round, shift: Array | None = None, proximal: Array | None = None
) -> Trained:
    """x_i^(t,0) = x^t where the broadcast arrives, else x_i^t; then the local steps of whoever computes.

    As in the paper's Algorithm 1, clients that were not reached go on from their own model when everybody
    computes; the server hears nothing of it.
    """
    start = select(round.link.receives, server, clients)
    return Trained(start, round.train(start, shift, proximal))


def at_start(x0: Array, num_clients: int) -> Array:
    """x^0 for every client, [m, d]."""
    return x0.__array_namespace__().tile(x0, (num_clients, 1))


def nothing_known(x0: Array, num_clients: int) -> Array:
    """A memory of zeros, one row per client, [m, d]."""
    return x0.__array_namespace__().zeros((num_clients, *x0.shape), dtype=x0.dtype)


def heard(round: Round) -> Array:
    """bool[m]: active clients that bring an update; nobody in the cool-down."""
    return round.link.active & (round.num_steps > 0)


def models(state: Any) -> Models:
    """The server's and the clients' models of any state that has them by these names."""
    return Models(state.server, state.clients)


def forget(params: Any, state: Any, lost: Array, x0: Array, t: Array) -> Any:
    """Clients that keep nothing but their model go on from x^0 until a broadcast reaches them."""
    return state._replace(clients=select(lost, x0, state.clients))
