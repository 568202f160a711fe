"""Partitions by quantity, by a column and by the data's own clients; traits of a partition that links depend on."""

from __future__ import annotations

from typing import Any

import data_files as files
import numpy as np
import pytest

import fedpbc
from fedpbc.core.schema import Context
from fedpbc.data import Dataset, Pool, deal
from fedpbc.data import partition as partitions

N = 400
LABELS = np.random.default_rng(0).permutation(np.arange(N) % 5)
AGE = np.random.default_rng(1).permutation(N) / 10
CITY = np.array(["Lima", "Ghent", "Kyoto"])[np.random.default_rng(2).integers(0, 3, N)]
OWNER = np.random.default_rng(3).permutation(np.repeat([0, 1, 2, 3], [250, 100, 49, 1]))
X = np.random.default_rng(4).standard_normal((N, 2, 3))


def context(seed: int = 0, problem: Any = None) -> Context:
    return Context(seed, np.dtype(np.float32), 10, (seed,), problem)


@fedpbc.data.loader
def pooled(
    context: Context,
    *,
    partition: partitions.PartitionOption | None = None,
    tests: bool = False,
    max_rows: int | None = None,
) -> Dataset:
    """Samples whose row is known from the first feature."""
    test = ((X[:40], LABELS[:40]), OWNER[:40]) if tests else (None, None)
    columns = {"age": AGE, "city": CITY, "row": np.arange(N)}
    return deal(context, Pool((X, LABELS), test[0], OWNER, test[1], columns=columns), partition, max_rows=max_rows)


def built(data: Any, seed: int = 0) -> Dataset:
    return data.build(context(seed))


def sizes_of(seed: int, n: int, **options: Any) -> np.ndarray:
    """Samples of each client under ``quantity``."""
    made = partitions.quantity.function(context(seed), **options)
    return np.bincount(made.assign(None, n), minlength=options["num_clients"])


def test_sizes_follow_a_dirichlet_distribution():
    """A share has mean 1/m and variance (1/m)(1 - 1/m)/(m alpha + 1)."""
    m, alpha, n = 5, 0.8, 5_000
    shares = np.array([sizes_of(seed, n, num_clients=m, alpha=alpha) for seed in range(400)]) / n
    assert np.all(shares > 0)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / m, atol=4.5 * np.sqrt(0.032 / 400))
    assert shares.var() == pytest.approx((1 / m) * (1 - 1 / m) / (m * alpha + 1), rel=0.15)


def test_sizes_follow_a_lognormal_distribution():
    """log(n_i / n_j) ~ N(0, 2 sigma^2)."""
    n, sigma = 10_000, 0.7
    sizes = np.array([sizes_of(seed, n, num_clients=4, sizes="lognormal", sigma=sigma) for seed in range(300)])
    ratios = np.log(sizes[:, ::2] / sizes[:, 1::2])
    assert np.var(ratios) == pytest.approx(2 * sigma**2, rel=0.25)
    assert abs(np.mean(ratios)) < 4.5 * np.sqrt(2 * sigma**2 / 600)
    assert sizes_of(0, 40, num_clients=4, sizes="lognormal", sigma=0.0).tolist() == [10] * 4


def test_quantity_gives_samples_at_random_and_everybody_the_least():
    for seed in range(20):
        made = partitions.quantity.function(context(seed), num_clients=20, alpha=0.05, min_samples=3)
        client = made.assign(LABELS, N)
        sizes = np.bincount(client, minlength=20)
        assert sizes.min() >= 3
        assert sizes.sum() == N
    largest = LABELS[client == np.argmax(sizes)]
    expected = len(largest) / 5
    assert np.all(np.abs(np.bincount(largest, minlength=5) - expected) < 4.5 * np.sqrt(expected))
    with pytest.raises(fedpbc.ConfigError, match="num_clients = 500: the data has 400 samples"):
        built(pooled().quantity(500))


