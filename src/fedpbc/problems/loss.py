"""Any loss: a problem from ``loss(params, batch)``, ``init(key)`` and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from fedpbc.core.flat import Flat
from fedpbc.core.memory import require_memory
from fedpbc.core.schema import Context, component
from fedpbc.core.types import Measure, Problem
from fedpbc.data.arrays import DataOption, Dataset
from fedpbc.errors import ConfigError
from fedpbc.problems.objective import LOSS, Objective, PerSample, check_function, problem_of
from fedpbc.problems.samples import Samples, block_of, in_order


@component
def loss(
    context: Context,
    data: DataOption,
    *,
    loss: Callable[..., Any],
    init: Callable[..., Any],
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    measures: Any = None,
    grad_norm: bool = False,
    one_by_one: bool = True,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Problem:
    """Minimise the mean of ``loss(params, batch)`` over clients; parameters from ``init(key)``, any pytree of floats.

    A batch has the structure of the data, each array with a leading sample axis. ``loss`` gives one number per sample,
    [n], or their mean. ``metrics``: name -> ``f(params, batch) -> [n]``, measured on training and test samples.
    ``measures``: name -> fedpbc.Measure (title, unit, scale, which way is better) of metrics and of "loss".
    ``grad_norm``: measure the norm of grad F, which costs a gradient over all samples. ``one_by_one``: evaluate the
    server's and the mean model one after the other; False is faster for small dense models. ``weights``: F is the mean
    of the F_i, or with "samples" sum_i a_i F_i, a_i = n_i / sum n. Raises ConfigError when a function fails or gives
    another shape.
    """
    set_ = dataset(data)
    metrics = dict(metrics or {})
    for name in metrics:
        if not name.isidentifier() or name == "loss":
            raise ConfigError(f"metrics: {name!r} must be a plain name other than loss")
    seed = int(context.rng("initial weights").integers(2**32))
    try:
        params = init(jax.random.key(seed))
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ConfigError(f"init: fails: {type(error).__name__}: {first}") from error
    return objective_problem(
        context,
        set_,
        params,
        loss,
        metrics,
        {"loss": LOSS, **(measures or {})},
        grad_norm=grad_norm,
        one_by_one=one_by_one,
        by_samples=weights == "samples",
    )


def dataset(data: Any) -> Dataset:
    """The built data of an option."""
    if not isinstance(data, Dataset):
        raise ConfigError(f"data = {type(data).__name__}: must be a data set with clients")
    return data


def objective_problem(
    context: Context,
    data: Dataset,
    params: Any,
    loss: PerSample,
    metrics: Mapping[str, PerSample],
    measures: Mapping[str, Measure],
    *,
    grad_norm: bool,
    one_by_one: bool,
    by_samples: bool,
    traits: Mapping[str, np.ndarray] | None = None,
) -> Problem:
    """A problem from initial parameters, functions of (params, batch) and data. Raises ConfigError."""
    flat, dtype = Flat.of(params), np.dtype(context.dtype)
    rows = sum(leaf.size for leaf in jax.tree.leaves(data.train)) * dtype.itemsize
    models = data.num_clients * flat.size * dtype.itemsize * 6
    require_memory("data", f"{data.num_clients:,} clients", 2 * rows + models, f"models of {flat.size:,} parameters")
    block = block_of(data.train)
    most_train, most_test = data.most or (0, 0)
    train = in_order(data.train, data.client, data.num_clients, block, dtype, most_train)
    test, test_block = None, 1
    if data.test is not None and len(jax.tree.leaves(data.test)[0]):
        num_blocks = train.rows // block
        test_block = -(-max(len(jax.tree.leaves(data.test)[0]), most_test) // num_blocks)
        test = in_order(data.test, data.test_client, data.num_clients, test_block, dtype, most_test)
    example = jax.tree.map(lambda a: a[:2] if len(a) > 1 else np.repeat(a, 2, axis=0), train.data)
    tree = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), dtype), params)
    check_function("loss", loss, tree, example, scalar=True)
    for name, metric in metrics.items():
        check_function(f"metrics.{name}", metric, tree, example, scalar=False)
    names = ("loss", *metrics)
    objective = Objective(
        flat, loss, tuple(metrics.items()), names, names, True, grad_norm, one_by_one, (block, test_block)
    )
    init = flat.flatten(params, dtype)
    return problem_of(
        objective, train, test, init, measures, traits or {}, by_samples, _work(loss, tree, example, flat.size)
    )


def _work(loss: PerSample, tree: Any, example: Any, size: int) -> float:
    """Floating-point operations of a local step of batch 32, as the compiler counts them."""
    try:
        gradient = jax.grad(lambda p, b: loss(p, b).sum())
        analysis = jax.jit(gradient).lower(tree, example).cost_analysis()
        return max(16.0 * float((analysis or {})["flops"]), 4.0 * size)
    except (
        Exception
    ):  # an estimate, which some backends do not give; a loss that cannot be differentiated shows itself later
        return 4.0 * 32 * size


def owned_by(samples: Samples) -> np.ndarray:
    """The client of each row but the filling."""
    return np.repeat(np.arange(len(samples.sizes)), samples.sizes)
