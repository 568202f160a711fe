"""Regression: half the squared error of any model's outputs."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from fedpbc.core.lazy import jnp
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Array, Measure, Problem
from fedpbc.data.registry import DataOption
from fedpbc.errors import ConfigError
from fedpbc.models import ModelOption, logistic
from fedpbc.models.model import Model
from fedpbc.problems.loss import dataset, initial, objective_problem
from fedpbc.problems.objective import PerSample


@component
def regression(
    context: Context,
    data: DataOption,
    *,
    model: ModelOption = logistic(),  # noqa: B008
    grad_norm: bool = False,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Problem:
    """F_i is the mean of 1/2 ||f(x) - y||^2 over client i's samples; features [n, ...], targets [n] or [n, k].

    Measures the loss and the absolute error, summed over the k targets. ``grad_norm``, ``weights``: as in ``loss``.
    """
    set_ = dataset(data)
    if not (isinstance(set_.train, tuple) and len(set_.train) == 2 and set_.train[1].ndim in (1, 2)):
        raise ConfigError("data: regression needs features [n, ...] and targets [n] or [n, k]")
    targets = set_.train[1]
    if set_.classes is not None:
        raise ConfigError("data: targets are words, must be numbers")
    num_outputs = 1 if targets.ndim == 1 else targets.shape[1]
    network, params = initial(context, model, set_, num_outputs)
    return objective_problem(
        context,
        set_,
        params,
        _half_square_of(network),
        {"absolute_error": _absolute_of(network)},
        {"loss": Measure("loss", scale="log"), "absolute_error": Measure("absolute error")},
        grad_norm=grad_norm,
        one_by_one=network.one_by_one,
        by_samples=weights == "samples",
        model=network,
        of_outputs=half_square,
        train_loss=_train_loss_of(network) if network.trains else None,
    )


def _error(outputs: Array, targets: Array) -> Array:
    """f(x) - y, [k, n]."""
    targets = targets.astype(outputs.dtype)
    return outputs - (targets if targets.ndim == 1 else targets.T)


def half_square(outputs: Array, targets: Array) -> Array:
    """1/2 ||f(x) - y||^2 of each sample; outputs [k, n], targets [n] or [n, k] -> [n]."""
    return 0.5 * jnp.sum(_error(outputs, targets) ** 2, axis=0)


@cache
def _half_square_of(model: Model) -> PerSample:
    def losses(params: Any, batch: tuple[Array, Array]) -> Array:
        return half_square(model.outputs(params, batch[0]), batch[1])

    return losses


@cache
def _train_loss_of(model: Model) -> Any:
    def losses(params: Any, batch: tuple[Array, Array]) -> tuple[Array, Any]:
        outputs, buffers = model.train(params, batch[0])
        return half_square(outputs, batch[1]), buffers

    return losses


@cache
def _absolute_of(model: Model) -> PerSample:
    def errors(params: Any, batch: tuple[Array, Array]) -> Array:
        return jnp.sum(jnp.abs(_error(model.outputs(params, batch[0]), batch[1])), axis=0)

    return errors
