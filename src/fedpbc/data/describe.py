"""What a file or folder of data holds, in words: for ``fedpbc data``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpbc.core.schema import Component, Context
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.dealing import undealt
from fedpbc.data.named import Tree, leaves

CONTEXT = Context(0, np.dtype(np.float32), 1, (0,))
SUGGESTED: dict[str, Any] = {"name": "dirichlet", "num_clients": 20, "alpha": 0.1}
"""Of data with labels."""
EVEN: dict[str, Any] = {"name": "iid", "num_clients": 20}


def facts_of(data: Component[Dataset]) -> tuple[Pool, dict[str, str]]:
    """The samples of a loader before they are dealt out, and what there is to say of them. Raises ConfigError."""
    pool = undealt(data, CONTEXT)
    first = leaves(pool.train)
    told = {"format": about(data), "samples": _samples(pool), "features": _features(pool, first[0])}
    if len(first) > 2 or not isinstance(pool.train, tuple):
        told["features"] = ", ".join(f"{name} {_shape(array)} {array.dtype}" for name, array in _named(pool.train))
    else:
        told |= _targets(pool)
    told["clients"] = _clients(pool)
    if pool.columns:
        words = [name for name, values in pool.columns.items() if values.dtype.kind == "U"]
        told["columns"] = _few([f"{name} (words)" if name in words else name for name in pool.columns], 12)
    if pool.notes:
        told["read as"] = "; ".join(pool.notes)
    return pool, told


def about(data: Component[Dataset]) -> str:
    """The name of the loader, and the first sentence of what it says of itself."""
    said = " ".join((data.factory.__doc__ or "").replace("``", "").split())
    return f"{data.name}: {said.partition('. ')[0].rstrip('.')}"


def suggestion(pool: Pool) -> dict[str, Any] | None:
    """A partition to begin with; None where the data name their clients."""
    if pool.client is not None:
        return None
    made = dict(SUGGESTED if pool.labels is not None else EVEN)
    made["num_clients"] = min(made["num_clients"], max(2, len(leaves(pool.train)[0]) // 10))
    return made


def problem_for(pool: Pool) -> str:
    """The problem that takes such samples."""
    if not (isinstance(pool.train, tuple) and len(pool.train) == 2):
        return "loss"
    return "classification" if pool.labels is not None else "regression"


def inline(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def dealt_facts(dataset: Dataset) -> dict[str, str]:
    """Who has what, in words."""
    sizes = np.bincount(dataset.client, minlength=dataset.num_clients)
    told = {"clients": f"{len(sizes):,}, with {_span(sizes, 'training sample')} each (median {np.median(sizes):g})"}
    labels = Pool(dataset.train).labels
    if labels is not None:
        pairs = np.unique(np.stack([dataset.client, labels.astype(np.int64)]), axis=1)
        told["labels"] = f"{_span(np.bincount(pairs[0], minlength=len(sizes)), 'label')} at a client"
    least = int(np.count_nonzero(sizes == 1))
    if least:
        told["take care"] = f"{_count(least, 'client')} of a single sample; min_samples gives each at least so many"
    if dataset.test is not None:
        whose = "of clients" if dataset.test_client is not None else "of nobody"
        told["tests"] = f"{len(leaves(dataset.test)[0]):,} samples, {whose}"
    return told


def _samples(pool: Pool) -> str:
    train = f"{len(leaves(pool.train)[0]):,} to train on"
    if pool.test is None:
        return f"{train}, none to test on: test_share holds some out"
    return f"{train}, {len(leaves(pool.test)[0]):,} to test on"


def _features(pool: Pool, array: np.ndarray) -> str:
    kinds = {
        "u": "bytes" if array.dtype.itemsize == 1 else "integers",
        "i": "integers",
        "f": "numbers",
        "b": "yes or no",
    }
    size = sum(leaf.nbytes for leaf in leaves(pool.train)) / 1e6
    used = ""
    if pool.scaling is not None:
        used = ", learnt from as numbers" + (" of mean 0" if any(pool.scaling.shift) else " in [0, 1]")
    return f"{_shape(array)} {kinds.get(array.dtype.kind, '')} ({array.dtype}){used}; {size:,.1f} MB"


def _shape(array: np.ndarray) -> str:
    return " x ".join(map(str, array.shape[1:])) or "1"


def _targets(pool: Pool) -> dict[str, str]:
    if not isinstance(pool.train, tuple) or len(pool.train) < 2:
        return {}
    labels = pool.labels
    if labels is None:
        target = pool.train[1]
        many = "" if target.ndim == 1 else f"{_shape(target)} "
        low, high, mean = (float(np.round(x, 4)) + 0.0 for x in (target.min(), target.max(), target.mean()))
        return {"targets": f"{many}numbers from {low:g} to {high:g}, mean {mean:g}: for regression"}
    values, counts = np.unique(labels, return_counts=True)
    fits = pool.classes is not None and values[0] >= 0 and values[-1] < len(pool.classes)
    names = [repr(str(pool.classes[v]))[1:-1] if fits and pool.classes is not None else str(v) for v in values]
    even = counts.min() == counts.max()
    each = _few(names if even else [f"{name}: {count:,}" for name, count in zip(names, counts, strict=True)], 12)
    return {"labels": f"{len(values)} classes, {_span(counts, 'sample')} of each ({each})"}


def _clients(pool: Pool) -> str:
    if pool.client is None:
        return "none are named: a partition deals the samples out"
    sizes = np.bincount(pool.client)
    names = "" if pool.clients is None else f" ({_few([str(name) for name in pool.clients], 4)})"
    return f"{len(sizes):,}{names}, with {_span(sizes, 'sample')} each"


def _named(tree: Tree, name: str = "") -> list[tuple[str, np.ndarray]]:
    if isinstance(tree, tuple):
        return [found for i, part in enumerate(tree) for found in _named(part, f"{name}.{i}" if name else str(i))]
    if isinstance(tree, dict):
        return [found for key, part in tree.items() for found in _named(part, f"{name}.{key}" if name else key)]
    return [(name or "train", tree)]


def _span(counts: np.ndarray, noun: str) -> str:
    low, high = int(counts.min()), int(counts.max())
    return _count(low, noun) if low == high else f"{low:,} to {_count(high, noun)}"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _few(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (f", ... {len(names) - most:,} more" if len(names) > most else "")
