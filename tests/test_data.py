"""Data of a user's own: what is taken, what is refused, and who gets which samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpbc
from fedpbc.core.schema import Context
from fedpbc.data import from_arrays
from fedpbc.data import partition as partitions


def context(seed: int = 0) -> Context:
    return Context(seed, np.dtype(np.float32), 10, (seed,))


def built(data: Any, seed: int = 0) -> Any:
    return data.build(context(seed))


X = np.arange(24.0).reshape(12, 2)
Y = np.arange(12) % 3
CLIENT = np.repeat([0, 1, 2], 4)


def test_pairs_and_tuples_and_pandas_are_the_same():
    plain = built(from_arrays(X, Y, client=CLIENT))
    np.testing.assert_array_equal(plain.train[0], X)
    np.testing.assert_array_equal(plain.train[1], Y)
    assert plain.num_clients == 3
    assert plain.client.tolist() == CLIENT.tolist()
    frame = pd.DataFrame(X, columns=["a", "b"], index=np.arange(12) + 100)
    for x, y, client in (
        (X.tolist(), Y.tolist(), CLIENT.tolist()),
        (frame, pd.Series(Y, index=frame.index), pd.Series(CLIENT)),
        ((X, Y), None, CLIENT),
    ):
        other = built(from_arrays(x, y, client=client))
        assert isinstance(other.train, tuple)
        for ours, theirs in zip(plain.train, other.train, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(plain.client, other.client)


def test_a_dict_keeps_its_keys_and_may_be_nested():
    tree = {"image": X, "about": {"age": Y, "pair": (X[:, 0], X[:, 1])}}
    data = built(from_arrays(tree, client=CLIENT))
    assert set(data.train) == {"image", "about"}
    np.testing.assert_array_equal(data.train["about"]["pair"][1], X[:, 1])
    assert built(from_arrays(X, client=CLIENT)).train.shape == (12, 2)


def test_words_as_labels_and_clients():
    words = np.array(["cat", "dog", "ant"])[Y]
    names = np.array(["zoe", "al", "bo"])[CLIENT]
    test = (X[:3], np.array(["dog", "ant", "cat"]))
    data = built(from_arrays(X, words, client=names, test=test, test_client=["bo", "al", "zoe"]))
    assert data.classes.tolist() == ["ant", "cat", "dog"]
    assert data.train[1].tolist() == [{"ant": 0, "cat": 1, "dog": 2}[w] for w in words]
    assert data.test[1].tolist() == [2, 0, 1]
    some = built(from_arrays(X, words, client=names, test=(X[:2], np.array(["dog", "dog"]))))
    assert some.test[1].tolist() == [2, 2], "numbers are those of the training labels, whichever are there"
    assert data.client.tolist() == [{"al": 0, "bo": 1, "zoe": 2}[n] for n in names]
    assert data.test_client.tolist() == [1, 0, 2]
    objects = built(from_arrays(X, words.astype(object), client=pd.Series(names, dtype="category")))
    assert objects.train[1].tolist() == data.train[1].tolist()
    assert objects.client.tolist() == data.client.tolist()
    strings = built(from_arrays(X, pd.Series(words, dtype="string"), client=names))
    assert strings.train[1].tolist() == data.train[1].tolist()


def test_client_numbers_may_have_gaps():
    data = built(from_arrays(X, Y, client=np.array([7, -3, 900])[CLIENT]))
    assert data.num_clients == 3
    assert data.client.tolist() == np.array([1, 0, 2])[CLIENT].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.where(X == 5, np.nan, X), "y": Y, "client": CLIENT}, "train.0: row 2 holds a value that is not fini"),
        ({"x": np.where(X == 6, np.inf, X), "y": Y, "client": CLIENT}, "train.0: row 3 "),
        ({"x": X, "y": np.where(Y == 2, np.nan, Y), "client": CLIENT}, "train.1: row 2 "),
        ({"x": np.ma.masked_equal(X, 5), "y": Y, "client": CLIENT}, "must not be a masked array"),
        ({"x": [[1, 2], [3]], "client": [0, 1]}, "train: cannot be made an array.*a tuple, not a list"),
        ({"x": [X, Y], "client": CLIENT}, "train: cannot be made an array.*a tuple, not a list"),
        ({"x": X, "y": Y[:-1], "client": CLIENT}, r"same number of rows.*train.0 \(12, 2\), train.1 \(11,\)"),
        ({"x": X, "y": Y, "client": CLIENT[:-1]}, r"client: has shape \(11,\)"),
        ({"x": X, "y": Y, "client": CLIENT[:, None]}, r"client: has shape \(12, 1\)"),
        ({"x": X[:0], "y": Y[:0], "client": CLIENT[:0]}, "at least one"),
        ({"x": 3.0}, "train"),
        ({"x": {}}, "train.0: is missing"),
        ({"x": ()}, "train.0: is missing"),
        ({"x": {"a.b": X}}, "must be a word"),
        ({"x": {1: X}}, "must be a word"),
        ({"x": {"0": X}}, "must be a word"),
        ({"x": X.astype(complex)}, "complex128"),
        ({"x": X.astype("datetime64[s]")}, "datetime64"),
        ({"x": np.array([{}, []] * 6, object)}, "objects of several types"),
        ({"x": np.array([None, "a"] * 6, object), "y": Y}, "objects of several types"),
        ({"x": np.array(["a", "b"] * 6), "y": Y}, "train.0: holds words, must be numbers"),
        ({"x": X, "y": Y, "test": 0.0}, "test = 0.0"),
        ({"x": X, "y": Y, "test": 1.5}, "test = 1.5"),
        ({"x": X, "y": Y, "test": True}, "test"),
        ({"x": X, "y": Y, "test": X}, "test"),
        ({"x": X, "y": Y, "test": (X,)}, "test"),
        ({"x": X, "y": Y, "test": (X, Y, Y)}, "test"),
        ({"x": X, "y": Y, "test": (X[:, :1], Y)}, r"train.0 \(12, 2\) float64: \(12, 1\) float64"),
        ({"x": X, "y": Y, "test": (X, Y[:3])}, "test: every array needs the same number"),
        ({"x": X, "y": Y, "test": 3}, "test = 3"),
        ({"x": X, "y": Y, "client": CLIENT, "test": (X, Y), "test_client": CLIENT + 1}, "test_client 8: 3 does not"),
        ({"x": X, "y": Y, "client": CLIENT, "test_client": CLIENT}, "needs test samples"),
        ({"x": X, "y": Y, "test": (X, Y), "test_client": CLIENT}, "needs client too"),
        ({"x": X, "y": np.array(["a", "b", "c"])[Y], "test": (X, np.array(["a", "d"] * 6))}, "d does not occur"),
        ({"x": X, "y": np.array(["a", "b", "c"])[Y], "test": (X, Y)}, "test"),
        ({"x": X, "y": Y, "test": (X, np.array(["a", "d"] * 6))}, "test"),
        ({"x": X, "y": Y, "client": np.array(["a", "b", "c"])[CLIENT], "test": (X, Y), "test_client": CLIENT}, "test"),
        ({"x": X, "y": Y, "client": [None] * 12}, "client"),
        ({"x": X, "y": Y, "client": np.where(CLIENT == 1, np.nan, CLIENT)}, "client: row 4"),
        ({"x": X, "y": Y, "client": pd.Series([*CLIENT[:-1], pd.NA])}, "client"),
    ],
    ids=range(40),
)
def test_what_cannot_be_used_is_one_clear_line(arguments, message):
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        from_arrays(**arguments)
    assert "\n" not in str(caught.value)


def problem_of(data: Any, **options: Any) -> Any:
    return fedpbc.problems.loss(
        data, loss=lambda p, b: (b[0].astype(p.dtype).sum() + p) ** 2, init=lambda key: np.zeros(()), **options
    )


def test_numbers_of_every_type_keep_their_value():
    """Small integers as they are, larger ones in 32 bits, floats in the precision of the run; the rest is refused."""
    for dtype, stored in (
        (np.uint8, np.uint8),
        (np.int16, np.int16),
        (bool, bool),
        (np.int64, np.int32),
        (np.uint32, np.int32),
        (np.float16, np.float32),
        (np.float64, np.float32),
    ):
        values = (np.arange(24) % 2 if dtype is bool else np.arange(24)).reshape(12, 2).astype(dtype)
        built_ = problem_of(from_arrays(values, Y, client=CLIENT)).build(context())
        found = built_.params["train"]["data"][0]
        assert found.dtype == stored
        np.testing.assert_array_equal(found[:12], values)
    with pytest.raises(fedpbc.ConfigError, match="do not fit in 32 bits"):
        problem_of(from_arrays(X.astype(np.int64) + 2**31, Y, client=CLIENT)).build(context())
    with pytest.raises(fedpbc.ConfigError, match="do not fit in 32 bits"):
        problem_of(from_arrays(-X.astype(np.int64) - 2**31, Y, client=CLIENT)).build(context())
    with pytest.raises(fedpbc.ConfigError, match=r"train.0"):
        problem_of(from_arrays([[2**70, 1]] * 12, Y, client=CLIENT)).build(context())
    with pytest.raises(fedpbc.ConfigError, match=r"data: .*float32|not finite in float32"):
        problem_of(from_arrays(X * 1e300, Y, client=CLIENT)).build(context())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Y.astype(float), "must be integers from 0 or words"),
        (Y - 1, "labels go from -1 to 1"),
        (Y + 10**6, "must number the classes from 0"),
        (np.stack([Y, Y], 1), r"features \[n, ...\] and labels \[n\]"),
    ],
)
def test_labels_that_are_no_classes(labels, message):
    with pytest.raises(fedpbc.ConfigError, match=message):
        fedpbc.problems.classification(from_arrays(X, labels, client=CLIENT)).build(context())


def test_data_without_clients_says_what_to_call():
    with pytest.raises(fedpbc.ConfigError, match="iid, dirichlet, shards") as caught:
        fedpbc.problems.classification(from_arrays(X, Y)).build(context())
    assert "<" not in str(caught.value)


def test_a_partition_stands_before_clients_of_the_data():
    data = built(from_arrays(X, Y, client=CLIENT).iid(num_clients=2))
    assert np.bincount(data.client).tolist() == [6, 6]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_test_share_is_held_out_of_each_client(share):
    sizes = np.array([1, 3, 8, 40])
    client = np.repeat(np.arange(4), sizes)
    x = np.arange(52.0)
    data = built(from_arrays(x, client * 0, test=share, client=client), seed=3)
    held = np.floor(share * sizes + 1e-9).astype(int)
    assert np.bincount(data.test_client, minlength=4).tolist() == held.tolist()
    assert np.bincount(data.client, minlength=4).tolist() == (sizes - held).tolist()
    assert sorted([*data.train[0], *data.test[0]]) == x.tolist()
    assert np.all(client[data.test[0].astype(int)] == data.test_client)
    other = built(from_arrays(x, client * 0, test=share, client=client), seed=4)
    assert other.test[0].tolist() != data.test[0].tolist()
    again = built(from_arrays(x, client * 0, test=share, client=client), seed=3)
    assert again.test[0].tolist() == data.test[0].tolist()


@settings(max_examples=60)
@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.floats(1e-3, 1e3),
    st.integers(1, 4),
    st.integers(0, 2**31 - 1),
    st.integers(0, 40),
)
def test_dirichlet_gives_every_sample_once_and_nobody_too_few(m, classes, alpha, least, seed, extra):
    labels = np.random.default_rng(seed).integers(0, classes, m * least + extra)
    part = partitions.dirichlet(num_clients=m, alpha=alpha, min_samples=least).build(context(seed))
    client = part.assign(labels, len(labels))
    sizes = np.bincount(client, minlength=m)
    assert len(client) == len(labels)
    assert sizes.sum() == len(labels)
    assert len(sizes) == m
    assert sizes.min() >= least
    np.testing.assert_array_equal(client, part.assign(labels, len(labels)))


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 1000), st.integers(0, 40))
def test_shards_and_iid_deal_evenly(m, each, seed, extra):
    n = m * each + extra
    labels = np.random.default_rng(seed).integers(0, 4, n)
    even = np.bincount(partitions.iid(num_clients=m).build(context(seed)).assign(None, n), minlength=m)
    assert even.max() - even.min() <= 1
    client = partitions.shards(num_clients=m, labels_per_client=each).build(context(seed)).assign(labels, n)
    sizes = np.bincount(client, minlength=m)
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= each


def test_shards_are_runs_of_the_sorted_labels():
    """100 samples of 10 labels, 2 shards for each of 10 clients: shards of 5 rows lie inside a label."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 10))
    client = partitions.shards(num_clients=10).build(context()).assign(labels, 100)
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (client, labels), 1)
    assert np.all(np.isin(counts, [0, 5, 10]))
    assert np.all(counts.sum(axis=1) == 10)


