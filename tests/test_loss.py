"""Any loss over any pytree: training and evaluation against plain NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpbc
from fedpbc import algorithms, links, problems
from fedpbc.core.schema import Context
from fedpbc.testing import check_problem

RNG = np.random.default_rng(8)
N, M = 90, 4
FEATURES = RNG.standard_normal((N, 3))
TARGETS = FEATURES @ [1.0, -2.0, 0.5] + 0.1 * RNG.standard_normal(N)
CLIENT = np.sort(RNG.integers(0, M, N))
TEST = slice(0, 31)
TEST_CLIENT = RNG.integers(0, M, 31)
DATA = fedpbc.data.from_arrays(FEATURES, TARGETS, client=CLIENT)
TESTED = fedpbc.data.from_arrays(
    FEATURES, TARGETS, client=CLIENT, test=(FEATURES[TEST], TARGETS[TEST]), test_client=TEST_CLIENT
)
CONTEXT = Context(0, np.dtype(np.float64), 10, (0,))
SETTINGS: dict[str, Any] = {
    "links": links.bernoulli(prob=0.6),
    "algorithm": algorithms.fedpbc(),
    "rounds": 6,
    "local_steps": 2,
    "learning_rate": 0.05,
    "batch_size": 8,
    "precision": "float64",
    "progress": False,
}


def init(key):
    return {"w": jnp.zeros(3), "b": jnp.zeros(())}


def squares(params, batch):
    features, targets = batch
    return 0.5 * (features @ params["w"] + params["b"] - targets) ** 2


def mean_square(params, batch):
    return squares(params, batch).mean()


def absolute(params, batch):
    features, targets = batch
    return jnp.abs(features @ params["w"] + params["b"] - targets)


def simulate(problem, **changes):
    return fedpbc.simulate(problem, **{**SETTINGS, **changes})


def numpy_error(model):
    return FEATURES @ model["w"] + model["b"] - TARGETS


def by_client(values, client):
    return np.mean([values[client == i].mean() for i in range(M) if np.any(client == i)])


@pytest.mark.first(1)
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_evaluation_is_numpy(weights):
    problem = problems.loss(
        TESTED, loss=squares, init=init, metrics={"absolute": absolute}, grad_norm=True, weights=weights
    )
    (cell,) = simulate(problem).cells.values()
    run = simulate(problem)
    for name in ("server", "mean"):
        model = run.model(name)
        assert model["b"].shape == ()
        error = numpy_error(model)
        final = {k.removeprefix(f"{name}_"): v[-1] for k, v in cell.rows.items() if k.startswith(name)}
        values = {"loss": 0.5 * error**2, "absolute": np.abs(error)}
        share = np.bincount(CLIENT) / N if weights == "samples" else np.full(M, 1 / M)
        for metric, value in values.items():
            means = [value[i == CLIENT].mean() for i in range(M)]
            assert final[f"train_{metric}"] == pytest.approx(np.dot(share, means), rel=1e-12)
            assert final[f"train_{metric}_pooled"] == pytest.approx(value.mean(), rel=1e-12)
            assert final[f"test_{metric}"] == pytest.approx(value[TEST].mean(), rel=1e-12)
            expected = by_client(value[TEST], TEST_CLIENT)
            assert final[f"test_{metric}_by_client"] == pytest.approx(expected, rel=1e-12)
        slopes = np.column_stack([np.ones(N), FEATURES]) * error[:, None]
        gradient = sum(a * slopes[i == CLIENT].mean(axis=0) for i, a in enumerate(share))
        assert final["grad_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-10)


def test_a_test_set_of_nobody_has_no_mean_over_clients():
    data = fedpbc.data.from_arrays(FEATURES, TARGETS, client=CLIENT, test=(FEATURES[TEST], TARGETS[TEST]))
    run = simulate(problems.loss(data, loss=squares, init=init))
    assert "server_test_loss" in run.columns
    assert not [name for name in run.columns if "by_client" in name]


def test_a_client_without_test_samples_does_not_count_in_their_mean():
    """Client 3 has none: the mean over clients is over the others."""
    client = np.minimum(TEST_CLIENT, 2)
    test = (FEATURES[TEST], TARGETS[TEST])
    data = fedpbc.data.from_arrays(FEATURES, TARGETS, client=CLIENT, test=test, test_client=client)
    run = simulate(problems.loss(data, loss=squares, init=init))
    values = 0.5 * numpy_error(run.model())[TEST] ** 2
    expected = np.mean([values[client == i].mean() for i in range(3)])
    assert run.final("server_test_loss_by_client") == pytest.approx(expected, rel=1e-12)


@pytest.mark.first(1)
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_one_full_batch_step_is_numpy(weights):
    """One client with one sample each: no minibatch to draw; p = 1: x^1 = x^0 - eta sum_i a_i grad F_i."""
    data = fedpbc.data.from_arrays(FEATURES[:M], TARGETS[:M], client=np.arange(M))
    problem = problems.loss(data, loss=squares, init=init, weights=weights)
    run = simulate(problem, links=links.bernoulli(prob=1.0), rounds=1, local_steps=1)
    gradient = np.mean(-TARGETS[:M, None] * np.column_stack([FEATURES[:M], np.ones(M)]), axis=0)
    np.testing.assert_allclose(run.model()["w"], -0.05 * gradient[:3], rtol=1e-12)
    np.testing.assert_allclose(run.model()["b"], -0.05 * gradient[3], rtol=1e-12)


def test_unequal_clients_count_by_their_samples():
    """Client 0 has 3 equal samples, client 1 one: with "samples" the first gradient weighs 3/4."""
    rows = [0, 0, 0, 1]
    data = fedpbc.data.from_arrays(FEATURES[rows], TARGETS[rows], client=[0, 0, 0, 1])
    for weights, share in (("uniform", 0.5), ("samples", 0.75)):
        problem = problems.loss(data, loss=squares, init=init, weights=weights)
        run = simulate(problem, links=links.bernoulli(prob=1.0), rounds=1, local_steps=1)
        slopes = -TARGETS[:2, None] * FEATURES[:2]
        np.testing.assert_allclose(run.model()["w"], -0.05 * (share * slopes[0] + (1 - share) * slopes[1]), rtol=1e-12)


@pytest.mark.release
def test_a_loss_per_sample_and_its_mean_are_the_same_run():
    plain = simulate(problems.loss(TESTED, loss=squares, init=init, grad_norm=True))
    mean = simulate(problems.loss(TESTED, loss=mean_square, init=init, grad_norm=True))
    for name in plain.columns:
        (ours,), (theirs,) = plain.cells.values(), mean.cells.values()
        np.testing.assert_allclose(ours.rows[name], theirs.rows[name], rtol=1e-10, atol=1e-14, err_msg=name)


class Pair(NamedTuple):
    w: Any
    b: Any


TREES = {
    "array": (lambda key: np.zeros(4), lambda p: (p[:3], p[3])),
    "tuple": (lambda key: (np.zeros(3), np.float64(0)), lambda p: p),
    "list": (lambda key: [jnp.zeros(3), 0.0], lambda p: p),
    "nested": (
        lambda key: {"a": {"w": np.zeros((3, 1))}, "b": (np.zeros(1),)},
        lambda p: (p["a"]["w"][:, 0], p["b"][0][0]),
    ),
    "named": (lambda key: Pair(np.zeros(3), np.zeros(())), lambda p: p),
    "none": (lambda key: {"w": np.zeros(3), "b": np.zeros(()), "nothing": None}, lambda p: (p["w"], p["b"])),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", TREES)
def test_any_tree_of_parameters_gives_the_same_run(name, tmp_path):
    start, parts = TREES[name]

    def loss(params, batch):
        w, b = parts(params)
        return squares({"w": w, "b": b}, batch)

    run = simulate(problems.loss(DATA, loss=loss, init=start))
    plain = simulate(problems.loss(DATA, loss=squares, init=init))
    assert run.final("server_train_loss") == pytest.approx(plain.final("server_train_loss"), rel=1e-12)
    model = run.model()
    assert jax.tree.structure(model) == jax.tree.structure(start(None))
    assert jax.tree.map(np.shape, model) == jax.tree.map(np.shape, start(None))
    w, b = parts(model)
    np.testing.assert_allclose(w, plain.model()["w"], rtol=1e-12)
    np.testing.assert_allclose(b, plain.model()["b"], rtol=1e-12)
    run.save(tmp_path / "run")
    back = fedpbc.read_run(tmp_path / "run").model()
    if name in ("named", "none"):  # containers that only their own code can make
        assert back.shape == (4,)
    else:
        assert jax.tree.structure(back) == jax.tree.structure(model)
        jax.tree.map(np.testing.assert_array_equal, back, model)


def test_a_batch_has_the_tree_of_the_data():
    tree = {"x": FEATURES, "rest": (TARGETS, {"flag": np.arange(N) % 2 == 0})}

    def loss(params, batch):
        target, more = batch["rest"]
        assert more["flag"].dtype == bool
        return squares(params, (batch["x"], target)) * jnp.where(more["flag"], 2.0, 0.0)

    data = fedpbc.data.from_arrays(tree, client=CLIENT)
    run = simulate(problems.loss(data, loss=loss, init=init))
    values = 0.5 * numpy_error(run.model()) ** 2 * np.where(np.arange(N) % 2 == 0, 2, 0)
    assert run.final("server_train_loss") == pytest.approx(by_client(values, CLIENT), rel=1e-12)


def test_measures_say_what_a_metric_is():
    measure = fedpbc.Measure("absolute error", unit="m", scale="log", better="lower")
    problem = problems.loss(
        TESTED, loss=squares, init=init, metrics={"absolute": absolute}, measures={"absolute": measure}
    )
    run = simulate(problem)
    found = run.measure("server_test_absolute")
    assert (found.title, found.unit, found.scale) == ("test absolute error", "m", "log")
    assert run.measure("mean_train_absolute_pooled").title == "train absolute error, over all samples"
    for bad, message in (
        ({"absolut": measure}, 'unknown key measures.absolut (did you mean "absolute"?)'),
        ({"absolute": "error"}, "measures.absolute"),
        (3, "measures = 3"),
    ):
        with pytest.raises(fedpbc.ConfigError) as caught:
            problems.loss(TESTED, loss=squares, init=init, metrics={"absolute": absolute}, measures=bad).build(CONTEXT)
        assert message in str(caught.value)


def test_the_seed_draws_the_first_parameters():
    def random(key):
        return {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(())}

    starts = [
        problems.loss(DATA, loss=squares, init=random).build(Context(seed, np.dtype(np.float64), 10, (seed,))).init
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


@pytest.mark.release
def test_gradients_conform():
    check_problem(problems.loss(TESTED, loss=squares, init=init, grad_norm=True))
    check_problem(problems.loss(DATA, loss=mean_square, init=init, weights="samples"))


def test_the_precision_of_the_run_reaches_the_loss():
    for precision in ("float32", "float64"):

        def loss(params, batch, precision=precision):
            assert params["w"].dtype == precision
            assert batch[0].dtype == precision
            return squares(params, batch)

        run = simulate(problems.loss(DATA, loss=loss, init=init), precision=precision)
        assert run.model()["w"].dtype == precision


@jax.custom_jvp
def _no_gradient(x):
    return x


@_no_gradient.defjvp
def _refuse(primals, tangents):
    raise TypeError("this cannot be differentiated")


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"loss": lambda p, b: b[0] @ p["w"][:2]}, "loss: fails on a batch of 5 samples: TypeError"),
    ({"loss": lambda p, b: p["v"]}, "loss: fails on a batch of 5 samples: KeyError: 'v'"),
    (
        {"loss": lambda p, b: b[0] * p["w"]},
        "loss: gave shape (5, 3) for a batch of 5 samples, must give one",
    ),
    ({"loss": lambda p, b: p}, "loss: gave dict, must give"),
    ({"loss": lambda p, b: None}, "loss: gave NoneType"),
    ({"loss": lambda p, b: (b[1] > 0).astype(int)}, "loss: gave int64, must be floating-point numbers"),
    ({"loss": lambda p, b: _no_gradient(squares(p, b))}, "loss: cannot be differentiated: TypeError: this cannot be"),
    ({"loss": lambda p, b: float(p["b"]) + b[1]}, "loss: fails on a batch of 5 samples: ConcretizationTypeError"),
    ({"loss": lambda p: 0.0}, "loss: fails on a batch of 5 samples: TypeError"),
    (
        {"init": lambda key: {"w": np.zeros(3, int), "b": 0.0}},
        "init: ['w'] is int64; parameters must be floating-point",
    ),
    ({"init": lambda key: {}}, "init: gave no parameter"),
    ({"init": lambda key: "zeros"}, "init: "),
    ({"init": lambda key: {"w": np.full(3, np.nan), "b": 0.0}}, "init: ['w'] holds a value that is not finite"),
    ({"init": lambda key: 1 / 0}, "init fails: ZeroDivisionError: division by zero"),
    ({"init": lambda: 0.0}, "init fails: TypeError"),
    ({"metrics": {"a b": absolute}}, "metrics: 'a b' must be a plain name"),
    ({"metrics": {"loss": absolute}}, "metrics: 'loss' must be a plain name"),
    ({"metrics": {"absolute": mean_square}}, "metrics.absolute: gave shape () for a batch of 5 samples"),
    ({"metrics": {"absolute": lambda p, b: p["x"]}}, "metrics.absolute: fails on a batch of 5 samples: KeyError"),
    ({"metrics": absolute}, "metrics"),
    ({"metrics": {"absolute": 3}}, "metrics.absolute = 3: must be a function"),
    ({"loss": 3}, "loss.loss = 3: must be a function"),
    ({"weights": "sizes"}, 'weights = "sizes"'),
]


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=range(len(FAULTS)))
def test_a_function_that_does_not_fit_is_one_clear_line(change, message):
    with pytest.raises(fedpbc.ConfigError) as caught, jax.enable_x64(True):
        problems.loss(DATA, **{"loss": squares, "init": init, **change}).build(CONTEXT)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_targets_stay_with_their_outputs():
    """At W = 0, b = 0 the gradient of the mean of 1/2 ||W x + b - y||^2 is -(1/n) sum y [x, 1]^T."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 2)), rng.standard_normal((6, 3))
    built = problems.regression(fedpbc.data.from_arrays(x, y, client=np.zeros(6, int))).build(
        Context(0, np.dtype(np.float32), 1)
    )
    gradient = built.gradient(((jnp.asarray(x, "float32"), jnp.asarray(y, "float32")), None), jnp.zeros(9))
    expected = -y.T @ np.column_stack([x, np.ones(6)]) / 6
    np.testing.assert_allclose(np.reshape(gradient, (3, 3)), expected, rtol=1e-5)


