"""Data of your own: arrays in memory or in an .npz, with or without the clients they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.schema import Context
from fedpbc.data.arrays import Arrays, Dataset, Pool
from fedpbc.data.component import Data, loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.named import Tree, array_of, checked, collect, tree_of
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import BadOption, ConfigError, FedpbcError
from fedpbc.io.whole import read_arrays


@loader
def npz(
    context: Context,
    path: Path,
    *,
    partition: PartitionOption | None = None,
    test_share: Share = 0.0,
) -> Dataset:
    """Arrays of an .npz: train.0 features [n, ...], train.1 labels [n]; client [n], test.0, test.1, test_client.

    With ``client``, numbers or words, the samples belong to clients; ``partition`` deals them out. Names behind
    ``train.`` are places in a tuple (0, 1, ...) or keys of a dict, which is what a loss function is given.
    ``test_share``: this share of each client's samples is held out, drawn from the seed.
    """
    return deal(context, read_npz(path), partition, test_share)


def read_npz(path: Path | Arrays) -> Pool:
    """The samples of an .npz, or of arrays in memory. Raises BadOption."""
    arrays = path.arrays if isinstance(path, Arrays) else _read(path)
    train = tree_of(arrays, "train")
    client, test_client, classes = (arrays.get(name) for name in ("client", "test_client", "classes"))
    return Pool(train, tree_of(arrays, "test"), client, test_client, classes)


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise BadOption("path", path, "no such file")
    try:
        return checked(read_arrays(path, "it must be an .npz of arrays"))
    except ConfigError as error:
        raise BadOption("path", path, str(error)) from None
    except FedpbcError as error:
        raise ConfigError(str(error)) from None


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
