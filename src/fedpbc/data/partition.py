"""Who has which samples: partitions of a data set among clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Annotated

import numpy as np

from fedpbc.core.schema import Component, Context, Kind, NonNegativeInt, Positive, PositiveInt, component
from fedpbc.errors import BadOption


@dataclass(frozen=True)
class Partition:
    """A way of giving samples to clients."""

    num_clients: int
    assign: Callable[[np.ndarray | None, int], np.ndarray]
    """``assign(labels int[n] or None, n) -> client of each sample, int[n]``; every client has at least one."""


def _rng(context: Context, seed: int | None) -> np.random.Generator:
    return context.rng("partition", seed)


@component
def iid(context: Context, *, num_clients: PositiveInt, seed: NonNegativeInt | None = None) -> Partition:
    """Samples in random order, dealt out evenly. ``seed``: one partition for all seeds of the run."""

    def assign(labels: np.ndarray | None, n: int) -> np.ndarray:
        _require(n, num_clients)
        client = np.empty(n, np.int64)
        client[_rng(context, seed).permutation(n)] = np.arange(n) % num_clients
        return client

    return Partition(num_clients, assign)


@component
def dirichlet(
    context: Context,
    *,
    num_clients: PositiveInt,
    alpha: Positive,
    min_samples: PositiveInt = 1,
    seed: NonNegativeInt | None = None,
) -> Partition:
    """The samples of each label are split among the clients in shares ~ Dirichlet(alpha) (arXiv 1909.06335).

    Small ``alpha``: few labels per client. A client with fewer than ``min_samples`` is given samples of the clients
    that have most. Raises BadOption without labels, and where there are fewer than num_clients min_samples samples.
    """

    def assign(labels: np.ndarray | None, n: int) -> np.ndarray:
        if labels is None:
            raise BadOption("name", "dirichlet", "needs labels to split by")
        _require(n, num_clients, min_samples)
        rng, client = _rng(context, seed), np.empty(n, np.int64)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            share = rng.dirichlet(np.full(num_clients, alpha))
            if not np.all(np.isfinite(share)):  # all underflowed: one client has them all
                share = np.eye(num_clients)[rng.integers(num_clients)]
            cuts = np.floor(np.cumsum(share)[:-1] * len(rows)).astype(np.int64)
            client[rows] = np.repeat(np.arange(num_clients), np.diff(cuts, prepend=0, append=len(rows)))
        return _fill_up(client, num_clients, min_samples, rng)

    return Partition(num_clients, assign)


@component
def shards(
    context: Context,
    *,
    num_clients: PositiveInt,
    labels_per_client: PositiveInt = 2,
    seed: NonNegativeInt | None = None,
) -> Partition:
    """Sorted by label, cut into num_clients labels_per_client equal shards, dealt out (McMahan et al. 2017)."""

    def assign(labels: np.ndarray | None, n: int) -> np.ndarray:
        if labels is None:
            raise BadOption("name", "shards", "needs labels to sort by")
        count = num_clients * labels_per_client
        _require(n, num_clients, labels_per_client)
        rng, client = _rng(context, seed), np.empty(n, np.int64)
        order = rng.permutation(n)
        order = order[np.argsort(labels[order], kind="stable")]
        owner = rng.permutation(count) % num_clients
        each, more = divmod(n, count)
        client[order] = np.repeat(owner, each + (np.arange(count) < more))
        return client

    return Partition(num_clients, assign)


def _require(n: int, num_clients: int, each: int = 1) -> None:
    if n < num_clients * each:
        raise BadOption("num_clients", num_clients, f"the data has {n} samples, {each} for each client at least")


def _fill_up(client: np.ndarray, num_clients: int, least: int, rng: np.random.Generator) -> np.ndarray:
    """Samples of the richest, the first of equals, one at a time, until everybody has ``least``; changes ``client``."""
    sizes = np.bincount(client, minlength=num_clients)
    poor = np.flatnonzero(sizes < least).tolist()
    if not poor:
        return client
    order = np.argsort(client, kind="stable")
    starts = np.cumsum(sizes) - sizes
    queue = [(-size, i) for i, size in enumerate(sizes.tolist()) if size > least]
    heapify(queue)
    held: dict[int, list[int]] = {}
    for receiver in poor:
        for _ in range(least - int(sizes[receiver])):
            size, rich = queue[0]
            if rich not in held:
                held[rich] = order[starts[rich] : starts[rich] + sizes[rich]].tolist()
            row = held[rich].pop(int(rng.integers(len(held[rich]))))
            client[row] = receiver
            heapreplace(queue, (size + 1, rich))
    return client


PARTITIONS: Kind = Kind(
    "partition",
    {"iid": iid, "dirichlet": dirichlet, "shards": shards},
    gives=Partition,
)
PartitionOption = Annotated[Partition | Component[Partition], PARTITIONS]
