"""Metrics of each client by itself: the worst tenth of the clients, and those that were active alone."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array, ByClient
from fedpbc.problems.objective import Objective, PerSample, per_sample

TENTH = 10


@cache
def by_client_of(objective: Objective, higher: frozenset[str]) -> ByClient:
    """Of an objective with stored samples; ``higher``: names (``test_accuracy``) of which more is better."""
    functions = {"loss": objective.loss, **dict(objective.metrics)}

    def value(f: PerSample, x: Array, buffers: Any, data: Any) -> Array:
        tree = objective.flat.tree(x)
        return per_sample(f, tree if objective.train_loss is None else (tree, buffers), data)

    def sums(params: dict[str, Any], models: Array, block: Array, buffers: Any = None) -> dict[str, Array]:
        """Of each metric, the samples of a block divided by their client's number of them, by client: [k, m]."""
        found = {}
        for part, names, size in (
            ("train", objective.train, objective.blocks[0]),
            ("test", objective.test, objective.blocks[1]),
        ):
            counts = counts_of(params, part)
            if counts is None:
                continue
            rows = objective.source.block(params, part, block, size)
            owner = jnp.searchsorted(jnp.cumsum(counts), block * size + jnp.arange(size), side="right")
            inside = rows["pooled"] > 0
            for name in names:
                of_one = partial(value, functions[name], data=rows["data"])
                values = jax.lax.map(lambda pair, of_one=of_one: of_one(*pair), (models, buffers))
                share = jnp.where(inside, values / jnp.maximum(counts, 1)[owner].astype(models.dtype), 0)
                zero = jnp.zeros((models.shape[0], counts.shape[0]), models.dtype)
                found[f"{part}_{name}"] = zero.at[:, owner].add(share.astype(models.dtype), mode="drop")
        return found

    def finish(params: dict[str, Any], sums: dict[str, Array], active: Array) -> dict[str, Array]:
        values: dict[str, Array] = {}
        for name, each in sums.items():
            counts = counts_of(params, name.partition("_")[0])
            values |= worst_and_active(name, each, counts > 0, active, name in higher)
        return values

    return ByClient(sums, finish)


def counts_of(params: dict[str, Any], part: str) -> Any:
    """How many training or test samples each client has, int[m]; None where they belong to nobody."""
    return params.get("sizes" if part == "train" else "test_sizes")


def worst_and_active(name: str, each: Array, has: Array, active: Array, higher: bool) -> dict[str, Array]:
    """Of values [k, m], over the clients that ``has`` bool[m]: the mean of the worst tenth, and of the active.

    The worst tenth is ceil(n / 10) of n clients. NaN where no active client has samples.
    """
    sign = -1 if higher else 1
    ordered = jnp.sort(jnp.where(has, sign * each, -jnp.inf), axis=1)[:, ::-1]  # the worst first
    count = -(-jnp.sum(has) // TENTH)
    worst = jnp.sum(jnp.where(jnp.arange(each.shape[1]) < count, ordered, 0), axis=1) / count
    there = has & active
    return {
        f"worst_{name}": sign * worst,
        f"active_{name}": jnp.sum(jnp.where(there, each, 0), axis=1) / jnp.sum(there),
    }
