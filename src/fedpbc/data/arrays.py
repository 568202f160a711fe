"""Data of your own: arrays in memory or in an .npz, with or without the clients they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedpbc.core.schema import Component, Context, Kind, Range, bind_component, component
from fedpbc.data.partition import PARTITIONS, PartitionOption
from fedpbc.errors import BadOption, ConfigError
from fedpbc.io.whole import read_arrays, write_arrays

Tree = Any
"""An array [n, ...], or a tuple, list or dict of trees."""


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

    With ``client`` the samples belong to clients; else ``partition`` deals them out. Names behind ``train.`` are places
    in a tuple (0, 1, ...) or keys of a dict, which is what a loss function is given. ``test_share``: this share of each
    client's samples is held out, drawn from the seed.
    """
    arrays = path.arrays if isinstance(path, Arrays) else _read(path)
    train, test = _tree(path, arrays, "train"), _tree(path, arrays, "test")
    if train is None:
        raise BadOption("path", path, "holds no array named train.0 or train.NAME")
    n = len(_leaves(train)[0])
    labels, classes = None, arrays.get("classes")
    if isinstance(train, tuple) and len(train) == 2 and train[1].ndim == 1:
        labels = train[1]
    if partition is not None:
        client = partition.assign(labels, n)  # type: ignore[union-attr]
        num_clients = partition.num_clients  # type: ignore[union-attr]
    elif "client" in arrays:
        client, num_clients = _as_ids(path, arrays["client"], n), int(arrays["client"].max()) + 1
    else:
        known = ", ".join(PARTITIONS.registry)
        raise BadOption("partition", "none", f"the samples name no client, so one is needed: {known}")
    test_client = arrays.get("test_client") if partition is None else None
    most = None
    if test_share:
        if test is not None:
            raise BadOption("test_share", test_share, "the data has test samples of its own")
        held = _held_out(context, client, num_clients, test_share)
        test, test_client = _map(lambda a: a[held], train), client[held]
        train, client = _map(lambda a: a[~held], train), client[~held]
        most = min(n, n - int(test_share * n) + num_clients), int(test_share * n)
    return Dataset(train, client, num_clients, test, test_client, classes, most)


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise BadOption("path", path, "no such file")
    return read_arrays(path, "it must be an .npz of arrays")


def _as_ids(path: Any, client: np.ndarray, n: int) -> np.ndarray:
    if client.shape != (n,) or client.dtype.kind not in "iu":
        raise BadOption("path", path, f"client must be {n} integers, is {client.dtype} of shape {client.shape}")
    sizes = np.bincount(client) if client.min() >= 0 else np.zeros(1)
    if sizes.min() < 1:
        raise BadOption("path", path, f"client must number the clients from 0; {int(np.argmin(sizes))} has no sample")
    return client.astype(np.int64)


