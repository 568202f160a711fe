"""What users' functions must keep to, tried out on shapes alone before anything is compiled with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.errors import ConfigError, first_line


def unlike(*sizes: int) -> int:
    """How many samples a batch has that is tried out: a number that is no size of anything else, nor 1 or 2."""
    return next(n for n in (3, 5, 7, 11, 13, *range(17, 18 + len(sizes))) if n not in sizes)


def sizes_in(*trees: Any) -> list[int]:
    """Every size of every axis of every array."""
    return [size for leaf in jax.tree.leaves(trees) for size in np.shape(leaf)]


def check_training(f: Callable[[Any, Any], Any], params: Any, buffers: Any, batch: Any) -> None:
    """Raise ConfigError unless ``f((params, buffers), batch)`` gives (losses, buffers as they were)."""

    def trained(params: Any, batch: Any) -> Any:
        return f((params, buffers), batch)

    try:
        given = jax.eval_shape(trained, params, batch)
    except Exception as error:
        raise ConfigError(f"train: fails on a batch of samples: {first_line(error)}") from error
    if not (isinstance(given, tuple) and len(given) == 2):
        raise ConfigError(f"train: gave {type(given).__name__}, must give a pair with the new buffers")
    before, after = (jax.tree.map(lambda a: f"{a.dtype.name}{list(a.shape)}", tree) for tree in (buffers, given[1]))
    if before != after:
        raise ConfigError(f"train: makes other buffers, {after}, than init, {before}".replace("'", ""))
    check_function("train", lambda params, batch: trained(params, batch)[0], params, batch, scalar=True)


def check_function(what: str, f: Callable[[Any, Any], Any], params: Any, batch: Any, scalar: bool) -> None:
    """Raise ConfigError when ``f(params, batch)`` fails or does not give [n] (or, ``scalar``, a number)."""
    n = jax.tree.leaves(batch)[0].shape[0]
    try:
        given = jax.eval_shape(f, params, batch)
    except Exception as error:
        raise ConfigError(f"{what}: fails on a batch of {n} samples: {first_line(error)}") from error
    shape, kind = getattr(given, "shape", None), getattr(given, "dtype", None)
    wanted = f"one number per sample, [{n}]" + (", or their mean" if scalar else "")
    if shape is None or kind is None:
        raise ConfigError(f"{what}: gave {type(given).__name__}, must give {wanted}")
    if shape != (n,) and not (scalar and shape == ()):
        raise ConfigError(f"{what}: gave shape {shape} for a batch of {n} samples, must give {wanted}")
    real = (jnp.floating,) if what in ("loss", "train") else (jnp.floating, jnp.integer, jnp.bool_)
    if not any(jnp.issubdtype(kind, fits) for fits in real):
        wanted = "floating-point" if len(real) == 1 else "real"
        raise ConfigError(f"{what}: gave {kind}, must be {wanted} numbers")
    if len(real) == 1:
        if what == "loss" and shape == ():  # it is evaluated sample by sample
            one = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape[1:]), a.dtype), batch)
            try:
                jax.eval_shape(f, params, one)
            except Exception as error:
                raise ConfigError(f"{what}: fails on a batch of one sample: {first_line(error)}") from error
        try:
            jax.eval_shape(jax.grad(lambda p, b: jnp.sum(f(p, b))), params, batch)
        except Exception as error:
            raise ConfigError(f"{what}: cannot be differentiated: {first_line(error)}") from error
