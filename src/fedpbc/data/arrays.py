"""Data of your own: arrays in memory or in an .npz, with or without the clients they belong to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedpbc.core.schema import Component, Context, Kind, Range, bind_component, component
from fedpbc.data.named import Tree, array_of, checked, collect, leaves, mapped, tree_of
from fedpbc.data.partition import PARTITIONS, PartitionOption
from fedpbc.errors import BadOption, ConfigError, FedpbcError
from fedpbc.io.whole import read_arrays, write_arrays


@dataclass(frozen=True)
class Dataset:
    """Samples that belong to clients."""

    train: Tree
    """Arrays [n, ...]."""
    client: np.ndarray
    """Whose sample it is, int[n], from 0; every client has at least one."""
    num_clients: int
    test: Tree | None = None
    test_client: np.ndarray | None = None
    """Whose test sample it is; None: test samples belong to nobody."""
    classes: np.ndarray | None = None
    """What label 0, 1, ... is called, where labels were no integers."""
    most: tuple[int, int] | None = None
    """How many training and test samples any seed may have: all are filled up to these, and share a program."""


class Arrays:
    """Named arrays in memory, which an option takes instead of the path of an .npz."""

    suffix = ".npz"

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self._digest = ""

    def digest(self) -> str:
        """SHA-256 over names, types, shapes and bytes."""
        if not self._digest:
            hashed = hashlib.sha256()
            for name, array in self.arrays.items():
                hashed.update(f"{name} {array.dtype.str} {array.shape} ".encode())
                hashed.update(np.ascontiguousarray(array).data)
            self._digest = hashed.hexdigest()[:12]
        return self._digest

    def write(self, path: Path) -> None:
        """As an .npz, which ``npz`` reads."""
        write_arrays(path, self.arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrays) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"<arrays {', '.join(self.arrays)}>"


@component
def npz(
    context: Context,
    path: Path,
    *,
    partition: PartitionOption | None = None,
    test_share: Annotated[float, Range(0, 0.9)] = 0.0,
) -> Dataset:
    """Arrays of an .npz: train.0 features [n, ...], train.1 labels [n]; client [n], test.0, test.1, test_client.

    With ``client``, numbers or words, the samples belong to clients; ``partition`` deals them out. Names behind
    ``train.`` are places in a tuple (0, 1, ...) or keys of a dict, which is what a loss function is given.
    ``test_share``: this share of each client's samples is held out, drawn from the seed.
    """
    arrays = path.arrays if isinstance(path, Arrays) else _read(path)
    train, test = tree_of(arrays, "train"), tree_of(arrays, "test")
    n = len(leaves(train)[0])
    if partition is not None:
        try:
            client = partition.assign(_labels(train), n)  # type: ignore[union-attr]
        except BadOption as error:
            raise BadOption(f"partition.{error.option}", error.value, error.problem) from None
        num_clients = partition.num_clients  # type: ignore[union-attr]
    elif "client" in arrays:
        client, num_clients = arrays["client"], int(arrays["client"].max()) + 1
    else:
        known = ", ".join(PARTITIONS.registry)
        raise BadOption("partition", "none", f"the samples name no client, so one is needed: {known}")
    test_client = arrays.get("test_client") if partition is None else None
    most = None
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
        count = int(test_share * n + 1e-6)
        most = min(n, n - count + num_clients), count
    return Dataset(train, client, num_clients, test, test_client, arrays.get("classes"), most)


def _labels(train: Tree) -> np.ndarray | None:
    """What a partition by label goes by: the second of two arrays, where it is integers [n]."""
    if isinstance(train, tuple) and len(train) == 2 and isinstance(train[1], np.ndarray):
        labels = train[1]
        return labels if labels.ndim == 1 and labels.dtype.kind in "iub" else None
    return None


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise BadOption("path", path, "no such file")
    try:
        return checked(read_arrays(path, "it must be an .npz of arrays"))
    except ConfigError as error:
        raise BadOption("path", path, str(error)) from None
    except FedpbcError as error:
        raise ConfigError(str(error)) from None


def _held_out(context: Context, client: np.ndarray, num_clients: int, share: float) -> np.ndarray:
    """bool[n]: floor(share n_i) samples of client i, at random."""
    shuffled = context.rng("test samples").permutation(len(client))
    order = shuffled[np.argsort(client[shuffled], kind="stable")]
    sizes = np.bincount(client, minlength=num_clients)
    within = np.arange(len(client)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    held = np.zeros(len(client), bool)
    held[order] = within < np.repeat(np.floor(share * sizes + 1e-9).astype(np.int64), sizes)
    return held


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

    def partition(self, how: Component[Any]) -> Data:
        """Dealt out by a partition of your own."""
        return self._dealt(how)

    def _dealt(self, how: Any) -> Data:
        partition = bind_component(PARTITIONS, how, "data", Path.cwd())
        return Data(self.name, self.factory, {**self.options, "partition": partition}, self.key)


def from_arrays(
    x: Tree,
    y: Any = None,
    *,
    test: Any = None,
    client: Any = None,
    test_client: Any = None,
) -> Data:
    """Data from arrays: features ``x`` [n, ...] and targets ``y`` [n, ...], or any tree of arrays with n rows as ``x``.

    ``test``: the same for test samples, ``(x, y)`` or a tree; or a share in (0, 1) of each client's samples to hold
    out. ``client``, ``test_client``: whose sample it is, numbers or names [n]; without, call ``.iid``, ``.dirichlet``
    or ``.shards`` on the result. NumPy, pandas and anything that NumPy can read; labels may be words. Raises
    ConfigError.
    """
    arrays: dict[str, np.ndarray] = {}
    options: dict[str, Any] = {"partition": None, "test_share": 0.0}
    collect("train", x if y is None else (x, y), arrays)
    if isinstance(test, bool | int | float):
        if isinstance(test, bool) or not 0 < test <= 0.9:
            raise ConfigError(f"test = {test}: must be test samples, or a share above 0 and up to 0.9")
        options["test_share"] = float(test)
    elif test is not None:
        if y is not None and not (isinstance(test, tuple | list) and len(test) == 2):
            raise ConfigError("test: must be (features, targets), as the training samples are")
        collect("test", test if y is None else tuple(test), arrays)
    for name, ids in (("client", client), ("test_client", test_client)):
        if ids is not None:
            arrays[name] = array_of(name, ids)
    return Data("npz", npz, {"path": Arrays(checked(arrays)), **options}, "data")


DATA: Kind = Kind(
    "data",
    {"npz": npz},
    gives=Dataset,
    shorthand=lambda value: {"name": "npz", "path": value} if isinstance(value, str | Path) else None,
    allowed="the path of an .npz or a table with a name; in Python, fedpbc.data.from_arrays(...)",
)
DataOption = Annotated[Dataset | Component[Dataset], DATA]