def test_shards_are_dealt_at_random():
    """Of 10 shards two go to client 0: they are 5 apart in one of 9 seeds, as any other pair."""
    labels = np.arange(10)
    apart = []
    for seed in range(400):
        client = partitions.shards.function(context(seed), num_clients=5).assign(labels, 10)
        first, second = np.flatnonzero(client == 0)
        apart.append(second - first == 5)
    assert abs(np.mean(apart) - 1 / 9) < 4.5 * np.sqrt(8 / 81 / 400)


def test_dirichlet_is_concentrated_for_small_alpha_and_even_for_large():
    """The share of a client in a label has mean 1/m and variance (1/m)(1 - 1/m)/(m alpha + 1)."""
    m, labels = 10, np.repeat(np.arange(50), 400)
    for alpha in (0.1, 1.0, 100.0):
        client = partitions.dirichlet(num_clients=m, alpha=alpha).build(context()).assign(labels, len(labels))
        shares = np.stack([np.bincount(client[labels == k], minlength=m) / 400 for k in range(50)])
        expected = (1 / m) * (1 - 1 / m) / (m * alpha + 1)
        assert shares.var() == pytest.approx(expected, rel=0.25)


def test_what_is_drawn_for_one_purpose_says_nothing_of_another():
    """Else who has which data would depend on who is far away, and a partition on the first weights."""
    context = Context(3, np.dtype(np.float64), 1)
    first, second, other = (
        context.rng("partition").random(1000), context.rng("fading distances").random(1000),
        context.rng("partition", 4).random(1000),
    )  # fmt: skip
    np.testing.assert_array_equal(first, context.rng("partition", 3).random(1000))
    for drawn in (second, other):
        assert abs(np.corrcoef(first, drawn)[0, 1]) < 4.5 / np.sqrt(1000)


