"""Variations in time, against their formulae."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from link_helpers import context

from fedpbc.links.common.variation import absence, compose, diurnal, interleaved, none, sine, staircase


def values(base, varying, rounds: int) -> np.ndarray:
    prob = compose(context(np.size(base)), np.atleast_1d(base), varying)
    return np.array([prob.at(prob.params, jnp.int32(t)) for t in range(rounds)])


def test_no_variation_is_one():
    assert np.all(values(0.3, none.function(context(1)), 4) == np.float32(0.3))


def test_sine_has_the_stated_range_period_and_phase():
    varying = sine.function(context(3), amplitude=0.3, period=20)
    prob = compose(context(3), np.array([0.5, 1.0, 0.2]), varying)
    t = np.arange(60)
    values = np.array([prob.at(prob.params, jnp.int32(k)) for k in t])
    expected = np.array([0.5, 1.0, 0.2]) * (0.3 * np.sin(2 * np.pi * t / 20) + 0.7)[:, None]
    np.testing.assert_allclose(values, expected, atol=1e-6)
    np.testing.assert_allclose(values[:20], values[20:40], atol=1e-6)


def test_sine_never_leaves_the_unit_interval():
    prob = compose(context(1), np.array([1.0]), sine.function(context(1), amplitude=1.0, period=4))
    values = np.array([prob.at(prob.params, jnp.int32(k)) for k in range(8)])
    assert values.min() == 0
    assert values.max() <= 1


def test_a_random_phase_shifts_each_client_by_a_uniform_angle():
    m, period = 400, 20
    varying = sine.function(context(m), amplitude=0.3, period=period, phase="random")
    observed = values(np.ones(m), varying, period)
    waves = (observed - 0.7) / 0.3
    angle = np.angle(np.exp(-2j * np.pi * np.arange(period) / period) @ waves * 1j)
    expected = np.sin(2 * np.pi * np.arange(period)[:, None] / period + angle)
    np.testing.assert_allclose(waves, expected, atol=1e-5)
    assert abs(np.exp(1j * angle).mean()) < 4 / np.sqrt(m)
    again = values(np.ones(m), sine.function(context(m, seed=1), amplitude=0.3, period=period, phase="random"), 1)
    assert not np.array_equal(again[0], observed[0])


def test_the_minimum_lifts_and_the_cutoff_drops():
    plain = values([0.5, 1.0], sine.function(context(2)), 40)
    assert plain.min() < 0.11
    np.testing.assert_array_equal(
        values([0.5, 1.0], sine.function(context(2), minimum=0.3), 40), np.maximum(plain, np.float32(0.3))
    )
    np.testing.assert_array_equal(
        values([0.3, 1.0], interleaved.function(context(2), cutoff=0.2), 40),
        np.where((low := values([0.3, 1.0], sine.function(context(2)), 40)) < np.float32(0.2), 0, low),
    )
    assert values(0.3, interleaved.function(context(1)), 40).min() == 0


def test_the_staircase_is_up_then_down():
    observed = values(0.5, staircase.function(context(1), low=0.4, half_period=3), 12)[:, 0]
    np.testing.assert_allclose(observed, ([0.5] * 3 + [0.2] * 3) * 2, rtol=1e-6)


def test_a_day_swings_by_the_factor_and_time_zones_differ():
    m = 48
    varying = diurnal.function(context(m), round_seconds=900, zones=6, swing=4)
    observed = values(np.ones(m), varying, 192)
    np.testing.assert_allclose(observed[:96], observed[96:], atol=1e-5)
    assert observed.max() == pytest.approx(1, abs=1e-3)
    assert (observed.max(axis=0) / observed.min(axis=0)) == pytest.approx(4, rel=1e-2)
    peaks = np.unique(observed[:96].argmax(axis=0))
    assert set(np.diff(peaks)) == {16}
    assert len(peaks) == 6


def test_an_absence_takes_a_share_of_the_clients_for_its_rounds():
    m = 50
    observed = values(np.full(m, 0.5), absence.function(context(m), first=3, rounds=2, share=0.1), 8)
    away = observed == 0
    assert away.sum(axis=1).tolist() == [0, 0, 0, 5, 5, 0, 0, 0]
    assert np.array_equal(away[3], away[4])
    assert np.all(observed[~away] == 0.5)
    other = values(np.full(m, 0.5), absence.function(context(m, seed=1), first=3, rounds=2, share=0.1), 4)
    assert not np.array_equal(other[3] == 0, away[3])


def test_an_absence_takes_one_client_at_least_and_may_take_all():
    assert (values(np.ones(4), absence.function(context(4), first=0, rounds=1, share=1e-9), 1) == 0).sum() == 1
    assert (values(np.ones(4), absence.function(context(4), first=0, rounds=2**31 - 1, share=1.0), 3) == 0).all()
