"""Many clients: samples against a plain NumPy generator, limits, what is refused before it is allocated, and memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpbc
from fedpbc.core import memory
from fedpbc.core.local import sum_blocks
from fedpbc.core.schema import Context
from fedpbc.data.partition import dirichlet, shards
from fedpbc.errors import BadOption, ConfigError
from fedpbc.problems import samples
from fedpbc.problems.normals import Normals
from fedpbc.problems.quadratic import quadratic
from fedpbc.problems.samples import offsets_of
from fedpbc.problems.synthetic import mean_size, synthetic

ONE_ROUND = {"rounds": 1, "local_steps": 1, "learning_rate": 0.1}
CONTEXT = Context(5, np.dtype(np.float64), 10, (5,))
FLOAT32 = Context(5, np.dtype(np.float32), 10, (5,))


def generated(m: int, alpha: float, beta: float, max_rows: int | None = None):
    """The clients of Li et al. 2020, one at a time, from the streams that the package names for sizes and samples."""
    sizes = CONTEXT.rng("synthetic sizes").lognormal(4, 2, m).astype(int) + 50
    rng = CONTEXT.rng("synthetic samples")
    for n in sizes if max_rows is None else np.minimum(sizes, max_rows):
        u, b = rng.normal(0, alpha), rng.normal(0, beta)
        w, bias, v = rng.normal(u, 1, (60, 10)), rng.normal(u, 1, 10), rng.normal(b, 1, 60)
        x = v + rng.normal(0, 1, (n, 60)) * np.arange(1, 61) ** -0.6
        yield x, np.argmax(x @ w + bias, axis=1), int(0.9 * n)


@pytest.mark.parametrize(("m", "max_rows"), [(40, None), (40, 120), (7, 2)])
def test_samples_are_those_of_a_generator_that_takes_client_after_client(m, max_rows):
    problem = synthetic.function(CONTEXT, num_clients=m, alpha=0.7, beta=2.0, max_rows=max_rows)
    clients = list(generated(m, 0.7, 2.0, max_rows))
    train, test = problem.params["train"], problem.params["test"]
    n_train, n_test = (np.array(n) for n in zip(*((k, len(y) - k) for _, y, k in clients), strict=True))
    np.testing.assert_array_equal(problem.params["sizes"], n_train)
    for part, sizes, rows in (
        (train, n_train, [(x[:k], y[:k]) for x, y, k in clients]),
        (test, n_test, [(x[k:], y[k:]) for x, y, k in clients]),
    ):
        total = sizes.sum()
        np.testing.assert_array_equal(part["data"][0][:total, :60], np.concatenate([x for x, _ in rows]))
        np.testing.assert_array_equal(part["data"][1][:total], np.concatenate([y for _, y in rows]))
        np.testing.assert_allclose(part["by_client"][:total], np.repeat(1 / (m * sizes), sizes), rtol=1e-14)
        assert np.all(part["data"][0][:, 60] == 1)
        assert not part["by_client"][total:].any()
        assert not part["pooled"][total:].any()
    labels = np.array([np.bincount(y[:k], minlength=10) / k for _, y, k in clients])
    np.testing.assert_allclose(problem.client_traits["label_distribution"], labels)
    np.testing.assert_allclose(problem.client_traits["mean_label"], labels @ np.arange(10))


@pytest.mark.parametrize("piece", [1, 45, 100])
def test_a_client_may_be_drawn_in_pieces(monkeypatch, piece):
    whole = synthetic.function(CONTEXT, num_clients=5)
    monkeypatch.setattr(sys.modules["fedpbc.problems.synthetic"], "PIECE", piece)
    jax.tree.map(np.testing.assert_array_equal, synthetic.function(CONTEXT, num_clients=5).params, whole.params)


@pytest.mark.parametrize("block", [1, 3, 7, 100, 1000])
def test_what_is_drawn_ahead_is_what_the_generator_draws(block):
    """However it is taken, and though what was taken is written to; and no more than it was to have."""
    sizes = np.random.default_rng(0).integers(0, 40, 16)
    expected = np.random.default_rng(5).standard_normal(sizes.sum())
    taken = []
    with Normals(np.random.default_rng(5), sizes.sum(), block) as normals:
        for size in sizes:
            numbers = normals.take(size)
            taken.append(numbers.copy())
            numbers[:] = np.nan
        with pytest.raises(ValueError, match="1 numbers more"):
            normals.take(1)
    np.testing.assert_array_equal(np.concatenate(taken), expected)


def test_max_rows_limits_each_client_and_its_weight():
    full, cut = (synthetic.function(CONTEXT, num_clients=60, max_rows=rows, weights="samples") for rows in (None, 100))
    limited = np.minimum([len(y) for _, y, _ in generated(60, 1.0, 1.0)], 100)
    np.testing.assert_array_equal(cut.params["sizes"], (0.9 * limited).astype(int))
    assert full.params["sizes"].max() > 1000
    sizes = cut.params["sizes"]
    np.testing.assert_allclose(cut.params["scale"], 60 * sizes / sizes.sum())


@pytest.mark.parametrize("max_rows", [None, 30, 51, 80, 200, 5000])
def test_the_mean_size_that_estimates_go_by_is_that_of_the_sizes(max_rows):
    """By a midpoint sum over the quantiles of the normal distribution."""
    from scipy.stats import norm

    draws = 50 + np.exp(4 + 2 * norm.ppf((np.arange(2_000_000) + 0.5) / 2_000_000))
    expected = np.minimum(draws, np.inf if max_rows is None else max_rows).mean()
    assert mean_size(max_rows) == pytest.approx(expected, rel=3e-3)


def rows_of(problem, part):
    """All samples of a part and their weights, by its block function."""
    size = {"train": 2048, "test": 256}[part]
    from fedpbc.problems.generated import SOURCE

    blocks = [SOURCE.block(problem.params, part, jnp.int32(b), size) for b in range(problem.num_blocks)]
    x, y = (np.concatenate([np.asarray(block["data"][i]) for block in blocks]) for i in (0, 1))
    weights = {name: np.concatenate([np.asarray(block[name]) for block in blocks]) for name in ("by_client", "pooled")}
    keep = weights["pooled"] > 0
    return x[keep], y[keep], {name: w[keep] for name, w in weights.items()}


def test_on_the_fly_has_the_sizes_the_distribution_and_the_weights_of_stored_samples():
    fly, stored = (
        synthetic.function(FLOAT32, num_clients=30, max_rows=2000, on_the_fly=flag) for flag in (True, False)
    )
    for name in ("sizes",):
        np.testing.assert_array_equal(fly.params[name], stored.params[name])
    assert sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(fly.params)) < 30 * 3000
    for part in ("train", "test"):
        x, y, weights = rows_of(fly, part)
        reference = stored.params[part]
        keep = reference["pooled"] > 0
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, reference[name][keep], rtol=1e-6)
        assert x.dtype == np.float32
        assert np.all(x[:, 60] == 1)
        assert set(np.unique(y)) <= set(range(10))
    x, y, _ = rows_of(fly, "train")
    train_rows = {row.tobytes() for row in x}
    assert len(train_rows) == len(x), "no sample comes twice"
    assert not train_rows & {row.tobytes() for row in rows_of(fly, "test")[0]}, "test samples are others"
    first = 0
    for i, n in enumerate(fly.params["sizes"]):
        rows, drawn = x[first : first + n, :60].astype(np.float64), fly.params["clients"][i].astype(np.float64)
        first += n
        labels = np.argmax(rows @ (drawn[0] + drawn[2:602]).reshape(60, 10) + drawn[0] + drawn[602:612], axis=1)
        assert np.mean(labels == y[first - n : first]) > 0.999
        z = (rows - drawn[1] - drawn[612:]) * np.arange(1, 61) ** 0.6
        assert abs(z.mean()) < 4.5 / np.sqrt(z.size)
        assert abs((z**2).mean() - 1) < 4.5 * np.sqrt(2 / z.size)


@pytest.mark.release
def test_on_the_fly_a_sample_is_the_same_wherever_it_is_used():
    """In a minibatch, in a block, among more clients, in float64, and vectorised over other clients."""
    small = synthetic.function(FLOAT32, num_clients=4, max_rows=90, on_the_fly=True)
    large = synthetic.function(FLOAT32, num_clients=9, max_rows=90, on_the_fly=True)
    x, y, _ = rows_of(small, "train")
    np.testing.assert_array_equal(x, rows_of(large, "train")[0][: len(x)])
    for client, (first, n) in enumerate(zip(small.params["train"]["offsets"], small.params["sizes"], strict=True)):
        (batch, labels), scale = small.sample(small.params, jnp.int32(client), jax.random.key(client), 64)
        assert scale is None
        own = {row.tobytes(): label for row, label in zip(x[first : first + n], y[first : first + n], strict=True)}
        assert [own[row.tobytes()] for row in np.asarray(batch)] == np.asarray(labels).tolist()
    with jax.enable_x64(True):
        wide = synthetic.function(CONTEXT, num_clients=4, max_rows=90, on_the_fly=True)
        np.testing.assert_array_equal(rows_of(wide, "train")[0], x.astype(np.float64))
    others = synthetic.function(Context(6, np.dtype(np.float32), 10, (6,)), num_clients=4, max_rows=90, on_the_fly=True)
    assert not np.array_equal(rows_of(others, "train")[0][:10], x[:10])


@pytest.mark.release
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_on_the_fly_is_evaluated_as_defined(weights):
    problem = synthetic.function(FLOAT32, num_clients=11, max_rows=400, on_the_fly=True, weights=weights)
    models = np.random.default_rng(1).standard_normal((2, 610)).astype(np.float32) / 10
    values = problem.metrics(problem.params, jnp.asarray(models), sum_blocks(problem, jnp.asarray(models), 1))
    x, y, _ = (a if isinstance(a, dict) else a.astype(np.float64) for a in rows_of(problem, "train"))
    sizes = np.asarray(problem.params["sizes"])
    each = np.repeat(1 / (11 * sizes), sizes) if weights == "uniform" else np.full(len(x), 1 / len(x))
    x_test, y_test, _ = rows_of(problem, "test")
    for k, model in enumerate(models.astype(np.float64)):
        logits = x @ model.reshape(10, 61).T
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(x)), y.astype(int)]
        assert values["train_loss"][k] == pytest.approx(losses @ each, rel=1e-4)
        right = (x_test @ model.reshape(10, 61).T).argmax(axis=1) == y_test
        assert values["test_accuracy"][k] == pytest.approx(right.mean(), rel=1e-5)


@pytest.mark.release
def test_runs_on_the_fly_do_not_depend_on_the_devices():
    problem = fedpbc.problems.synthetic(num_clients=9, max_rows=80, on_the_fly=True)
    settings = {"rounds": 4, "local_steps": 2, "learning_rate": 0.01, "chunk_size": 3}
    links = fedpbc.links.bernoulli(prob=0.5)
    runs = [fedpbc.simulate(problem, links=links, algorithm="fedpbc", devices=n, **settings) for n in (1, 2)]
    for name in ("server", "mean"):
        np.testing.assert_array_equal(*(next(iter(run.cells.values())).models[name] for run in runs))


def test_links_by_label_say_that_labels_are_not_known_on_the_fly():
    problem = fedpbc.problems.synthetic(num_clients=9, max_rows=80, on_the_fly=True)
    with pytest.raises(ConfigError, match=r"by_label.* needs samples with labels"):
        fedpbc.simulate(
            problem, links={"name": "bernoulli", "prob": {"name": "by_label"}}, algorithm="fedpbc", **ONE_ROUND
        )


GIGABYTE = 10**9


@pytest.fixture
def little_memory(monkeypatch):
    """A machine of 2 GB, on which nothing large may be allocated before it is refused."""
    monkeypatch.setattr(memory, "total_memory", lambda: 2 * GIGABYTE)

    def refuse(shape, dtype):
        raise AssertionError(f"allocated {shape}")

    monkeypatch.setattr(samples, "aligned_zeros", refuse)
    for module in ("fedpbc.problems.synthetic", "fedpbc.problems.generated", "fedpbc.problems.quadratic"):
        monkeypatch.setattr(sys.modules[module], "aligned_zeros", refuse)


FITS = re.compile(r"would need about ([\d,.]+) GB; this machine has 2.0 GB: (\w+) = (\d+) would fit")


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (synthetic, {"num_clients": 100_000}),
        (synthetic, {"num_clients": 100_000, "max_rows": 200}),
        (synthetic, {"num_clients": 1_000_000, "on_the_fly": True}),
        (synthetic, {"num_clients": 10**9, "max_rows": 2}),
        (synthetic, {"num_clients": 20, "hidden": 10**6}),
        (quadratic, {"num_clients": 10**6, "dim": 1000}),
        (quadratic, {"num_clients": 3, "dim": 10**9}),
        (quadratic, {"num_clients": 10**5, "dim": 2000, "condition": 9.0}),
    ],
)
def test_sizes_that_cannot_fit_are_refused_before_anything_is_allocated(little_memory, factory, options):
    """And what the message says would fit passes, up to the allocation."""
    with pytest.raises(BadOption) as caught:
        factory.function(FLOAT32, **options)
    gigabytes, option, value = FITS.search(str(caught.value)).groups()
    assert float(gigabytes.replace(",", "")) > 2
    assert option == caught.value.option
    assert 0 < int(value) < options[option]
    with pytest.raises(AssertionError, match="allocated"):
        factory.function(FLOAT32, **{**options, option: int(int(value) * 0.97)})
    with pytest.raises(BadOption):
        factory.function(FLOAT32, **{**options, option: int(int(value) * 1.03) + 1})


def test_data_whose_models_cannot_fit_are_refused_with_what_would(monkeypatch):
    x, y = np.zeros((60, 1000), np.float32), np.arange(60) % 2
    data = fedpbc.data.from_arrays(x, y).iid(50)
    monkeypatch.setattr("fedpbc.core.memory.total_memory", lambda: memory.PROGRAM_BYTES + 10_000_000)
    monkeypatch.setattr(sys.modules["fedpbc.problems.loss"], "total_memory", lambda: memory.PROGRAM_BYTES + 10_000_000)
    problem = fedpbc.problems.classification(data, model=fedpbc.models.mlp(hidden=[100]))
    with pytest.raises(ConfigError, match=r"data = .*GB; this machine has .* GB: models of 12 clients would fit"):
        fedpbc.simulate(problem, links=fedpbc.links.bernoulli(prob=0.5), algorithm="fedpbc", **ONE_ROUND)


def test_a_program_that_cannot_fit_is_refused_before_it_runs(monkeypatch, tmp_path):
    """The state of MIFA and what a round makes of it: 4 m d numbers beside the centres, where 2 would fit."""
    state = 2000 * 500 * 4
    monkeypatch.setattr(memory, "total_memory", lambda: memory.PROGRAM_BYTES + int(4.2 * state))
    problem = fedpbc.problems.quadratic(num_clients=2000, dim=500)
    settings = {
        "links": fedpbc.links.bernoulli(prob=0.5),
        "rounds": 1,
        "local_steps": 1,
        "learning_rate": 0.1,
        "precision": "float32",
        "devices": 1,
    }
    fedpbc.simulate(problem, algorithm="fedpbc", **settings)
    with pytest.raises(ConfigError, match=r"2,000 clients: .*GB; this machine .*about [12],\d\d\d clients would"):
        fedpbc.simulate(problem, algorithm="mifa", **settings)


def test_more_samples_than_can_be_counted_are_an_error():
    with pytest.raises(ConfigError, match="3,000,000,000 training samples: at most 2,147,483,647"):
        offsets_of(np.array([2_000_000_000, 1_000_000_000]))


MEASURED = """
import resource, sys
import fedpbc
from fedpbc.core import memory
from fedpbc.problems import synthetic, quadratic
seen = []
original = memory.require_memory
def noted(option, value, num_bytes, *rest, **more):
    seen.append(num_bytes)
    original(option, value, num_bytes, *rest, **more)
