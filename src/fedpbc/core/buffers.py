"""Buffers: what local training changes without a gradient, as the running statistics of batch normalisation.

They go the way of the model under the simplest method that sends at the same time: FedAvg where the server sends
before the round, FedPBC where it sends after it. So they are averaged and never extrapolated, whatever the method
makes of the model: what is positive stays positive, and a counter an integer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedpbc.core.aggregation import masked_mean, select
from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array, Link


class Buffers(NamedTuple):
    """Buffers between rounds, pytrees like ``Problem.buffers``; None where a problem has none."""

    server: Any
    """B^t."""
    clients: Any
    """b_i^t, each leaf [m, ...]."""

    @classmethod
    def begin(cls, start: Any, num_clients: int) -> Buffers:
        """Everybody's are those that the problem begins with."""
        return cls(start, jax.tree.map(lambda a: jnp.broadcast_to(a, (num_clients, *jnp.shape(a))), start))

    def before(self, link: Link, broadcast: bool) -> Any:
        """What the clients begin the round with: B^t where it is sent and arrives, else their own."""
        if not broadcast:
            return self.clients
        return jax.tree.map(lambda b, own: select(link.receives, b, own), self.server, self.clients)

    def after(self, clients: Any, link: Link, broadcast: bool, training: Array) -> Buffers:
        """B^(t+1), the mean over A^t of what local training left; sent to A^t where the method sends after the round.

        B^t where A^t is empty, and in the cool-down unless clients have something new to send then.
        """
        heard = link.active & training if broadcast else link.active
        server = mean(clients, heard, self.server)
        if not broadcast:
            reached = link.active & link.receives
            clients = jax.tree.map(lambda b, own: select(reached, b, own), server, clients)
        return Buffers(server, clients)

    def forget(self, lost: Array, start: Any) -> Buffers:
        """Clients that lose all they keep begin anew."""
        return self._replace(clients=jax.tree.map(lambda b, own: select(lost, b, own), start, self.clients))

    def all_finite(self) -> Array:
        """Whether every number is one."""
        leaves = [leaf for leaf in jax.tree.leaves(self) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def mean_of_all(clients: Any) -> Any:
    """(1/m) sum_i b_i, as ``mean``."""
    everybody = jnp.ones(jax.tree.leaves(clients)[0].shape[0], bool)
    return mean(clients, everybody, jax.tree.map(lambda a: a[0], clients))


def mean(values: Any, mask: Array, otherwise: Any) -> Any:
    """Of each leaf [m, ...] the mean over the mask, ``otherwise`` where it is empty; of integers rounded.

    Integers are averaged as differences from ``otherwise``, so that large counters stay exact; of truth values the
    majority.
    """

    def of_leaf(value: Array, otherwise: Array) -> Array:
        if jnp.issubdtype(value.dtype, jnp.floating):
            return masked_mean(value, mask, otherwise)
        if value.dtype == bool:
            return masked_mean(value.astype(jnp.float32), mask, otherwise.astype(jnp.float32)) >= 0.5
        change = masked_mean((value - otherwise).astype(jnp.float32), mask, jnp.zeros((), jnp.float32))
        return otherwise + jnp.rint(change).astype(value.dtype)

    return jax.tree.map(of_leaf, values, otherwise)
