"""Metrics of each client by itself: the worst tenth of the clients, and those that were active alone."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array, ByClient
from fedpbc.problems.objective import Objective, per_sample

TENTH = 10


@cache
def by_client_of(objective: Objective, higher: frozenset[str]) -> ByClient:
    """Of an objective with stored samples; ``higher``: names (``test_accuracy``) of which more is better."""
    functions = {"loss": objective.loss, **dict(objective.metrics)}

    def values(rows: dict[str, dict[str, Any]], x: Array, buffers: Any) -> dict[str, Array]:
        """Each metric of each sample, in one function: the compiler makes the outputs that they share once."""
        tree = objective.flat.tree(x)
        model = tree if objective.train_loss is None else (tree, buffers)
        names = {"train": objective.train, "test": objective.test}
        return {
            f"{part}_{name}": per_sample(functions[name], model, found["data"])
            for part, found in rows.items()
            for name in names[part]
        }

    def sums(params: dict[str, Any], models: Array, block: Array, buffers: Any = None) -> dict[str, Array]:
        """Of each metric, the samples of a block divided by their client's number of them, by client: [k, m]."""
        sizes = dict(zip(("train", "test"), objective.blocks, strict=True))
        counts = {part: found for part in sizes if (found := counts_of(params, part)) is not None}
        rows = {part: objective.source.block(params, part, block, sizes[part]) for part in counts}
        owners = {
            part: jnp.searchsorted(jnp.cumsum(each), block * sizes[part] + jnp.arange(sizes[part]), side="right")
            for part, each in counts.items()
        }
        found = {}
        for name, each in jax.lax.map(lambda pair: values(rows, *pair), (models, buffers)).items():
            part = name.partition("_")[0]
            owner, inside = owners[part], rows[part]["pooled"] > 0
            share = jnp.where(inside, each / jnp.maximum(counts[part], 1)[owner].astype(models.dtype), 0)
            zero = jnp.zeros((models.shape[0], counts[part].shape[0]), models.dtype)
            found[name] = zero.at[:, owner].add(share.astype(models.dtype), mode="drop")
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
