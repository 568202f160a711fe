"""Objectives over samples: a loss per sample, metrics per sample, and a pytree of parameters seen as one vector.

F(x) = (1/m) sum_i F_i(x), F_i the mean loss of client i's samples; gradients by ``jax.grad``. ``loss``,
``classification``, ``regression`` and ``synthetic`` are thin layers over ``problem_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedpbc.core.flat import Flat
from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array, Measure, Problem, Shard, Steps
from fedpbc.models.dense import Logistic
from fedpbc.problems.augment import Augment
from fedpbc.problems.linear import linear_steps
from fedpbc.problems.samples import (
    Samples,
    block_rows,
    draw_rows,
    first_row,
    offsets_of,
    weighted,
    weighted_sum,
    windows,
)
from fedpbc.problems.treewise import mean_gradient, tree_steps

PerSample = Callable[[Any, Any], Array]
"""``f(params, batch) -> [n]``."""

LOSS = Measure("loss")
GRAD_NORM = Measure("gradient norm of F", scale="log")


class Source(NamedTuple):
    """Where samples come from: module-level functions, so that equal sources share programs."""

    draw: Callable[[Any, Array, Array, int], Any]
    """``draw(params, client, key, batch_size) -> samples`` of one client, uniform with replacement."""
    block: Callable[[Any, str, Array, int], dict[str, Any]]
    """``block(params, "train" or "test", block, size)``: ``data`` of so many samples, and a weight [size] by name."""
    stored: bool = False
    """``params`` holds the samples, client after client, and how many each has: ``sizes``, ``test_sizes``."""


def _draw_stored(params: dict[str, Any], client: Array, key: Array, batch_size: int) -> Any:
    offset = params["offsets"][client] - first_row(params["train"])
    rows = draw_rows(key, offset, params["sizes"][client], batch_size)
    return jax.tree.map(lambda a: a[rows], params["train"]["data"])


def _block_stored(params: dict[str, Any], part: str, block: Array, size: int) -> dict[str, Any]:
    return block_rows(params[part], block, size)


STORED = Source(_draw_stored, _block_stored, stored=True)


@dataclass(frozen=True)
class Objective:
    """What is compiled in. Equal objectives share programs."""

    flat: Flat
    loss: PerSample
    """Or a number, the mean over the batch."""
    metrics: tuple[tuple[str, PerSample], ...] = ()
    train: tuple[str, ...] = ("loss",)
    """What is measured on the training samples: "loss" or names of ``metrics``."""
    test: tuple[str, ...] = ("loss",)
    """And on test samples."""
    pooled_train: bool = False
    """Training metrics over all samples alike too, beside the mean over clients."""
    grad_norm: bool = False
    of_outputs: Callable[[Array, Array], Array] | None = None
    """The loss as a function of (outputs [c, n], targets), where the model is ``linear`` in its parameters."""
    linear: Logistic | None = None
    one_by_one: bool = False
    """Models are evaluated one after the other, not side by side."""
    blocks: tuple[int, int] = (2048, 256)
    """How many training and test samples are evaluated at once."""
    source: Source = STORED
    augment: Augment | None = None
    """Of the minibatches, not of what is evaluated."""
    train_loss: Callable[[Any, Any], tuple[Array, Any]] | None = None
    """``f((params, buffers), batch) -> (losses, buffers)``, where there are buffers: what local steps follow. Then the
    functions above are given (params, buffers) for params."""


def problem_of(
    objective: Objective,
    train: Samples,
    test: Samples | None,
    init: np.ndarray,
    measures: Mapping[str, Measure],
    traits: Mapping[str, np.ndarray],
    by_samples: bool = False,
    work: float = 0.0,
    buffers: Any = None,
) -> Problem:
    """The problem of an objective and its samples; ``measures``: what "loss" and each metric is.

    ``by_samples``: F = sum_i a_i F_i with a_i = n_i / sum n, client i's loss being m a_i F_i. Raises ConfigError when a
    client has no training sample.
    """
    dtype = init.dtype
    params: dict[str, Any] = {
        "offsets": offsets_of(train.sizes),
        "sizes": train.sizes.astype(np.int32),
        "train": weighted(train, dtype),
    }
    blocks = train.rows // objective.blocks[0]
    if test is not None:
        params["test"] = weighted(test, dtype)
        if test.owned:
            params["test_sizes"] = test.sizes.astype(np.int32)
        blocks = max(blocks, test.rows // objective.blocks[1])
    params["blocks"] = blocks_of(objective, *(part.sizes for part in (train, test) if part is not None))
    if by_samples:
        params["train"]["by_client"] = params["train"]["pooled"]
    return problem_from(
        objective,
        params,
        train.sizes,
        blocks,
        init,
        measures,
        traits,
        by_samples,
        work,
        owned=test is not None and test.owned,
        shard=partial(_shard, objective.blocks, blocks),
        buffers=buffers,
    )


def _shard(
    sizes: tuple[int, int], num_blocks: int, params: dict[str, Any], first: Sequence[int]
) -> tuple[dict[str, Any], np.ndarray]:
    """Samples and their weights, divided: a block is evaluated where its first training sample is.

    So a device holds the samples of its clients and, behind them, what its last block takes from the next device's.
    What there is once per client (offsets, sizes, scale) stays whole.
    """
    ends = np.concatenate([params["offsets"], [params["offsets"][-1] + params["sizes"][-1]]]).astype(int)
    rows = ends[list(first)].tolist()
    blocks = [-(-row // sizes[0]) for row in rows[:-1]] + [num_blocks]
    divided = {**params, "train": windows(params["train"], rows, sizes[0])}
    if "test" in params:
        most = params["test"]["pooled"].shape[0]
        used = int(np.count_nonzero(params["test"]["pooled"]))
        bounds = [min(block * sizes[1], most) for block in (*blocks[:-1], -(-used // sizes[1]))]
        divided["test"] = windows(params["test"], np.maximum.accumulate(bounds).tolist(), sizes[1])
    longest = max(high - low for low, high in pairwise(blocks))
    step = max(1, num_blocks // (32 * len(rows[:-1])))
    owned = np.full((len(rows) - 1, -(-max(longest, 1) // step) * step), num_blocks, np.int32)
    for mine, (low, high) in zip(owned, pairwise(blocks), strict=True):
        mine[: high - low] = np.arange(low, high)
    return divided, owned


def blocks_of(objective: Objective, *sizes: np.ndarray) -> np.ndarray:
    """Blocks that hold samples, int32: seeds share a program, and have unlike numbers of samples."""
    return np.asarray(max(-(-int(n.sum()) // size) for n, size in zip(sizes, objective.blocks, strict=False)), np.int32)


def problem_from(
    objective: Objective,
    params: dict[str, Any],
    sizes: np.ndarray,
    num_blocks: int,
    init: np.ndarray,
    measures: Mapping[str, Measure],
    traits: Mapping[str, np.ndarray],
    by_samples: bool,
    work: float = 0.0,
    *,
    owned: bool,
    shard: Shard | None = None,
    buffers: Any = None,
) -> Problem:
    """The problem of an objective whose source reads ``params``; sizes int[m] are of the training samples.

    ``params`` holds "blocks" (``blocks_of``), and "test" where there are test samples; ``owned``: they are of clients.
    """
    if by_samples:
        params["scale"] = (sizes / sizes.mean()).astype(init.dtype)
    from fedpbc.problems.by_client import by_client_of

    described = _named(objective, "test" in params, owned, measures)
    higher = frozenset(name for name, measure in described.items() if measure.better == "higher")
    return Problem(
        params=params,
        num_clients=len(sizes),
        init=init,
        sample=_sample_of(objective.source, by_samples, objective.augment),
        gradient=_gradient_of(objective) if objective.train_loss is None else _gradient_with_buffers_of(objective),
        num_blocks=num_blocks,
        block_sums=_block_sums_of(objective),
        metrics=_metrics,
        client_traits=traits if "num_samples" in traits else {"num_samples": sizes.astype(np.float64), **traits},
        measures=described,
        by_client=by_client_of(objective, higher) if objective.source.stored else None,
        several=_several_of(objective),
        work=work or 4.0 * 32 * objective.flat.size,
        tree=objective.flat.tree,
        shard=shard,
        buffers=buffers,
    )


def _several_of(objective: Objective) -> Callable[[int, int], Steps | None] | None:
    if objective.train_loss is not None:
        return None
    if objective.linear is not None and objective.of_outputs is not None:
        return linear_steps(objective.flat, objective.linear, objective.of_outputs)
    return tree_steps(objective.flat, objective.loss)


def _named(objective: Objective, tested: bool, owned: bool, measures: Mapping[str, Measure]) -> dict[str, Measure]:
    """The measure of each name that ``_metrics`` gives."""
    found = {"grad_norm": GRAD_NORM} if objective.grad_norm else {}
    for part, names in (("train", objective.train), ("test", objective.test if tested else ())):
        for name in names:
            measure = measures.get(name, Measure(name.replace("_", " ")))
            main = _variant(
                measure, part, shown=(part == "test" and name != "loss") or (part, name) == ("train", "loss")
            )
            found[f"{part}_{name}"] = main
            if part == "test" and owned:
                found[f"{part}_{name}_by_client"] = _variant(measure, part, ", mean over clients")
            if part == "train" and objective.pooled_train:
                found[f"{part}_{name}_pooled"] = _variant(measure, part, ", over all samples")
    return found


def _variant(measure: Measure, part: str, rest: str = "", shown: bool = False) -> Measure:
    return Measure(f"{part} {measure.title}{rest}", measure.unit, measure.scale, measure.better, shown)


@cache
def _sample_of(source: Source, scaled: bool, augment: Augment | None) -> Any:
    """(samples, None), or (samples, m a_i); the same function for equal arguments."""

    def sample(params: dict[str, Any], client: Array, key: Array, batch_size: int) -> tuple[Any, Array | None]:
        samples = source.draw(params, client, key, batch_size)
        if augment is not None:
            samples = (augment.of(key, samples[0]), *samples[1:])
        return samples, params["scale"][client] if scaled else None

    return sample


@cache
def _gradient_of(objective: Objective) -> Any:
    """The same function for equal objectives, as the engine wants it."""
    gradient_of = mean_gradient(objective.loss)

    def gradient(batch: tuple[Any, Array | None], x: Array) -> Array:
        """Gradient of the mean loss of a batch, scaled if it says so, [d]."""
        return gradient_of(objective.flat.tree, batch, x)

    return gradient


@cache
def _gradient_with_buffers_of(objective: Objective) -> Any:
    """The same with buffers, as the engine wants it."""

    def gradient(batch: tuple[Any, Array | None], x: Array, buffers: Any) -> tuple[Array, Any]:
        """(gradient of the mean loss of a batch [d], the buffers after it)."""
        samples, scale = batch

        def mean(x: Array) -> tuple[Array, Any]:
            assert objective.train_loss is not None
            losses, after = objective.train_loss((objective.flat.tree(x), buffers), samples)
            return jnp.mean(losses), jax.tree.map(lambda a, b: a.astype(b.dtype), after, buffers)

        slope, after = jax.grad(mean, has_aux=True)(x)
        return slope if scale is None else scale * slope, jax.lax.stop_gradient(after)

    return gradient


def per_sample(f: PerSample, params: Any, batch: Any) -> Array:
    """f of each sample, [n]; where f is a mean over its batch, of batches of one sample each."""
    values = f(params, batch)
    if values.ndim == 0:
        return jax.vmap(lambda sample: f(params, jax.tree.map(lambda a: a[None], sample)))(batch)
    return values


@cache
def _block_sums_of(objective: Objective) -> Any:
    """The same function for equal objectives."""
    functions = {"loss": objective.loss, **dict(objective.metrics)}

    def of_one(rows: dict[str, dict[str, Any]], x: Array, buffers: Any) -> dict[str, Array]:
        def loss_sum(x: Array) -> tuple[Array, dict[str, Array]]:
            """The weighted loss, and all sums of one block of training and test samples."""
            tree, sums, mean = objective.flat.tree(x), {}, jnp.zeros((), x.dtype)
            tree = tree if objective.train_loss is None else (tree, buffers)
            for part, names in (("train", objective.train), ("test", objective.test)):
                for name in names if part in rows else ():
                    values = per_sample(functions[name], tree, rows[part]["data"]).astype(x.dtype)
                    for weight in rows[part]:
                        if weight != "data" and (part, weight) != ("train", "pooled"):
                            sums[f"{part}_{name}_{weight}"] = weighted_sum(values, rows[part][weight])
                    if (part, name) == ("train", "loss"):
                        mean = values @ rows[part]["by_client"]  # to be differentiated alone
                    if part == "train" and objective.pooled_train:
                        sums[f"train_{name}_pooled"] = weighted_sum(values, rows[part]["pooled"])
            return mean, sums

        if not objective.grad_norm:
            return loss_sum(x)[1]
        gradient, sums = jax.grad(loss_sum, has_aux=True)(x)
        return {**sums, "gradient": gradient}

    def block_sums(params: dict[str, Any], models: Array, block: Array, buffers: Any = None) -> dict[str, Array]:
        """Weighted sums over one block of the training set and one of the test set, of models [k, d]."""
        sizes = dict(zip(("train", "test"), objective.blocks, strict=True))

        def sums(models: Array) -> dict[str, Array]:
            rows = {part: objective.source.block(params, part, block, sizes[part]) for part in sizes if part in params}
            if not objective.one_by_one:
                return jax.vmap(lambda x, own: of_one(rows, x, own))(models, buffers)
            one = [jax.tree.map(lambda a, i=i: a[i], (models, buffers)) for i in range(models.shape[0])]
            each = [of_one(rows, *pair) for pair in one]
            return jax.tree.map(lambda *parts: jnp.stack(parts), *each)

        def nothing(models: Array) -> dict[str, Array]:
            return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(sums, models))

        return jax.lax.cond(block < params["blocks"], sums, nothing, models)

    return block_sums


def _metrics(params: dict[str, Any], models: Array, sums: dict[str, Array]) -> dict[str, Array]:
    """F's own weights give train_NAME, all test samples alike test_NAME, the mean over clients test_NAME_by_client."""
    values = {}
    for name, value in sums.items():
        if name == "gradient":
            values["grad_norm"] = jnp.linalg.norm(value, axis=1)
        elif name.startswith("train_"):
            values[name.removesuffix("_by_client")] = value
        else:
            values[name.removesuffix("_pooled")] = value
    return values
