"""Problems: data as specified, gradients and metrics against plain NumPy and automatic differentiation."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.core.flat import Flat
from fedpbc.core.local import sum_blocks
from fedpbc.core.schema import Context
from fedpbc.errors import BadOption, ConfigError
from fedpbc.problems.classification import cross_entropy
from fedpbc.problems.objective import Objective, blocks_of
from fedpbc.problems.quadratic import quadratic
from fedpbc.problems.samples import (
    WIDTH,
    Samples,
    block_rows,
    draw_rows,
    multiply_high,
    offsets_of,
    weighted,
    weighted_sum,
    weights_of,
)
from fedpbc.problems.synthetic import synthetic

CONTEXT = Context(0, np.dtype(np.float64), 10, (0,))


def test_quadratic_centres_are_the_papers():
    problem = quadratic.function(CONTEXT, num_clients=100, dim=2000)
    u = problem.params["centers"]
    np.testing.assert_allclose(u.mean(axis=1), np.arange(1, 101), atol=4.5 * 0.1 / np.sqrt(2000))
    assert (u - np.arange(1, 101)[:, None]).std() == pytest.approx(0.1, rel=0.01)
    np.testing.assert_array_equal(problem.init, np.zeros(2000))


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_quadratic_reads_centres_and_takes_its_shape_from_them(tmp_path, suffix):
    u = np.random.default_rng(0).standard_normal((3, 5))
    path = tmp_path / f"centers.{suffix}"
    np.save(path, u) if suffix == "npy" else np.savetxt(path, u, delimiter=",", fmt="%.17g")
    problem = quadratic.function(CONTEXT, num_clients=100, dim=100, centers=path)
    assert problem.num_clients == 3
    assert problem.init.shape == (5,)
    np.testing.assert_array_equal(problem.params["centers"], u)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty"), ("1,2\n3\n", "cannot be read"), ("1,x\n", "cannot be read"), ("1,nan\n", "row 0 .* not finite")],
)
def test_bad_centres_are_refused(tmp_path, text, message):
    path = tmp_path / "centers.csv"
    path.write_text(text)
    with pytest.raises(BadOption, match=message):
        quadratic.function(CONTEXT, centers=path)


def test_a_damaged_npy_header_is_refused(tmp_path):
    path = tmp_path / "centers.npy"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(BadOption, match="cannot be read"):
        quadratic.function(CONTEXT, centers=path)


def test_pickled_arrays_are_refused(tmp_path):
    path = tmp_path / "centers.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadOption, match="cannot be read"):
        quadratic.function(CONTEXT, centers=path)


def test_quadratic_metrics_are_those_of_the_mean_of_the_client_losses():
    problem = quadratic.function(CONTEXT, num_clients=7, dim=3)
    u, x = problem.params["centers"], np.array([[1.0, -2.0, 5.0], [0.0, 0.0, 0.0]])
    with jax.enable_x64(True):
        values = problem.metrics(problem.params, jnp.asarray(x), ())
    losses = 0.5 * ((x[:, None] - u) ** 2).sum(axis=2).mean(axis=1)
    gradient = np.linalg.norm((x[:, None] - u).mean(axis=1), axis=1)
    np.testing.assert_allclose(values["train_loss"], losses, rtol=1e-12)
    np.testing.assert_allclose(values["grad_norm"], gradient, rtol=1e-12)
    np.testing.assert_allclose(values["distance"], np.linalg.norm(x - u.mean(axis=0), axis=1), rtol=1e-12)


def test_curved_quadratics_have_their_gradients_minimiser_and_metrics():
    problem = quadratic.function(CONTEXT, num_clients=7, dim=3, condition=50.0)
    u, h = problem.params["centers"], problem.params["curvatures"]
    assert h.min() >= 1 / 50
    assert h.max() <= 1
    assert h.min() < 0.1 < 0.5 < h.max()
    x = np.random.default_rng(0).normal(3, 2, (2, 3))
    gradients = [problem.gradient(problem.sample(problem.params, i, None, 1), x[0]) for i in range(7)]
    np.testing.assert_allclose(gradients, h * (x[0] - u))
    metrics = problem.metrics(problem.params, x, ())
    for k in range(2):
        losses = 0.5 * np.sum(h * (x[k] - u) ** 2, axis=1)
        np.testing.assert_allclose(metrics["train_loss"][k], losses.mean(), rtol=1e-6)
        np.testing.assert_allclose(metrics["grad_norm"][k], np.linalg.norm(np.mean(h * (x[k] - u), axis=0)), rtol=1e-6)
        minimiser = np.sum(h * u, axis=0) / np.sum(h, axis=0)
        np.testing.assert_allclose(metrics["distance"][k], np.linalg.norm(x[k] - minimiser), rtol=1e-6)


@pytest.mark.first(1)
@pytest.mark.parametrize("hidden", [0, 4])
def test_clients_may_count_by_their_samples(hidden):
    """F = sum_i a_i F_i and its gradient, and the mean of the clients' scaled losses is that F."""
    context = Context(3, np.dtype(np.float64), 10, (3,))
    with jax.enable_x64(True):
        uniform, weighted = (
            synthetic.function(context, num_clients=6, hidden=hidden, weights=weights)
            for weights in ("uniform", "samples")
        )
        x = np.random.default_rng(1).normal(0, 0.1, (1, len(weighted.init)))
        sums = [
            jax.tree.map(lambda *parts: sum(parts), *(p.block_sums(p.params, x, b) for b in range(p.num_blocks)))
            for p in (uniform, weighted)
        ]
        sizes = weighted.params["sizes"]
        total = np.zeros(len(weighted.init))
        for i, (first, size) in enumerate(zip(weighted.params["offsets"], sizes, strict=True)):
            rows = slice(first, first + size)
            train = weighted.params["train"]
            batch = tuple(a[rows] for a in train["data"]), weighted.params["scale"][i]
            total += np.asarray(weighted.gradient(batch, jnp.asarray(x[0]))) / 6
            plain = np.asarray(uniform.gradient((batch[0], None), jnp.asarray(x[0])))
            scaled = np.asarray(weighted.gradient(batch, jnp.asarray(x[0])))
            np.testing.assert_allclose(scaled, 6 * size / sizes.sum() * plain, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(sums[1]["gradient"][0], total, rtol=1e-9, atol=1e-12)
        assert abs(float(sums[1]["train_loss_by_client"][0] - sums[0]["train_loss_by_client"][0])) > 1e-3
        assert weighted.sample(weighted.params, 0, jax.random.key(0), 4)[1] == weighted.params["scale"][0]


def test_synthetic_follows_the_generator():
    problem = synthetic.function(CONTEXT, num_clients=150)
    sizes, train, test = problem.params["sizes"], problem.params["train"], problem.params["test"]
    n_train, n_test = int(sizes.sum()), int((test["pooled"] > 0).sum())
    assert sizes.min() >= 45
    assert (n_train + n_test) * 0.9 == pytest.approx(n_train, abs=150)
    assert sizes.max() / n_train > 0.05, "sizes are ragged"
    assert np.all(train["data"][0][:n_train, -1] == 1)
    assert set(np.unique(train["data"][1][:n_train])) <= set(range(10))
    first = train["data"][0][: sizes[0], :60]
    spread = first.std(axis=0)
    np.testing.assert_allclose(spread, np.arange(1, 61) ** -0.6, rtol=5 / np.sqrt(2 * sizes[0]))


def test_synthetic_labels_depend_on_the_client():
    problem = synthetic.function(CONTEXT, num_clients=30)
    assert problem.client_traits["mean_label"].std() > 1
    assert problem.client_traits["num_samples"].sum() == problem.params["sizes"].sum()


def test_seeds_of_a_run_have_one_shape_and_a_seed_does_not_depend_on_the_others():
    shapes = set()
    for seed in (0, 1, 2):
        problem = synthetic.function(Context(seed, np.dtype(np.float32), 10, (0, 1, 2)), num_clients=20)
        shapes.add((problem.params["train"]["data"][0].shape, problem.num_blocks))
    assert len(shapes) == 1
    alone = synthetic.function(Context(1, np.dtype(np.float32), 10, (1,)), num_clients=20)
    together = synthetic.function(Context(1, np.dtype(np.float32), 10, (0, 1, 2)), num_clients=20)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 610)), jnp.float32)
    for problem in (alone, together):
        assert problem.params["train"]["by_client"].sum() == pytest.approx(1, rel=1e-5)
    sums = [sum_blocks(problem, x, 1) for problem in (alone, together)]
    jax.tree.map(np.testing.assert_array_equal, *sums)


