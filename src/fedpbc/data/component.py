"""Data as a component: a loader and its options, and how the samples are dealt out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from fedpbc.core.schema import Component, Context, Factory, bind_component
from fedpbc.data.arrays import Dataset
from fedpbc.data.partition import PARTITIONS

P = ParamSpec("P")


class Data(Component[Dataset]):
    """Samples, and who has which. ``classification``, ``regression`` and ``loss`` take one that has clients."""

    def iid(self, num_clients: int, *, seed: int | None = None) -> Data:
        """Dealt out evenly, in random order."""
        return self._dealt({"name": "iid", "num_clients": num_clients, "seed": seed})

    def dirichlet(self, num_clients: int, alpha: float, *, min_samples: int = 1, seed: int | None = None) -> Data:
        """The samples of each label split in shares ~ Dirichlet(alpha): few labels per client for small alpha."""
        table = {"num_clients": num_clients, "alpha": alpha, "min_samples": min_samples, "seed": seed}
        return self._dealt({"name": "dirichlet", **table})

    def shards(self, num_clients: int, labels_per_client: int = 2, *, seed: int | None = None) -> Data:
        """About ``labels_per_client`` labels for each client."""
        table = {"num_clients": num_clients, "labels_per_client": labels_per_client, "seed": seed}
        return self._dealt({"name": "shards", **table})

    def quantity(self, num_clients: int, **options: Any) -> Data:
        """Clients of unlike size; ``sizes``, ``alpha``, ``sigma``, ``min_samples``, ``seed`` as of the partition."""
        return self._dealt({"name": "quantity", "num_clients": num_clients, **options})

    def by_column(self, column: str, num_clients: int | None = None) -> Data:
        """A client for each value of a column, or its order cut into so many."""
        return self._dealt({"name": "by_column", "column": column, "num_clients": num_clients})

    def own(self, *, max_clients: int | None = None, min_samples: int = 1) -> Data:
        """The clients that the data name; at most so many, with at least so many samples."""
        return self._dealt({"name": "own", "max_clients": max_clients, "min_samples": min_samples})

    def partition(self, how: Component[Any]) -> Data:
        """Dealt out by a partition of your own."""
        return self._dealt(how)

    def _dealt(self, how: Any) -> Data:
        partition = bind_component(PARTITIONS, how, "data", Path.cwd())
        return Data(self.name, self.factory, {**self.options, "partition": partition}, self.key)


class Loader(Factory[P, Dataset]):
    """A factory of data: called with its options, it gives ``Data``, which has the partitions as methods."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Data:
        """The data with these options, checked. Raises ConfigError."""
        made = super().__call__(*args, **kwargs)
        return Data(made.name, made.factory, made.options, made.key)


def loader(function: Callable[Concatenate[Context, P], Dataset]) -> Loader[P]:
    """Make ``function(context, path, *, options)`` a loader: ``mnist("folder").iid(10)``, or a table in TOML."""
    return Loader(function)
