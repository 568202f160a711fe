"""Networks in local training: steps taken in the pytree, convolutions in both forms."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpbc
from fedpbc.core.flat import Flat
from fedpbc.models.dense import Mlp, affine
from fedpbc.models.resnet import Resnet
from fedpbc.problems.classification import cross_entropy_of
from fedpbc.problems.treewise import tree_steps

convolution = importlib.import_module("fedpbc.models.convolution")
Cnn = importlib.import_module("fedpbc.models.cnn").Cnn


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def by_hand(layers, x, y, eta, steps, scale, shift, proximal):
    """SGD on the mean cross-entropy of a relu network with one hidden layer, backpropagation written out."""
    layers = start = [np.array(a) for a in layers]
    for _ in range(steps):
        (w, v), n = layers, len(y)
        inputs = np.vstack([x.T, np.ones(n)])
        before = w @ inputs
        hidden = np.vstack([np.maximum(before, 0), np.ones(n)])
        outputs = v @ hidden
        p = np.exp(outputs - outputs.max(axis=0))
        p /= p.sum(axis=0)
        p[y, np.arange(n)] -= 1
        back = (v[:, :-1].T @ p) * (before > 0)
        gradient = [scale * back @ inputs.T / n, scale * p @ hidden.T / n]
        layers = [
            a - eta * (g + s + proximal * (a - b)) for a, g, s, b in zip(layers, gradient, shift, start, strict=True)
        ]
    return np.concatenate([a.ravel() for a in layers])


@pytest.mark.parametrize("scale", [None, 1.7])
@pytest.mark.parametrize(("shifted", "proximal"), [(False, None), (True, None), (False, 0.3), (True, 0.3)])
def test_steps_in_the_tree_are_those_by_hand(scale, shifted, proximal):
    rng = np.random.default_rng(0)
    model = Mlp((5,))
    layers = [a + rng.standard_normal(a.shape) for a in model.init(rng, (4,), 3)]
    x, y = rng.standard_normal((6, 4)), rng.integers(3, size=6)
    flat = Flat.of(tuple(layers))
    start = flat.flatten(tuple(layers), np.float64)
    shift = rng.standard_normal(start.shape) if shifted else np.zeros_like(start)
    several = tree_steps(flat, cross_entropy_of(model))(3, 6)
    found = jax.jit(lambda x0: several(((x, y), scale), x0, 0.2, jnp.asarray(shift) if shifted else None, proximal))(
        start
    )
    expected = by_hand(layers, x, y, 0.2, 3, scale or 1.0, flat.tree(shift), proximal or 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.abs(found - start).max() > 0.1


def test_a_single_leaf_takes_its_steps_as_it_is():
    assert tree_steps(Flat.of(np.zeros((2, 3))), lambda x, batch: x)(3, 6) is None


def test_affine_is_weights_and_bias():
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((3, 5)), rng.standard_normal((4, 7))
    np.testing.assert_allclose(affine(w, x), w[:, :4] @ x + w[:, 4:], rtol=1e-13)


def convolved(weights, images):
    """Zero-padded 3x3 correlation, sample by sample and pixel by pixel: [n, h, w, in] -> [n, h, w, out]."""
    n, height, width, depth = images.shape
    padded = np.zeros((n, height + 2, width + 2, depth))
    padded[:, 1:-1, 1:-1] = images
    out = np.empty((n, height, width, len(weights)))
    for i in range(height):
        for j in range(width):
            patch = padded[:, i : i + 3, j : j + 3].reshape(n, -1)
            out[:, i, j] = patch @ weights[:, :-1].T + weights[:, -1]
    return out


def network(params, images):
    """conv, relu, 2x2 maximum per block, then dense layers, as the docstring says."""
    for weights in params["conv"]:
        z = np.maximum(convolved(weights, images), 0)
        n, height, width, depth = z.shape
        z = z[:, : height // 2 * 2, : width // 2 * 2]
        images = z.reshape(n, height // 2, 2, width // 2, 2, depth).max(axis=(2, 4))
    values = images.reshape(len(images), -1).T
    first, second = params["dense"]
    hidden = np.maximum(first[:, :-1] @ values + first[:, -1:], 0)
    return second[:, :-1] @ hidden + second[:, -1:]


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("shape", [(9, 6), (8, 7, 3)])
def test_both_forms_of_the_cnn_are_the_network(monkeypatch, cpu, shape):
    monkeypatch.setattr(convolution, "on_cpu", lambda: cpu)
    rng = np.random.default_rng(2)
    model = Cnn((4, 5), (6,))
    params = jax.tree.map(lambda a: a + 0.1 * rng.standard_normal(a.shape), model.init(rng, shape, 3))
    images = rng.standard_normal((5, *shape))
    expected = network(params, images if images.ndim == 4 else images[..., None])
    np.testing.assert_allclose(model.outputs(params, images), expected, rtol=1e-10, atol=1e-12)
    traced = str(jax.make_jaxpr(lambda p: model.outputs(p, images))(params))
    assert ("conv_general_dilated" in traced) is not cpu


@pytest.mark.first(1)
@pytest.mark.parametrize("model", [Cnn((4, 5), (6,)), Resnet((2, 4), 1, 2)])
def test_both_forms_have_the_same_gradient(monkeypatch, model):
    rng = np.random.default_rng(3)
    params, images = model.init(rng, (8, 8), 3), rng.standard_normal((5, 8, 8))
    both = []
    for cpu in (True, False):
        monkeypatch.setattr(convolution, "on_cpu", lambda cpu=cpu: cpu)
        both.append(jax.grad(lambda p: jnp.sum(jnp.sin(model.outputs(p, images))))(params))
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.release
@pytest.mark.parametrize("model", [fedpbc.models.mlp(hidden=[6]), fedpbc.models.cnn([2, 3], hidden=[4])])
def test_networks_are_the_same_to_the_bit_over_devices(model):
    rng = np.random.default_rng(4)
    data = fedpbc.data.from_arrays(rng.standard_normal((60, 8, 8)), np.arange(60) % 3, client=np.arange(60) % 6)
    found = []
    for devices in (1, 2, 3):
        result = fedpbc.simulate(
            fedpbc.problems.classification(data, model=model), links=fedpbc.links.bernoulli(prob=0.5),
            algorithm="fedpbc", rounds=4, local_steps=3, learning_rate=0.1, batch_size=8, chunk_size=2,
            devices=devices, progress=False,
        )  # fmt: skip
        (cell,) = result.cells.values()
        assert cell.info["num_devices"] == devices
        found.append(cell)
    for other in found[1:]:
        for name, values in found[0].rows.items():
            np.testing.assert_array_equal(values, other.rows[name])
        np.testing.assert_array_equal(found[0].models["mean"], other.models["mean"])
    assert np.abs(found[0].models["mean"] - found[0].models["server"]).max() > 0
