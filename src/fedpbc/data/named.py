"""Samples as named arrays, as an .npz holds them: a tree's leaves are train.0, train.image, ...; checks and names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpbc.errors import ConfigError, suggest

Tree = Any
"""An array [n, ...], or a tuple or dict of trees."""

PARTS = ("train", "test")
OTHERS = ("client", "test_client", "classes")


def collect(name: str, tree: Tree, arrays: dict[str, np.ndarray]) -> None:
    """The leaves of a tree under names like train.0, train.image. Raises ConfigError."""
    if isinstance(tree, tuple):
        for i, part in enumerate(tree):
            collect(f"{name}.{i}", part, arrays)
    elif isinstance(tree, Mapping) and not hasattr(tree, "iloc"):
        for key, part in tree.items():
            if not isinstance(key, str) or not key or "." in key or key.isdecimal():
                raise ConfigError(f"{name}: key {key!r} must be a word")
            collect(f"{name}.{key}", part, arrays)
    else:
        arrays[name] = array_of(name, tree)


def tree_of(arrays: Mapping[str, np.ndarray], part: str) -> Tree | None:
    """The inverse of ``collect``; None when there is no such part. Raises ConfigError for names that make no tree."""
    below = {name.removeprefix(f"{part}.").partition(".")[0] for name in arrays if name.startswith(f"{part}.")}
    if part in arrays:
        if below:
            raise ConfigError(f"{part}: is an array, so there cannot be a {part}.{min(below)}")
        return arrays[part]
    if not below:
        return None
    if all(key.isdecimal() for key in below):
        missing = [i for i in range(len(below)) if str(i) not in below]
        if missing:
            raise ConfigError(f"{part}.{missing[0]}: is missing, there is {part}.{max(below)}")
        return tuple(tree_of(arrays, f"{part}.{i}") for i in range(len(below)))
    return {key: tree_of(arrays, f"{part}.{key}") for key in sorted(below)}


def checked(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays as problems use them: words as labels and clients become numbers from 0. Raises ConfigError.

    Labels are numbered in alphabetical order, clients in the order of their numbers or names.
    """
    for name in given:
        if name.partition(".")[0] not in PARTS and name not in OTHERS:
            known = (*PARTS, *OTHERS)
            raise ConfigError(f"{name}: unknown array{suggest(name, known)}; known are train.0, train.NAME, test.0, "
                              f"test.NAME, {', '.join(OTHERS)}")  # fmt: skip
    arrays = {name: array_of(name, array) for name, array in given.items()}
    if tree_of(arrays, "train") is None:
        raise ConfigError("train.0: is missing: there must be an array train.0 or train.NAME")
    n = _common_length("train", arrays)
    if tree_of(arrays, "test") is not None:
        tests = _common_length("test", arrays)
        _match_test(arrays)
    elif "test_client" in arrays:
        raise ConfigError("test_client: needs test samples")
    _name_labels(arrays)
    if "client" in arrays:
        names, arrays["client"] = np.unique(_per_row("client", arrays["client"], n), return_inverse=True)
        if "test_client" in arrays:
            arrays["test_client"] = placed("test_client", _per_row("test_client", arrays["test_client"], tests), names)
    elif "test_client" in arrays:
        raise ConfigError("test_client: needs client too")
    return arrays


def array_of(name: str, value: Any) -> np.ndarray:
    """An array of finite numbers or of words. Raises ConfigError."""
    if np.ma.isMaskedArray(value):
        raise ConfigError(f"{name}: must not be a masked array; fill or drop what is missing")
    try:
        array = np.array(value)  # a copy: what the caller does to his own later changes no data set
        if array.dtype.kind == "O":
            array = _of_objects(name, array)
        if array.dtype.kind == "S":
            array = array.astype(str)
    except (ValueError, TypeError) as error:
        hint = "; several arrays are a tuple, not a list" if isinstance(value, list) else ""
        raise ConfigError(f"{name}: cannot be made an array: {str(error).splitlines()[0]}{hint}") from None
    if array.dtype.kind not in "fiubU":
        raise ConfigError(f"{name}: is {array.dtype}, must be numbers or words")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        row = int(np.argwhere(np.atleast_1d(~np.isfinite(array)))[0][0])
        raise ConfigError(f"{name}: row {row} holds a value that is not finite")
    return array


