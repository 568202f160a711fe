"""What the tests of links share: a context, a run of a process alone, and standard errors under memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedpbc.core.engine  # noqa: F401  (makes components pytrees)
from fedpbc.core.schema import Context
from fedpbc.problems.quadratic import quadratic

SIGMAS = 4.5
"""How many standard errors a mean may be off: one test in 150 000 fails by chance."""


def context(num_clients: int, rounds: int = 100, seed: int = 0, dtype: Any = np.float32) -> Context:
    plain = Context(seed, np.dtype(dtype), rounds, (seed,))
    return dataclasses.replace(plain, problem=quadratic.function(plain, num_clients=num_clients, dim=1))


def run_links(process: Any, rounds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(A^t bool[T, m], p^t f[T, m]) with the keys of an experiment of that seed."""
    key = jax.random.key(seed)
    process = jax.tree.map(jnp.asarray, process)

    def step(state, t):
        state, link = process.step(process.params, jax.random.fold_in(key, t), state, t)
        return state, link

    state = process.init(process.params, key)
    _, links = jax.jit(lambda: jax.lax.scan(step, state, jnp.arange(rounds, dtype=jnp.int32)))()
    return np.asarray(links.active), np.asarray(links.prob)


def autocorrelation(active: np.ndarray, p: np.ndarray, lag: int = 1) -> np.ndarray:
    """Of each column about its known mean, [m]."""
    centred = active - p
    return np.mean(centred[lag:] * centred[:-lag], axis=0) / (p * (1 - p))


def standard_error(p: np.ndarray, rounds: int, memory: Any = 0.0) -> np.ndarray:
    """Of the mean of ``rounds`` draws with marginal p whose autocorrelation at lag l is memory^l, [m]."""
    return np.sqrt(p * (1 - p) / rounds * (1 + np.asarray(memory)) / (1 - np.asarray(memory)))
