"""The bounds of the convergence analysis against exact arithmetic, quadratics and what the simulator measures."""

from __future__ import annotations

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


@pytest.mark.parametrize(("steps", "eta"), [(1, 1e-5), (3, 7e-8)])
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
    assert printed.total == pytest.approx(8 * 7 / math.sqrt(m * s * rounds) + noise + client + rare)


def test_one_local_step_is_the_limit_of_the_proof_before_the_division_by_kappa():
    constants = Constants(1.5, 1.0, 0.7, 1.0)
    limit = {c.name: c.limit for c in theory.step_size_conditions(1e-4, 1, 0.8, constants)}["descent"]
    root = 0.8 / (1 - math.sqrt(0.8)) ** 2

    def left(eta: float) -> float:
        square = 72 * eta**2 * 1.5**2 * root
        return 0.25 - 6 * eta * 1.5 * (0.49 + 1) * (1 + square) - (0.49 + 1) * square

    assert left(limit) == pytest.approx(1 / 8, abs=1e-9)
    assert left(1.01 * limit) < 1 / 8
    assert math.isfinite(theory.convergence_bound(1e-4, 1, 10, 5, 0.8, constants, 1.0).total)


@pytest.mark.release
def test_logistic_constants_bound_what_synthetic_data_show():
    experiment = fedpbc.load_experiment("synthetic", {"problem.num_clients": 8, "seeds": [0], "precision": "float64"})
    problem = experiment.problem.build(experiment.context(0))
    (features, labels), sizes = problem.params["train"]["data"], problem.params["sizes"]
    constants = theory.logistic_constants(features, sizes, 32)
    rng, offsets = np.random.default_rng(0), problem.params["offsets"]
    with jax.enable_x64(True):
        for scale in (0.0, 0.3, 3.0):
            x, y = scale * rng.standard_normal((2, 610))
            gradients, variances = [], []
            for first, n in zip(offsets, sizes, strict=True):
                batch = features[first : first + n], labels[first : first + n]
                full = np.asarray(problem.gradient((batch, None), x))
                moved = np.asarray(problem.gradient((batch, None), y))
                assert np.linalg.norm(full - moved) <= constants.smoothness * np.linalg.norm(x - y)
                gradients.append(full)
                singles = [
                    np.asarray(problem.gradient(((batch[0][[k]], batch[1][[k]]), None), x)) for k in range(0, n, 40)
                ]
                variances.append(np.mean([np.sum((g - full) ** 2) for g in singles]) / 32)
            spread = np.mean(np.sum((np.array(gradients) - np.mean(gradients, axis=0)) ** 2, axis=1))
            assert spread <= constants.zeta2
            assert max(variances) <= constants.sigma2


def test_logistic_constants_by_hand():
    """||x||^2 = 1, 9 of client 0 and 4 of client 1: means 5 and 4, mean norms 2 and 2; minibatches of 5."""
    found = theory.logistic_constants([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0], [9.0, 9.0]], [2, 1], 5)
    assert (found.smoothness, found.beta) == (9 / 2, 0)
    assert found.sigma2 == pytest.approx(2 * 5 / 5)
    assert found.zeta2 == pytest.approx((2 * 2**2 + 2 * 2**2) / 2)


def test_lemmas_4_and_5_by_hand():
    """One step: kappa = 0, C = 2. -(.025 - .12) 2 + .01 (18 + 1) + (.1 + .06) .5; .0168 + .1152 x 3.5."""
    descent = theory.descent_bound(0.1, 1, 4, Constants(1.0, 2.0, 1.0, 3.0), 0.5, 2.0)
    assert descent == pytest.approx(0.19 + 0.19 + 0.08)
    consensus = theory.consensus_bound(0.01, 2, 0.25, Constants(1.0, 3.0, 0.5, 1.0), 2.0)
    assert consensus == pytest.approx(0.0168 + 0.4032)
