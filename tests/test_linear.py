"""Local steps of a linear model through the products of samples, against steps one by one in plain NumPy."""

import jax
import numpy as np
import pytest

from fedpbc.core.flat import Flat
from fedpbc.models.dense import Logistic
from fedpbc.problems.classification import cross_entropy
from fedpbc.problems.linear import linear_steps
from fedpbc.problems.regression import half_square

C, N, F = 4, 6, 30


def softmax_slope(outputs, labels):
    powers = np.exp(outputs - outputs.max(axis=0))
    return powers / powers.sum(axis=0) - (np.arange(C)[:, None] == labels)


def one_by_one(features, x, slope, eta, steps, bias, scale, shift, mu):
    start = x = x.reshape(C, -1)
    for _ in range(steps):
        outputs = x[:, :F] @ features.T + (x[:, F:] if bias else 0)
        slopes = slope(outputs) * scale / len(features)
        gradient = slopes @ (np.hstack([features, np.ones((len(features), 1))]) if bias else features)
        x = x - eta * (gradient + shift.reshape(x.shape) + mu * (x - start))
    return x.ravel()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", ["cross-entropy", "squares"])
@pytest.mark.parametrize(("scale", "shifted", "mu"), [(None, False, None), (1.7, True, 0.4), (None, True, None)])
def test_equal_to_steps_one_by_one(bias, loss, scale, shifted, mu):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((N, F))
    labels = rng.integers(0, C, N)
    targets = rng.standard_normal((N, C))
    x = rng.standard_normal(C * (F + bias)) * 0.3
    shift = rng.standard_normal(x.shape) if shifted else None
    flat = Flat.of(x.reshape(C, -1))
    of_outputs, y = (cross_entropy, labels) if loss == "cross-entropy" else (half_square, targets)
    slope = (lambda z: softmax_slope(z, labels)) if loss == "cross-entropy" else (lambda z: z - targets.T)
    with jax.enable_x64(True):
        steps = linear_steps(flat, Logistic(bias=bias), of_outputs)(7, N)
        got = jax.jit(lambda x: steps(((features, y), scale), x, 0.1, shift, mu))(x)
    wanted = one_by_one(
        features, x, slope, 0.1, 7, bias, scale or 1.0, np.zeros_like(x) if shift is None else shift, mu or 0
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_not_where_steps_one_by_one_are_cheaper():
    flat = Flat.of(np.zeros((10, 61)))
    made = linear_steps(flat, Logistic(bias=False), cross_entropy)
    assert made(10, 32) is not None
    assert made(1, 32) is None
    assert made(10, 512) is None


@pytest.mark.parametrize("num_classes", [2, 10, 64, 65, 200])
def test_cross_entropy_and_its_gradient(num_classes):
    rng = np.random.default_rng(num_classes)
    logits, labels = 30 * rng.standard_normal((num_classes, 9)), rng.integers(0, num_classes, 9)
    powers = np.exp(logits - logits.max(axis=0))
    shares = powers / powers.sum(axis=0)
    with jax.enable_x64(True):
        values = jax.jit(cross_entropy)(logits, labels)
        slopes = jax.jit(jax.grad(lambda z: cross_entropy(z, labels).sum()))(logits)
    np.testing.assert_allclose(values, -np.log(shares[labels, np.arange(9)]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slopes, shares - (np.arange(num_classes)[:, None] == labels), atol=1e-12)
