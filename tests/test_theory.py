"""Theory against enumeration over all subsets, closed forms, dense linear algebra and simulation."""

from __future__ import annotations

import doctest
import importlib
import itertools
import math
from decimal import Decimal, getcontext

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedpbc
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


@pytest.mark.parametrize("module", ["bias", "bounds", "constants", "memory", "mixing", "probabilities"])
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
    assert conditions["descent"] == pytest.approx(2.4e-10, rel=0.02)
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


FUNCTIONS = [theory.fedavg_weights, theory.mixing_rate, theory.expected_mixing_matrix]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("p", [[], [0.0, 0.0], [0.5, 1.1], [np.nan, 0.5], [[[0.5]]]])
def test_what_makes_no_sense_is_an_error(function, p):
    with pytest.raises(ValueError, match=r"p must|every probability is 0"):
        function(np.array(p))


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
    with pytest.raises(ValueError, match="tolerance"):
        theory.cooldown_rounds(p, 0.0)


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


@given(st.floats(1e-6, 0.5), st.floats(0.1, 10), st.integers(2, 40))
def test_kappa_agrees_with_its_definition_in_exact_arithmetic(eta, smooth, steps):
    getcontext().prec = 80
    x = Decimal(eta) * Decimal(smooth)
    exact = ((1 + x) ** steps - 1 - steps * x) / (math.comb(steps, 2) * x**2)
    assert theory.kappa(eta, smooth, steps) == pytest.approx(float(exact), rel=1e-12)
    assert theory.kappa(eta, smooth, steps) >= 1
    assert theory.kappa(2 * eta, smooth, steps) >= theory.kappa(eta, smooth, steps)


@given(st.integers(0, 10**6))
def test_proposition_2_on_quadratics(seed):
    rng = np.random.default_rng(seed)
    u, x = rng.standard_normal((6, 3)), 3 * rng.standard_normal((6, 3))
    mean = x.mean(axis=0)
    measured = np.mean(np.sum((x - u) ** 2, axis=1))
    consensus = np.mean(np.sum((x - mean) ** 2, axis=1))
    bound = theory.average_gradient_bound(
        consensus, np.sum((mean - u.mean(axis=0)) ** 2), theory.quadratic_constants(u)
    )
    assert measured <= bound * (1 + 1e-12)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5]))
def test_lemma_4_on_quadratics(seed, steps):
    """One round of FedPBC with exact gradients: the mean model, and so F(xbar), does not depend on the links."""
    rng = np.random.default_rng(seed)
    u, x = rng.standard_normal((6, 3)), rng.standard_normal((6, 3))
    eta = rng.uniform(0.1, 1) / (2 * steps)
    ubar, mean = u.mean(axis=0), x.mean(axis=0)
    after = (u + (1 - eta) ** steps * (x - u)).mean(axis=0)
    change = 0.5 * np.sum((after - ubar) ** 2) - 0.5 * np.sum((mean - ubar) ** 2)
    consensus = np.mean(np.sum((x - mean) ** 2, axis=1))
    constants = theory.quadratic_constants(u)
    assert change <= theory.descent_bound(eta, steps, 6, constants, consensus, np.sum((mean - ubar) ** 2)) + 1e-12


@pytest.mark.parametrize(("steps", "eta"), [(1, 1e-5), (3, 2e-7)])
def test_lemma_5_and_theorem_1_bound_what_the_simulator_measures(steps, eta):
    p = np.array([0.3, 0.5, 0.6, 0.8, 0.9, 0.4])
    rho = theory.mixing_rate(p)
    table = {
        "name": "bounds",
        "rounds": 200,
        "local_steps": steps,
        "learning_rate": eta,
        "seeds": list(range(10)),
        "precision": "float64",
        "problem": {"name": "quadratic", "num_clients": 6, "dim": 4},
        "links": [{"name": "bernoulli", "prob": p.tolist()}],
        "algorithms": [{"name": "fedpbc"}],
    }
    experiment = fedpbc.Experiment.from_table(table)
    problem = experiment.problem.build(experiment.context(0))
    constants = theory.quadratic_constants(problem.params["centers"])
    conditions = theory.step_size_conditions(eta, steps, rho, constants)
    assert all(condition.holds for condition in conditions), conditions
    cells = fedpbc.run(experiment).cells.values()
    gradient = np.mean([np.mean(cell.rows["mean_grad_norm"][:-1] ** 2) for cell in cells])
    consensus = np.mean([np.mean(cell.rows["consensus_distance"][:-1]) for cell in cells])
    gap = np.mean([cell.rows["mean_grad_norm"][0] ** 2 / 2 for cell in cells])
    assert consensus <= theory.consensus_bound(eta, steps, rho, constants, gradient)
    assert gradient <= theory.convergence_bound(eta, steps, 200, 6, rho, constants, gap).total


