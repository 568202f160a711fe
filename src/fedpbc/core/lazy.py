"""JAX, imported when the first of its names is used: what only looks at components, as ``fedpbc list``, starts at once.

Components write ``from fedpbc.core.lazy import jax, jnp`` instead of importing it, and use no name of it while they are
imported themselves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["jax", "jnp", "on_cpu"]

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:

    class _Module:
        """Stands for a module; its names are those of the module."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self._name), name)

        def __repr__(self) -> str:
            return f"<{self._name}, imported on first use>"

    jax, jnp = _Module("jax"), _Module("jax.numpy")


def on_cpu() -> bool:
    """Programs are made for CPUs: asked while they are traced."""
    return bool(jax.default_backend() == "cpu")
