"""Links from radio, deadlines and orbits, against closed forms and textbook values."""

from __future__ import annotations

import numpy as np
import pytest
from link_helpers import SIGMAS, autocorrelation, context, run_links, standard_error
from scipy.integrate import quad
from scipy.special import i0e, j0
from scipy.stats import norm

from fedpbc.errors import BadOption
from fedpbc.links.deadline import deadline
from fedpbc.links.fading import fading
from fedpbc.links.leo import leo, orbit

ROUNDS = 20_000
MODELS = [
    {"model": "rayleigh"},
    {"model": "rician"},
    {"model": "rician", "k_factor": 0.0},
    {"model": "nakagami", "shape": 0.5},
    {"model": "nakagami", "shape": 2.5},
    {"model": "shadowing"},
]


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_fading_has_its_closed_form_marginals_and_no_memory_by_default(options):
    active, prob = run_links(fading.function(context(12), **options), ROUNDS)
    p = prob[0].astype(float)
    assert p.min() < 0.5 < p.max()
    slack = SIGMAS * np.maximum(standard_error(p, ROUNDS), 1 / ROUNDS)
    assert np.all(np.abs(active.mean(axis=0) - p) < slack)
    some = (p > 0.05) & (p < 0.95)
    assert np.all(np.abs(autocorrelation(active, p)[some]) < SIGMAS / np.sqrt(ROUNDS))


def at_500_metres(**options):
    """A client whose needed SNR is x times its mean SNR, from the link budget in decibels."""
    budget = {"rate": 2e6, "bandwidth": 1e6, "power": 0.2, "gain": 1e-4, "exponent": 3.0, "noise": 4e-20}
    process = fading.function(context(1), **budget, radius=500.0, minimum_distance=500.0, **options)
    mean = 0.2 * 1e-4 * 500**-3 / (4e-20 * 1e6)
    return float(process.params.prob[0]), 3 / mean


def test_the_probabilities_are_those_of_the_link_budget():
    p, x = at_500_metres()
    assert 0.2 < x < 2
    assert p == pytest.approx(np.exp(-x), rel=1e-6)
    p, x = at_500_metres(model="shadowing", shadowing_db=6.0)
    assert p == pytest.approx(norm.sf(10 * np.log10(x) / 6), rel=1e-6)
    p, x = at_500_metres(model="nakagami", shape=1.0)
    assert p == pytest.approx(np.exp(-x), rel=1e-6)
    p, x = at_500_metres(model="nakagami", shape=3.0)
    assert p == pytest.approx(np.exp(-3 * x) * (1 + 3 * x + (3 * x) ** 2 / 2), rel=1e-6)
    p, x = at_500_metres(model="rician", k_factor=3.0)
    a, b = np.sqrt(6), np.sqrt(8 * x)
    marcum = quad(lambda y: y * np.exp(-((y - a) ** 2) / 2) * i0e(a * y), b, 40)[0]
    assert p == pytest.approx(marcum, rel=1e-5)


def test_distances_are_uniform_in_the_disk():
    m = 4000
    prob = fading.function(context(m), exponent=2.0, minimum_distance=100.0).params.prob.astype(float)
    squared = -np.log(prob)
    squared /= squared.max()
    assert squared.min() == pytest.approx(0.04, abs=2e-3)
    uniform = (np.sort(squared) - 0.04) / 0.96
    assert np.max(np.abs(uniform - np.arange(m) / m)) < 2.2 / np.sqrt(m)


def test_the_defaults_give_a_useful_spread_of_probabilities():
    for process in (fading.function(context(1000)), deadline.function(context(1000))):
        prob = probabilities(process)
        low, high = np.quantile(prob, [0.1, 0.9])
        assert 0.1 < low < 0.45
        assert 0.8 < high < 0.99


def probabilities(process):
    return run_links(process, 1)[1][0]


def test_the_gaussians_of_correlated_fading_have_the_bessel_autocorrelation():
    doppler, seconds = 0.05, 2.0
    r = j0(2 * np.pi * doppler * seconds)
    process = fading.function(context(400), model="shadowing", doppler=doppler, round_seconds=seconds, exponent=0.0,
                     gain=1e-13 * 1.378 / 3.44)  # fmt: skip
    active, prob = run_links(process, 2000)
    p = prob[0].astype(float)
    assert 0.05 < p[0] < 0.95
    assert np.ptp(p) == 0
    assert np.abs(active.mean() - p[0]) < SIGMAS * standard_error(p[:1], active.size, r)[0]
    y = norm.isf(p[0])
    for lag in (1, 2):
        rho = r**lag
        both = quad(lambda z, rho=rho: norm.pdf(z) * norm.sf((y - rho * z) / np.sqrt(1 - rho**2)), y, 12)[0]
        expected = (both - p[0] ** 2) / (p[0] * (1 - p[0]))
        error = SIGMAS * np.sqrt((1 + r) / (1 - r) / active.size)
        assert np.abs(autocorrelation(active, p, lag).mean() - expected) < error


