"""From a pool of samples to clients: a part of the rows, the partition, what is held out for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

import numpy as np

from fedpbc.core.schema import Component, Context, Range
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.named import leaves, mapped
from fedpbc.data.partition import PARTITIONS, Partition
from fedpbc.errors import BadOption, ConfigError

Share = Annotated[float, Range(0, 0.9)]


def deal(
    context: Context,
    pool: Pool,
    partition: Any,
    test_share: float = 0.0,
    max_rows: int | None = None,
) -> Dataset:
    """Who has which samples of a pool: as ``partition`` says, or else as the data themselves do.

    ``partition``: a built one, or None. ``max_rows``: at most so many training samples, and as many test samples, the
    same for all seeds. ``test_share``: that share of each client's samples is held out, drawn from the seed. Raises
    BadOption.
    """
    if partition is UNDEALT:
        return cast(Dataset, pool)  # to who asked for it with ``undealt``
    if max_rows is not None:
        clients = 0 if pool.client is None else int(pool.client.max()) + 1
        pool = _some_of(pool, max_rows)
        if partition is None and pool.client is not None and len(np.unique(pool.client)) < clients:
            what = f"leaves some of {clients:,} clients no sample"
            raise BadOption("max_rows", max_rows, f'{what}; partition = {{ name = "own" }} leaves such clients out')
    if partition is not None:
        try:
            client, num_clients, pool = _assigned(partition, pool)
        except BadOption as error:
            raise BadOption(f"partition.{error.option}", error.value, error.problem) from None
        test_client = pool.test_client if partition.column == "client" else None
    elif pool.client is not None:
        client, num_clients, test_client = pool.client, int(pool.client.max()) + 1, pool.test_client
    else:
        known = ", ".join(PARTITIONS.registry)
        raise BadOption("partition", "none", f"the samples name no client, so one is needed: {known}")
    train, test, columns, most, n = pool.train, pool.test, numeric(pool.columns), None, len(client)
    if test_share:
        if test is not None:
            raise BadOption("test_share", test_share, "the data has test samples of its own")
        held = _held_out(context, client, num_clients, test_share)
        if not np.any(held):
            largest = int(np.bincount(client).max())
            least = np.ceil(100 / largest) / 100
            what = f"holds out no sample of any client, the largest has {largest}: must be at least {least:g}"
            raise BadOption("test_share", test_share, what)
        test, test_client = mapped(lambda a: a[held], train), client[held]
        train, client = mapped(lambda a: a[~held], train), client[~held]
        columns = {name: values[~held] for name, values in columns.items()}
        count = int(test_share * n + 1e-6)
        most = min(n, n - count + num_clients), count
    return Dataset(train, client, num_clients, test, test_client, pool.classes, most, pool.scaling, columns)


UNDEALT = Partition(None, lambda labels, n: np.zeros(n, np.int64))
"""In the place of a partition: a loader gives the pool itself."""


def undealt(data: Component[Dataset], context: Context) -> Pool:
    """The samples of a loader before they are dealt out. Raises ConfigError."""
    made: Any = replace(data, options={**data.options, "partition": UNDEALT}).build(context)
    if not isinstance(made, Pool):
        raise ConfigError(f"data {data.name}: deals its samples out itself: there is nothing before that to show")
    return made


def numeric(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those columns that hold numbers."""
    return {name: values for name, values in columns.items() if values.dtype.kind in "fiub"}


def _assigned(partition: Partition, pool: Pool) -> tuple[np.ndarray, int, Pool]:
    """The client of each sample, how many clients there are, and the pool without samples that nobody gets."""
    n = len(leaves(pool.train)[0])
    if partition.column is None:
        client = partition.assign(pool.labels, n)
    else:
        client = partition.assign(_column(pool, partition.column), n)
    num_clients = int(client.max()) + 1 if partition.num_clients is None else partition.num_clients
    dropped = client < 0
    if not np.any(dropped):
        return client, num_clients, pool
    pool = _rows(pool, ~dropped)
    if pool.client is not None and pool.test_client is not None and pool.test is not None:
        number = np.full(int(max(pool.client.max(), pool.test_client.max())) + 1, -1)
        number[pool.client] = client[~dropped]
        theirs = number[pool.test_client]
        kept = theirs >= 0
        test = mapped(lambda a: a[kept], pool.test)
        pool = replace(pool, test=test if np.any(kept) else None, test_client=theirs[kept] if np.any(kept) else None)
    return client[~dropped], num_clients, pool


def _column(pool: Pool, name: str) -> np.ndarray:
    """What is said of each sample under a name: its client, its label, or another column. Raises BadOption."""
    if name == "client":
        if pool.client is None:
            raise BadOption("name", "own", "the data name no clients")
        return pool.client
    known = {**({} if pool.labels is None else {"label": pool.labels}), **pool.columns}
    if name not in known:
        raise BadOption("column", name, f"no such column; there are {', '.join(known) or 'none'}")
    return known[name]


def _rows(pool: Pool, chosen: np.ndarray) -> Pool:
    """Those training samples alone."""
    return replace(
        pool,
        train=mapped(lambda a: a[chosen], pool.train),
        client=None if pool.client is None else pool.client[chosen],
        columns={name: values[chosen] for name, values in pool.columns.items()},
    )


def _some_of(pool: Pool, most: int) -> Pool:
    """At most so many training and test samples, in their order."""
    n = len(leaves(pool.train)[0])
    if n > most:
        rows = _chosen(n, most, 0)
        pool = _rows(pool, rows)
    if pool.test is None or len(leaves(pool.test)[0]) <= most:
        return pool
    rows = _chosen(len(leaves(pool.test)[0]), most, 1)
    test_client = None if pool.test_client is None else pool.test_client[rows]
    return replace(pool, test=mapped(lambda a: a[rows], pool.test), test_client=test_client)


def _chosen(n: int, most: int, part: int) -> np.ndarray:
    return np.sort(np.random.default_rng([part, n]).permutation(n)[:most])


def _held_out(context: Context, client: np.ndarray, num_clients: int, share: float) -> np.ndarray:
    """bool[n]: floor(share n_i) samples of client i, at random."""
    shuffled = context.rng("test samples").permutation(len(client))
    order = shuffled[np.argsort(client[shuffled], kind="stable")]
    sizes = np.bincount(client, minlength=num_clients)
    within = np.arange(len(client)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    held = np.zeros(len(client), bool)
    held[order] = within < np.repeat(np.floor(share * sizes + 1e-9).astype(np.int64), sizes)
    return held
