"""Whether components from outside keep to the contract, before anything is compiled with them.

All is traced and nothing computed, but the links of round 0. What is wrong is a ConfigError that names the component.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.core.local import gradient_at, local_steps
from fedpbc.core.types import Algorithm, Array, Cost, Link, LinkProcess, Problem, Round, TimeFunction
from fedpbc.errors import ConfigError, called, shorten


def check_links(key: str, process: LinkProcess, num_clients: int) -> None:
    """A^t must be bool[m], p^t f[m] in [0, 1], and a round must keep the state's shapes. Raises ConfigError."""
    m = num_clients
    _only_arrays(f"{key}: params", process.params)
    seed = jax.random.key(0, impl="threefry2x32")
    before = _traced(f"{key}: init", process.init, process.params, seed)
    step = jax.jit(process.step)
    later = _traced(f"{key}: step", step, process.params, seed, before, np.int32(0))
    if not isinstance(later, tuple) or len(later) != 2 or not isinstance(later[1], Link):
        given = type(later[1] if isinstance(later, tuple) and len(later) == 2 else later).__name__
        raise ConfigError(f"{key}: step must give (state, Link), gave {'Link alone' if given == 'Link' else given}")
    state, link = later
    for name, mask in (("active", link.active), ("downlink", link.downlink)):
        if (mask is not None or name == "active") and _form(mask) != ((m,), np.dtype(bool)):
            raise ConfigError(f"{key}: {name} is {_shown(mask)}, must be bool[{m}]")
    if getattr(link.prob, "shape", None) != (m,) or not jnp.issubdtype(link.prob.dtype, jnp.floating):
        raise ConfigError(f"{key}: prob is {_shown(link.prob)}, must be floating-point[{m}]")
    _same(f"{key}: step", before, state)
    prob = called(f"{key}: step", lambda: step(process.params, seed, process.init(process.params, seed), 0)[1].prob)
    values = np.asarray(prob)
    wrong = ~((values >= 0) & (values <= 1))
    if np.any(wrong):
        client = int(np.argmax(wrong))
        raise ConfigError(f"{key}: prob of client {client} is {values[client]:g} in round 0, must be in [0, 1]")


def check_schedule(key: str, schedule: TimeFunction) -> None:
    """A learning rate must be one number. Raises ConfigError."""
    _only_arrays(f"{key}: params", schedule.params)
    eta = _traced(f"{key}: at", schedule.at, schedule.params, jax.ShapeDtypeStruct((), jnp.int32))
    if getattr(eta, "shape", None) != () or eta.dtype.kind not in "fiu":
        raise ConfigError(f"{key}: at gives {_shown(eta)}, must give one number")


def check_algorithm(key: str, algorithm: Algorithm, x0: Array, num_clients: int, *, forgets: bool = False) -> None:
    """The server's model must be [d], the clients' [m, d], and a round must keep the state's shapes.

    ``forgets``: the run has a loss of state. Raises ConfigError.
    """
    m, d, dtype = num_clients, x0.shape[0], jax.dtypes.canonicalize_dtype(x0.dtype)
    if not isinstance(algorithm.cost, Cost):
        raise ConfigError(f"{key}: cost is {_shown(algorithm.cost)}, must be a Cost")
    _only_arrays(f"{key}: params", algorithm.params)
    params, x = algorithm.params, jax.ShapeDtypeStruct((d,), dtype)

    def train(
        models: Array,
        shift: Array | None = None,
        proximal: Array | None = None,
        last_gradient: bool = False,
    ) -> Array:
        """As the engine's, of which it is no more than the shapes."""
        if _form(models) != ((m, d), dtype):
            raise ConfigError(f"{key}: round trains models {_shown(models)}, must be {dtype}{[m, d]}")
        if shift is not None and getattr(shift, "shape", None) != (m, d):
            raise ConfigError(f"{key}: round trains with shift {_shown(shift)}, must be {dtype}{[m, d]}")
        if proximal is not None and jnp.shape(proximal) != ():
            raise ConfigError(f"{key}: round trains with proximal {_shown(proximal)}, must be one number")
        return models + jnp.zeros((), dtype)

    def after(params: Any, state: Any, active: Array, prob: Array, t: Array, eta: Array) -> Any:
        return algorithm.round(params, state, Round(t, Link(active, prob), eta, t, active, train))

    state = _traced(f"{key}: init", lambda params, x: algorithm.init(params, x, m), params, x)
    mask, number = jax.ShapeDtypeStruct((m,), jnp.bool_), jax.ShapeDtypeStruct((), jnp.int32)
    prob, eta = jax.ShapeDtypeStruct((m,), dtype), jax.ShapeDtypeStruct((), dtype)
    models = _traced(f"{key}: models", algorithm.models, state)
    for name, shape in (("server", (d,)), ("clients", (m, d))):
        found = getattr(models, name, None)
        if _form(found) != (shape, dtype):
            raise ConfigError(f"{key}: models gives {name} {_shown(found)}, must be {dtype}{list(shape)}")
    _same(f"{key}: round", state, _traced(f"{key}: round", after, params, state, mask, prob, number, eta))
    if forgets:
        _same(f"{key}: forget", state, _traced(f"{key}: forget", algorithm.forget, params, state, mask, x, number))


