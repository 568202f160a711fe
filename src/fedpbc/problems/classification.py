"""Classification on ragged client data, for any model of logits and any problem whose samples are (features, label)."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.problems.partition import aligned_zeros, draw_rows, offsets_of, weights_of
from fedpbc.types import Array, Problem

TRAIN_BLOCK, TEST_BLOCK = 2048, 256
"""Samples that are evaluated at once: a block of the one and a block of the other."""


class Samples(NamedTuple):
    """Samples of all clients, client after client; rows behind the last client's are filling."""

    features: np.ndarray
    """[rows, features], the last feature is 1."""
    labels: np.ndarray
    """int32[rows]."""
    sizes: np.ndarray
    """int[m]: how many rows belong to client i."""


class Model(Protocol):
    """A classifier. Models that compare equal share a compiled program, so it holds sizes and no arrays."""

    @property
    def size(self) -> int:
        """d, the number of its parameters."""
        ...

    def __hash__(self) -> int: ...

    def init(self, rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        """x^0, [d]."""
        ...

    def logits(self, x: Array, features: Array) -> Array:
        """x [..., d], features [n, f] -> [..., classes, n]."""
        ...

    def gradient(self, x: Array, features: Array, residual: Array) -> Array:
        """sum over logits of residual [..., classes, n] times the gradient of that logit at x [..., d]; -> [..., d]."""
        ...


def allocate(sizes: np.ndarray, num_rows: int, num_features: int, block: int, dtype: np.dtype) -> Samples:
    """Room for sum(sizes) samples, filled up to ``num_rows`` and to whole blocks of ``block``.

    Seeds whose data differ in length run in one compiled program when they are filled up to the same length.
    """
    rows = -(-max(int(sizes.sum()), num_rows, 1) // block) * block
    features = aligned_zeros((rows, num_features), dtype)
    features[:, -1] = 1
    return Samples(features, np.zeros(rows, np.int32), sizes)


def classification(
    train: Samples,
    test: Samples,
    num_classes: int,
    model: Model,
    rng: np.random.Generator,
    by_samples: bool = False,
) -> Problem:
    """F_i = mean cross-entropy over the client's samples; no regularisation. ``rng`` draws x^0.

    ``by_samples``: F = sum_i a_i F_i with a_i = n_i / sum n, client i's loss being m a_i F_i. Raises ConfigError
    when a client has no training sample.
    """
    offsets = offsets_of(train.sizes)
    used = train.labels[: int(train.sizes.sum())].astype(np.float64)
    mean_label = np.add.reduceat(used, offsets) / train.sizes
    params: dict[str, Any] = {
        "offsets": offsets,
        "sizes": train.sizes.astype(np.int32),
        "train": _weighted(train),
        "test": _weighted(test),
    }
    if by_samples:
        params["train"]["by_client"] = params["train"]["pooled"]
        params["scale"] = (train.sizes / train.sizes.mean()).astype(train.features.dtype)
    return Problem(
        params=params,
        num_clients=len(train.sizes),
        init=model.init(rng, train.features.dtype),
        sample=_scaled_sample if by_samples else _sample,
        gradient=_gradient_of(model),
        num_blocks=max(len(train.labels) // TRAIN_BLOCK, len(test.labels) // TEST_BLOCK),
        block_sums=_block_sums_of(model),
        metrics=_metrics,
        client_traits={
            "mean_label": mean_label,
            "num_samples": train.sizes.astype(np.float64),
            "label_distribution": _label_distribution(train, num_classes),
        },
        work=4.0 * 32 * model.size,
    )


def _label_distribution(train: Samples, num_classes: int) -> np.ndarray:
    """The share of each class in a client's training samples, [m, classes]; rows sum to 1."""
    client = np.repeat(np.arange(len(train.sizes)), train.sizes)
    cell = client * num_classes + train.labels[: len(client)]
    counts = np.bincount(cell, minlength=len(train.sizes) * num_classes)
    return counts.reshape(-1, num_classes) / train.sizes[:, None]


def _weighted(samples: Samples) -> dict[str, np.ndarray]:
    """Samples with their weights 1/(m n_i) (by client) and 1/n (pooled); the filling weighs nothing."""
    dtype, rows, total = samples.features.dtype, len(samples.labels), int(samples.sizes.sum())
    by_client, pooled = np.zeros(rows, dtype), np.zeros(rows, dtype)
    by_client[:total] = weights_of(samples.sizes, dtype)
    pooled[:total] = 1.0 / max(total, 1)
    return {"features": samples.features, "labels": samples.labels, "by_client": by_client, "pooled": pooled}


def _sample(params: dict[str, Any], client: Array, key: Array, batch_size: int) -> tuple[Array, Array]:
    rows = draw_rows(key, params["offsets"][client], params["sizes"][client], batch_size)
    return params["train"]["features"][rows], params["train"]["labels"][rows]


def _scaled_sample(params: dict[str, Any], client: Array, key: Array, batch_size: int) -> tuple[Array, Array, Array]:
    """The samples, and m a_i."""
    return *_sample(params, client, key, batch_size), params["scale"][client]


@cache
def _gradient_of(model: Model) -> Any:
    """The same function for equal models, as the engine wants it."""

    def gradient(batch: tuple[Array, ...], x: Array) -> Array:
        """Gradient of the mean cross-entropy of a batch, scaled if it says so: residual softmax - onehot, over n."""
        features, labels, *scale = batch
        logits = model.logits(x, features)
        residual = jax.nn.softmax(logits, axis=0) - _onehot(labels, logits)
        mean = model.gradient(x, features, residual) / features.shape[0]
        return scale[0] * mean if scale else mean

    return gradient


def _onehot(labels: Array, like: Array) -> Array:
    return (jnp.arange(like.shape[-2])[:, None] == labels).astype(like.dtype)


@cache
def _block_sums_of(model: Model) -> Any:
    """The same function for equal models."""

    def block_sums(params: dict[str, Any], models: Array, block: Array) -> dict[str, Array]:
        """Weighted sums over one block of the training set and one of the test set."""
        train = _rows(params["train"], block, TRAIN_BLOCK)
        test = _rows(params["test"], block, TEST_BLOCK)
        logits = model.logits(models, train["features"])
        log_total = jax.nn.logsumexp(logits, axis=1)
        onehot = _onehot(train["labels"], logits)
        loss = (log_total - jnp.sum(logits * onehot, axis=1)) @ train["by_client"]
        residual = (jnp.exp(logits - log_total[:, None]) - onehot) * train["by_client"]
        right = jnp.argmax(model.logits(models, test["features"]), axis=1) == test["labels"]
        right = right.astype(models.dtype)
        return {
            "loss": loss,
            "gradient": model.gradient(models, train["features"], residual),
            "pooled": right @ test["pooled"],
            "by_client": right @ test["by_client"],
        }

    return block_sums


def _rows(part: dict[str, Array], block: Array, size: int) -> dict[str, Array]:
    """The block's rows; past the end of the set, weights of zero."""
    num_blocks = part["labels"].shape[0] // size
    start = jnp.minimum(block, num_blocks - 1) * size
    rows = {name: jax.lax.dynamic_slice_in_dim(value, start, size) for name, value in part.items()}
    inside = block < num_blocks
    return rows | {name: jnp.where(inside, rows[name], 0) for name in ("by_client", "pooled")}


def _metrics(params: dict[str, Any], models: Array, sums: dict[str, Array]) -> dict[str, Array]:
    return {
        "grad_norm": jnp.linalg.norm(sums["gradient"], axis=1),
        "train_loss": sums["loss"],
        "test_accuracy": sums["pooled"],
        "test_accuracy_by_client": sums["by_client"],
    }