MODELS = {0: 610, 1: 61 + 20, 7: 7 * 61 + 80}
"""Hidden units -> parameters."""


def logits_of(x, hidden, features, xp):
    """Logits [n, classes] of one model, weights and biases apart."""
    if not hidden:
        w = x.reshape(10, 61)
        return features[:, :60] @ w[:, :60].T + w[:, 60]
    w, v = x[: 61 * hidden].reshape(hidden, 61), x[61 * hidden :].reshape(10, hidden + 1)
    units = xp.tanh(features[:, :60] @ w[:, :60].T + w[:, 60])
    return units @ v[:, :hidden].T + v[:, hidden]


@pytest.mark.first(1)
@pytest.mark.parametrize("hidden", MODELS)
def test_gradient_is_that_of_the_cross_entropy(hidden):
    problem = synthetic.function(CONTEXT, num_clients=5, hidden=hidden)
    assert problem.init.shape == (MODELS[hidden],)
    with jax.enable_x64(True):
        (features, labels), _ = problem.sample(problem.params, jnp.int32(2), jax.random.key(0), 32)
        x = jnp.asarray(np.random.default_rng(0).standard_normal(MODELS[hidden]))

        def loss(x):
            return -jnp.mean(jax.nn.log_softmax(logits_of(x, hidden, features, jnp))[jnp.arange(32), labels])

        gradient = problem.gradient(((features, labels), None), x)
        np.testing.assert_allclose(gradient, jax.grad(loss)(x), atol=1e-12)
        assert np.all(np.abs(gradient).reshape(-1)[[0, -1]] > 0)


