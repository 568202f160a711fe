"""Classification: softmax cross-entropy of any model's outputs, and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from typing import Any, Literal, cast

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.schema import Context, NonNegativeInt, component
from fedpbc.core.types import Array, Measure, Problem
from fedpbc.data.registry import DataOption
from fedpbc.errors import ConfigError
from fedpbc.models import ModelOption, logistic
from fedpbc.models.model import Model
from fedpbc.problems.augment import Augment
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
    crop: NonNegativeInt = 0,
    flip: bool = False,
    grad_norm: bool = False,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Problem:
    """F_i is the mean cross-entropy of client i's samples under softmax; features [n, ...] and labels int[n].

    Measures loss and accuracy on training samples (mean over clients, and pooled) and on test samples (pooled, and
    where they belong to clients the mean over clients). ``crop``, ``flip``: of the images that are trained on, each
    drawn anew: a window of the image with so many pixels of zeros around it, and half of them mirrored. ``grad_norm``,
    ``weights``: as in ``loss``. Raises
    ConfigError for labels that are no integers from 0.
    """
    set_ = dataset(data)
    if not (isinstance(set_.train, tuple) and len(set_.train) == 2 and set_.train[1].ndim == 1):
        raise ConfigError("data: classification needs features [n, ...] and labels [n]")
    labels = set_.train[1]
    if labels.dtype.kind not in "iub":
        raise ConfigError(f"data: labels are {labels.dtype}, must be integers from 0 or words")
    both = labels if set_.test is None else np.concatenate([labels, set_.test[1]])
    if both.min() < 0 or both.max() > 100_000:
        raise ConfigError(f"data: labels go from {both.min()} to {both.max()}, must number the classes from 0")
    num_classes = max(int(both.max()) + 1, 2, 0 if set_.classes is None else len(set_.classes))
    network, params = initial(context, model, set_, num_classes)
    counts = label_counts(set_.client, labels, set_.num_clients, num_classes)
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
        counts=counts,
        model=network,
        of_outputs=cross_entropy,
        train_loss=_train_loss_of(network) if network.trains else None,
        augment=Augment.asked(crop, flip, set_.train[0]),
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
    """(params, (features, labels)) -> 1 where the largest output is the label's (of equal ones the first), else 0."""

    def right(params: Any, batch: tuple[Array, Array]) -> Array:
        logits = _outputs(model, params, batch[0])
        return (_first_largest(logits) == batch[1]).astype(logits.dtype)

    return right


@cache
def _train_loss_of(model: Model) -> Callable[[Any, Any], tuple[Array, Any]]:
    """((params, buffers), (features, labels)) -> (cross-entropy of each sample, buffers), in local steps."""

    def losses(params: Any, batch: tuple[Array, Array]) -> tuple[Array, Any]:
        outputs, buffers = model.train(params, _as_floats(params, batch[0]))
        return cross_entropy(outputs, batch[1]), buffers

    return losses


def _outputs(model: Model, params: Any, features: Array) -> Array:
    return model.outputs(params, _as_floats(params, features))


def _as_floats(params: Any, features: Array) -> Array:
    dtype = jax.tree.leaves(params)[0].dtype
    return features if jnp.issubdtype(features.dtype, jnp.floating) else features.astype(dtype)


UNROLLED = 64
"""So many classes at most are gone through one by one: reductions over a leading axis are far slower."""


def _first_largest(logits: Array) -> Array:
    if logits.shape[0] > UNROLLED:
        return jnp.argmax(logits, axis=0)
    best, place = logits[0], jnp.zeros(logits.shape[1:], jnp.int32)
    for k in range(1, logits.shape[0]):
        place = jnp.where(logits[k] > best, k, place)
        best = jnp.maximum(best, logits[k])
    return place


def cross_entropy(logits: Array, labels: Array) -> Array:
    """log sum_k exp(z_k) - z_y of class-major logits [classes, n] and labels [n]; [n]."""
    return _with_gradient()(logits, labels)


@cache
def _with_gradient() -> Callable[[Array, Array], Array]:
    """The cross-entropy, with a gradient that takes no power again: softmax - onehot."""

    def value(logits: Array, labels: Array) -> Array:
        return forward(logits, labels)[0]

    def forward(logits: Array, labels: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        classes = range(logits.shape[0])
        if len(classes) <= UNROLLED:
            largest = reduce(jnp.maximum, [logits[k] for k in classes])
            powers = jnp.exp(logits - largest)
            total = reduce(jnp.add, [powers[k] for k in classes])
            own = reduce(jnp.add, [jnp.where(labels == k, logits[k], 0) for k in classes])
        else:
            largest = jnp.max(logits, axis=0)
            powers = jnp.exp(logits - largest)
            total = jnp.sum(powers, axis=0)
            own = jnp.sum(jnp.where(is_label(labels, logits), logits, 0), axis=0)
        return jnp.log(total) + largest - own, (powers, total, labels)

    def backward(saved: tuple[Array, Array, Array], by: Array) -> tuple[Array, None]:
        powers, total, labels = saved
        return powers * (by / total) - jnp.where(is_label(labels, powers), by, 0), None

    def is_label(labels: Array, like: Array) -> Array:
        return jnp.arange(like.shape[0])[:, None] == labels

    function: Any = jax.custom_vjp(value)
    function.defvjp(forward, backward)
    return cast(Callable[[Array, Array], Array], function)
