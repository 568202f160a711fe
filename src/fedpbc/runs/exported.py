"""A model as a file of its own: an .npz with one array per leaf, named by its place in the tree. Needs only NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.schema import article
from fedpbc.data.named import collect, tree_of
from fedpbc.errors import ConfigError, FedpbcError
from fedpbc.io.whole import make_folder, read_arrays, write_arrays


def named(model: Any, has_buffers: bool) -> dict[str, np.ndarray]:
    """params.NAME of every leaf: keys of dicts and places in tuples with dots between; buffers.NAME likewise.

    Raises ConfigError for a tree of other parts than dicts, tuples, lists and arrays, and for numbers not finite.
    """
    arrays: dict[str, np.ndarray] = {}
    parts = dict(zip(("params", "buffers"), model, strict=True)) if has_buffers else {"params": model}
    for name, tree in parts.items():
        collect(name, _plain(name, tree), arrays)
    return arrays


def _plain(name: str, tree: Any) -> Any:
    """Tuples for lists. Raises ConfigError for other containers."""
    if type(tree) is dict:
        return {key: _plain(f"{name}.{key}", part) for key, part in tree.items()}
    if type(tree) in (tuple, list):
        return tuple(_plain(f"{name}.{i}", part) for i, part in enumerate(tree))
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return np.asarray(tree)
    raise ConfigError(f"{name}: is {article(type(tree).__name__)}; only dicts, tuples and lists of arrays have names")


def save_model(path: Path, model: Any, has_buffers: bool) -> Path:
    """Write a model, whole or not at all. Raises ConfigError."""
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: must end in .npz")
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder, must be a file")
    arrays = named(model, has_buffers)
    make_folder(path.parent)
    write_arrays(path, arrays)
    return path


def load_model(path: str | Path) -> Any:
    """The params of a file of ``Run.save_model``, as dicts and tuples of arrays; (params, buffers) where it has both.

    Raises ConfigError.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        arrays = read_arrays(path, "export the model again")
    except FedpbcError as error:
        raise ConfigError(str(error)) from None
    params, buffers = (tree_of(arrays, part) for part in ("params", "buffers"))
    if params is None:
        raise ConfigError(f"{path}: is no exported model: it has no array params or params.NAME")
    return params if buffers is None else (params, buffers)