def check_problem(key: str, problem: Problem, dtype: Any, batch_size: int = 2) -> None:
    """Its fields must be of their types, its functions of the shapes of the contract. Raises ConfigError."""
    for name in ("num_clients", "num_blocks", "unroll"):
        value = getattr(problem, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{key}: {name} is {shorten(value)}, must be an integer, at least 1")
    x0 = problem.init
    fits = isinstance(x0, np.ndarray | jax.Array) and x0.ndim == 1 and len(x0) > 0
    if not (fits and jax.dtypes.canonicalize_dtype(x0.dtype) == dtype):
        raise ConfigError(f"{key}: init is {_shown(x0)}, must be a vector [d] of {dtype}")
    if isinstance(problem.work, bool) or not isinstance(problem.work, int | float) or not problem.work >= 0:
        raise ConfigError(f"{key}: work is {shorten(problem.work)}, must be a number >= 0")
    for name in ("client_traits", "measures"):
        if not isinstance(getattr(problem, name), Mapping):
            raise ConfigError(f"{key}: {name} is {_shown(getattr(problem, name))}, must be a table")
    for name, trait in problem.client_traits.items():
        if np.shape(trait)[:1] != (problem.num_clients,):
            raise ConfigError(f"{key}: client_traits.{name} has shape {np.shape(trait)}, must be one entry per client")
    _only_arrays(f"{key}: params", problem.params)
    params, d = problem.params, x0.shape[0]
    client, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((d,), dtype)
    seed = jax.random.key(0, impl="threefry2x32")
    batch = _traced(f"{key}: sample", lambda p, c, k: problem.sample(p, c, k, batch_size), params, client, seed)
    buffers = problem.buffers
    gradient, after = _traced(f"{key}: gradient", lambda b, x: gradient_at(problem, b, x, buffers), batch, x)
    if buffers is not None:
        _same(f"{key}: gradient, in its buffers,", buffers, after)
    if _form(gradient) != ((d,), dtype):
        raise ConfigError(f"{key}: gradient gives {_shown(gradient)}, must give {dtype}[{d}]")
    eta = jax.ShapeDtypeStruct((), dtype)

    def step(params: Any, x: Array, client: Array, seed: Array, eta: Array) -> Array:
        whole = dataclasses.replace(problem, params=params)
        return local_steps(whole, x, client, seed, eta, 1, batch_size, "step", buffers=buffers)[0]

    _traced(f"{key}: a local step", step, params, x, client, seed, eta)
    models = jax.ShapeDtypeStruct((2, d), dtype)
    both = None if buffers is None else jax.tree.map(lambda a: jnp.stack([a, a]), buffers)
    sums = _traced(
        f"{key}: block_sums",
        lambda p, m, b: problem.block_sums(p, m, b, *(() if both is None else (both,))),
        params,
        models,
        client,
    )
    values = _traced(f"{key}: metrics", problem.metrics, params, models, sums)
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"{key}: metrics gives {_shown(values)}, must give a table: name -> number of each model")
    for name, value in values.items():
        if getattr(value, "shape", None) != (2,) or value.dtype.kind not in "fiub":
            raise ConfigError(f"{key}: metric {name} is {_shown(value)} for two models, must be float[2]")


def _only_arrays(what: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array | bool | int | float) or (
            isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "fiub"
        ):
            raise ConfigError(f"{what}{jax.tree_util.keystr(path)} is {_shown(leaf)}, must be an array of numbers")


def _same(what: str, before: Any, after: Any) -> None:
    """A state must stay of one structure, shape and type."""
    (old, structure), (new, other) = (jax.tree_util.tree_flatten_with_path(tree) for tree in (before, after))
    if str(structure) != str(other):
        given, wanted = (str(jax.tree.map(_shown, tree)).replace("'", "")[:120] for tree in (after, before))
        raise ConfigError(f"{what} changes the structure of the state: {wanted} becomes {given}")
    for (path, a), (_, b) in zip(old, new, strict=True):
        if _form(a) != _form(b):
            where = f"state{jax.tree_util.keystr(path)}"
            raise ConfigError(f"{what} changes the shape or type of {where}: {_shown(a)} becomes {_shown(b)}")


def _form(value: Any) -> Any:
    return getattr(value, "shape", None), getattr(value, "dtype", None)


def _shown(value: Any) -> str:
    """float32[4, 3] of an array, or what else it is."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return shorten(value) if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _traced(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Shapes and types of what the function gives."""
    return called(what, jax.eval_shape, function, *arguments)
