"""Theory against enumeration over all subsets, closed forms, dense linear algebra and simulation."""

from __future__ import annotations

import doctest
import importlib
import itertools
import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpbc import theory
from fedpbc.theory import Constants

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda p: max(p) > 1e-3)
PAPER = np.where(np.arange(100) < 50, 0.1, 0.9)


def by_enumeration(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(E[1{i in A}/|A| | A not empty], E[W]) over all 2^m subsets."""
    m = len(p)
    weights, expected, total = np.zeros(m), np.zeros((m, m)), 0.0
    for active in itertools.product([0, 1], repeat=m):
        a = np.array(active)
        probability = np.prod(np.where(a, p, 1 - p))
        w = np.diag(1.0 - a)
        if a.any():
            w = w + np.outer(a, a) / a.sum()
            weights += probability * a / a.sum()
            total += probability
        expected += probability * w
    return weights / total, expected


@pytest.mark.parametrize("module", ["bias", "bounds", "checks", "constants", "memory", "mixing", "probabilities"])
def test_docstrings_tell_the_truth(module):
    result = doctest.testmod(importlib.import_module(f"fedpbc.theory.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_function_has_a_doctest_and_a_place_in_the_documentation():
    from pathlib import Path

    page = (Path(__file__).resolve().parent.parent / "docs" / "theory.md").read_text(encoding="utf-8")
    for name in theory.__all__:
        assert f"`{name}" in page, name
        value = getattr(theory, name)
        if callable(value) and not isinstance(value, type):
            assert ">>>" in value.__doc__, name


@given(PROBABILITIES)
def test_weights_and_expected_matrix_agree_with_enumeration(p):
    weights, expected = by_enumeration(np.array(p))
    np.testing.assert_allclose(theory.fedavg_weights(np.array(p)), weights, atol=1e-12)
    np.testing.assert_allclose(theory.expected_mixing_matrix(np.array(p)), expected, atol=1e-12)


@given(PROBABILITIES.filter(lambda p: len(p) > 1))
def test_the_rate_is_the_second_eigenvalue(p):
    _, expected = by_enumeration(np.array(p))
    second = np.sort(np.linalg.eigvalsh(expected))[-2]
    assert theory.mixing_rate(np.array(p)) == pytest.approx(second, abs=1e-12)


def test_twelve_clients_by_enumeration():
    p = np.random.default_rng(0).random(12)
    p[[0, 5]] = 0.0, 1.0
    weights, expected = by_enumeration(p)
    np.testing.assert_allclose(theory.fedavg_weights(p), weights, atol=1e-12)
    np.testing.assert_allclose(theory.expected_mixing_matrix(p), expected, atol=1e-12)
    assert theory.mixing_rate(p) == pytest.approx(1.0, abs=1e-12)  # client 0 never mixes


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "clusters", "two outliers", "near one"])
@pytest.mark.parametrize("m", [2, 60, 300])
def test_the_gap_agrees_with_dense_linear_algebra_also_for_clusters(kind, m):
    rng = np.random.default_rng(m)
    p = {
        "uniform": rng.random(m),
        "lognormal": np.exp(rng.normal(-4, 2, m)).clip(0, 1),
        "clusters": np.where(rng.random(m) < 0.5, 0.1, 0.9) + 1e-6 * rng.random(m),
        "two outliers": np.concatenate([np.full(m - 2, 1e-4), [0.9, 1.0]]),
        "near one": 1 - 1e-5 * rng.random(m),
    }[kind]
    dense = np.eye(m) - theory.expected_mixing_matrix(p)
    expected = np.linalg.eigvalsh(dense)[1]
    assert theory.mixing_gap(p) == pytest.approx(expected, rel=1e-8, abs=1e-14)


@pytest.mark.parametrize(("m", "p"), [(100, 0.1), (100, 0.5), (10_000, 1e-4), (10_000, 0.9999), (3, 1e-9)])
def test_equal_probabilities_to_ten_digits(m, p):
    getcontext().prec = 60
    q = Decimal(p)
    gap = (m * q - 1 + (1 - q) ** m) / (m - 1)
    assert theory.mixing_gap(np.full(m, p)) == pytest.approx(float(gap), rel=1e-10)
    assert theory.mixing_rate(np.full(m, p)) == pytest.approx(float(1 - gap), rel=1e-10)
    np.testing.assert_allclose(theory.fedavg_weights(np.full(m, p)), 1 / m, rtol=1e-10)


def test_two_groups_at_ten_thousand_clients_by_the_binomial_law():
    """w of a group by summing over the numbers of active clients of both groups, with 50 digits where it matters."""
    m, low, high = 10_000, 1e-4, 0.9999
    p = np.where(np.arange(m) < m // 2, low, high)
    a = np.arange(0, 40)
    b = np.arange(0, 40)
    log_binomial = [math.lgamma(m // 2 + 1) - math.lgamma(k + 1) - math.lgamma(m // 2 - k + 1) for k in a]
    up = np.exp(
        [lb + k * math.log(low) + (m // 2 - k) * math.log1p(-low) for lb, k in zip(log_binomial, a, strict=True)]
    )
    down = np.exp(
        [lb + k * math.log1p(-high) + (m // 2 - k) * math.log(high) for lb, k in zip(log_binomial, b, strict=True)]
    )
    count = a[:, None] + (m // 2 - b)[None, :]
    weight = float(np.sum(np.outer(up, down) * a[:, None] / count)) / (m // 2)
    assert theory.fedavg_weights(p)[0] == pytest.approx(weight, rel=1e-10)


def test_the_papers_figures():
    weights = theory.fedavg_weights(PAPER)
    assert weights.sum() == pytest.approx(1, abs=1e-14)
    assert 10 * abs(weights @ np.arange(1, 101) - 50.5) == pytest.approx(200.7, abs=1.5)
    assert theory.mixing_rate(np.full(100, 0.1)) == pytest.approx(0.90909, abs=1e-5)
    assert theory.mixing_rate(np.full(100, 0.5)) == pytest.approx(0.50505, abs=1e-5)
    assert theory.mixing_rate(PAPER) == pytest.approx(0.90178, abs=1e-5)
    assert theory.mixing_rate_bound(0.1, 100) == pytest.approx(0.9999875, abs=1e-7)
    conditions = {c.name: c.limit for c in theory.step_size_conditions(3e-4, 30, 0.90178, Constants(1, 0, 0, 1))}
    assert conditions["descent as printed"] == pytest.approx(2.37e-10, rel=0.01)
    assert conditions["descent"] == pytest.approx(2.37e-10 / 30, rel=0.01)
    assert conditions["consensus"] == pytest.approx(6.9e-6, rel=0.02)
    assert conditions["cubic"] == pytest.approx(4.1e-5, rel=0.02)


@given(st.lists(st.floats(1e-3, 1), min_size=2, max_size=8))
def test_all_three_bounds_bound(p):
    p = np.array(p)
    rho = theory.mixing_rate(p)
    assert rho <= theory.mixing_rate_bound(p.min(), len(p)) + 1e-12
    assert rho <= theory.mixing_rate_bound_square(p.min()) + 1e-12
    assert rho <= 1 - theory.mixing_gap_bound(p) + 1e-12


@pytest.mark.parametrize("m", [2, 50, 127, 128, 1000])
def test_the_quadrature_error_is_small_and_honest(m):
    rng = np.random.default_rng(m)
    for p in (rng.random(m), np.full(m, 1e-5), np.full(m, 0.999), np.where(np.arange(m) < m / 2, 1e-3, 1.0)):
        assert theory.quadrature_error(p) < 1e-11


def test_rates_of_several_rounds():
    p = np.array([[0.2] * 5, [0.9] * 5, [0.2] * 5])
    rates = [theory.mixing_rate(row) for row in p]
    assert theory.mixing_rate(p) == max(rates)
    np.testing.assert_allclose(1 - theory.mixing_gaps(p), rates)
    assert theory.mixing_product(p) == pytest.approx(np.prod(rates))
    assert theory.mixing_product(p) < theory.mixing_rate(p) ** 3


def test_the_edges_mean_what_the_documentation_says():
    assert theory.mixing_gap(np.array([0.3])) == 1
    assert theory.mixing_gap(np.array([0.0, 0.5, 0.5])) == 0
    assert theory.mixing_rate(np.ones(6)) == pytest.approx(0, abs=1e-13)
    np.testing.assert_allclose(theory.fedavg_weights(np.array([0.0, 1.0])), [0, 1], atol=1e-15)
    np.testing.assert_array_equal(theory.mixing_matrix(np.array([False, True])), np.eye(2))


def test_nobody_and_somebody_alone_mix_nothing():
    for active in ([False, False, False], [False, True, False]):
        np.testing.assert_array_equal(theory.mixing_matrix(np.array(active)), np.eye(3))


def test_cooldown_rounds_is_the_smallest_number():
    p = np.full(30, 0.2)
    n, rho = theory.cooldown_rounds(p, 1e-3), theory.mixing_rate(p)
    assert rho**n <= 1e-3 < rho ** (n - 1)
    assert theory.cooldown_rounds(np.tile(p, (200, 1)), 1e-3) == n
    assert theory.cooldown_rounds(np.ones(4), 0.5) == 1
    with pytest.raises(ValueError, match="not enough"):
        theory.cooldown_rounds(np.tile(p, (3, 1)), 1e-3)
    with pytest.raises(ValueError, match="never come to a consensus"):
        theory.cooldown_rounds(np.array([0.0, 0.5]), 0.5)


def test_lemma_2_bounds_the_measured_contraction():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, 12)
    z = rng.standard_normal((4000, 12))
    z -= z.mean(axis=1, keepdims=True)
    start = np.sum(z**2)
    for t in range(1, 9):
        active = rng.random(z.shape) < p
        count = np.maximum(active.sum(axis=1, keepdims=True), 1)
        z = np.where(active, (z * active).sum(axis=1, keepdims=True) / count, z)
        assert np.sum(z**2) / start <= theory.mixing_rate(p) ** t


def test_expected_model_at_finite_t_agrees_with_simulation_and_recursion():
    rng = np.random.default_rng(1)
    p, u = np.array([0.2, 0.5, 0.9]), rng.standard_normal((3, 2))
    eta, s, rounds, runs = 0.1, 3, 6, 40_000
    x = np.zeros((runs, 2))
    a = (1 - eta) ** s
    for _ in range(rounds):
        active = rng.random((runs, 3)) < p
        count = active.sum(axis=1, keepdims=True)
        target = active @ u / np.maximum(count, 1)
        x = np.where(count > 0, a * x + (1 - a) * target, x)
    expected = theory.fedavg_expected_model(p, u, eta, s, rounds)
    assert np.all(np.abs(x.mean(axis=0) - expected) < 4.5 * x.std(axis=0) / np.sqrt(runs))
    np.testing.assert_array_equal(theory.fedavg_expected_model(p, u, eta, s, 0), [0, 0])
    limit = theory.fedavg_expected_model(p, u, eta, s, 10_000)
    np.testing.assert_allclose(limit, theory.fedavg_limit(p, u), rtol=1e-12)
    np.testing.assert_allclose(theory.fedavg_bias(p, u), limit - u.mean(axis=0), atol=1e-12)


def test_memory_leaves_the_weights_alone_and_changes_the_contraction():
    p = np.array([0.2, 0.6, 0.9, 0.4])
    rng = np.random.default_rng(3)
    active, weights, rounds = rng.random((2000, 4)) < p, np.zeros(4), 0
    for _ in range(300):
        count = active.sum(axis=1)
        weights += (active[count > 0] / count[count > 0, None]).sum(axis=0)
        rounds += int(np.sum(count > 0))
        active = rng.random(active.shape) < 0.2 * p + 0.8 * active
    np.testing.assert_allclose(weights / rounds, theory.fedavg_weights(p), atol=4e-3)
    free, sticky = (theory.markov_contraction(p, memory, window=40) for memory in (0.0, 0.9))
    assert free.low <= free.rate <= free.high
    assert free.rate <= theory.mixing_rate(p) + 0.02
    assert sticky.low > free.high


def test_the_contraction_interval_covers_at_about_its_rate():
    """Equal p: every direction contracts by rho alike, so E ||z||^2 = rho^T ||z||^2 exactly."""
    p = np.full(6, 0.5)
    rho = theory.mixing_rate(p)
    intervals = [theory.markov_contraction(p, 0.0, window=4, repetitions=300, seed=seed) for seed in range(120)]
    covered = sum(c.low <= rho <= c.high for c in intervals)
    assert covered >= 0.95 * 120 - 4.5 * np.sqrt(120 * 0.95 * 0.05)
    assert len({c.rate for c in intervals}) > 100


@pytest.mark.release
def test_at_scale():
    import tracemalloc

    rng = np.random.default_rng(0)
    tracemalloc.start()
    weights = theory.fedavg_weights(rng.random(1_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    assert weights.sum() == pytest.approx(1)
    assert peak < 2e9
    tracemalloc.reset_peak()
    p = np.where(rng.random(100_000) < 0.5, 0.1, 0.9)
    assert theory.mixing_gap(p) == pytest.approx(0.1, rel=1e-4)
    assert tracemalloc.get_traced_memory()[1] < 4e9
    tracemalloc.stop()
