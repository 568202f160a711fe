"""Any loss: a problem from ``loss(params, batch)``, ``init(key)`` and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpbc.core.flat import Flat
from fedpbc.core.lazy import jax, jnp
from fedpbc.core.memory import PROGRAM_BYTES, STATES, require_memory, total_memory
from fedpbc.core.schema import Context, bind, component
from fedpbc.core.types import Measure, Problem
from fedpbc.data.arrays import Dataset
from fedpbc.data.registry import DataOption
from fedpbc.errors import ConfigError, called, shorten, unknown_key
from fedpbc.models.dense import Logistic
from fedpbc.models.model import Functions, Model
from fedpbc.problems.augment import Augment
from fedpbc.problems.checks import check_function, check_training, sizes_in, unlike
from fedpbc.problems.objective import LOSS, Objective, PerSample, problem_of
from fedpbc.problems.samples import block_of, in_order
from fedpbc.problems.scaled import scaled, source_of
from fedpbc.problems.traits import Traits


@component
def loss(
    context: Context,
    data: DataOption,
    *,
    loss: Callable[..., Any],
    init: Callable[..., Any],
    train: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    measures: Mapping[str, Measure] | None = None,
    grad_norm: bool = False,
    one_by_one: bool = True,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Problem:
    """Minimise the mean of ``loss(params, batch)`` over clients; parameters from ``init(key)``, any pytree of floats.

    A batch has the structure of the data, each array with a leading sample axis. ``loss`` gives one number per sample,
    [n], or their mean. ``metrics``: name -> ``f(params, batch) -> [n]``, measured on training and test samples.
    ``measures``: name -> fedpbc.Measure, or a table of title, unit, scale, better, shown, of metrics and of "loss".
    ``grad_norm``: measure the norm of grad F, which costs a gradient over all samples. ``one_by_one``: evaluate the
    server's and the mean model one after the other; False is faster for small dense models. ``weights``: F is the mean
    of the F_i, or with "samples" sum_i a_i F_i, a_i = n_i / sum n. ``train``: for buffers (batch normalisation):
    ``init`` then gives (params, buffers), all functions are given that pair for params, and local steps follow
    ``train((params, buffers), batch) -> (losses, buffers)``. Raises ConfigError when a function fails or gives another
    shape.
    """
    set_ = dataset(data)
    metrics = dict(metrics or {})
    for name in metrics:
        if not name.isidentifier() or name == "loss" or name.endswith(("_pooled", "_by_client")):
            raise ConfigError(f"metrics: {name!r} must be a plain name, not loss, and not end in _pooled or _by_client")
    seed = int(context.rng("initial weights").integers(2**32))
    params = called("init", init, jax.random.key(seed))
    return objective_problem(
        context,
        set_,
        params,
        loss,
        metrics,
        {"loss": LOSS, **_measures(measures or {}, ["loss", *metrics])},
        grad_norm=grad_norm,
        one_by_one=one_by_one,
        by_samples=weights == "samples",
        train_loss=train,
    )


def _measures(given: Mapping[str, Any], names: list[str]) -> dict[str, Measure]:
    """Measures, or tables of their fields as a file has them. Raises ConfigError."""
    found = {}
    for name, value in given.items():
        key = f"measures.{name}"
        if name not in names:
            raise unknown_key(key, name, names)
        if not isinstance(value, Measure | Mapping):
            raise ConfigError(f"{key} = {shorten(value)}: must be a fedpbc.Measure or a table of title, unit, ...")
        fields = vars(value) if isinstance(value, Measure) else value
        found[name] = Measure(**bind(_measure, fields, key, Path.cwd()))
    return found


def _measure(
    *,
    title: str,
    unit: str = "",
    scale: Literal["linear", "log"] = "linear",
    better: Literal["lower", "higher", "neither"] = "lower",
    shown: bool = False,
) -> None:
    """The fields of a Measure, as a schema."""


def initial(context: Context, model: Any, data: Dataset, num_outputs: int) -> tuple[Model, Any]:
    """The built model of an option, whose outputs are checked, and its x^0. Raises ConfigError."""
    if not isinstance(model, Model):
        raise ConfigError(f"model = {shorten(model)}: makes a {type(model).__name__}, must be a fedpbc.models.Model")
    features = data.train[0]
    for part in (features, *(() if data.test is None else data.test[:1])):
        model.check(part)
    rng = context.rng("initial weights")
    params = called("model: init", model.init, rng, features.shape[1:], num_outputs)
    weights, buffers = split_buffers(params, bool(model.trains), context.dtype)
    Flat.of(weights)
    dtype = np.dtype(context.dtype)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), dtype), weights)
    n = unlike(num_outputs, *sizes_in(shapes, features[0]))
    batch = jax.ShapeDtypeStruct((n, *features.shape[1:]), dtype)
    given = called(
        f"model: on a batch of {n} samples, it", jax.eval_shape, beside(model.outputs, buffers), shapes, batch
    )
    shape = getattr(given, "shape", None)
    if shape is not None and not jnp.issubdtype(given.dtype, jnp.floating):
        raise ConfigError(f"model: outputs are {given.dtype}, must be floating-point numbers")
    if shape != (num_outputs, n):
        own = isinstance(model, Functions) and shape is not None
        wanted = f"[n, outputs] = ({n}, {num_outputs})" if own else f"[outputs, n] = ({num_outputs}, {n})"
        found = f"outputs of shape {shape[::-1] if own else shape}" if shape is not None else type(given).__name__
        raise ConfigError(f"model: gave {found} for a batch of {n} samples, must be {wanted}")
    return model, params


def split_buffers(params: Any, trains: bool, dtype: Any) -> tuple[Any, Any]:
    """What ``init`` gave as (params, buffers), floats among the latter in the run's precision, integers in 32 bits.

    None for buffers where nothing makes new ones. Raises ConfigError.
    """
    if not trains:
        return params, None
    if not (isinstance(params, tuple) and len(params) == 2):
        raise ConfigError(f"init: gave a {type(params).__name__}, must give (params, buffers), as there is train")

    def stored(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        if array.dtype.kind not in "fiub":
            raise ConfigError(f"init: a buffer is {array.dtype}, must be numbers or truth values")
        return array.astype({"f": dtype, "b": bool}.get(array.dtype.kind, np.int32))

    return params[0], jax.tree.map(stored, params[1])


def beside(f: Callable[..., Any], buffers: Any) -> Callable[..., Any]:
    """``f(params, ...)`` of a function that is given (params, buffers) where there are any."""
    return f if buffers is None else lambda params, given: f((params, buffers), given)


def dataset(data: Any) -> Dataset:
    """The built data of an option, which may come from outside, checked. Raises ConfigError."""
    if not isinstance(data, Dataset):
        raise ConfigError(f"data = {type(data).__name__}: must be a data set with clients")
    if isinstance(data.num_clients, bool) or not isinstance(data.num_clients, int) or data.num_clients < 1:
        raise ConfigError(f"data: num_clients = {shorten(data.num_clients)}: must be an integer, at least 1")
    for part, tree, client in (("train", data.train, data.client), ("test", data.test, data.test_client)):
        if tree is None:
            continue
        arrays = jax.tree.leaves(tree)
        kinds = [getattr(a, "dtype", np.dtype(object)).kind if np.ndim(a) else "" for a in arrays]
        if not arrays or not set(kinds) <= set("fiub"):
            raise ConfigError(f"data: {part} must be arrays of numbers [n, ...], or a tuple or dict of them")
        rows = sorted({len(array) for array in arrays})
        if len(rows) > 1:
            raise ConfigError(f"data: {part} has arrays of {rows[0]} and {rows[-1]} rows, must be of as many")
        if part == "test" and client is None:
            continue
        name, (n,) = "client" if part == "train" else "test_client", rows
        if not (isinstance(client, np.ndarray | jax.Array) and client.shape == (n,) and client.dtype.kind in "iu"):
            raise ConfigError(f"data: {name} must be integers, one per row of {part}, [{n}]")
        if n and not (client.min() >= 0 and client.max() < data.num_clients):
            least, most = client.min(), client.max()
            raise ConfigError(f"data: {name} goes from {least} to {most}, must be from 0 to {data.num_clients - 1}")
    if data.scaling is not None and not (isinstance(data.train, tuple) and len(data.train) == 2):
        raise ConfigError("data: scaling needs a pair of features and labels")
    forms = [jax.tree.map(lambda a: str(a.shape[1:]), tree) for tree in (data.train, data.test)]
    if data.test is not None and forms[0] != forms[1]:
        raise ConfigError(f"data: test has samples of other shapes than train: {forms[1]}, must be {forms[0]}")
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
    counts: np.ndarray | None = None,
    model: Model | None = None,
    of_outputs: Callable[[Any, Any], Any] | None = None,
    train_loss: Callable[[Any, Any], Any] | None = None,
    augment: Augment | None = None,
) -> Problem:
    """A problem from initial parameters, functions of (params, batch) and data. Raises ConfigError.

    ``counts`` [m, classes]: samples of each label, for link probabilities. ``of_outputs``: the loss as a function of
    the outputs of ``model`` and the targets. ``train_loss``: what local steps follow, where params are (params,
    buffers).
    """
    params, buffers = split_buffers(params, train_loss is not None, context.dtype)
    flat, dtype = Flat.of(params), np.dtype(context.dtype)
    rows = sum(_stored_bytes(leaf, dtype) for leaf in jax.tree.leaves((data.train, data.test)))
    state, fixed = flat.size * dtype.itemsize * STATES, PROGRAM_BYTES + rows
    most = (total_memory() - fixed) // state
    require_memory(
        "data",
        f"{data.num_clients:,} clients",
        fixed + data.num_clients * state,
        f"samples and models of {flat.size:,} parameters",
        would_fit=f"models of {most:,} clients" if most > 0 else None,
    )
    block = block_of(data.train)
    most_train, most_test = data.most or (0, 0)
    train = in_order(data.train, data.client, data.num_clients, block, dtype, most_train)
    test, test_block = None, 1
    if data.test is not None and len(jax.tree.leaves(data.test)[0]):
        num_blocks = train.rows // block
        test_block = -(-max(len(jax.tree.leaves(data.test)[0]), most_test) // num_blocks)
        test = in_order(data.test, data.test_client, data.num_clients, test_block, dtype, most_test)
    tree = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), dtype), params)
    n = unlike(*sizes_in(tree, jax.tree.map(lambda a: a[0], train.data)))
    example = jax.tree.map(lambda a: jax.ShapeDtypeStruct((n, *a.shape[1:]), a.dtype), train.data)
    if data.scaling is not None:
        example = jax.eval_shape(partial(scaled, data.scaling, dtype=dtype), example)
    check_function("loss", beside(loss, buffers), tree, example, scalar=True)
    if train_loss is not None:
        check_training(train_loss, tree, buffers, example)
    for name, metric in metrics.items():
        check_function(f"metrics.{name}", beside(metric, buffers), tree, example, scalar=False)
    names = ("loss", *metrics)
    objective = Objective(
        flat, loss, tuple(metrics.items()), names, names, True, grad_norm, of_outputs,
        model if isinstance(model, Logistic) else None, one_by_one, (block, test_block), source_of(data.scaling),
        augment=augment, train_loss=train_loss,
    )  # fmt: skip
    init = flat.flatten(params, dtype)
    work = _work(beside(loss, buffers), tree, example, flat.size)
    traits = Traits(data, train.sizes, counts, train)
    return problem_of(objective, train, test, init, measures, traits, by_samples, work, buffers)


def _stored_bytes(array: np.ndarray, dtype: np.dtype) -> int:
    """Beside the array as it was given: in order of clients, with two weights a sample."""
    itemsize = dtype.itemsize if array.dtype.kind == "f" else min(array.dtype.itemsize, 4)
    return int(array.size) * itemsize + 2 * len(array) * dtype.itemsize


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
