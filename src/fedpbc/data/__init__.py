"""Data sets and their partition among clients. No JAX."""

from __future__ import annotations

from fedpbc.data.arrays import DATA, Data, Dataset, from_arrays, npz
from fedpbc.data.partition import PARTITIONS, dirichlet, iid, shards

__all__ = ["DATA", "PARTITIONS", "Data", "Dataset", "dirichlet", "from_arrays", "iid", "npz", "shards"]