@pytest.mark.first(1)
@pytest.mark.parametrize("hidden", MODELS)
def test_evaluation_is_uniform_over_clients(hidden):
    problem = synthetic.function(Context(3, np.dtype(np.float64), 10, (3,)), num_clients=12, hidden=hidden)
    params, sizes = problem.params, problem.params["sizes"]
    models = np.random.default_rng(1).standard_normal((2, MODELS[hidden])) / 10
    test_sizes = _test_sizes(params["test"]["by_client"], len(sizes))
    parts = [
        (part, first, n) for part, counts in (("train", sizes), ("test", test_sizes)) for first, n in _spans(counts)
    ]

    def loss(x):
        """The objective, client by client, from the definition."""
        total = 0
        for part, first, n in parts:
            if part == "train":
                features, labels = (a[first : first + n] for a in params[part]["data"])
                total -= jnp.mean(jax.nn.log_softmax(logits_of(x, hidden, features, jnp))[jnp.arange(n), labels])
        return total / len(sizes)

    with jax.enable_x64(True):
        values = problem.metrics(params, jnp.asarray(models), sum_blocks(problem, jnp.asarray(models), 1))
        for k, model in enumerate(models):
            right = []
            for part, first, n in parts:
                if part == "test":
                    features, labels = (a[first : first + n] for a in params[part]["data"])
                    right.append(logits_of(model, hidden, features, np).argmax(axis=1) == labels)
            expected, gradient = jax.value_and_grad(loss)(jnp.asarray(model))
            assert values["train_loss"][k] == pytest.approx(float(expected), rel=1e-12)
            assert values["grad_norm"][k] == pytest.approx(np.linalg.norm(gradient), rel=1e-10)
            assert values["test_accuracy"][k] == pytest.approx(np.concatenate(right).mean(), rel=1e-12)
            assert values["test_accuracy_by_client"][k] == pytest.approx(np.mean([r.mean() for r in right]), rel=1e-12)


def test_the_network_has_the_data_of_the_logistic_regression_and_random_weights():
    plain, network = (synthetic.function(CONTEXT, num_clients=5, hidden=hidden) for hidden in (0, 400))
    jax.tree.map(np.testing.assert_array_equal, plain.params, network.params)
    assert not plain.init.any()
    w, v = network.init[: 400 * 61].reshape(400, 61), network.init[400 * 61 :].reshape(10, 401)
    assert not w[:, 60].any()
    assert not v[:, 400].any()
    assert w[:, :60].std() == pytest.approx(60**-0.5, rel=0.05)
    assert v[:, :400].std() == pytest.approx(400**-0.5, rel=0.05)
    other = synthetic.function(Context(1, np.dtype(np.float64), 10, (1,)), num_clients=5, hidden=400)
    assert not np.array_equal(other.init, network.init)