def _of_objects(name: str, array: np.ndarray) -> np.ndarray:
    """Words or numbers that came as Python objects, as pandas gives them."""
    values = array.ravel().tolist()
    if all(isinstance(v, str) for v in values):
        return array.astype(str)
    if all(isinstance(v, int | float | bool | np.number | np.bool_) for v in values):
        numbers: np.ndarray = np.array(values).reshape(array.shape)
        if numbers.dtype.kind != "O":
            return numbers
        raise ConfigError(f"{name}: holds integers beyond 64 bits")
    raise ConfigError(f"{name}: holds objects of several types, must be numbers or words")


def _common_length(part: str, arrays: dict[str, np.ndarray]) -> int:
    lengths = {n: a.shape[0] if a.ndim else -1 for n, a in arrays.items() if n == part or n.startswith(f"{part}.")}
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        shown = ", ".join(f"{name} {arrays[name].shape}" for name in lengths)
        raise ConfigError(f"{part}: every array needs the same number of rows, at least one: {shown}")
    return next(iter(lengths.values()))


def _match_test(arrays: dict[str, np.ndarray]) -> None:
    """Test samples have the arrays of training samples, of the same shape and kind."""
    trained = {name.removeprefix("train"): name for name in arrays if name.partition(".")[0] == "train"}
    tested = {name.removeprefix("test"): name for name in arrays if name.partition(".")[0] == "test"}
    for rest in {**trained, **tested}:
        if rest not in trained or rest not in tested:
            lacking, there = ("test", trained) if rest not in tested else ("train", tested)
            raise ConfigError(f"test: must be like the training samples, there is {there[rest]} but no {lacking}{rest}")
        ours, theirs = arrays[trained[rest]], arrays[tested[rest]]
        words = (ours.dtype.kind == "U") != (theirs.dtype.kind == "U")
        if ours.shape[1:] != theirs.shape[1:] or words or (ours.dtype.kind in "iub" and theirs.dtype.kind == "f"):
            shown = f"{trained[rest]} {ours.shape} {ours.dtype}: {theirs.shape} {theirs.dtype}"
            raise ConfigError(f"test: must be like the training samples, {shown}")
        if ours.dtype.kind == "f":
            arrays[tested[rest]] = theirs.astype(ours.dtype)


def _name_labels(arrays: dict[str, np.ndarray]) -> None:
    """Words as labels become 0, 1, ... in alphabetical order."""
    for name, array in arrays.items():
        if array.dtype.kind == "U" and name not in ("train.1", "test.1", *OTHERS):
            raise ConfigError(f"{name}: holds words, must be numbers")
    labels = arrays.get("train.1")
    if labels is None or labels.dtype.kind != "U":
        return
    classes, numbers = np.unique(labels, return_inverse=True)
    arrays["classes"], arrays["train.1"] = classes, numbers.reshape(labels.shape)
    if "test.1" in arrays:
        arrays["test.1"] = placed("label of test sample", arrays["test.1"], classes)


def _per_row(name: str, array: np.ndarray, n: int) -> np.ndarray:
    if array.shape != (n,):
        raise ConfigError(f"{name}: has shape {array.shape}, must have one entry per row, ({n},)")
    return array


def placed(what: str, values: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The position of each value among the sorted ``names``."""
    if (values.dtype.kind == "U") != (names.dtype.kind == "U"):
        raise ConfigError(f"{what}: is {values.dtype}, the training samples have {names.dtype}")
    place = np.minimum(np.searchsorted(names, values), len(names) - 1)
    unknown = names[place] != values
    if np.any(unknown):
        row = int(np.argwhere(unknown)[0][0])
        raise ConfigError(f"{what} {row}: {values[row]} does not occur in the training samples")
    return place.astype(np.int64)


def leaves(tree: Tree) -> list[np.ndarray]:
    """The arrays of a tree."""
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    return [tree]


def mapped(f: Any, tree: Tree) -> Tree:
    """The tree of f of each array."""
    if isinstance(tree, tuple):
        return tuple(mapped(f, part) for part in tree)
    if isinstance(tree, dict):
        return {key: mapped(f, part) for key, part in tree.items()}
    return f(tree)
