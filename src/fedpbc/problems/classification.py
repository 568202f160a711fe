"""Classification: softmax cross-entropy of any model's outputs, and accuracy."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.core.schema import Context, component
from fedpbc.core.types import Array, Measure, Problem
from fedpbc.data.arrays import DataOption
from fedpbc.errors import ConfigError
from fedpbc.models import ModelOption, logistic
from fedpbc.models.model import Model
from fedpbc.problems.loss import dataset, initial, objective_problem
from fedpbc.problems.objective import LOSS, PerSample
from fedpbc.problems.samples import pieces

ACCURACY = Measure("accuracy", better="higher")


@component
def classification(
    context: Context,
    data: DataOption,
    *,
    model: ModelOption = logistic(),  # noqa: B008
    grad_norm: bool = False,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Problem:
    """F_i is the mean cross-entropy of client i's samples under softmax; features [n, ...] and labels int[n].

    Measures loss and accuracy on training samples (mean over clients, and pooled) and on test samples (pooled, and
    where they belong to clients the mean over clients). ``grad_norm``, ``weights``: as in ``loss``. Traits for link
    probabilities: mean_label, num_samples, label_distribution. Raises ConfigError for labels that are no integers from
    0.
    """
    set_ = dataset(data)
    if not (isinstance(set_.train, tuple) and len(set_.train) == 2 and set_.train[1].ndim == 1):
        raise ConfigError("data: classification needs features [n, ...] and labels [n]")
    features, labels = set_.train
    if labels.dtype.kind not in "iub":
        raise ConfigError(f"data: labels are {labels.dtype}, must be integers from 0 or words")
    both = labels if set_.test is None else np.concatenate([labels, set_.test[1]])
    if both.min() < 0 or both.max() > 100_000:
        raise ConfigError(f"data: labels go from {both.min()} to {both.max()}, must number the classes from 0")
    num_classes = max(int(both.max()) + 1, 2)
    network, params = initial(context, model, features, num_classes)
    counts = label_counts(set_.client, labels, set_.num_clients, num_classes)
    sizes = counts.sum(axis=1)
    return objective_problem(
        context,
        set_,
        params,
        cross_entropy_of(network),
        {"accuracy": accuracy_of(network)},
        {"loss": LOSS, "accuracy": ACCURACY},
        grad_norm=grad_norm,
        one_by_one=network.one_by_one,
        by_samples=weights == "samples",
        traits={
            "mean_label": counts @ np.arange(num_classes) / sizes,
            "label_distribution": counts / sizes[:, None],
        },
    )


def label_counts(client: np.ndarray, labels: np.ndarray, num_clients: int, num_classes: int) -> np.ndarray:
    """How many samples of each class a client has, int[m, classes]."""
    counts = np.zeros(num_clients * num_classes, np.int64)
    for piece in pieces(len(labels)):
        cell = client[piece] * num_classes + labels[piece].astype(np.int64)
        counts += np.bincount(cell, minlength=len(counts))
    return counts.reshape(num_clients, num_classes)


@cache
def cross_entropy_of(model: Model) -> PerSample:
    """(params, (features, labels)) -> cross-entropy of each sample; the same function for equal models."""

    def losses(params: Any, batch: tuple[Array, Array]) -> Array:
        return cross_entropy(_outputs(model, params, batch[0]), batch[1])

    return losses


@cache
def accuracy_of(model: Model) -> PerSample:
    """(params, (features, labels)) -> 1 where the largest output is the label's, else 0."""

    def right(params: Any, batch: tuple[Array, Array]) -> Array:
        logits = _outputs(model, params, batch[0])
        return (jnp.argmax(logits, axis=0) == batch[1]).astype(logits.dtype)

    return right


def _outputs(model: Model, params: Any, features: Array) -> Array:
    dtype = jax.tree.leaves(params)[0].dtype
    return model.outputs(params, features if jnp.issubdtype(features.dtype, jnp.floating) else features.astype(dtype))


@jax.custom_vjp
def cross_entropy(logits: Array, labels: Array) -> Array:
    """log sum_k exp(z_k) - z_y of class-major logits [classes, n] and labels [n]; [n]."""
    return jax.nn.logsumexp(logits, axis=0) - jnp.sum(logits * _onehot(labels, logits), axis=0)


def _forward(logits: Array, labels: Array) -> tuple[Array, tuple[Array, Array]]:
    return cross_entropy(logits, labels), (logits, labels)


def _backward(saved: tuple[Array, Array], by: Array) -> tuple[Array, None]:
    """softmax - onehot, in one pass."""
    logits, labels = saved
    return (jax.nn.softmax(logits, axis=0) - _onehot(labels, logits)) * by, None


cross_entropy.defvjp(_forward, _backward)


def _onehot(labels: Array, like: Array) -> Array:
    return (jnp.arange(like.shape[0])[:, None] == labels).astype(like.dtype)