@pytest.mark.parametrize("model", ["rayleigh", "rician", "nakagami"])
def test_correlated_fading_keeps_its_marginals_and_remembers(model):
    doppler = 0.05
    r = j0(2 * np.pi * doppler)
    active, prob = run_links(fading.function(context(8), model=model, doppler=doppler), ROUNDS)
    p = prob[0].astype(float)
    slack = SIGMAS * np.maximum(standard_error(p, ROUNDS, r), 10 / ROUNDS)
    assert np.all(np.abs(active.mean(axis=0) - p) < slack)
    some = (p > 0.1) & (p < 0.9)
    assert some.any()
    assert np.all(autocorrelation(active, p)[some] > 0.5)
    still, _ = run_links(fading.function(context(8), model=model, doppler=0.0), 20)
    assert np.all(still == still[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum_distance": 501.0}, "minimum_distance = 501.0: must be at most radius, 500"),
        ({"model": "nakagami", "shape": 1.3}, "shape = 1.3: must be a multiple of 0.5"),
        ({"rate": 1e10}, r"rate = 10000000000.0: must be at most 1000 bandwidth, 1e\+09"),
    ],
)
def test_impossible_radios_are_refused(options, message):
    with pytest.raises(BadOption, match=message):
        fading.function(context(3), **options)


@pytest.mark.parametrize("model", ["rayleigh", "rician", "nakagami", "shadowing"])
@pytest.mark.parametrize(("power", "p"), [(1e-300, 0), (1e300, 1)])
def test_hopeless_and_perfect_radios_are_0_and_1(model, power, p):
    active, prob = run_links(fading.function(context(3), model=model, power=power), 50)
    np.testing.assert_allclose(prob, p, atol=1e-12)
    assert np.all(active == bool(p))


def test_the_deadline_cuts_a_lognormal_time():
    options = {"deadline": 12.0, "compute": 4.0, "payload": 6e6, "rate": 1e6, "spread": 0.7}
    active, prob = run_links(deadline.function(context(3), client_spread=0.0, **options), ROUNDS)
    p = np.full(3, norm.cdf(np.log(12 / 10) / 0.7))
    np.testing.assert_allclose(prob[0], p, rtol=1e-6)
    assert np.all(np.abs(active.mean(axis=0) - p) < SIGMAS * standard_error(p, ROUNDS))
    m = 4000
    prob = probabilities(deadline.function(context(m), client_spread=0.3, **options)).astype(float)
    log_median = np.log(12) - 0.7 * norm.ppf(prob)
    assert log_median.mean() == pytest.approx(np.log(10), abs=SIGMAS * 0.3 / np.sqrt(m))
    assert log_median.std() == pytest.approx(0.3, abs=SIGMAS * 0.3 / np.sqrt(2 * m))


def test_the_orbit_at_500_km_is_the_textbook_one():
    period, longest = orbit(500, 10)
    assert period / 60 == pytest.approx(94.6, abs=0.05)
    assert longest / 60 == pytest.approx(7.4, abs=0.05)
    assert orbit(35_786, 10)[0] / 3600 == pytest.approx(23.93, abs=0.01)


@pytest.mark.parametrize("satellites", [1, 5])
def test_satellites_pass_for_their_time_once_an_orbit(satellites):
    """One after another: five of them as often as one on an orbit of a fifth of the time."""
    m, rounds = 40, 30_000
    whole, longest = orbit(500, 10)
    period = whole / satellites
    active, prob = run_links(leo.function(context(m), satellites=satellites, round_seconds=10.0), rounds)
    np.testing.assert_allclose(prob, longest / period, rtol=1e-6)
    rises = np.diff(active.astype(int), axis=0) == 1
    falls = np.diff(active.astype(int), axis=0) == -1
    for i in range(m):
        up, down = np.flatnonzero(rises[:, i]), np.flatnonzero(falls[:, i])
        down = down[down > up[0]][: len(up)]
        lengths = 10 * (down - up[: len(down)])
        assert np.all(np.abs(lengths - longest) <= 10)
        assert np.all(np.abs(10 * np.diff(up) - period) <= 10)
        assert 10 * (up[-1] - up[0]) / (len(up) - 1) == pytest.approx(period, abs=20 / (len(up) - 1))
        assert lengths.mean() == pytest.approx(longest, abs=2)


def test_phases_of_orbits_are_uniform_over_clients():
    m = 10_000
    active, prob = run_links(leo.function(context(m)), 5)
    p = prob[0, 0]
    assert np.all(np.abs(active.mean(axis=1) - p) < SIGMAS * np.sqrt(p * (1 - p) / m))


def test_satellites_share_an_orbit_until_one_is_always_there():
    one, prob = (
        x[0, 0]
        for x in (run_links(leo.function(context(1)), 1)[1], run_links(leo.function(context(1), satellites=5), 1)[1])
    )
    assert prob == pytest.approx(5 * one, rel=1e-6)
    active, prob = run_links(leo.function(context(9), satellites=13), 2000)
    assert np.all(prob == 1)
    assert active.all()
