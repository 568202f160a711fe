"""The structure of a model as JSON, so that a run read from disk can rebuild its models without code or JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np


def structure_of(tree: Callable[[np.ndarray], Any] | None, size: int) -> Any:
    """What ``tree`` makes of a vector [size]: dicts, tuples and lists of leaves, each with its place in the vector.

    None where there is no tree, or one with other containers, which only its own code can make.
    """
    if tree is None:
        return None
    try:
        return _described(tree(np.arange(size)))
    except Exception:  # a stranger's function may refuse integers: a run must not fail for that at its end
        return None


def _described(part: Any) -> Any:
    if type(part) is dict and all(isinstance(key, str) for key in part):
        return {"dict": {key: _described(value) for key, value in part.items()}}
    if type(part) in (tuple, list):
        return {type(part).__name__: [_described(value) for value in part]}
    if isinstance(part, np.ndarray):
        first = int(part.flat[0]) if part.size else 0
        if np.array_equal(part.ravel(), np.arange(first, first + part.size)):
            return {"first": first, "shape": list(part.shape)}
    raise TypeError(f"{type(part).__name__} is no plain container")


def structure_of_leaves(treedef: Any) -> Any:
    """The same of a pytree whose leaves stand by themselves: each with its number."""
    if treedef is None:
        return None
    try:
        return _described(treedef.unflatten([np.array(i) for i in range(treedef.num_leaves)]))
    except Exception:
        return None


def rebuilt_leaves(structure: Any, leaves: Sequence[np.ndarray]) -> Any:
    """The tree of its leaves.

    >>> rebuilt_leaves({"tuple": [{"first": 1, "shape": []}, {"first": 0, "shape": []}]}, ["a", "b"])
    ('b', 'a')
    """
    if "dict" in structure:
        return {key: rebuilt_leaves(value, leaves) for key, value in structure["dict"].items()}
    for container in (tuple, list):
        if container.__name__ in structure:
            return container(rebuilt_leaves(value, leaves) for value in structure[container.__name__])
    return leaves[structure["first"]]


def rebuilt(structure: Any, x: np.ndarray) -> Any:
    """The tree of a vector [d].

    >>> rebuilt({"dict": {"b": {"first": 0, "shape": []}, "w": {"first": 1, "shape": [2]}}}, np.array([7.0, 1.0, 2.0]))
    {'b': array(7.), 'w': array([1., 2.])}
    """
    if "dict" in structure:
        return {key: rebuilt(value, x) for key, value in structure["dict"].items()}
    if "tuple" in structure:
        return tuple(rebuilt(value, x) for value in structure["tuple"])
    if "list" in structure:
        return [rebuilt(value, x) for value in structure["list"]]
    shape, first = tuple(structure["shape"]), structure["first"]
    return x[first : first + prod(shape)].reshape(shape)
