"""The small models of docs/fedfade.md (docs/fade_models.py), against enumeration and the methods themselves."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpbc.algorithms.fedau import init, weights
from fedpbc.core.types import Link

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs"))
import fade_models as models


@pytest.mark.parametrize("cutoff", [0, 3])
@pytest.mark.parametrize(("p", "memory"), [(0.3, 0.0), (0.2, 0.8)])
def test_what_a_weight_does_in_the_mean_by_going_through_all_histories(p: float, memory: float, cutoff: int) -> None:
    rounds = 9
    wanted = np.zeros(rounds)
    limit = np.int32(cutoff or np.iinfo(np.int32).max)
    for history in itertools.product([0, 1], repeat=rounds):
        chance, state = 1.0, init(None, 1, float)
        for t, on in enumerate(history):
            share = p if t == 0 else p + memory * (history[t - 1] - p)
            chance *= share if on else 1 - share
        for t, on in enumerate(history):
            state, used = weights(limit, state, Link(np.array([bool(on)]), np.ones(1)), np.int32(t))
            wanted[t] += chance * on * used[0]
    np.testing.assert_allclose(models.weight_bias(p, memory, cutoff, rounds), wanted, rtol=1e-12)
    assert np.abs(wanted - 1).max() > 0.1


@pytest.mark.parametrize(("p", "memory", "cutoff"), [(0.1, 0.9, 50), (0.3, 0.0, 4), (0.5, 0.6, 1)])
def test_the_weight_in_the_long_run_is_the_stationary_one(p: float, memory: float, cutoff: int) -> None:
    """One over the share of rounds in which an interval ends, from the stationary law of (on, rounds waited)."""
    law, step = np.zeros(2 * cutoff), np.zeros((2 * cutoff, 2 * cutoff))
    for on, waited in itertools.product([0, 1], range(cutoff)):
        back = p + memory * (on - p)
        step[on * cutoff + waited, cutoff] += back
        step[on * cutoff + waited, (waited + 1) % cutoff] += 1 - back
    law[0] = 1
    law = law @ np.linalg.matrix_power(step, 10**5)
    ends = sum(law[s] * step[s, cutoff] for s in range(2 * cutoff))
    ends += sum(law[s] * step[s, 0] for s in (cutoff - 1, 2 * cutoff - 1))
    assert models.limit_weight(p, memory, cutoff) == pytest.approx(1 / ends, rel=1e-6)


def test_the_variance_of_a_step_is_that_of_the_deviations() -> None:
    """(1/m^2) sum (1/p_i - 1) |d_i|^2."""
    rng = np.random.default_rng(0)
    prob, d = np.array([0.1, 0.4, 0.5, 0.9, 1.0]), rng.normal(size=(5, 3))
    wanted = ((1 / prob - 1) * (d**2).sum(axis=1)).sum() / 25
    assert models.step_variance(prob, d) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("delta", [1.0, 0.9])
def test_the_matrix_of_a_round_is_the_method(delta: float, together: bool) -> None:
    """On (h_i x^2) / 2 + b_i x with eta s = 1, round by round."""
    away, back, steps, theta = 4, 3, 5, np.array([0.1, 0.7])
    active = models.absences(away, back, 30, together)
    method = {"name": "fedfade", "weights": "mean", "fading": delta}

    def gradient(t: int, x: Any) -> Any:
        return theta[:, None] * x + np.array([[1.0], [-1.0]])

    state = np.array([3.0, 0, 0, 1])
    for played, here in zip(
        models.play(method, active, gradient, np.array([3.0]), 1 / steps, steps), active, strict=True
    ):
        share = np.full(2, 2 / here.sum())
        state = models.round_matrix((bool(here[0]), bool(here[1])), theta, steps, delta, share) @ state
        np.testing.assert_allclose(played.server[0], state[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(played.control[0], state[1:3].mean(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("theta", [(0.0, 0.002), (0.001, 0.004)])
def test_what_an_absence_makes_of_a_deviation(theta: tuple[float, float]) -> None:
    """All controls true at x* + 1, then 1500 rounds without client 2: the deviation turns round."""
    h = np.array(theta)
    state = np.array([1.0, 1 + h[0], -1 + h[1], 1])
    for _ in range(1500):
        state = models.round_matrix((True, False), h, 1, 1.0, np.ones(2)) @ state
    wanted = models.overshoot(1500, h)
    assert state[0] == pytest.approx(wanted, abs=0.01)
    assert wanted < -0.4


def test_absences_of_a_certain_length_make_scaffold_diverge_and_fading_does_not() -> None:
    """(zT - 1) < exp(zP) with z = eta s h_2 / 2, h_1 = 0: at 90 away and 10 there from eta s h_2 T = 4.6 on."""
    found = models.critical(90, 10, 1e6, 1.0, True, True)
    z = found / 90 / 2
    assert z * 90 - 1 == pytest.approx(np.exp(z * 10), rel=0.05)
    assert found == pytest.approx(4.5, abs=0.2)
    assert models.cycle(90, 10, np.array([0, 6 / 90]), 10, 0.97, True, mean=True)[0] < 1
    radius, worst = models.cycle(90, 10, np.array([0.01, 0.03]), 10, 1.0, True)
    assert radius < 1
    assert worst < 1e-9, "the fixed point is exact, whatever the weights"


def test_gradients_of_the_small_models() -> None:
    best, h = models.logistic_optimum(), 1e-6
    at = np.full((2, 1), best)
    assert models.logistic_gradient(0, at).sum() == pytest.approx(0, abs=1e-12)
    slope = (models.logistic_gradient(0, at + h) - models.logistic_gradient(0, at - h)) / (2 * h)
    np.testing.assert_allclose(
        (models.quadratic_gradient(0, at + 1) - models.quadratic_gradient(0, at)), slope, rtol=1e-6
    )
    rng = np.random.default_rng(1)
    x, y = [rng.normal(size=(n, 3)) for n in (2, 5)], [rng.integers(4, size=n) for n in (2, 5)]
    problem, model = models.Softmax(x, y, 4), rng.normal(size=12)

    def loss(i: int, w: Any) -> float:
        logits = x[i] @ w.reshape(3, 4)
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y[i])), y[i]]))

    found = problem.gradient(0, np.tile(model, (2, 1)))
    for i, k in itertools.product(range(2), range(12)):
        e = np.eye(12)[k] * h
        assert found[i, k] == pytest.approx((loss(i, model + e) - loss(i, model - e)) / (2 * h), abs=1e-6)