def test_the_seed_of_a_partition_fixes_it_for_all_runs():
    data = from_arrays(X, Y)
    free = [built(data.dirichlet(num_clients=3, alpha=0.3), seed).client.tolist() for seed in range(4)]
    fixed = [built(data.dirichlet(num_clients=3, alpha=0.3, seed=2), seed).client.tolist() for seed in range(4)]
    assert len({tuple(c) for c in free}) > 1
    assert len({tuple(c) for c in fixed}) == 1
    assert fixed[0] == free[2]


@pytest.mark.parametrize(
    ("deal", "message"),
    [
        (lambda d: d.iid(num_clients=13), "the data has 12 samples"),
        (lambda d: d.iid(num_clients=0), "num_clients = 0"),
        (lambda d: d.dirichlet(num_clients=4, alpha=0.5, min_samples=4), "12 samples, 4 for each"),
        (lambda d: d.dirichlet(num_clients=4, alpha=0), "alpha = 0"),
        (lambda d: d.shards(num_clients=4, labels_per_client=4), "12 samples, 4 for each"),
        (lambda d: d.partition("even"), "data"),
    ],
)
def test_a_partition_that_cannot_be(deal, message):
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        built(deal(from_arrays(X, Y)))
    assert "\n" not in str(caught.value)


def test_partitions_by_label_need_labels():
    for data in (from_arrays(X), from_arrays({"x": X, "label": Y})):
        with pytest.raises(fedpbc.ConfigError, match="needs labels"):
            built(data.dirichlet(num_clients=2, alpha=1.0))