def test_a_client_for_each_value_of_a_column():
    data = built(pooled().by_column("city"))
    assert data.client.tolist() == [{"Ghent": 0, "Kyoto": 1, "Lima": 2}[city] for city in CITY]
    assert built(pooled().by_column("label")).client.tolist() == LABELS.tolist()
    cut = built(pooled().by_column("age", num_clients=8))
    assert np.bincount(cut.client).tolist() == [N // 8] * 8
    assert cut.client.tolist() == (np.argsort(np.argsort(AGE)) // (N // 8)).tolist()
    with pytest.raises(
        fedpbc.ConfigError, match=r'partition.column = "aeg": no such column; there are label, age, city'
    ):
        built(pooled().by_column("aeg"))
    with pytest.raises(fedpbc.ConfigError, match="column"):
        built(fedpbc.data.from_arrays(X, LABELS).by_column("age"))


def test_own_clients_may_be_some_of_them():
    everybody = built(pooled(tests=True))
    assert everybody.client.tolist() == OWNER.tolist()
    some = built(pooled(tests=True).own(min_samples=50))
    assert some.num_clients == 2
    kept = OWNER <= 1
    np.testing.assert_array_equal(some.train[0], X[kept])
    assert some.client.tolist() == OWNER[kept].tolist()
    np.testing.assert_array_equal(some.test[0], X[:40][OWNER[:40] <= 1])
    assert some.test_client.tolist() == OWNER[:40][OWNER[:40] <= 1].tolist()
    np.testing.assert_array_equal(some.columns["row"], np.arange(N)[kept])
    assert built(pooled().own(max_clients=3)).num_clients == 3
    with pytest.raises(fedpbc.ConfigError, match=r"min_samples = 251: no client has as many, the largest has 250"):
        built(pooled().own(min_samples=251))
    with pytest.raises(fedpbc.ConfigError, match=r'partition.name = "own": the data name no clients'):
        built(fedpbc.data.from_arrays(X, LABELS).own())


def test_own_clients_are_numbered_anew_in_training_and_test():
    """Of 0, 1, 2, 3 the clients 0 and 2 are left: 2 becomes 1, among test samples too."""
    owner = np.repeat([0, 1, 2, 3], [6, 1, 5, 1])
    data = fedpbc.data.from_arrays(
        np.arange(13.0)[:, None], np.arange(13) % 2, client=owner, test=(np.arange(4.0)[:, None], [0, 1, 0, 1]),
        test_client=[3, 2, 0, 2],
    ).own(min_samples=2)  # fmt: skip
    found = built(data)
    assert found.client.tolist() == [0] * 6 + [1] * 5
    assert found.test[0].ravel().tolist() == [1, 2, 3]
    assert found.test_client.tolist() == [1, 0, 1]


def test_rows_that_would_leave_a_client_without_any_are_refused():
    with pytest.raises(fedpbc.ConfigError, match=r"max_rows = 20: leaves some of 4 clients no sample"):
        built(pooled(max_rows=20))
    assert len(built(pooled(max_rows=20).iid(4)).client) == 20
    assert built(pooled(max_rows=20).own()).num_clients == 3


def traits_of(data: Any) -> Any:
    return fedpbc.problems.classification(data).build(context()).client_traits


def test_traits_by_hand():
    traits = traits_of(pooled())
    mine = [i == OWNER for i in range(4)]
    counts = np.array([np.bincount(LABELS[rows], minlength=5) for rows in mine])
    expected = {
        "num_samples": counts.sum(axis=1),
        "num_labels": (counts > 0).sum(axis=1),
        "mean_label": [LABELS[rows].mean() for rows in mine],
        "share:3": counts[:, 3] / counts.sum(axis=1),
        "feature:4": [X[rows, 1, 1].mean() for rows in mine],
        "column:age": [AGE[rows].mean() for rows in mine],
        "label_entropy": [
            -sum(q * np.log(q) for q in np.bincount(LABELS[rows], minlength=5) / rows.sum() if q) for rows in mine
        ],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(traits[name], values, rtol=1e-6, atol=1e-7)  # the features are float32
    assert "column:city" not in traits
    assert "feature:6" not in traits
    assert "share:5" not in traits


def test_labels_with_names_and_images_of_bytes_in_traits(tmp_path):
    given = files.write_pictures(tmp_path, ("train",))
    traits = traits_of(fedpbc.data.images(tmp_path).by_column("label"))
    assert traits["share:dog"].tolist() == [0, 1]
    green = [np.array(given["train"][name])[:, 0, 1, 1].mean() / 255 for name in ("ant", "dog")]
    np.testing.assert_allclose(traits["feature:4"], green)  # row 0, column 1, channel 1


@pytest.mark.parametrize(("trait", "by"), [("share:2", 2), ("column:age", AGE), ("feature:0", X[:, 0, 0])])
def test_links_follow_a_trait(trait, by):
    problem = fedpbc.problems.classification(pooled()).build(context())
    values = (by == LABELS) if isinstance(by, int) else by
    means = np.array([values[i == OWNER].mean() for i in range(4)])
    halves = fedpbc.probabilities.by_trait(trait=trait, low=0.2, high=0.8).build(context(problem=problem))
    assert halves.tolist() == np.where(np.argsort(np.argsort(means)) < 2, 0.2, 0.8).tolist()
    linear = fedpbc.probabilities.by_trait(trait=trait, low=0.2, high=0.8, shape="linear").build(
        context(problem=problem)
    )
    np.testing.assert_allclose(linear, 0.2 + 0.6 * (means - means.min()) / (means.max() - means.min()))


@pytest.mark.parametrize(
    "trait", ["mean_lable", "share:7", "share:", "feature:6", "feature:x", "column:city", "label_distribution"]
)
def test_an_unknown_trait_is_one_line_that_lists_the_known(trait):
    problem = fedpbc.problems.classification(pooled()).build(context())
    known = (
        r"allowed: num_samples, mean_label, num_labels, label_entropy, share:LABEL \(0 to 4\), feature:J \(0 to 5\), "
    )
    with pytest.raises(fedpbc.ConfigError, match=known + r"column:NAME \(age, row\)") as caught:
        fedpbc.probabilities.by_trait(trait=trait).build(context(problem=problem))
    assert "\n" not in str(caught.value)


def test_regression_has_traits_too():
    table = fedpbc.data.from_arrays(X[:, 0], AGE, client=OWNER)
    traits = fedpbc.problems.regression(table).build(context()).client_traits
    assert traits["num_samples"].tolist() == [250, 100, 49, 1]
    np.testing.assert_allclose(traits["feature:1"], [X[i == OWNER, 0, 1].mean() for i in range(4)])
    assert "mean_label" not in traits
