"""All loaders by name, and the option that takes one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedpbc.core.schema import Component, Kind
from fedpbc.data.arrays import Dataset
from fedpbc.data.formats.bundled import breast_cancer, diabetes, digits, mnist_5k, wine
from fedpbc.data.formats.cifar import cifar
from fedpbc.data.formats.huggingface import flower_datasets, huggingface
from fedpbc.data.formats.idx import mnist
from fedpbc.data.formats.images import images
from fedpbc.data.formats.leaf import leaf
from fedpbc.data.formats.npz import npz
from fedpbc.data.formats.svhn import svhn
from fedpbc.data.formats.table import table

DATA: Kind = Kind(
    "data",
    {
        "npz": npz,
        "digits": digits,
        "wine": wine,
        "breast_cancer": breast_cancer,
        "diabetes": diabetes,
        "mnist_5k": mnist_5k,
        "mnist": mnist,
        "cifar": cifar,
        "svhn": svhn,
        "images": images,
        "leaf": leaf,
        "table": table,
        "huggingface": huggingface,
        "flower_datasets": flower_datasets,
    },
    gives=Dataset,
    shorthand=lambda value: {"name": "npz", "path": value} if isinstance(value, str | Path) else None,
    allowed="the path of an .npz or a table with a name; in Python, fedpbc.data.from_arrays(...)",
)
DataOption = Annotated[Dataset | Component[Dataset], DATA]
