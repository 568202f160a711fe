"""Amplified FedAvg: what a window of rounds has changed is enlarged at its end (Wang & Ji, arXiv 2205.13648)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedpbc.algorithms.common import broadcast
from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import State, weighted
from fedpbc.algorithms.fedavg import WEIGHTING
from fedpbc.core.schema import Context, Positive, PositiveInt, component
from fedpbc.core.types import Algorithm, Array, Cost, Models, Round


class Window(NamedTuple):
    """FedAvg's state and the model x^(t_0) at the start of the window, [d]."""

    fedavg: State
    anchor: Array


@component
def amplified_fedavg(
    context: Context, *, window: PositiveInt = 10, gamma: Positive = 1.5, server: Server | None = None
) -> Algorithm:
    """FedAvg; every ``window`` rounds x = x^(t0) + gamma (x - x^(t0)), t0 the window's start (arXiv 2205.13648)."""
    inner = weighted(WEIGHTING, server)
    params = {"fedavg": inner, "window": np.int32(window), "gamma": context.number("gamma", gamma)}
    cost = Cost(server=1 + inner.cost.server, needs="a window in which everybody takes part about equally")
    return Algorithm(params, _init, _round, _models, _forget, cost)


def _init(params: dict[str, Any], x0: Array, num_clients: int) -> Window:
    inner = params["fedavg"]
    return Window(inner.init(inner.params, x0, num_clients), x0)


def _round(params: dict[str, Any], state: Window, round: Round) -> Window:
    """A round of FedAvg; when (t + 1) is a multiple of P the window closes, by the clock and not by who was heard.

    Order: the round's update first, then the amplification, and the amplified model is the next window's x^(t0).
    Source: their program (IBM/fl-arbitrary-participation, main.py: ``w_global +=`` the mean update; after it, every P
    rounds, ``w_global += (step_size_global - 1) * (w_global - w_prev)``; then ``w_prev = w_global``). Not compared
    with the text of the paper.
    """
    inner = params["fedavg"]
    after = inner.round(inner.params, state.fedavg, round)
    xp = state.anchor.__array_namespace__()
    closes = (round.index + 1) % params["window"] == 0
    server = xp.where(closes, amplify(params["gamma"], state.anchor, after.server), after.server)
    return Window(after._replace(server=server), xp.where(closes, server, state.anchor))


def amplify(gamma: Array, anchor: Array, model: Array) -> Array:
    """x^(t0) + gamma (x - x^(t0)); gamma = 1 is FedAvg.

    >>> amplify(2.0, np.array([1.0]), np.array([1.5])).tolist()
    [2.0]
    """
    return anchor + gamma * (model - anchor)


def _models(state: Window) -> Models:
    return broadcast.models(state.fedavg)


def _forget(params: dict[str, Any], state: Window, lost: Array, x0: Array, t: Array) -> Window:
    return state._replace(fedavg=broadcast.forget(params, state.fedavg, lost, x0, t))
