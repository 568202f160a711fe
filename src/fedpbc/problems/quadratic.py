"""The counterexample: F_i(x) = 1/2 ||x - u_i||^2, whose minimiser is the mean of the centres u_i."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedpbc.errors import BadOption, require_memory
from fedpbc.files import read_matrix
from fedpbc.schema import Context, PositiveInt
from fedpbc.types import Array, Problem


def quadratic(
    context: Context,
    *,
    num_clients: PositiveInt = 100,
    dim: PositiveInt = 100,
    centers: Path | None = None,
) -> Problem:
    """F_i(x) = 1/2 ||x - u_i||^2 with u_i ~ N(i 1, 0.01 I), i = 1..m, or read from a file (then m and d are its shape).

    Standard deviation 0.1, i counted from 1, x^0 = 0, exact gradients: paper, Section V, Counterexample.
    ``centers``: .csv without header or .npy, one row per client.
    """
    if centers is not None:
        u = read_matrix("centers", centers)
        if u.ndim != 2:
            raise BadOption("centers", centers, f"must be a matrix, one row per client, has shape {u.shape}")
    else:
        itemsize = np.dtype(context.dtype).itemsize
        what = f"{num_clients:,} models of dimension {dim:,}"
        option, value = ("num_clients", num_clients) if num_clients >= dim else ("dim", dim)
        require_memory(option, value, num_clients * dim * (24 + 4 * itemsize), what)
        noise = context.rng("quadratic centers").standard_normal((num_clients, dim))
        u = np.arange(1, num_clients + 1)[:, None] + 0.1 * noise
    mean = u.mean(axis=0)
    spread = 0.5 * np.mean(np.sum((u - mean) ** 2, axis=1))
    params = {"centers": u, "mean": mean, "spread": spread}
    return Problem(
        params={name: np.asarray(value, context.dtype) for name, value in params.items()},
        num_clients=len(u),
        init=np.zeros(u.shape[1], context.dtype),
        sample=_sample,
        gradient=_gradient,
        num_blocks=1,
        block_sums=_block_sums,
        metrics=_metrics,
        client_traits={"center_mean": u.mean(axis=1)},
        work=3.0 * u.shape[1],
        unroll=6,
    )


def _sample(params: dict[str, Array], client: Array, key: Array, batch_size: int) -> Array:
    """The centre: gradients are exact."""
    return params["centers"][client]


def _gradient(center: Array, x: Array) -> Array:
    """grad F_i(x) = x - u_i."""
    return x - center


def _block_sums(params: dict[str, Array], models: Array, block: Array) -> tuple[()]:
    return ()


def _metrics(params: dict[str, Array], models: Array, sums: Any) -> dict[str, Array]:
    """grad_norm = distance = ||x - ubar||; train_loss = F(x) = 1/2 ||x - ubar||^2 + F(ubar)."""
    distance = jnp.linalg.norm(models - params["mean"], axis=1)
    return {"grad_norm": distance, "distance": distance, "train_loss": 0.5 * distance**2 + params["spread"]}