def test_theorem_1_as_printed_is_the_explicit_form_at_its_own_step_size():
    constants, s, rounds, m = Constants(2.0, 3.0, 0.5, 4.0), 4, 5000, 10
    eta = math.sqrt(m / (s * rounds))
    printed = theory.convergence_bound_printed(s, rounds, m, 0.6, constants, 7.0)
    assert printed == theory.convergence_bound(eta, s, rounds, m, 0.6, constants, 7.0)
    k, smooth = theory.kappa(eta, 2.0, s), 2.0
    drift = k**2 * smooth**2 + 2 * smooth * (1 + k**2 * smooth**2 / 4)
    root, a, b = (1 - math.sqrt(0.6)) ** 2, math.sqrt(m * s / rounds), m * s / rounds
    assert printed.initial_gap == pytest.approx(8 * 7 / math.sqrt(m * s * rounds))
    noise = 16 * smooth * math.sqrt(s / (m * rounds)) * 3 + 8 * a * k**2 * smooth**2 * (1 + smooth / 2) * 3
    assert printed.stochastic_gradient_noise == pytest.approx(noise)
    client = 24 * a * (drift + 24 * smooth**2 / root) * 4 + 1728 * drift * smooth**2 * 4 / root * b
    assert printed.client_drift_error == pytest.approx(client)
    rare = 144 * 0.6 / root * (smooth**2 + 3 * math.sqrt(2) * smooth * drift / k) * 3 * b
    assert printed.intermittent_participation_error == pytest.approx(rare)
    assert printed.total == pytest.approx(sum(printed))


def test_one_local_step_is_the_limit_of_the_proof_before_the_division_by_kappa():
    constants = Constants(1.5, 1.0, 0.7, 1.0)
    limit = {c.name: c.limit for c in theory.step_size_conditions(1e-4, 1, 0.8, constants)}["descent"]
    root = 0.8 / (1 - math.sqrt(0.8)) ** 2

    def left(eta: float) -> float:
        square = 72 * eta**2 * 1.5**2 * root
        return 0.25 - 6 * eta * 1.5 * (0.49 + 1) * (1 + square) - (0.49 + 1) * square

    assert left(limit) == pytest.approx(1 / 8, abs=1e-9)
    assert left(1.01 * limit) < 1 / 8
    assert all(math.isfinite(term) for term in theory.convergence_bound(1e-4, 1, 10, 5, 0.8, constants, 1.0))


@pytest.mark.parametrize("broken", [{"independent": False}, {"compute": "active"}])
def test_bounds_refuse_what_they_do_not_cover(broken):
    constants = Constants(1, 0, 0, 1)
    for call in (
        lambda: theory.convergence_bound(1e-3, 2, 10, 5, 0.5, constants, 1.0, **broken),
        lambda: theory.convergence_bound_printed(2, 10, 5, 0.5, constants, 1.0, **broken),
        lambda: theory.consensus_bound(1e-3, 2, 0.5, constants, 1.0, **broken),
        lambda: theory.step_size_conditions(1e-3, 2, 0.5, constants, **broken),
        lambda: theory.descent_bound(1e-3, 2, 5, constants, 1.0, 1.0, **broken),
    ):
        with pytest.raises(ValueError, match=r"independent over rounds|everybody computing"):
            call()
    with pytest.raises(ValueError, match="rho must be"):
        theory.consensus_bound(1e-3, 2, 1.0, constants, 1.0)
    with pytest.raises(ValueError, match="Lemma 4 needs"):
        theory.descent_bound(0.5, 2, 5, constants, 1.0, 1.0)


def test_logistic_constants_bound_what_synthetic_data_show():
    experiment = fedpbc.load_experiment("synthetic", {"problem.num_clients": 8, "seeds": [0], "precision": "float64"})
    problem = experiment.problem.build(experiment.context(0))
    features, sizes = problem.params["train"]["features"], problem.params["sizes"]
    constants = theory.logistic_constants(features, sizes, 32)
    rng, offsets = np.random.default_rng(0), problem.params["offsets"]
    with jax.enable_x64(True):
        for scale in (0.0, 0.3, 3.0):
            x, y = scale * rng.standard_normal((2, 610))
            gradients, variances = [], []
            for first, n in zip(offsets, sizes, strict=True):
                batch = features[first : first + n], problem.params["train"]["labels"][first : first + n]
                full = np.asarray(problem.gradient(batch, x))
                moved = np.asarray(problem.gradient(batch, y))
                assert np.linalg.norm(full - moved) <= constants.smoothness * np.linalg.norm(x - y)
                gradients.append(full)
                singles = [np.asarray(problem.gradient((batch[0][[k]], batch[1][[k]]), x)) for k in range(0, n, 40)]
                variances.append(np.mean([np.sum((g - full) ** 2) for g in singles]) / 32)
            spread = np.mean(np.sum((np.array(gradients) - np.mean(gradients, axis=0)) ** 2, axis=1))
            assert spread <= constants.zeta2
            assert max(variances) <= constants.sigma2


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
    with pytest.raises(ValueError, match="memory"):
        theory.markov_contraction(p, 1.0)


def test_the_contraction_interval_covers_at_about_its_rate():
    """Equal p: every direction contracts by rho alike, so E ||z||^2 = rho^T ||z||^2 exactly."""
    p = np.full(6, 0.5)
    rho = theory.mixing_rate(p)
    intervals = [theory.markov_contraction(p, 0.0, window=4, repetitions=300, seed=seed) for seed in range(120)]
    covered = sum(c.low <= rho <= c.high for c in intervals)
    assert covered >= 0.95 * 120 - 4.5 * np.sqrt(120 * 0.95 * 0.05)
    assert len({c.rate for c in intervals}) > 100


@pytest.mark.slow
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
