"""Links with memory and links that fail together, against their formulae."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from link_helpers import SIGMAS, autocorrelation, context, run_links, standard_error

from fedpbc.core.types import Link, LinkProcess
from fedpbc.errors import BadOption
from fedpbc.links.bernoulli import draw
from fedpbc.links.common.variation import staircase
from fedpbc.links.cyclic import cyclic
from fedpbc.links.gilbert_elliott import gilbert_elliott
from fedpbc.links.markov import markov
from fedpbc.links.outages import outages

P = np.array([0.1, 0.3, 0.5, 0.9])
ROUNDS = 40_000


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_markov_has_its_marginals_memory_and_transitions(memory):
    active, prob = run_links(markov.function(context(4), prob=P, memory=memory), ROUNDS)
    np.testing.assert_allclose(prob, np.tile(P, (ROUNDS, 1)), rtol=1e-5)
    assert np.all(np.abs(active.mean(axis=0) - P) < SIGMAS * standard_error(P, ROUNDS, memory))
    before, after = active[:-1], active[1:]
    for was, chance in ((True, memory + (1 - memory) * P), (False, (1 - memory) * P)):
        count = (before == was).sum(axis=0)
        seen = ((before == was) & after).sum(axis=0) / count
        assert np.all(np.abs(seen - chance) <= SIGMAS * np.sqrt(chance * (1 - chance) / count) + 1e-9)
    slack = SIGMAS * 3 * standard_error(P, ROUNDS, memory) / np.sqrt(P * (1 - P))
    for lag in (1, 3):
        assert np.all(np.abs(autocorrelation(active, P, lag) - memory**lag) < slack)


def test_markov_starts_from_its_stationary_law():
    m = 20_000
    active, _ = run_links(markov.function(context(m), prob=np.full(m, 0.2), memory=0.95), 2)
    assert np.all(np.abs(active.mean(axis=1) - 0.2) < SIGMAS * np.sqrt(0.16 / m))


def test_each_client_may_have_a_memory_of_its_own():
    memory = np.array([0.0, 0.5, 0.8, 0.93])
    active, _ = run_links(markov.function(context(4), prob=P, memory=memory), ROUNDS)
    assert np.all(np.abs(active.mean(axis=0) - P) < SIGMAS * standard_error(P, ROUNDS, memory))
    error = SIGMAS * 3 * standard_error(P, ROUNDS, memory) / np.sqrt(P * (1 - P))
    assert np.all(np.abs(autocorrelation(active, P) - memory) < error)
    with pytest.raises(BadOption, match=r"memory = .*: is 1.2 for client 1, must be in \[0, 1\]"):
        markov.function(context(2), prob=0.5, memory=np.array([0.1, 1.2]))


def test_markov_goes_on_when_the_probability_varies():
    m, memory = 20_000, 0.6
    varying = staircase.function(context(m), low=0.25, half_period=5)
    active, prob = run_links(markov.function(context(m), prob=np.full(m, 0.8), memory=memory, varying=varying), 20)
    share, expected = 0.8, []
    for t in range(20):
        share = memory * share + (1 - memory) * (0.8 if t % 10 < 5 else 0.2)
        expected.append(share)
    np.testing.assert_allclose(prob, np.tile(np.array(expected)[:, None], (1, m)), rtol=1e-5)
    assert np.all(np.abs(active.mean(axis=1) - expected) < SIGMAS * 0.5 / np.sqrt(m))
    both = np.mean(active[4] & active[5])
    assert both == pytest.approx(expected[4] * (memory + (1 - memory) * 0.2), abs=SIGMAS * 0.5 / np.sqrt(m))


def test_a_chain_that_is_created_anew_each_round_has_no_memory():
    """The mistake of public code for "Markov" links: marginals are right and the memory is gone."""
    process = markov.function(context(4), prob=P, memory=0.9)

    def anew(params, key, state, t):
        fresh = process.init(params, jax.random.fold_in(key, 1))
        return process.step(params, key, fresh, t)

    mistaken, _ = run_links(LinkProcess(process.params, process.init, anew), ROUNDS)
    assert np.all(np.abs(mistaken.mean(axis=0) - P) < SIGMAS * standard_error(P, ROUNDS))
    assert np.all(np.abs(autocorrelation(mistaken, P)) < SIGMAS / np.sqrt(ROUNDS))
    ours, _ = run_links(process, ROUNDS)
    assert np.all(autocorrelation(ours, P) > 0.8)


def test_markov_without_memory_is_certain_at_0_and_1_and_with_full_memory_never_moves():
    active, _ = run_links(markov.function(context(2), prob=np.array([0.0, 1.0]), memory=0.7), 3000)
    assert not active[:, 0].any()
    assert active[:, 1].all()
    active, _ = run_links(markov.function(context(50), prob=np.full(50, 0.5), memory=1.0), 100)
    assert np.all(active == active[0])
    assert 0 < active[0].sum() < 50


def test_gilbert_elliott_has_its_marginals_and_autocorrelation():
    a, b, k, h = 0.05, 0.2, np.array([1.0, 0.9, 0.6]), np.array([0.0, 0.1, 0.3])
    process = gilbert_elliott.function(context(3), good_to_bad=np.full(3, a), bad_to_good=np.full(3, b), good=k, bad=h)
    active, prob = run_links(process, ROUNDS)
    share = b / (a + b)
    p = k * share + h * (1 - share)
    np.testing.assert_allclose(prob, np.tile(p, (ROUNDS, 1)), rtol=1e-5)
    assert np.all(np.abs(active.mean(axis=0) - p) < SIGMAS * standard_error(p, ROUNDS, 1 - a - b))
    for lag in (1, 2, 5):
        expected = (k - h) ** 2 * share * (1 - share) * (1 - a - b) ** lag / (p * (1 - p))
        error = SIGMAS * 3 * standard_error(p, ROUNDS, 1 - a - b) / np.sqrt(p * (1 - p))
        assert np.all(np.abs(autocorrelation(active, p, lag) - expected) < error)


def test_gilbert_elliott_by_default_loses_everything_in_bad_spells_of_mean_length_1_over_b():
    process = gilbert_elliott.function(context(1), good_to_bad=np.full(1, 0.1), bad_to_good=np.full(1, 0.25))
    active, _ = run_links(process, ROUNDS)
    edges = np.flatnonzero(np.diff(active[:, 0].astype(int)))
    lengths = np.diff(edges)
    bad = lengths[0 if not active[edges[0] + 1, 0] else 1 :: 2]
    assert bad.mean() == pytest.approx(4, abs=SIGMAS * np.sqrt(0.75) / 0.25 / np.sqrt(len(bad)))


def test_gilbert_elliott_starts_from_its_stationary_law():
    m = 20_000
    active, _ = run_links(
        gilbert_elliott.function(context(m), good_to_bad=np.full(m, 0.01), bad_to_good=np.full(m, 0.03)), 2
    )
    assert np.all(np.abs(active.mean(axis=1) - 0.75) < SIGMAS * np.sqrt(0.1875 / m))


def test_a_chain_that_cannot_move_has_no_stationary_law():
    with pytest.raises(BadOption, match=r"good_to_bad = 0.0: and bad_to_good are both 0 for client 1"):
        gilbert_elliott.function(context(2), good_to_bad=np.array([0.1, 0.0]), bad_to_good=np.zeros(2))


@pytest.mark.parametrize("reset", [False, True])
def test_cyclic_is_on_for_its_share_of_every_cycle(reset):
    m, period, cycles = 300, 7, 12
    base = np.resize([0.0, 0.01, 0.3, 0.5, 1.0], m)
    on = np.resize([0, 1, 2, 4, 7], m)
    active, prob = run_links(cyclic.function(context(m), prob=base, period=period, reset=reset), period * cycles)
    np.testing.assert_allclose(prob, np.tile(on / period, (period * cycles, 1)), rtol=1e-6)
    by_cycle = active.reshape(cycles, period, m)
    assert np.all(by_cycle.sum(axis=1) == on)
    same = np.all(by_cycle == by_cycle[0], axis=(0, 1))
    moving = (on > 0) & (on < period)
    assert np.all(same[~moving])
    assert np.all(same[moving] == (not reset))
    turns_on = (~by_cycle & np.roll(by_cycle, -1, axis=1)).sum(axis=1)
    assert np.all(turns_on == moving)


@pytest.mark.parametrize("reset", [False, True])
def test_offsets_of_cycles_are_uniform(reset):
    m, period = 14_000, 7
    active, prob = run_links(cyclic.function(context(m), prob=np.full(m, 0.3), period=period, reset=reset), 2 * period)
    p = prob[0, 0]
    assert np.all(np.abs(active.mean(axis=1) - p) < SIGMAS * np.sqrt(p * (1 - p) / m))


def test_the_longest_period_does_not_overflow():
    active, _ = run_links(cyclic.function(context(500), prob=np.full(500, 0.5), period=2**31 - 1), 3)
    assert np.all(np.abs(active.mean(axis=1) - 0.5) < SIGMAS * 0.5 / np.sqrt(500))


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_groups_are_down_together(memory):
    p, q = np.array([0.5, 0.9, 0.3, 0.8, 1.0]), 0.3
    process = outages.function(context(5), prob=p, groups=2, outage=q, memory=memory)
    active, prob = run_links(process, ROUNDS)
    marginal = p * (1 - q)
    np.testing.assert_allclose(prob, np.tile(marginal, (ROUNDS, 1)), rtol=1e-6)
    error = SIGMAS * standard_error(marginal, ROUNDS, memory)
    assert np.all(np.abs(active.mean(axis=0) - marginal) < error)
    group = np.array([0, 0, 0, 1, 1])
    together = np.outer(p, p) * q * (1 - q) * (group[:, None] == group)
    measured = np.cov(active.T.astype(float), bias=True)
    off = ~np.eye(5, dtype=bool)
    assert np.all(np.abs(measured - together)[off] < 3 * error.max() * 0.5)
    expected = memory * p**2 * q * (1 - q) / (marginal * (1 - marginal))
    assert np.all(np.abs(autocorrelation(active, marginal) - expected) < 3 * error.max())


def test_more_groups_than_clients_are_refused_and_as_many_are_independent():
    with pytest.raises(BadOption, match=r"groups = 4: must be at most the number of clients, 3"):
        outages.function(context(3), prob=P[:3], groups=4, outage=0.1)
    active, _ = run_links(outages.function(context(3), prob=np.ones(3), groups=3, outage=0.5), ROUNDS)
    across = np.corrcoef(active.T)[np.triu_indices(3, 1)]
    assert np.all(np.abs(across) < SIGMAS / np.sqrt(ROUNDS))


def test_a_link_without_downlink_reaches_the_active():
    active = draw(jax.random.key(0), np.full(9, 0.5, np.float32))
    assert Link(active, active).receives is active
