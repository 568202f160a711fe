"""The networks that have a name: outputs against plain NumPy, sizes as documented, what they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import network_oracles as oracle
import numpy as np
import pytest

import fedpbc
from fedpbc import models
from fedpbc.core.schema import Context
from fedpbc.models.resnet import batch_norm

CONTEXT = Context(0, np.dtype(np.float64), 10, (0,))
KEYS = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text(encoding="utf-8")


def drawn(model, shape, num_outputs):
    """The built model, and parameters that are all different from their initial values."""
    rng = np.random.default_rng(0)
    built = model.build(CONTEXT)
    params = built.init(rng, shape, num_outputs)
    return built, jax.tree.map(lambda a: a + 0.3 * rng.standard_normal(np.shape(a)), params)


CASES = {
    "svhn": (models.cnn_svhn(), oracle.cnn, (8, 9, 3)),
    "resnet": (models.resnet([2, 4], blocks=2, groups=2), lambda p, x: oracle.resnet(p, x, 2), (5, 4, 3)),
    "gru": (models.gru([5, 4], embedding=3, vocabulary=7), oracle.gru, (6,)),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_slopes_are_those_of_numpy(name):
    """The slope along a direction by differences: 1e-5 apart, so right to about 1e-9."""
    model, of_numpy, shape = CASES[name]
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        built, params = drawn(model, shape, 4)
        features = rng.integers(0, 7, (3, *shape)) if len(shape) == 1 else rng.standard_normal((3, *shape))
        direction = jax.tree.map(lambda a: rng.standard_normal(a.shape), params)

        def both(params):
            def total(params):
                outputs = built.outputs(params, features.astype(np.float64))
                return (outputs**2).sum(), outputs

            return jax.grad(total, has_aux=True)(params)

        gradient, found = jax.tree.map(np.asarray, jax.jit(both)(params))
    images = features[..., None] if features.ndim == 3 else features
    assert found.shape == (4, 3)
    np.testing.assert_allclose(found, of_numpy(params, images).T, rtol=1e-9, atol=1e-9)
    ends = [jax.tree.map(lambda a, b, e=e: a + e * b, params, direction) for e in (1e-5, -1e-5)]
    up, down = ((of_numpy(end, images) ** 2).sum() for end in ends)
    slope = sum((a * b).sum() for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    assert slope == pytest.approx((up - down) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_batch_normalisation_is_numpys_in_training_and_after_it(training):
    """Outputs, running statistics after the minibatch, and in training the slope through the minibatch's statistics."""
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        built, (params, buffers) = drawn(models.resnet([2, 3], norm="batch"), (4, 3, 2), 3)
        buffers = jax.tree.map(lambda a: np.abs(a) + 0.1, buffers)
        images = rng.standard_normal((3, 4, 3, 2)) + 0.5
        direction = jax.tree.map(lambda a: rng.standard_normal(a.shape), params)

        def both(params):
            def total(params):
                pair = params, buffers
                found = built.train(pair, images) if training else (built.outputs(pair, images), buffers)
                return (found[0] ** 2).sum(), found

            return jax.grad(total, has_aux=True)(params)

        gradient, (outputs, after) = jax.tree.map(np.asarray, jax.jit(both)(params))
    wanted, kept = oracle.resnet_with_batch_norm((params, buffers), images, training)
    np.testing.assert_allclose(outputs, wanted.T, rtol=1e-9, atol=1e-9)
    assert jax.tree.structure(after) == jax.tree.structure(kept)
    for mine, theirs in zip(*map(jax.tree.leaves, (after, kept)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    ends = [jax.tree.map(lambda a, b, e=e: a + e * b, params, direction) for e in (1e-5, -1e-5)]
    up, down = ((oracle.resnet_with_batch_norm((p, buffers), images, training)[0] ** 2).sum() for p in ends)
    slope = sum((a * b).sum() for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    assert slope == pytest.approx((up - down) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("values", [1, 6])
def test_a_layer_of_batch_normalisation_is_pytorchs(values):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    images, norm = rng.standard_normal((2, 3, values, 3)), rng.standard_normal((2, 3))
    running = {"running_mean": rng.standard_normal(3), "running_var": rng.random(3) + 0.1}
    layer = torch.nn.BatchNorm2d(3).double()
    parts = {"weight": norm[0], "bias": norm[1], **running, "num_batches_tracked": np.array(0)}
    layer.load_state_dict({name: torch.tensor(part) for name, part in parts.items()})
    out = layer(torch.tensor(images.transpose(0, 3, 1, 2))).detach().numpy().transpose(0, 2, 3, 1)
    found, after = oracle.batch_norm(images, norm, running, True)
    np.testing.assert_allclose(found, out, rtol=1e-6, atol=1e-9)
    for name, part in after.items():
        np.testing.assert_allclose(part, layer.state_dict()[name].numpy(), rtol=1e-9)


def test_one_value_of_a_channel_leaves_its_variance_a_number():
    """1 sample of 1 pixel: n - 1 would be 0, which PyTorch refuses."""
    running = {"running_mean": np.zeros(2), "running_var": np.ones(2)}
    _, after = batch_norm(np.ones((2, 2)), np.ones((2, 1, 1, 1)), running, training=True)
    np.testing.assert_allclose(after["running_var"], 0.9)


SIZES = {  # name: (shape of a sample, outputs)
    "cnn_svhn": ((32, 32, 3), 10),
    "cnn_cifar10": ((32, 32, 3), 10),
    "cnn_cinic10": ((32, 32, 3), 10),
    "resnet": ((32, 32, 3), 10),
    "gru": ((80,), 80),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_page_says_how_many_parameters(name):
    shape, num_outputs = SIZES[name]
    params = getattr(models, name)().build(CONTEXT).init(np.random.default_rng(0), shape, num_outputs)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    row = next(line for line in KEYS.splitlines() if line.startswith(f"| `{name}` |"))
    assert [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) parameters", row)] == [count]


def test_the_last_layer_of_the_papers_has_the_variance_of_a_uniform_one():
    dense = models.cnn_cinic10().build(CONTEXT).init(np.random.default_rng(0), (32, 32, 3), 100)["dense"]
    for layer, gain in zip(dense, (2, 2, 1 / 3), strict=True):
        fan_in = layer.shape[1] - 1
        assert np.var(layer[:, :-1]) == pytest.approx(gain / fan_in, rel=0.05)  # 25,600 numbers: 0.9 % standard error
        assert not layer[:, -1].any()


def sequences(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Characters 0 to 4, and the one that follows: one more than the last."""
    characters = np.random.default_rng(2).integers(0, 5, (n, 4))
    return characters, (characters[:, -1] + 1) % 5


@pytest.mark.release
def test_the_gru_learns_what_comes_next():
    data = fedpbc.data.from_arrays(*sequences(400), test=0.2).iid(num_clients=4)
    run = fedpbc.simulate(
        fedpbc.problems.classification(data, model=models.gru([16], vocabulary=5)),
        links=fedpbc.links.bernoulli(prob=0.7), algorithm="fedpbc", rounds=60, local_steps=5, learning_rate=0.3,
        metrics=["server"], progress=False,
    )  # fmt: skip
    assert run.final("server_test_accuracy") > 0.9


@pytest.mark.parametrize(
    ("model", "shape", "kind", "message"),
    [
        (models.resnet(), (5,), float, r"model: resnet needs images \[height, width, channels\]"),
        (models.resnet([4, 6], groups=4), (5, 5), float, "groups = 4: does not divide the width 6"),
        (models.gru(), (5, 5), int, r"model: gru needs sequences \[length\] of characters"),
        (models.gru(), (5,), float, "model: gru needs characters as integers, the samples are float64"),
        (models.gru(vocabulary=7), (5,), int, r"characters go from 0 to 7, must be from 0 to 6 \(vocabulary\)"),
        (models.cnn_svhn(), (3, 3), float, "too small for 2 poolings"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(model, shape, kind, message):
    features = (np.arange(12 * np.prod(shape)) % 8).reshape(12, *shape).astype(kind)
    data = fedpbc.data.from_arrays(features, np.arange(12) % 3).iid(num_clients=3)
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        fedpbc.problems.classification(data, model=model).build(CONTEXT)
    assert "\n" not in str(caught.value)
