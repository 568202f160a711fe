"""Who has which samples: partitions of a data set among clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Annotated, Literal

import numpy as np

from fedpbc.core.schema import Component, Context, Kind, NonNegative, NonNegativeInt, Positive, PositiveInt, component
from fedpbc.errors import BadOption


@dataclass(frozen=True)
class Partition:
    """A way of giving samples to clients."""

    num_clients: int | None
    """None: as many as ``assign`` gives."""
    assign: Callable[[np.ndarray | None, int], np.ndarray]
    """``assign(labels int[n] or None, n) -> client of each sample, int[n]``; every client has at least one. Samples
    of client -1 are left out."""
    column: str | None = None
    """``assign`` is given this column instead of the labels; "client": the clients that the data name."""


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
            client[rows] = _cut(_shares(rng, num_clients, alpha), len(rows))
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


@component
def quantity(
    context: Context,
    *,
    num_clients: PositiveInt,
    sizes: Literal["dirichlet", "lognormal"] = "dirichlet",
    alpha: Positive = 0.5,
    sigma: NonNegative = 1.0,
    min_samples: PositiveInt = 1,
    seed: NonNegativeInt | None = None,
) -> Partition:
    """Clients of unlike size, samples at random: the shares are ~ Dirichlet(``alpha``), or LogNormal(0, ``sigma``)
    divided by their sum. A client with fewer than ``min_samples`` is given samples of those that have most.
    """

    def assign(labels: np.ndarray | None, n: int) -> np.ndarray:
        _require(n, num_clients, min_samples)
        rng, client = _rng(context, seed), np.empty(n, np.int64)
        if sizes == "dirichlet":
            share = _shares(rng, num_clients, alpha)
        else:
            exponent = sigma * rng.standard_normal(num_clients)
            share = np.exp(exponent - exponent.max())
            share /= share.sum()
        client[rng.permutation(n)] = _cut(share, n)
        return _fill_up(client, num_clients, min_samples, rng)

    return Partition(num_clients, assign)


@component
def by_column(context: Context, *, column: str, num_clients: PositiveInt | None = None) -> Partition:
    """A client for each value of a column of the data ("label" is one too), numbered in the order of the values.

    With ``num_clients`` the samples are put in the order of the column and cut into so many equal parts.
    """

    def assign(values: np.ndarray | None, n: int) -> np.ndarray:
        assert values is not None
        if num_clients is None:
            distinct, client = np.unique(values, return_inverse=True)
            if len(distinct) > MOST_VALUES:
                what = f"has {len(distinct):,} values, a client each; num_clients cuts their order into fewer"
                raise BadOption("column", column, what)
            return client.astype(np.int64)
        _require(n, num_clients)
        client = np.empty(n, np.int64)
        client[np.argsort(values, kind="stable")] = np.arange(n) * num_clients // n
        return client

    return Partition(num_clients, assign, column)


@component
def own(context: Context, *, max_clients: PositiveInt | None = None, min_samples: PositiveInt = 1) -> Partition:
    """The clients that the data name themselves. Those with fewer than ``min_samples`` training samples are left out,
    and of the rest all but the first ``max_clients``.
    """

    def assign(clients: np.ndarray | None, n: int) -> np.ndarray:
        assert clients is not None
        sizes = np.bincount(clients)
        kept = np.flatnonzero(sizes >= min_samples)[:max_clients]
        if len(kept) == 0:
            raise BadOption("min_samples", min_samples, f"no client has as many, the largest has {sizes.max()}")
        number = np.full(len(sizes), -1, np.int64)
        number[kept] = np.arange(len(kept))
        return number[clients]

    return Partition(None, assign, "client")


MOST_VALUES = 100_000
"""More clients than this from the values of a column are taken for a mistake."""


def _shares(rng: np.random.Generator, num_clients: int, alpha: float) -> np.ndarray:
    """[m] ~ Dirichlet(alpha)."""
    share = rng.dirichlet(np.full(num_clients, alpha))
    if not np.all(np.isfinite(share)):  # all underflowed: one client has them all
        share = np.eye(num_clients)[rng.integers(num_clients)]
    return share


def _cut(share: np.ndarray, n: int) -> np.ndarray:
    """n places in shares, int[n]: 0, 0, ..., 1, 1, ..."""
    cuts = np.floor(np.cumsum(share)[:-1] * n).astype(np.int64)
    return np.repeat(np.arange(len(share)), np.diff(cuts, prepend=0, append=n))


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
    {
        "iid": iid,
        "dirichlet": dirichlet,
        "shards": shards,
        "quantity": quantity,
        "by_column": by_column,
        "own": own,
    },
    gives=Partition,
)
PartitionOption = Annotated[Partition | Component[Partition], PARTITIONS]
