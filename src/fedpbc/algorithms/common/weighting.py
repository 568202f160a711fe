"""Methods that differ only in how much each update counts: x^(t+1) = x^t + sum over A^t of w_i Delta_i.

A method is a ``Weighting`` (vectors [m], no models); what the server does with the sum is a ``ServerOptimizer``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from fedpbc.algorithms.common.broadcast import at_start, broadcast_and_train, forget, heard, models
from fedpbc.algorithms.common.server import Server, plain
from fedpbc.core.aggregation import weighted_sum
from fedpbc.core.types import Algorithm, Array, Cost, Round, ServerOptimizer, Weighting


class State(NamedTuple):
    """Models, and the memories of the weighting rule and of the server's optimiser."""

    server: Array
    clients: Array
    weighting: Any
    optimizer: tuple[Array, ...]


def weighted(
    weighting: Weighting, server: Server | None = None, proximal: Array | None = None, needs: str = ""
) -> Algorithm:
    """The method of a weighting rule; by default the server adds the weighted update to its model."""
    optimizer = cast(ServerOptimizer, server or plain())
    params = {"weighting": weighting, "optimizer": optimizer, "proximal": proximal}
    return Algorithm(params, _init, _round, models, forget, Cost(server=1 + optimizer.num_memories, needs=needs))


def no_memory(params: Any, num_clients: int, dtype: Any) -> tuple[()]:
    """The state of a rule that looks at the current round only."""
    return ()


def _init(params: dict[str, Any], x0: Array, num_clients: int) -> State:
    weighting, optimizer = params["weighting"], params["optimizer"]
    memory = weighting.init(weighting.params, num_clients, x0.dtype)
    return State(x0, at_start(x0, num_clients), memory, optimizer.init(optimizer.params, x0))


def _round(params: dict[str, Any], state: State, round: Round) -> State:
    """x^(t+1) = x^t + optimizer(sum over A^t of w_i Delta_i).

    The rule sees every round; the server's model and its optimiser stay as they are in a round that brings no
    update (empty A^t, cool-down).
    """
    weighting, optimizer = params["weighting"], params["optimizer"]
    trained = broadcast_and_train(state.server, state.clients, round, proximal=params["proximal"])
    memory, weights = weighting.step(weighting.params, state.weighting, round.link, round.index)
    arrived = heard(round)
    memories, step = optimizer.step(optimizer.params, state.optimizer, weighted_sum(trained.update, weights, arrived))
    xp, anything = trained.end.__array_namespace__(), arrived.any()
    server = xp.where(anything, state.server + step, state.server)
    kept = tuple(xp.where(anything, new, old) for new, old in zip(memories, state.optimizer, strict=True))
    return State(server, trained.end, memory, kept)