def test_equal_networks_share_their_functions():
    first, second, other = (synthetic.function(CONTEXT, num_clients=5, hidden=hidden) for hidden in (3, 3, 4))
    assert first.gradient is second.gradient
    assert first.block_sums is second.block_sums
    assert first.gradient is not other.gradient


def test_a_network_that_cannot_fit_is_refused():
    with pytest.raises(BadOption, match="GB"):
        synthetic.function(CONTEXT, num_clients=5, hidden=2**31 - 1)


def _spans(counts) -> list[tuple[int, int]]:
    """(first row, number of rows) of every client."""
    return list(zip(np.cumsum([0, *counts[:-1]]).tolist(), list(counts), strict=True))


def _test_sizes(by_client: np.ndarray, m: int) -> list[int]:
    """Recover the sizes from the weights 1/(m n_i), which are equal within a client."""
    sizes, first = [], 0
    while len(sizes) < m:
        n = round(1 / (m * by_client[first]))
        sizes.append(n)
        first += n
    return sizes


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_multiply_high_is_exact(a, b):
    result = int(multiply_high(jnp.uint32(a), jnp.uint32(b)))
    assert result == int(Fraction(a * b, 2**32))


def test_rows_are_uniform_and_inside_the_client():
    rows = np.asarray(draw_rows(jax.random.key(0), jnp.int32(1000), jnp.int32(7), 70_000))
    assert rows.min() == 1000
    assert rows.max() == 1006
    counts = np.bincount(rows - 1000)
    assert np.all(np.abs(counts - 10_000) < 4.5 * np.sqrt(10_000))


def test_a_client_without_samples_is_an_error():
    with pytest.raises(ConfigError, match="client 1 has no training sample"):
        offsets_of(np.array([3, 0, 2]))


def test_past_its_end_a_set_weighs_nothing():
    """Three blocks for the other set, two for this one: 3 samples, filled up to 4 rows."""
    part = weighted(Samples(np.arange(4.0), np.array([1, 2])), np.dtype(np.float32))
    blocks = [block_rows(part, jnp.int32(block), 2) for block in range(3)]
    for name, sums in (("pooled", [2 / 3, 1 / 3, 0]), ("by_client", [3 / 4, 1 / 4, 0])):
        np.testing.assert_allclose([rows[name].sum() for rows in blocks], sums, rtol=1e-6)
    assert [rows["data"].tolist() for rows in blocks[:2]] == [[0, 1], [2, 3]]


def test_the_gradient_of_the_cross_entropy_takes_the_weight_of_each_sample():
    """As JAX differentiates log sum exp z - z_y, written out."""
    rng = np.random.default_rng(0)
    logits, weights = jnp.asarray(rng.standard_normal((3, 5))), jnp.asarray(rng.random(5))
    labels = jnp.array([0, 2, 1, 1, 0])

    def plain(z):
        return weights @ (jnp.log(jnp.exp(z).sum(axis=0)) - z[labels, jnp.arange(5)])

    ours = jax.grad(lambda z: weights @ cross_entropy(z, labels))(logits)
    np.testing.assert_allclose(ours, jax.grad(plain)(logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("train", "test", "blocks"),
    [([5, 4], [9], 3), ([20, 1], [0, 1], 3), ([8], [4], 1), ([8, 1], None, 2), ([1], [5], 2)],
)
def test_blocks_that_hold_samples_are_those_of_the_longer_part(train, test, blocks):
    """Eight training samples or four test samples a block."""
    objective = Objective(Flat.of(np.zeros(1)), lambda params, batch: batch, blocks=(8, 4))
    assert blocks_of(objective, *(np.array(n) for n in (train, test) if n is not None)) == blocks


def test_weights_are_uniform_over_clients():
    np.testing.assert_allclose(weights_of(np.array([1, 4]), np.float64), [0.5, 0.125, 0.125, 0.125, 0.125])


@pytest.mark.parametrize("n", [1, 7, WIDTH, WIDTH + 1, 2 * WIDTH, 5 * WIDTH, 32 * WIDTH])
def test_weighted_sum_has_every_sample_once_and_no_gradient(n):
    values, weights = jnp.arange(1.0, n + 1), jnp.where(jnp.arange(n) % 3 == 1, 0, 1.0)
    expected = sum(k + 1 for k in range(n) if k % 3 != 1)
    assert jax.jit(weighted_sum)(values, weights) == expected
    assert not jnp.any(jax.grad(weighted_sum)(values, weights))