@pytest.mark.release
def test_regression_and_classification_are_layers_over_any_loss():
    """The same run as the loss written by hand."""
    line = simulate(problems.regression(DATA))
    model = line.model()

    def by_hand(params, batch):
        return 0.5 * (batch[0] @ params[0, :3] + params[0, 3] - batch[1]) ** 2

    mine = simulate(problems.loss(DATA, loss=by_hand, init=lambda key: np.zeros((1, 4))))
    np.testing.assert_allclose(model, mine.model(), rtol=1e-9)
    error = FEATURES @ model[0, :3] + model[0, 3] - TARGETS
    assert line.final("server_train_absolute_error") == pytest.approx(by_client(np.abs(error), CLIENT), rel=1e-12)
    labels = (TARGETS > 0).astype(int) + (TARGETS > 1)
    data = fedpbc.data.from_arrays(FEATURES, labels, client=CLIENT)
    run = simulate(problems.classification(data))
    logits = FEATURES @ run.model()[:, :3].T + run.model()[:, 3]
    entropy = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(N), labels]
    right = (logits.argmax(axis=1) == labels) * 1.0
    assert run.final("server_train_loss") == pytest.approx(by_client(entropy, CLIENT), rel=1e-12)
    assert run.final("server_train_accuracy") == pytest.approx(by_client(right, CLIENT), rel=1e-12)
    assert run.final("server_train_accuracy_pooled") == pytest.approx(right.mean(), rel=1e-12)
