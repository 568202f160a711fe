"""Theory against enumeration over all subsets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.theory import fedavg_weights


def by_enumeration(p: np.ndarray) -> np.ndarray:
    """E[1{i in A}/|A| | A not empty], over all 2^m subsets."""
    weights, total = np.zeros(len(p)), 0.0
    for active in itertools.product([0, 1], repeat=len(p)):
        a = np.array(active)
        probability = np.prod(np.where(a, p, 1 - p))
        if a.any():
            weights += probability * a / a.sum()
            total += probability
    return weights / total


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda p: max(p) > 1e-3))
def test_weights_agree_with_enumeration(p):
    np.testing.assert_allclose(fedavg_weights(np.array(p)), by_enumeration(np.array(p)), atol=1e-12)


def test_equal_probabilities_give_equal_weights_and_certainty_gives_the_mean():
    np.testing.assert_allclose(fedavg_weights(np.full(200, 0.03)), 1 / 200, rtol=1e-12)
    np.testing.assert_allclose(fedavg_weights(np.ones(5)), 0.2, rtol=1e-14)
    np.testing.assert_allclose(fedavg_weights(np.array([0.0, 1.0])), [0, 1], atol=1e-15)


def test_the_papers_figures():
    p = np.where(np.arange(100) < 50, 0.1, 0.9)
    weights = fedavg_weights(p)
    assert weights.sum() == pytest.approx(1, abs=1e-14)
    assert 10 * abs(weights @ np.arange(1, 101) - 50.5) == pytest.approx(200.7, abs=1.5)


@pytest.mark.parametrize("p", [[], [0.0, 0.0], [0.5, 1.1], [[0.5]], [np.nan]])
def test_what_makes_no_sense_is_an_error(p):
    with pytest.raises(ValueError, match=r"p must be|every probability is 0"):
        fedavg_weights(np.array(p))
