"""Columns of an Arrow table as features, labels and clients: what CSV, Parquet and saved ``datasets`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.data.arrays import Pool
from fedpbc.data.formats.common import standardised
from fedpbc.data.named import placed
from fedpbc.errors import BadOption, shorten, suggest

LABELS = ("label", "target", "labels", "class", "y")
CLIENTS = ("client", "client_id", "partition_id")
Special = Callable[[Any, str], np.ndarray | None]
"""``f(table, column)`` reads a column in a way of its own, as images are; None: it is read as any other."""


@dataclass(frozen=True)
class Roles:
    """Which column is what; None: found by its usual names, and features are all that is left."""

    label: str | None = None
    client: str | None = None
    features: Sequence[str] | None = None
    one_hot: bool = False
    """Words among the features become a column of 0 and 1 for each word."""
    normalise: bool = False


PLAIN = Roles()


def pool_of(
    path: Path, train: Any, test: Any, roles: Roles, classes: Any = None, special: Special | None = None
) -> Pool:
    """The pool of two Arrow tables, ``test`` may be None. Raises BadOption."""
    columns = train.column_names
    label = _found(path, columns, roles.label, LABELS, "label")
    client = _found(path, columns, roles.client, CLIENTS, "client", needed=False)
    taken = [name for name in (label, client) if name is not None]
    names = _features(columns, roles, taken)
    if test is not None:
        missing = [name for name in (*names, label) if name not in test.column_names]
        if missing:
            raise BadOption("path", path, f"the test samples have no column {', '.join(missing)}")
    parts = [train] if test is None else [train, test]
    images = special(train, names[0]) if special is not None and len(names) == 1 else None
    notes: list[str] = [f"label is column {label}"] + ([] if client is None else [f"client is column {client}"])
    if images is not None:
        both = [images] + ([] if test is None else [special(test, names[0])])  # type: ignore[misc, list-item]
    else:
        both, more = _numbers(path, parts, names, roles.one_hot)
        notes += more
        if roles.normalise:
            both[:] = [
                array for array in standardised(both[0], both[1] if test is not None else None) if array is not None
            ]
    labels = [values_of(path, part, label) for part in parts]
    if labels[0].dtype.kind == "U":
        classes, numbers = np.unique(labels[0], return_inverse=True)
        labels = [numbers, *(placed("label of test sample", part, classes) for part in labels[1:])]
    elif labels[0].dtype.kind == "b":
        labels = [part.astype(np.uint8) for part in labels]
    pairs = list(zip(both, labels, strict=True))
    ids, names_of, test_ids = None, None, None
    if client is not None:
        names_of, ids = np.unique(values_of(path, train, client), return_inverse=True)
        if test is not None and client in test.column_names:
            test_ids = placed("client of test sample", values_of(path, test, client), names_of)
    more_columns = {
        name: values_of(path, train, name, strict=False) for name in columns if name not in taken and images is None
    }
    kept = {name: values for name, values in more_columns.items() if values.ndim == 1}
    test_pair = pairs[1] if test is not None else None
    return Pool(pairs[0], test_pair, ids, test_ids, classes, names_of, columns=kept, notes=tuple(notes))


def _found(
    path: Path, columns: Sequence[str], asked: str | None, usual: Sequence[str], role: str, needed: bool = True
) -> Any:
    if asked is not None:
        if asked not in columns:
            raise BadOption(role, asked, f"no such column{suggest(asked, columns)}; there are {_shown(columns)}")
        return asked
    found = next((name for name in columns for word in usual if name.lower() == word), None)
    if found is None and needed:
        raise BadOption(
            role, "none", f'which column is the {role}? {role} = "NAME" says so; there are {_shown(columns)}'
        )
    return found


def _features(columns: Sequence[str], roles: Roles, taken: Sequence[str]) -> list[str]:
    if roles.features is None:
        names = [name for name in columns if name not in taken]
    else:
        names = list(roles.features)
        for name in names:
            if name not in columns:
                raise BadOption(
                    "features", name, f"no such column{suggest(name, columns)}; there are {_shown(columns)}"
                )
            if name in taken:
                raise BadOption("features", name, "is the column of labels or clients")
    if not names:
        raise BadOption("features", "none", f"no column is left for them; there are {_shown(columns)}")
    return names


def _numbers(
    path: Path, parts: Sequence[Any], names: Sequence[str], one_hot: bool
) -> tuple[list[np.ndarray], list[str]]:
    """Features [n, f] float32, or of a single column of lists [n, ...], for each part."""
    found: list[list[np.ndarray]] = [[] for _ in parts]
    notes = []
    for name in names:
        values = [values_of(path, part, name) for part in parts]
        if values[0].dtype.kind == "U":
            if not one_hot:
                what = f"holds words, as {shorten(str(values[0][0]), 20)}; one_hot = true takes them"
                raise BadOption("features", name, what)
            words = np.unique(values[0])
            if len(words) > 1000:
                raise BadOption("features", name, f"holds {len(words):,} different words, a column each")
            notes.append(f"column {name} became {len(words)} of 0 and 1")
            values = [(part[:, None] == words).astype(np.float32) for part in values]
        if values[0].ndim > 2 and len(names) > 1:
            raise BadOption(
                "features", name, f"has samples of shape {list(values[0].shape[1:])}, can only be used alone"
            )
        for mine, part in zip(found, values, strict=True):
            if part.ndim > 1 and part.shape[1:] != values[0].shape[1:]:
                raise BadOption("path", path, f"test samples of {name} have shape {list(part.shape[1:])}")
            mine.append(part)
    if len(names) == 1 and found[0][0].ndim > 1:
        return [mine[0] if mine[0].dtype.kind in "iub" else mine[0].astype(np.float32) for mine in found], notes
    return [
        np.concatenate([np.asarray(part, np.float32).reshape(len(part), -1) for part in mine], axis=1) for mine in found
    ], notes


def values_of(path: Path, table: Any, name: str, strict: bool = True) -> np.ndarray:
    """A column as numbers or words [n], lists of equal length as [n, k, ...]; raises BadOption for what is missing.

    Not ``strict``: an empty array [0, 0] for what cannot be used.
    """
    try:
        return _values(path, table.column(name).combine_chunks(), name)
    except BadOption:
        if strict:
            raise
        return np.empty((0, 0))


def _values(path: Path, column: Any, name: str) -> np.ndarray:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise BadOption("path", path, f"column {name}, row {row}: is empty; fill or drop what is missing")
    kind, shape = column.type, [len(column)]
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = column.flatten()
        rows = len(column)
        size = len(inner) // max(rows, 1)
        lengths = np.asarray(column.value_lengths()) if not pa.types.is_fixed_size_list(kind) else np.full(rows, size)
        if np.any(lengths != size):
            raise BadOption(
                "path", path, f"column {name}: its lists have {lengths.min()} to {lengths.max()} entries, must be alike"
            )
        shape.append(size)
        column, kind = inner, inner.type
        if column.null_count:
            raise BadOption("path", path, f"column {name}: a list has an empty entry; fill or drop what is missing")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), str).reshape(shape)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise BadOption("path", path, f"column {name}: is {kind}, must be numbers or words; name features without it")
    values = np.asarray(column.to_numpy(zero_copy_only=False)).reshape(shape)
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise BadOption("path", path, f"column {name}, row {row}: is not finite")
    return values


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
