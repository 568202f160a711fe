"""Quadratics: the counterexample, F_i(x) = 1/2 ||x - u_i||^2, and a form in which clients curve differently."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.memory import PROGRAM_BYTES, STATES, require_memory
from fedpbc.core.schema import Context, PositiveInt, Range, component
from fedpbc.core.types import Array, ByClient, Measure, Problem
from fedpbc.errors import BadOption
from fedpbc.io.arrays import read_matrix
from fedpbc.problems.by_client import worst_and_active
from fedpbc.problems.samples import aligned_zeros, pieces


@component
def quadratic(
    context: Context,
    *,
    num_clients: PositiveInt = 100,
    dim: PositiveInt = 100,
    centers: Path | None = None,
    condition: Annotated[float, Range(1, 1e6)] = 1.0,
) -> Problem:
    """F_i(x) = 1/2 ||x - u_i||^2 with u_i ~ N(i 1, 0.01 I), i = 1..m, or read from a file (then m and d are its shape).

    Standard deviation 0.1, i counted from 1, x^0 = 0, exact gradients: paper, Section V, Counterexample.
    ``centers``: .csv without header or .npy, one row per client. ``condition`` > 1 (not in the paper): F_i(x) = 1/2
    sum_j h_ij (x_j - u_ij)^2 with log-uniform h_ij in [1/condition, 1]; equal curvatures hide what local steps
    do to the average.
    """
    if centers is not None:
        u = read_matrix("centers", centers)
        if u.ndim != 2:
            raise BadOption("centers", centers, f"must be a matrix, one row per client, has shape {u.shape}")
    else:
        _require(num_clients, dim, np.dtype(context.dtype).itemsize, condition > 1)
        u = aligned_zeros((num_clients, dim), np.dtype(np.float64))
        context.rng("quadratic centers").standard_normal(out=u)
        u *= 0.1
        u += np.arange(1, num_clients + 1)[:, None]
    curved = condition > 1
    params: dict[str, Any] = {"centers": u}
    if curved:
        h = aligned_zeros(u.shape, np.dtype(np.float64))
        context.rng("quadratic curvatures").random(out=h)
        np.power(condition, np.negative(h, out=h), out=h)
        params["curvatures"], params["curvature"] = h, h.mean(axis=0)
        params["mean"] = np.mean(h * u, axis=0) / params["curvature"]
    else:
        params["mean"] = u.mean(axis=0)
    losses = np.empty(len(u))
    for rows in pieces(*u.shape):
        squares = (u[rows] - params["mean"]) ** 2
        losses[rows] = np.sum(h[rows] * squares if curved else squares, axis=1)
    params["spread"] = 0.5 * np.mean(losses)
    return Problem(
        params={name: _stored(value, context.dtype) for name, value in params.items()},
        num_clients=len(u),
        init=np.zeros(u.shape[1], context.dtype),
        sample=_curved_sample if curved else _sample,
        gradient=_curved_gradient if curved else _gradient,
        num_blocks=1,
        block_sums=_block_sums,
        metrics=_curved_metrics if curved else _metrics,
        client_traits={"center_mean": u.mean(axis=1)},
        measures={
            "grad_norm": Measure("gradient norm of F", scale="log", shown=True),
            "distance": Measure("distance to the minimiser", scale="log"),
            "train_loss": Measure("train loss"),
        },
        work=3.0 * u.shape[1],
        unroll=6,
        by_client=ByClient(_curved_losses if curved else _losses, _of_clients),
    )


def _require(num_clients: int, dim: int, itemsize: int, curved: bool) -> None:
    """Centres are drawn in float64 and then stored in the run's precision, beside which a run holds states."""
    arrays = 2 if curved else 1
    build = 8 * (arrays + curved) + (arrays * itemsize if itemsize < 8 else 0)
    num_bytes = PROGRAM_BYTES + num_clients * dim * max(build, (arrays + STATES) * itemsize)
    option, value = ("num_clients", num_clients) if num_clients >= dim else ("dim", dim)
    what = f"{num_clients:,} models of dimension {dim:,}"
    require_memory(option, value, num_bytes, what, PROGRAM_BYTES)


def _stored(value: Any, dtype: Any) -> np.ndarray:
    """In the run's precision, where JAX uses it as it is."""
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    stored = aligned_zeros(array.shape, np.dtype(dtype))
    stored[...] = array
    return stored


def _sample(params: dict[str, Array], client: Array, key: Array, batch_size: int) -> Array:
    """The centre: gradients are exact."""
    return params["centers"][client]


def _gradient(center: Array, x: Array) -> Array:
    """grad F_i(x) = x - u_i."""
    return x - center


def _curved_sample(params: dict[str, Array], client: Array, key: Array, batch_size: int) -> tuple[Array, Array]:
    """Centre and curvatures."""
    return params["centers"][client], params["curvatures"][client]


def _curved_gradient(batch: tuple[Array, Array], x: Array) -> Array:
    """grad F_i(x) = h_i (x - u_i), coordinate by coordinate."""
    center, curvature = batch
    return curvature * (x - center)


def _block_sums(params: dict[str, Array], models: Array, block: Array) -> tuple[()]:
    return ()


def _losses(params: dict[str, Array], models: Array, block: Array) -> Array:
    """F_i(x) of every client, [k, m]."""
    return jax.lax.map(lambda x: 0.5 * jnp.sum((x - params["centers"]) ** 2, axis=1), models)


def _curved_losses(params: dict[str, Array], models: Array, block: Array) -> Array:
    each = params["curvatures"], params["centers"]
    return jax.lax.map(lambda x: 0.5 * jnp.sum(each[0] * (x - each[1]) ** 2, axis=1), models)


def _of_clients(params: dict[str, Array], losses: Array, active: Array) -> dict[str, Array]:
    return worst_and_active("train_loss", losses, jnp.ones_like(active), active, higher=False)


def _metrics(params: dict[str, Array], models: Array, sums: Any) -> dict[str, Array]:
    """grad_norm = distance = ||x - ubar||; train_loss = F(x) = 1/2 ||x - ubar||^2 + F(ubar)."""
    distance = jnp.linalg.norm(models - params["mean"], axis=1)
    return {"grad_norm": distance, "distance": distance, "train_loss": 0.5 * distance**2 + params["spread"]}


def _curved_metrics(params: dict[str, Array], models: Array, sums: Any) -> dict[str, Array]:
    """grad F(x) = hbar (x - x*), F(x) = 1/2 sum_j hbar_j (x_j - x*_j)^2 + F(x*), hbar = (1/m) sum_i h_i."""
    error = models - params["mean"]
    gradient = params["curvature"] * error
    return {
        "grad_norm": jnp.linalg.norm(gradient, axis=1),
        "distance": jnp.linalg.norm(error, axis=1),
        "train_loss": 0.5 * jnp.sum(gradient * error, axis=1) + params["spread"],
    }
