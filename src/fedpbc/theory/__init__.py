"""What the paper proves, as numbers. NumPy only: nothing here imports JAX."""

from __future__ import annotations

from fedpbc.theory.bias import fedavg_weights

__all__ = ["fedavg_weights"]