def test_a_partition_that_cannot_be_is_named_with_its_whole_key():
    def simulated(how):
        table = {"name": "regression", "data": how}
        fedpbc.simulate(
            table, links={"name": "bernoulli", "prob": 1.0}, algorithm="fedavg", rounds=1, local_steps=1,
            learning_rate=0.1, progress=False,
        )  # fmt: skip

    data = from_arrays(X, X[:, 0] + 0.5)
    with pytest.raises(fedpbc.ConfigError, match=r'^problem.data.partition.name = "shards": needs labels'):
        simulated(data.shards(num_clients=2))
    with pytest.raises(fedpbc.ConfigError, match=r"^problem.data.partition.num_clients = 900: the data has 12 samples"):
        simulated(data.iid(num_clients=900))


def test_a_share_that_holds_nothing_out_is_refused():
    """floor(0.1 * 3) = 0 samples of each of 4 clients; from a third on, one of each."""
    even = from_arrays(X, Y, test=0.1).iid(num_clients=4)
    with pytest.raises(
        fedpbc.ConfigError, match=r"test_share = 0\.1: holds out no sample of any client.*at least 0\.34"
    ):
        built(even)
    some = built(from_arrays(X, Y, test=0.34).iid(num_clients=4))
    assert len(some.test[0]) == 4
    assert np.bincount(some.client).tolist() == [2, 2, 2, 2], "every client keeps training samples"
    most = built(from_arrays(X, Y, test=0.9).iid(num_clients=4))
    assert np.bincount(most.client).tolist() == [1, 1, 1, 1]


def test_a_float_target_is_no_label():
    """Dirichlet over 12 different floats would be no partition by label."""
    with pytest.raises(fedpbc.ConfigError, match="needs labels"):
        built(from_arrays(X, X[:, 0] + 0.5).dirichlet(num_clients=2, alpha=1.0))


