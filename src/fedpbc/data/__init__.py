"""Data sets and their partition among clients. No JAX."""

from __future__ import annotations

from fedpbc.data.arrays import Dataset, Pool, Scaling
from fedpbc.data.component import Data, loader
from fedpbc.data.dealing import deal
from fedpbc.data.formats.bundled import breast_cancer, diabetes, digits, mnist_5k, wine
from fedpbc.data.formats.cifar import cifar
from fedpbc.data.formats.huggingface import flower_datasets, huggingface
from fedpbc.data.formats.idx import mnist
from fedpbc.data.formats.images import images
from fedpbc.data.formats.leaf import leaf
from fedpbc.data.formats.npz import from_arrays, npz
from fedpbc.data.formats.svhn import svhn
from fedpbc.data.formats.table import table
from fedpbc.data.partition import PARTITIONS, Partition, by_column, dirichlet, iid, own, quantity, shards
from fedpbc.data.recognise import load
from fedpbc.data.registry import DATA

__all__ = [
    "DATA",
    "PARTITIONS",
    "Data",
    "Dataset",
    "Partition",
    "Pool",
    "Scaling",
    "breast_cancer",
    "by_column",
    "cifar",
    "deal",
    "diabetes",
    "digits",
    "dirichlet",
    "flower_datasets",
    "from_arrays",
    "huggingface",
    "iid",
    "images",
    "leaf",
    "load",
    "loader",
    "mnist",
    "mnist_5k",
    "npz",
    "own",
    "quantity",
    "shards",
    "svhn",
    "table",
    "wine",
]
