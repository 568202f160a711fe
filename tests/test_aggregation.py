"""Properties of the masked means, on NumPy and JAX arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpbc.core.aggregation import (
    LONG,
    consensus_distance,
    masked_mean,
    masked_sum,
    mean_of_rows,
    running_mean,
    select,
    weighted_sum,
)

SIZES = st.tuples(st.integers(1, 7), st.integers(1, 5))
VALUES = st.floats(-1e3, 1e3)


@st.composite
def clients_and_mask(draw):
    m, d = draw(SIZES)
    return draw(arrays(np.float64, (m, d), elements=VALUES)), draw(arrays(bool, m))


@given(clients_and_mask())
def test_masked_mean_is_the_mean_of_the_selected_rows(case):
    x, mask = case
    fallback = np.full(x.shape[1], -7.0)
    expected = x[mask].mean(axis=0) if mask.any() else fallback
    np.testing.assert_allclose(masked_mean(x, mask, fallback), expected, atol=1e-9)
    np.testing.assert_allclose(masked_sum(x, mask), x[mask].sum(axis=0), atol=1e-9)


@given(clients_and_mask(), st.randoms())
def test_masked_mean_does_not_depend_on_the_order_of_clients(case, random):
    x, mask = case
    order = list(range(len(x)))
    random.shuffle(order)
    fallback = np.zeros(x.shape[1])
    np.testing.assert_allclose(masked_mean(x[order], mask[order], fallback), masked_mean(x, mask, fallback), atol=1e-9)


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_an_absent_client_cannot_poison_the_server(xp, poison):
    x = np.ones((3, 2), np.float32)
    x[1] = poison
    mask = xp.asarray(np.array([True, False, True]))
    np.testing.assert_array_equal(masked_mean(xp.asarray(x), mask, xp.zeros(2, np.float32)), [1, 1])


def test_numpy_and_jax_agree():
    rng = np.random.default_rng(0)
    x, mask = rng.standard_normal((5, 3)).astype(np.float32), np.array([1, 0, 1, 1, 0], bool)
    ours = masked_mean(x, mask, x[0])
    theirs = masked_mean(jnp.asarray(x), jnp.asarray(mask), jnp.asarray(x[0]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert ours.dtype == theirs.dtype == np.float32


def test_select_broadcasts_one_row_to_everybody():
    mask = np.array([True, False])
    np.testing.assert_array_equal(select(mask, np.array([9.0, 9.0]), np.zeros((2, 2))), [[9, 9], [0, 0]])


def test_consensus_distance_is_the_mean_squared_distance_to_the_mean():
    x = np.array([[0.0, 0.0], [6.0, 8.0]])  # both 5 away from the mean: 25, neither 5 nor the sum of both
    assert consensus_distance(x, x.mean(axis=0)) == pytest.approx(25.0)


def test_models_that_come_one_by_one_are_left_as_they_are():
    values = [np.array([1.0, 2.0]), np.array([3.0, 8.0]), np.array([5.0, -1.0])]
    otherwise = np.array([7.0, 7.0])
    mean = running_mean(iter(values), otherwise)
    np.testing.assert_array_equal(mean, [3.0, 3.0])
    np.testing.assert_array_equal(values, [[1, 2], [3, 8], [5, -1]])
    nobody = running_mean(iter([]), otherwise)
    nobody += 1
    np.testing.assert_array_equal(otherwise, [7.0, 7.0])


@pytest.mark.parametrize("length", [LONG - 1, LONG, 2 * LONG + 5])
def test_long_rows_are_added_one_after_the_other(length):
    rng = np.random.default_rng(length)
    rows = rng.standard_normal((6, length)).astype(np.float32)
    weights = rng.standard_normal(6).astype(np.float32)
    mask = np.array([True, False, True, True, False, True])
    rows[~mask] = np.nan
    here = rows[mask].astype(float)
    given = jnp.asarray(rows), jnp.asarray(mask)

    def summed(rows, mask):
        return masked_sum(rows, mask), weighted_sum(rows, jnp.asarray(weights), mask), mean_of_rows(rows[:1])

    total, weighted, mean = jax.jit(summed)(*given)
    np.testing.assert_allclose(total, here.sum(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(weighted, weights[mask] @ here, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(mean, rows[0])
    np.testing.assert_array_equal(masked_mean(*given, jnp.zeros(length)), np.asarray(total) / np.float32(4))
    in_order = np.zeros(length, np.float32)
    for row in rows[mask]:
        in_order += row
    loops = "scan" in str(jax.make_jaxpr(masked_sum)(*given))
    assert loops is (length >= LONG)
    if loops:
        np.testing.assert_array_equal(total, in_order)


@pytest.mark.parametrize("shape", [(5, 2 * LONG), (5, 3)])
def test_mean_of_rows_is_that_of_numpy(shape):
    rows = np.random.default_rng(5).standard_normal(shape)
    np.testing.assert_allclose(mean_of_rows(rows), rows.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mean_of_rows(jnp.asarray(rows)), rows.mean(axis=0), rtol=1e-5, atol=1e-6)