@pytest.mark.release
def test_an_npz_in_toml_is_the_same_as_arrays_in_python(tmp_path, write_toml):
    np.savez(tmp_path / "mine.npz", **{"train.0": X, "train.1": Y, "test.0": X[:3], "test.1": Y[:3]})
    table = {
        "name": "own",
        "rounds": 4,
        "local_steps": 1,
        "learning_rate": 0.1,
        "seeds": [0],
        "problem": {
            "name": "classification",
            "data": {"path": "mine.npz", "name": "npz", "partition": {"name": "iid", "num_clients": 3}},
            "model": "logistic",
        },
        "links": [{"name": "bernoulli", "prob": 0.5}],
        "algorithms": [{"name": "fedavg"}],
    }
    read = fedpbc.run(write_toml(table), tmp_path / "out")
    data = from_arrays(X, Y, test=(X[:3], Y[:3])).iid(num_clients=3)
    mine = fedpbc.simulate(
        fedpbc.problems.classification(data),
        links=fedpbc.links.bernoulli(prob=0.5),
        algorithm=fedpbc.algorithms.fedavg(),
        rounds=4,
        local_steps=1,
        learning_rate=0.1,
        progress=False,
    )
    for name, values in mine.cells[next(iter(mine.cells))].rows.items():
        np.testing.assert_array_equal(values, read.cells[next(iter(read.cells))].rows[name])
    np.savez(tmp_path / "mine.npz", **{"train.0": X + 1, "train.1": Y})
    with pytest.raises(fedpbc.ConfigError, match=r"problem.data.path was .*content .*, is .*content "):
        fedpbc.run(tmp_path / "experiment.toml", tmp_path / "out", resume=True)
    (tmp_path / "mine.npz").unlink()
    with pytest.raises(fedpbc.ConfigError, match=r"no such file|cannot be read"):
        fedpbc.run(tmp_path / "experiment.toml", tmp_path / "third")
    assert not (tmp_path / "third").exists()
    again = fedpbc.run(tmp_path / "out" / "experiment.toml", tmp_path / "again")
    assert again.final("server_test_loss") == read.final("server_test_loss")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "x: unknown array"),
        ({"tset.0": X, "train.0": X}, "tset.0: unknown array"),
        ({"client": CLIENT}, "train.0: is missing"),
        ({"train.0": X, "train.2": Y}, "train.1"),
        ({"train.0": X, "train.1": Y[:5], "client": CLIENT}, "same number of rows"),
        ({"train.0": X, "train.1": Y, "client": CLIENT[:5]}, r"client: has shape \(5,\)"),
        ({"train.0": np.full((12, 2), np.nan), "train.1": Y, "client": CLIENT}, "not finite"),
        ({"train.0": X, "train.1": Y, "client": CLIENT, "test.0": X}, "test"),
        ({"train.0": X, "train.1": Y, "client": CLIENT, "test.0": X, "test.1": Y[:2]}, "same number of rows"),
        ({"train.0": X, "train.1": Y, "client": CLIENT, "test.0": X, "test.1": Y, "test_client": CLIENT[:2]}, "test_c"),
        ({"train.0": X, "train.1": Y, "client": CLIENT, "test.0": X, "test.1": Y, "test_client": CLIENT + 9}, "test_c"),
        ({"train.0": X.astype(str), "train.1": Y, "client": CLIENT}, "words"),
        ({"train": np.array(1.0), "client": CLIENT}, "rows"),
        ({"train.0": X, "train.0.a": Y, "client": CLIENT}, "train.0"),
    ],
    ids=range(14),
)
def test_an_npz_that_cannot_be_used_is_one_clear_line(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        problem_of(tmp_path / "mine.npz").build(context())
    assert "\n" not in str(caught.value)


def test_words_in_an_npz_are_labels_too(tmp_path):
    words = np.array(["cat", "dog", "ant"])[Y]
    np.savez(tmp_path / "mine.npz", **{"train.0": X, "train.1": words, "client": CLIENT})
    problem = fedpbc.problems.classification(tmp_path / "mine.npz").build(context())
    direct = fedpbc.problems.classification(from_arrays(X, words, client=CLIENT)).build(context())
    np.testing.assert_array_equal(problem.params["train"]["data"][1], direct.params["train"]["data"][1])


def test_traits_of_clients_by_hand():
    problem = fedpbc.problems.classification(from_arrays(X, Y, client=CLIENT)).build(context())
    counts = np.array([[2, 1, 1], [1, 2, 1], [1, 1, 2]])
    np.testing.assert_allclose(problem.client_traits["label_distribution"], counts / 4)
    np.testing.assert_allclose(problem.client_traits["mean_label"], counts @ [0, 1, 2] / 4)
    assert problem.client_traits["num_samples"].tolist() == [4, 4, 4]
