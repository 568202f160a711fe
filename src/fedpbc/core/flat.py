"""A model as one vector: pytrees of parameters are flattened once, and seen as trees inside loss functions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fedpbc.core.lazy import jax, jnp
from fedpbc.core.types import Array
from fedpbc.errors import ConfigError


@dataclass(frozen=True)
class Flat:
    """The structure of a pytree of parameters. Equal structures are equal, so that they share compiled programs."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, params: Any) -> Flat:
        """Raises ConfigError when a leaf is no array of real floating-point numbers, or there is none."""
        named, treedef = jax.tree_util.tree_flatten_with_path(params)
        for path, leaf in named:
            kind = np.asarray(leaf).dtype if not hasattr(leaf, "dtype") else leaf.dtype
            where = jax.tree_util.keystr(path) or "the tree itself"
            if not jnp.issubdtype(kind, jnp.floating):
                raise ConfigError(f"init: {where} is {kind}; parameters must be floating-point arrays")
            if not np.all(np.isfinite(np.asarray(leaf))):
                raise ConfigError(f"init: {where} holds a value that is not finite")
        if not named or all(np.size(leaf) == 0 for _, leaf in named):
            raise ConfigError("init: gave no parameter")
        return cls(treedef, tuple(np.shape(leaf) for _, leaf in named))

    @property
    def size(self) -> int:
        """d."""
        return sum(prod(shape) for shape in self.shapes)

    def flatten(self, params: Any, dtype: Any) -> np.ndarray:
        """The leaves one after another, [d]."""
        return np.concatenate([np.asarray(leaf, dtype).ravel() for leaf in jax.tree.leaves(params)])

    def tree(self, x: Array) -> Any:
        """The inverse, for one vector [d]."""
        leaves, first = [], 0
        for shape in self.shapes:
            count = prod(shape)
            part = x if count == x.shape[0] else x[first : first + count]
            leaves.append(part.reshape(shape))
            first += count
        return jax.tree.unflatten(self.treedef, leaves)
