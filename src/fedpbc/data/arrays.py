"""What a data set is: arrays and whose they are; before that, a pool of samples as a file has them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpbc.data.named import Tree
from fedpbc.io.whole import write_arrays


class Scaling(NamedTuple):
    """What is learnt from is ``factor * stored + shift``: images stay bytes in memory, a quarter of float32.

    A number per channel (the last axis), or one for all. Plain numbers, so that equal ones share programs.
    """

    factor: tuple[float, ...]
    shift: tuple[float, ...] = (0.0,)


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
    scaling: Scaling | None = None
    """Of the features, the first of a pair of arrays; None: they are used as they are stored."""
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """More that is known of each training sample, numbers [n]: link probabilities may depend on them."""


@dataclass(frozen=True)
class Pool:
    """Samples as a file has them, before it is said who has which."""

    train: Tree
    """Arrays [n, ...]; features and labels are a pair."""
    test: Tree | None = None
    client: np.ndarray | None = None
    """Whose sample it is, int[n], from 0, where the data say so."""
    test_client: np.ndarray | None = None
    classes: np.ndarray | None = None
    """What label 0, 1, ... is called."""
    clients: np.ndarray | None = None
    """What client 0, 1, ... is called."""
    scaling: Scaling | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """More columns [n], numbers or words."""
    notes: tuple[str, ...] = ()
    """What was done to the samples while they were read, for ``fedpbc data``."""

    @property
    def labels(self) -> np.ndarray | None:
        """What a partition by label goes by: the second of two arrays, where it is integers [n]."""
        if isinstance(self.train, tuple) and len(self.train) == 2 and isinstance(self.train[1], np.ndarray):
            labels = self.train[1]
            return labels if labels.ndim == 1 and labels.dtype.kind in "iub" else None
        return None


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
