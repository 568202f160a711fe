"""Whether components from outside keep to the shapes of the contract; nothing is computed, only traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.core.types import Algorithm, Array, Link, LinkProcess, Round
from fedpbc.errors import ConfigError, first_line


def check_links(key: str, process: LinkProcess, num_clients: int) -> None:
    """A^t must be bool[m] and p^t f[m]. Raises ConfigError."""
    m = num_clients

    def one(process: LinkProcess, key: Array) -> Any:
        state = process.init(process.params, key)
        return process.step(process.params, key, state, jnp.int32(0))[1]

    link = _traced(key, "init or step", one, process, jax.random.key(0))
    if not isinstance(link, Link):
        raise ConfigError(f"{key}: step must give (state, Link), gave {type(link).__name__}")
    if link.active.shape != (m,) or link.active.dtype != bool:
        raise ConfigError(f"{key}: active is {link.active.dtype}{list(link.active.shape)}, must be bool[{m}]")
    if np.shape(link.prob) != (m,) or not jnp.issubdtype(link.prob.dtype, jnp.floating):
        raise ConfigError(f"{key}: prob is {link.prob.dtype}{list(link.prob.shape)}, must be floating-point[{m}]")


def check_algorithm(key: str, algorithm: Algorithm, x0: Array, num_clients: int) -> None:
    """The server's model must be [d], the clients' [m, d], and a round must keep the state's shapes. ConfigError."""
    m, d = num_clients, x0.shape[0]

    def first(algorithm: Algorithm, x0: Array) -> Any:
        return jax.tree.map(jnp.asarray, algorithm.init(algorithm.params, x0, m))

    def after(algorithm: Algorithm, state: Any, x0: Array) -> Any:
        everybody = jnp.ones(m, bool)
        link = Link(everybody, jnp.ones(m, x0.dtype))
        eta = jnp.ones((), x0.dtype)
        train = lambda models, shift=None, proximal=None: models + 0 * eta  # noqa: E731
        return algorithm.round(algorithm.params, state, Round(jnp.int32(0), link, eta, jnp.int32(1), everybody, train))

    state = _traced(key, "init", first, algorithm, x0)
    models = _traced(key, "models", algorithm.models, state)
    for name, shape in (("server", (d,)), ("clients", (m, d))):
        found: Any = getattr(models, name, None)
        if getattr(found, "shape", None) != shape:
            given = list(found.shape) if hasattr(found, "shape") else type(found).__name__
            raise ConfigError(f"{key}: models gives {name} {given}, must be {list(shape)}")
    later = _traced(key, "round", after, algorithm, state, x0)
    kept: bool = jax.tree.flatten(later) == jax.tree.flatten(state)
    if not kept:
        raise ConfigError(f"{key}: round changes the structure, shapes or types of the state: {state} becomes {later}")


def _traced(key: str, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        raise ConfigError(f"{key}: {what} fails: {first_line(error)}") from error