for name in ("synthetic", "quadratic"):
    sys.modules["fedpbc.problems." + name].require_memory = noted
problem = {problem}
links = fedpbc.links.bernoulli(prob=0.5)
fedpbc.simulate(problem, links=links, algorithm="fedpbc", rounds=2, local_steps=1, learning_rate=0.01,
                precision="float32", devices=1, chunk_size=100)
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
if sys.platform == "linux":  # that one starts at the peak of the parent
    lines = open("/proc/self/status").read().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
print(seen[-1], peak)
"""


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param("fedpbc.problems.synthetic(num_clients=10_000, max_rows=200)", marks=pytest.mark.release),
        pytest.param(
            "fedpbc.problems.synthetic(num_clients=40_000, max_rows=2, on_the_fly=True)", marks=pytest.mark.release
        ),
        "fedpbc.problems.quadratic(num_clients=50_000, dim=1000)",
    ],
)
def test_estimates_are_within_a_fifth_of_the_peak(problem):
    code = MEASURED.replace("{problem}", problem)
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}  # compiling is part of the peak
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    estimate, peak = (int(word) for word in done.stdout.split()[-2:])
    assert 1 / 1.2 < estimate / peak < 1.2, f"estimate {estimate / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB"


class Slowly:
    """The partitions of docs/experiments.md, client by client."""

    @staticmethod
    def dirichlet(labels, m, alpha, least):
        rng, client = CONTEXT.rng("partition"), np.empty(len(labels), int)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            ends = np.floor(np.cumsum(rng.dirichlet(np.full(m, alpha)))[:-1] * len(rows)).astype(int)
            for i, part in enumerate(np.split(rows, ends)):
                client[part] = i
        while (sizes := np.bincount(client, minlength=m)).min() < least:
            rich = np.flatnonzero(client == np.argmax(sizes))
            client[rich[rng.integers(len(rich))]] = np.flatnonzero(sizes < least)[0]
        return client

    @staticmethod
    def shards(labels, m, each):
        rng = CONTEXT.rng("partition")
        order = rng.permutation(len(labels))
        order, owner = order[np.argsort(labels[order], kind="stable")], rng.permutation(m * each) % m
        client = np.empty(len(labels), int)
        for shard, rows in enumerate(np.array_split(order, m * each)):
            client[rows] = owner[shard]
        return client


@pytest.mark.parametrize(("n", "m", "alpha", "least"), [(900, 40, 0.1, 1), (1000, 100, 0.05, 10), (777, 60, 1.0, 7)])
def test_partitions_are_those_of_a_loop_over_clients(n, m, alpha, least):
    labels = np.random.default_rng(n).integers(0, 7, n)
    given = dirichlet.function(CONTEXT, num_clients=m, alpha=alpha, min_samples=least).assign(labels, n)
    np.testing.assert_array_equal(given, Slowly.dirichlet(labels, m, alpha, least))
    assert np.bincount(given, minlength=m).min() >= least
    given = shards.function(CONTEXT, num_clients=m, labels_per_client=3).assign(labels, n)
    np.testing.assert_array_equal(given, Slowly.shards(labels, m, 3))
