"""Synthetic(alpha, beta) without stored samples: each is drawn from a counter wherever it is used.

Sample j of client i is a function of (key of the seed, i, j) alone, so it does not depend on m, on the minibatch or
block it is drawn in, on chunks or devices. Only u_i, B_i, W_i, b_i and v_i are stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context
from fedpbc.core.types import Array
from fedpbc.problems.objective import Source
from fedpbc.problems.samples import aligned_zeros, draw_rows, offsets_of, pieces

NUM_FEATURES, NUM_CLASSES = 60, 10
PARAMETERS = 2 + NUM_FEATURES * NUM_CLASSES + NUM_CLASSES + NUM_FEATURES
"""Numbers that are drawn for a client: u_i, B_i, W_i, b_i, v_i, in this order."""
SCALE = np.arange(1, NUM_FEATURES + 1) ** -0.6
"""Standard deviations of the features, j^-0.6."""


class Client(NamedTuple):
    """What the samples of clients are made of; leading axes are clients."""

    weights: Array
    """W_i, [60, 10]."""
    bias: Array
    """b_i, [10]."""
    center: Array
    """v_i, [60]."""


def split(drawn: Array, alpha: float, beta: float) -> Client:
    """Standard normal numbers [PARAMETERS] as W_i, b_i around u_i ~ N(0, alpha), and v_i around B_i ~ N(0, beta)."""
    u, b = alpha * drawn[0], beta * drawn[1]
    around_u = u + drawn[2:-NUM_FEATURES]
    cut = NUM_FEATURES * NUM_CLASSES
    return Client(around_u[:cut].reshape(NUM_FEATURES, NUM_CLASSES), around_u[cut:], b + drawn[-NUM_FEATURES:])


def params_of(
    context: Context, alpha: float, beta: float, num_train: np.ndarray, num_test: np.ndarray, by_samples: bool
) -> dict[str, Any]:
    """What ``SOURCE`` reads, for so many training and test samples of each client, int[m]."""
    m = len(num_train)
    drawn = aligned_zeros((m, PARAMETERS), np.dtype(np.float32))
    rng = context.rng("synthetic clients on the fly")
    for piece in pieces(m, PARAMETERS):
        rng.standard_normal(out=drawn[piece], dtype=np.float32)
    uniform = 1.0 / (m * num_train), 1.0 / (m * num_test)
    parts = {}
    for name, sizes, before, weights in (
        ("train", num_train, np.zeros(m), uniform[0]),
        ("test", num_test, num_train, uniform[1]),
    ):
        total = int(sizes.sum())
        if name == "train" and by_samples:
            weights = np.full(m, 1.0 / total)
        parts[name] = {
            "offsets": offsets_of(sizes),
            "before": before.astype(np.int32),
            "total": np.int32(total),
            "by_client": weights.astype(context.dtype),
            "pooled": np.asarray(1.0 / total, context.dtype),
        }
    key = context.rng("synthetic samples on the fly").integers(2**32, size=2, dtype=np.uint32)
    widths = np.array([alpha, beta], np.float32)
    return {"key": key, "clients": drawn, "widths": widths, "sizes": num_train.astype(np.int32), **parts}


def _features(params: dict[str, Any], client: Array, row: Array, center: Array) -> Array:
    """Sample ``row`` of a client, [60], in float32 whatever the run's precision."""
    key = jax.random.wrap_key_data(params["key"], impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, client), row)
    return center + SCALE.astype(np.float32) * jax.random.normal(key, (NUM_FEATURES,), jnp.float32)


def _client(params: dict[str, Any], client: Array) -> Client:
    return split(jnp.asarray(params["clients"])[client], *params["widths"])


def _label(client: Client, features: Array) -> Array:
    return jnp.argmax(features @ client.weights + client.bias).astype(jnp.int32)


def _finished(params: dict[str, Any], features: Array, labels: Array) -> tuple[Array, Array]:
    """Features with the constant one, in the run's precision, and labels."""
    ones = jnp.ones((*features.shape[:-1], 1), features.dtype)
    dtype = params["train"]["pooled"].dtype
    return jnp.concatenate([features, ones], axis=-1).astype(dtype), labels


def _draw(params: dict[str, Any], client: Array, key: Array, batch_size: int) -> tuple[Array, Array]:
    rows = draw_rows(key, jnp.zeros((), jnp.int32), params["sizes"][client], batch_size)
    made = _client(params, client)
    features = jax.vmap(lambda row: _features(params, client, row, made.center))(rows)
    return _finished(params, features, jax.vmap(lambda x: _label(made, x))(features))


def _block(params: dict[str, Any], part: str, block: Array, size: int) -> dict[str, Any]:
    """The samples of one block in order of clients; past the end, the last client's, with weights of zero."""
    of = jax.tree.map(jnp.asarray, params[part])
    place = block * size + jnp.arange(size, dtype=jnp.int32)
    inside = place < of["total"]
    client = jnp.searchsorted(of["offsets"], place, side="right") - 1

    def one(i: Array, row: Array) -> tuple[Array, Array]:
        made = _client(params, i)
        features = _features(params, i, row, made.center)
        return features, _label(made, features)

    features, labels = jax.vmap(one)(client, of["before"][client] + place - of["offsets"][client])
    weights = {"pooled": of["pooled"], "by_client": of["by_client"][client]}
    return {
        "data": _finished(params, features, labels),
        **{name: jnp.where(inside, weight, 0) for name, weight in weights.items()},
    }


SOURCE = Source(_draw, _block)
