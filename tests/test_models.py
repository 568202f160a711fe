"""Models: shapes, gradients, and outputs against NumPy and SciPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate2d

import fedpbc
from fedpbc import models
from fedpbc.core.flat import Flat
from fedpbc.core.schema import Context
from fedpbc.testing import check_problem

CONTEXT = Context(0, np.dtype(np.float64), 10, (0,))


def built(component):
    return component.build(CONTEXT)


def convolution(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """3x3 cross-correlation with zero padding, [n, h, w, in] -> [n, h, w, out], by SciPy; weights [out, 9 in + 1]."""
    kernels = weights[:, :-1].reshape(len(weights), 3, 3, images.shape[-1])
    out = np.zeros((*images.shape[:3], len(weights)))
    for n in range(len(images)):
        for o, kernel in enumerate(kernels):
            for c in range(images.shape[-1]):
                out[n, :, :, o] += correlate2d(images[n, :, :, c], kernel[:, :, c], mode="same", boundary="fill")
            out[n, :, :, o] += weights[o, -1]
    return out


def pooled(images: np.ndarray) -> np.ndarray:
    """2x2 maxima by loops."""
    n, height, width, channels = images.shape
    out = np.zeros((n, height // 2, width // 2, channels))
    for i in range(height // 2):
        for j in range(width // 2):
            out[:, i, j] = images[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max(axis=(1, 2))
    return out


@pytest.mark.parametrize("shape", [(8, 8), (9, 7, 3), (4, 4, 1)])
def test_the_cnn_is_convolutions_by_scipy(shape):
    rng = np.random.default_rng(0)
    model = built(models.cnn([3, 5], hidden=[6]))
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: rng.standard_normal(np.shape(a)), model.init(rng, shape, 4))
        images = rng.standard_normal((2, *shape))
        given = np.asarray(model.outputs(jax.tree.map(jnp.asarray, params), jnp.asarray(images)))
    values = images if images.ndim == 4 else images[..., None]
    for weights in params["conv"]:
        values = pooled(np.maximum(convolution(values, weights), 0))
    flat = values.reshape(2, -1)
    for i, weights in enumerate(params["dense"]):
        flat = (np.maximum(flat, 0) if i else flat) @ weights[:, :-1].T + weights[:, -1]
    assert given.shape == (4, 2)
    np.testing.assert_allclose(given, flat.T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_the_mlp_is_products_and_activations(activation):
    from scipy.special import erf

    act = {
        "relu": lambda z: np.maximum(z, 0),
        "tanh": np.tanh,
        "gelu": lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    }[activation]
    rng = np.random.default_rng(1)
    model = built(models.mlp([7, 3], activation=activation))
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: rng.standard_normal(np.shape(a)), model.init(rng, (2, 5), 4))
        features = rng.standard_normal((6, 2, 5))
        given = np.asarray(model.outputs(jax.tree.map(jnp.asarray, params), jnp.asarray(features)))
    values = features.reshape(6, 10)
    for i, weights in enumerate(params):
        values = (act(values) if i else values) @ weights[:, :-1].T + weights[:, -1]
    np.testing.assert_allclose(given, values.T, rtol=1e-9)
    if activation == "gelu":  # the approximation is one of x Phi(x)
        np.testing.assert_allclose(act(1.0), 0.5 * (1 + erf(1 / np.sqrt(2))), atol=1e-3)


def test_initial_weights_have_their_variance_and_no_bias():
    params = built(models.mlp([400, 300])).init(np.random.default_rng(0), (200,), 10)
    assert [w.shape for w in params] == [(400, 201), (300, 401), (10, 301)]
    for weights, variance in zip(params, (2 / 200, 2 / 400, 1 / 300), strict=True):
        assert np.all(weights[:, -1] == 0)
        assert np.var(weights[:, :-1]) == pytest.approx(variance, rel=0.1)
    assert not np.any(built(models.logistic()).init(np.random.default_rng(0), (3, 2), 4))


def images(n: int = 40, dtype: type = np.uint8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return (rng.integers(0, 3, (n, 6, 6, 2))).astype(dtype), rng.integers(0, 3, n)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "model",
    [models.logistic(), models.mlp([4], activation="gelu"), models.cnn([2], hidden=[3])],
    ids=lambda m: m.name,
)
def test_gradients_of_a_model_are_those_of_the_loss(model):
    data = fedpbc.data.from_arrays(*images()).iid(num_clients=3)
    check_problem(fedpbc.problems.classification(data, model=model))


@pytest.mark.release
def test_functions_are_a_model():
    def init(key, shape, num_outputs):
        return {"w": 0.1 * jax.random.normal(key, (int(np.prod(shape)), num_outputs)), "b": jnp.zeros(num_outputs)}

    def apply(params, features):
        return features.reshape(len(features), -1) @ params["w"] + params["b"]

    own = models.functions(init=init, apply=apply)
    data = fedpbc.data.from_arrays(*images()).iid(num_clients=3)
    check_problem(fedpbc.problems.classification(data, model=own))
    check_problem(fedpbc.problems.regression(data, model=own))


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (models.cnn(), (5,), "cnn needs images"),
        (models.cnn([2, 2, 2]), (6, 6), "too small for 3 poolings"),
        (models.functions(init=lambda key, shape, k: {}, apply=lambda p, x: x), (3,), "gave no parameter"),
        (
            models.functions(init=lambda key, shape, k: np.zeros((2, 3), int), apply=lambda p, x: x @ p.T),
            (3,),
            "parameters must be floating-point",
        ),
        (
            models.functions(init=lambda key, shape, k: np.zeros((7, 3)), apply=lambda p, x: x @ p.T),
            (3,),
            r"model: gave outputs of shape \(5, 7\) for a batch of 5 samples, must be \[n, outputs\] = \(5, 3\)",
        ),
        (
            models.functions(init=lambda key, shape, k: np.zeros(3), apply=lambda p, x: x @ p),
            (3,),
            r"model: gave outputs of shape \(5,\)",
        ),
        (
            models.functions(init=lambda key, shape, k: np.zeros((3, 3)), apply=lambda p, x: x[0] @ p @ x @ p),
            (3,),
            "model: on a batch of 5 samples, it fails",
        ),
        (
            models.functions(init=lambda key, shape, k: 1 / 0, apply=lambda p, x: x),
            (3,),
            "model: init fails: ZeroDivisionError",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_one_clear_line(model, shape, message):
    rng = np.random.default_rng(0)
    data = fedpbc.data.from_arrays(rng.standard_normal((12, *shape)), np.arange(12) % 3).iid(num_clients=3)
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        fedpbc.problems.classification(data, model=model).build(CONTEXT)
    assert "\n" not in str(caught.value)


def test_a_model_as_one_vector_and_back():
    """Leaf after leaf in the order of the tree, rows of a matrix one after another."""
    params = {"w": np.arange(6.0).reshape(2, 3), "a": (np.array(7.0), np.array([8.0, 9.0]))}
    flat = Flat.of(params)
    x = flat.flatten(params, np.float64)
    assert x.tolist() == [7, 8, 9, 0, 1, 2, 3, 4, 5]
    back = flat.tree(x)
    np.testing.assert_array_equal(back["w"], params["w"])
    assert [float(back["a"][0]), *back["a"][1].tolist()] == [7, 8, 9]