def _held_out(context: Context, client: np.ndarray, num_clients: int, share: float) -> np.ndarray:
    """bool[n]: int(share n_i) samples of client i, at random."""
    shuffled = context.rng("test samples").permutation(len(client))
    order = shuffled[np.argsort(client[shuffled], kind="stable")]
    sizes = np.bincount(client, minlength=num_clients)
    within = np.arange(len(client)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    held = np.zeros(len(client), bool)
    held[order] = within < np.repeat((share * sizes).astype(np.int64), sizes)
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
    train = x if y is None else (x, y)
    _collect("train", train, arrays)
    n = _common_length("x", arrays, "train")
    share = isinstance(test, float | int) and not isinstance(test, bool)
    if share:
        if not 0 < test <= 0.9:
            raise ConfigError(f"test = {test}: must be test samples, or a share above 0 and up to 0.9")
        options["test_share"] = float(test)
    elif test is not None:
        _collect("test", tuple(test) if y is not None else test, arrays)
        tests = _common_length("test", arrays, "test")
        for name in [name for name in arrays if name.startswith("train")]:
            other = "test" + name.removeprefix("train")
            if other not in arrays or arrays[other].shape[1:] != arrays[name].shape[1:]:
                shape = arrays[other].shape if other in arrays else "missing"
                raise ConfigError(f"test: must be like the training samples, {name} {arrays[name].shape}: {shape}")
    _name_labels(arrays)
    if client is not None:
        ids, names = _ids("client", client, n)
        arrays["client"] = ids
        if test_client is not None:
            if test is None or share:
                raise ConfigError("test_client: needs test samples")
            arrays["test_client"] = _known_ids(test_client, names, tests)
    elif test_client is not None:
        raise ConfigError("test_client: needs client too")
    return Data("npz", npz, {"path": Arrays(arrays), **options}, "data")


def _collect(name: str, tree: Tree, arrays: dict[str, np.ndarray]) -> None:
    """The leaves of a tree under names like train.0, train.image."""
    if isinstance(tree, tuple | list):
        for i, part in enumerate(tree):
            _collect(f"{name}.{i}", part, arrays)
    elif isinstance(tree, Mapping) and not hasattr(tree, "iloc"):
        for key, part in tree.items():
            if not isinstance(key, str) or not key or "." in key or key.isdecimal():
                raise ConfigError(f"{name}: key {key!r} must be a word")
            _collect(f"{name}.{key}", part, arrays)
    else:
        arrays[name] = _array(name, tree)


def _array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{name}: is no array: {str(error).splitlines()[0]}") from None
    if np.ma.isMaskedArray(value):
        raise ConfigError(f"{name}: must not be a masked array; fill or drop what is missing")
    if array.dtype.kind == "O":
        texts = [v for v in array.ravel().tolist() if isinstance(v, str)]
        if len(texts) != array.size:
            raise ConfigError(f"{name}: holds objects of several types, must be numbers or words")
        array = array.astype(str)
    if array.dtype.kind not in "fiubUS":
        raise ConfigError(f"{name}: is {array.dtype}, must be numbers or words")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise ConfigError(f"{name}: row {row} holds a value that is not finite")
    return array


def _common_length(what: str, arrays: dict[str, np.ndarray], part: str) -> int:
    lengths = {n: a.shape[0] if a.ndim else -1 for n, a in arrays.items() if n == part or n.startswith(f"{part}.")}
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        shown = ", ".join(f"{name} {arrays[name].shape}" for name in lengths)
        raise ConfigError(f"{what}: every array needs the same number of rows, at least one: {shown}")
    return next(iter(lengths.values()))


def _name_labels(arrays: dict[str, np.ndarray]) -> None:
    """Words as labels become 0, 1, ... in alphabetical order."""
    labels = arrays.get("train.1")
    for name, array in arrays.items():
        if array.dtype.kind in "US" and name not in ("train.1", "test.1"):
            raise ConfigError(f"{name}: holds words, must be numbers")
    if labels is None or labels.dtype.kind not in "US":
        return
    classes, arrays["train.1"] = np.unique(labels, return_inverse=True)
    arrays["classes"] = classes
    if "test.1" in arrays:
        arrays["test.1"] = _known_ids(arrays["test.1"], classes, len(arrays["test.1"]), "label of test sample")


def _ids(name: str, client: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Clients numbered from 0 in the order of their names, and these names."""
    array = _array(name, client)
    if array.shape != (n,):
        raise ConfigError(f"{name}: has shape {array.shape}, must have one entry per row, ({n},)")
    names, ids = np.unique(array, return_inverse=True)
    return ids.astype(np.int64), names


def _known_ids(values: Any, names: np.ndarray, n: int, what: str = "test_client") -> np.ndarray:
    array = _array(what, values)
    if array.shape != (n,):
        raise ConfigError(f"{what}: has shape {array.shape}, must have one entry per row, ({n},)")
    place = np.minimum(np.searchsorted(names, array), len(names) - 1)
    unknown = names[place] != array
    if np.any(unknown):
        row = int(np.argmax(unknown))
        raise ConfigError(f"{what} {row}: {array[row]} does not occur in the training samples")
    return place.astype(np.int64)


def _tree(path: Any, arrays: Mapping[str, np.ndarray], part: str) -> Tree | None:
    """The inverse of ``_collect``."""
    if part in arrays:
        return arrays[part]
    below = {name.removeprefix(f"{part}.").partition(".")[0] for name in arrays if name.startswith(f"{part}.")}
    if not below:
        return None
    if all(key.isdecimal() for key in below):
        return tuple(_tree(path, arrays, f"{part}.{i}") for i in range(len(below)))
    return {key: _tree(path, arrays, f"{part}.{key}") for key in sorted(below)}


def _leaves(tree: Tree) -> list[np.ndarray]:
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in _leaves(part)]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [tree]


def _map(f: Any, tree: Tree) -> Tree:
    if isinstance(tree, tuple):
        return tuple(_map(f, part) for part in tree)
    if isinstance(tree, dict):
        return {key: _map(f, part) for key, part in tree.items()}
    return f(tree)


DATA: Kind = Kind(
    "data",
    {"npz": npz},
    gives=Dataset,
    shorthand=lambda value: {"name": "npz", "path": value} if isinstance(value, str | Path) else None,
    allowed="the path of an .npz or a table with a name; in Python, fedpbc.data.from_arrays(...)",
)
DataOption = Annotated[Dataset | Component[Dataset], DATA]
