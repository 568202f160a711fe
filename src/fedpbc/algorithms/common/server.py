"""Server optimisers: u^t = sum_i w_i Delta_i is taken for a step against the gradient (arXiv 2003.00295)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedpbc.core.schema import Component, Context, Kind, Positive, Range, component
from fedpbc.core.types import Array, ServerOptimizer

Decay = Annotated[float, Range(0, 0.999999)]
Memories = tuple[Array, ...]


def plain() -> ServerOptimizer:
    """x^(t+1) = x^t + u^t."""
    return ServerOptimizer((), _none, _plain)


@component
def sgd(context: Context, *, learning_rate: Positive = 1.0) -> ServerOptimizer:
    """x += learning_rate u (eta_g of many papers)."""
    return ServerOptimizer(context.number("learning_rate", learning_rate), _none, _sgd)


@component
def momentum(context: Context, *, learning_rate: Positive = 1.0, beta: Decay = 0.9) -> ServerOptimizer:
    """FedAvgM: v = beta v + u; x += learning_rate v (Hsu et al., arXiv 1909.06335)."""
    params = {"rate": context.number("learning_rate", learning_rate), "beta": np.asarray(beta, context.dtype)}
    return ServerOptimizer(params, _zero, _momentum, num_memories=1)


@component
def adam(
    context: Context,
    *,
    learning_rate: Positive = 0.01,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Positive = 1e-3,
) -> ServerOptimizer:
    """FedAdam: x += learning_rate a / (sqrt(v) + tau), a and v moving averages of u and u^2 (arXiv 2003.00295).

    Algorithm 2 of that paper: a = beta1 a + (1 - beta1) u, v = beta2 v + (1 - beta2) u^2, no bias correction,
    v starts at tau^2.
    """
    return ServerOptimizer(_adaptive(context, learning_rate, beta1, beta2, tau), _moments, _adam, num_memories=2)


@component
def yogi(
    context: Context,
    *,
    learning_rate: Positive = 0.01,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Positive = 1e-3,
) -> ServerOptimizer:
    """FedYogi: as FedAdam with v -= (1 - beta2) u^2 sign(v - u^2) (arXiv 2003.00295)."""
    return ServerOptimizer(_adaptive(context, learning_rate, beta1, beta2, tau), _moments, _yogi, num_memories=2)


SERVERS = Kind(
    "server optimiser",
    {"sgd": sgd, "momentum": momentum, "adam": adam, "yogi": yogi},
    shorthand=lambda value: {"name": "sgd", "learning_rate": value} if type(value) in (int, float) else None,
    gives=ServerOptimizer,
    allowed="a number > 0 (the server's learning rate) or a table with a name",
)
Server = Annotated[float | ServerOptimizer | Component[ServerOptimizer], SERVERS]


def _adaptive(context: Context, rate: float, beta1: float, beta2: float, tau: float) -> dict[str, np.ndarray]:
    return {
        "rate": context.number("learning_rate", rate),
        "beta1": np.asarray(beta1, context.dtype),
        "beta2": np.asarray(beta2, context.dtype),
        "tau": context.number("tau", tau),
    }


def _none(params: Array, x0: Array) -> Memories:
    return ()


def _zero(params: dict[str, Array], x0: Array) -> Memories:
    return (x0 * 0,)


def _moments(params: dict[str, Array], x0: Array) -> Memories:
    return x0 * 0, x0 * 0 + params["tau"] ** 2


def _plain(params: tuple[()], memories: Memories, update: Array) -> tuple[Memories, Array]:
    return (), update


def _sgd(rate: Array, memories: Memories, update: Array) -> tuple[Memories, Array]:
    return (), rate * update


def _momentum(params: dict[str, Array], memories: Memories, update: Array) -> tuple[Memories, Array]:
    velocity = params["beta"] * memories[0] + update
    return (velocity,), params["rate"] * velocity


def _adam(params: dict[str, Array], memories: Memories, update: Array) -> tuple[Memories, Array]:
    second = params["beta2"] * memories[1] + (1 - params["beta2"]) * update**2
    return _adaptive_step(params, memories[0], second, update)


def _yogi(params: dict[str, Array], memories: Memories, update: Array) -> tuple[Memories, Array]:
    xp, square = update.__array_namespace__(), update**2
    second = memories[1] - (1 - params["beta2"]) * square * xp.sign(memories[1] - square)
    return _adaptive_step(params, memories[0], second, update)


def _adaptive_step(params: dict[str, Array], first: Array, second: Array, update: Array) -> tuple[Memories, Array]:
    first = params["beta1"] * first + (1 - params["beta1"]) * update
    step = params["rate"] * first / (second.__array_namespace__().sqrt(second) + params["tau"])
    return (first, second), step
