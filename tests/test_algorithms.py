"""The rules of the methods: their examples run, with NumPy alone, and every method has one."""

from __future__ import annotations

import doctest
import importlib
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import rivals

from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.common.server import SERVERS
from fedpbc.algorithms.common.weighting import weighted
from fedpbc.algorithms.f3ast import init as first_rates
from fedpbc.algorithms.f3ast import weights as rated
from fedpbc.algorithms.fedau import init as first_intervals
from fedpbc.algorithms.fedau import weights as weighed
from fedpbc.algorithms.fedavg import WEIGHTING
from fedpbc.core.schema import Context
from fedpbc.core.types import Link, Round

CONTEXT = Context(0, np.dtype(np.float64), 10)


@pytest.mark.parametrize("name", ALGORITHMS.registry)
def test_examples_of_the_rules(name):
    result = doctest.testmod(importlib.import_module(f"fedpbc.algorithms.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", ALGORITHMS.registry)
def test_every_method_names_its_source(name):
    summary = ALGORITHMS.registry[name].__doc__.split("\n\n")[0]
    assert any(source in summary for source in ("arXiv", "et al.", "Algorithm 1", "ours"))


@pytest.mark.parametrize("name", ALGORITHMS.registry)
def test_a_round_runs_on_numpy_arrays(name):
    """What a server on real machines would call."""
    algorithm = ALGORITHMS.registry[name].function(CONTEXT)
    m, d = 4, 3
    state = algorithm.init(algorithm.params, np.zeros(d), m)
    link = Link(np.array([True, False, True, True]), np.full(m, 0.5))
    updates = np.random.default_rng(0).standard_normal((m, d))

    def train(models, shift=None, proximal=None, last_gradient=False):
        return updates if last_gradient else models + updates

    round_ = Round(np.int32(0), link, np.float64(0.1), np.int32(2), np.ones(m, bool), train)
    after = algorithm.models(algorithm.round(algorithm.params, state, round_))
    assert isinstance(after.server, np.ndarray)
    assert after.server.dtype == np.float64
    assert np.all(np.isfinite(after.server))
    if name in ("fedavg", "fedpbc", "fedvarp", "fedawe"):
        np.testing.assert_allclose(after.server, updates[link.active].mean(axis=0))


@pytest.mark.parametrize("name", SERVERS.registry)
def test_a_server_optimiser_rests_when_nothing_arrives(name):
    algorithm = weighted(WEIGHTING, SERVERS.registry[name].function(CONTEXT))
    state = algorithm.init(algorithm.params, np.zeros(2), 3)

    def after(state, active, steps):
        link = Link(np.array(active), np.ones(3))
        computes = np.full(3, steps > 0)
        round_ = Round(
            np.int32(0), link, 0.1, np.int32(steps), computes, lambda x, shift=None, proximal=None: x + (steps > 0)
        )
        return algorithm.round(algorithm.params, state, round_)

    moved = after(state, [True, False, True], 1)
    assert np.all(moved.server > 0)
    for quiet in (after(moved, [False] * 3, 1), after(moved, [True] * 3, 0)):
        np.testing.assert_array_equal(quiet.server, moved.server)
        for new, old in zip(quiet.optimizer, moved.optimizer, strict=True):
            np.testing.assert_array_equal(new, old)


# ------------------------------------------- three rounds by hand: which comes first, updating an estimate or using it


class Three(NamedTuple):
    """Two clients, s = 1, x^0 = 0, one number; the updates Delta_i of each round, None of who is not heard."""

    options: dict[str, Any]
    method: rivals.Method
    updates: list[tuple[float | None, float | None]]
    servers: list[Any]
    """x^1, x^2, x^3, worked out in the comment above."""
    eta: tuple[float, float, float] = (1.0, 1.0, 1.0)
    lost: tuple[int, int] | None = None
    """(round, client): who loses all it keeps before it."""


F = Fraction
BY_HAND = {
    # FedAU, w = (1, 1), used first. t=0: x = 1*1/2 = 1/2; 0 waited 1: w_0 = 1.
    # t=1: x = 1/2 + (1*1 + 1*2)/2 = 2; 0 waited 1: w_0 = (1 + 1)/2 = 1; 1 waited 2: w_1 = 2.
    # t=2: x = 2 + 2*2/2 = 4. (Updated first, t=1 would give 1/2 + (1*1 + 2*2)/2 = 3.)
    "fedau": Three({"name": "fedau", "cutoff": 0}, rivals.FedAU(0), [(1, None), (1, 2), (None, 2)], [0.5, 2, 4]),
    # the same, K = 1: every interval ends after one round, so w stays 1. t=2: x = 2 + 1*2/2 = 3.
    "fedau, K = 1": Three({"name": "fedau", "cutoff": 1}, rivals.FedAU(1), [(1, None), (1, 2), (None, 2)], [0.5, 2, 3]),
    # F3AST, K = 1, beta = 1/2, r = (1/2, 1/2), updated first.
    # t=0: S = {0}: r = (1/4 + 1/2, 1/4) = (3/4, 1/4), w_0 = 1/(2*3/4) = 2/3: x = 2/3*1 = 2/3.
    # t=1: smallest r: S = {1}: r = (3/8, 1/8 + 1/2) = (3/8, 5/8), w_1 = 1/(2*5/8) = 4/5: x = 2/3 + 4/5*2 = 34/15.
    # t=2: S = {0}: r = (3/16 + 1/2, 5/16) = (11/16, 5/16), w_0 = 8/11: x = 34/15 + 8/11 = 494/165.
    # (Used first, t=0 would give 1/(2*1/2) = 1.)
    "f3ast": Three(
        {"name": "f3ast", "slots": 1, "beta": 0.5},
        rivals.F3AST(1, 0.5),
        [(1, None), (1, 2), (1, 2)],
        [F(2, 3), F(34, 15), F(494, 165)],
    ),
    # FedAWE, tau = (-1, -1), used first. t=0: echo 0 - (-1) = 1: x = x_0 = 0 + 1*1 = 1, tau_0 = 0.
    # t=1: 0: 1 + (1 - 0)*1 = 2; 1: 0 + (1 - (-1))*2 = 4: x = x_0 = x_1 = 3, tau = (1, 1).
    # t=2: 1: 3 + (2 - 1)*2 = 5. (Updated first, every echo would be 0 and x would stay 0.)
    "fedawe": Three({"name": "fedawe"}, rivals.FedAWE(), [(1, None), (1, 2), (None, 2)], [1, 3, 5]),
    # the same with echoes up to 1. t=1: 0: 2; 1: 0 + 1*2 = 2: x = 2. t=2: 2 + 2 = 4.
    "fedawe, clip 1": Three(
        {"name": "fedawe", "clip": 1}, rivals.FedAWE(clip=1), [(1, None), (1, 2), (None, 2)], [1, 2, 4]
    ),
    # FedAWE, norms up to 1. t=0: 0 + 1 = 1. t=1: mean of x_i = (1 + 0)/2, mean echo (1*1 + 2*2)/2 = 5/2, cut to 1: 3/2.
    # t=2: 3/2 + (2 - 1)*2 = 2 cut to 1: 5/2.
    "fedawe, norm 1": Three(
        {"name": "fedawe", "norm_limit": 1.0},
        rivals.FedAWE(norm_limit=1),
        [(1, None), (1, 2), (None, 2)],
        [1, 1.5, 2.5],
    ),
    # FedAWE, client 1 loses all before t=2. t=0: x = 1, tau = (0, -1). t=2: 0: 1 + (2 - 0)*1 = 3; 1, as if it had been
    # active in t=1: 0 + (2 - 1)*2 = 2: x = 5/2. (With its old clock 0 + (2 - (-1))*2 = 6, and x = 9/2.)
    "fedawe, lost": Three(
        {"name": "fedawe"}, rivals.FedAWE(), [(1, None), (None, None), (1, 2)], [1, 1, 2.5], lost=(2, 1)
    ),
    # Amplified FedAvg, P = 2, gamma = 3, x_t0 = 0. t=0: x = 1. t=1: update first, 1 + 1 = 2, then 0 + 3*(2 - 0) = 6,
    # which is the new x_t0. t=2: 6 + 2 = 8. (Amplified first, t=1 would give 3*1 + 1 = 4.)
    "amplified": Three(
        {"name": "amplified_fedavg", "window": 2, "gamma": 3.0},
        rivals.AmplifiedFedAvg(2, 3.0),
        [(1, None), (1, None), (None, 2)],
        [1, 6, 8],
    ),
    # FedVARP, y = (0, 0), ybar = 0, used first. t=0: x = 0 + (1 - 0) = 1; y = (1, 0), ybar = 1/2.
    # t=1: x = 1 + 1/2 + (2 - 0) = 7/2; y = (1, 2), ybar = 3/2.
    # t=2: x = 7/2 + 3/2 + ((3 - 1) + (4 - 2))/2 = 7. (Updated first, t=0 would give 1/2 + 0 = 1/2.)
    "fedvarp": Three({"name": "fedvarp"}, rivals.FedVARP(), [(1, None), (None, 2), (3, 4)], [1, 3.5, 7]),
    # Debiased FedAvg. t=0: f_0 = 1/1: x = 0 + 1/2 = 1/2. t=1: f = (2/2, 1/2): x = 1/2 + (1/1 + 2/(1/2))/2 = 3.
    # t=2: f_1 = 2/3: x = 3 + 2/(2/3)/2 = 9/2. (With the shares of before, t=1 would divide by f_1 = 0.)
    "debiased": Three(
        {"name": "debiased_fedavg"}, rivals.DebiasedFedAvg(), [(1, None), (1, 2), (None, 2)], [0.5, 3, 4.5]
    ),
    # FedStale, beta = 1/2, w = 1/|A|, h = (0, 0). t=0: x = 0 + 0 + (1 - 0) = 1; h = (1, 0), hbar = 1/2.
    # t=1: x = 1 + 1/4 + (2 - 0) = 13/4; h = (1, 2), hbar = 3/2.
    # t=2: x = 13/4 + 3/4 + ((3 - 1/2) + (4 - 1))/2 = 27/4. (FedVARP gives 1, 7/2, 7, FedAvg 1, 3, 13/2.)
    "fedstale": Three(
        {"name": "fedstale", "weights": "mean"},
        rivals.FedStale(0.5, rivals.FedAvg()),
        [(1, None), (None, 2), (3, 4)],
        [1, 3.25, 6.75],
    ),
    # FOCUS, eta = 1, gradients -Delta_i, y = 0. t=0: y = -1: x = 1. t=1: y = -1 - 2 = -3: x = 4.
    # t=2: 0 pushes -3 + 1 = -2: y = -5: x = 9. (The mean over A would be 1, 3, 6.)
    "focus": Three({"name": "focus"}, rivals.FOCUS(), [(1, None), (None, 2), (3, None)], [1, 4, 9]),
    # the same, client 1 loses g_1 before t=2, in which only it is heard: nothing it pushes counts, y = -3: x = 7, and
    # then y = 0.
    "focus, lost": Three({"name": "focus"}, rivals.FOCUS(), [(1, None), (None, 2), (None, 4)], [1, 4, 7], lost=(2, 1)),
    # AREA, y = (0, 0), z_i = x + Delta_i. t=0: z_0 = 1: x = 0 + (1 - 0)/2 = 1/2; y = (1, 0).
    # t=1: z = (3/2, 5/2): x = 1/2 + (3/2 - 1 + 5/2 - 0)/2 = 2 = the mean of y = (3/2, 5/2).
    # t=2: z_1 = 4: x = 2 + (4 - 5/2)/2 = 11/4.
    "area": Three({"name": "area"}, rivals.AREA(), [(1, None), (1, 2), (None, 2)], [0.5, 2, 2.75]),
    # client 1 loses y_1 before t=2: x = 2 + (4 - 0)/2 = 4; y = (3/2, 4), whose mean is 11/4.
    "area, lost": Three({"name": "area"}, rivals.AREA(), [(1, None), (1, 2), (None, 2)], [0.5, 2, 4], lost=(2, 1)),
    # MIFA, eta = 1, 1/2, 1/4, G = (0, 0), updated first. t=0: G_0 = -1/1: x = 0 + 1*1/2 = 1/2.
    # t=1: G_1 = -2/(1/2) = -4: x = 1/2 + 1/2*(1 + 4)/2 = 7/4. t=2, nobody: x = 7/4 + 1/4*5/2 = 19/8.
    # (Used first, t=0 would give 0.)
    "mifa": Three(
        {"name": "mifa"}, rivals.MIFA(), [(1, None), (None, 2), (None, None)], [0.5, 1.75, 2.375], (1.0, 0.5, 0.25)
    ),
    # the same, waiting for client 1. t=0: 0. t=1: 0 + 5/4. t=2: 5/4 + 5/8 = 15/8.
    "mifa, waiting": Three(
        {"name": "mifa", "wait": True},
        rivals.MIFA(True),
        [(1, None), (None, 2), (None, None)],
        [0, 1.25, 1.875],
        (1.0, 0.5, 0.25),
    ),
}
BY_HAND |= {
    f"{name}, on clients": case._replace(options={**case.options, "memory": "client"}, method=method)
    for name, case, method in (
        ("fedvarp", BY_HAND["fedvarp"], rivals.FedVARPDifferences()),
        ("mifa", BY_HAND["mifa"], rivals.MIFADifferences()),
        ("mifa, waiting", BY_HAND["mifa, waiting"], rivals.MIFADifferences(True)),
    )
} | {
    # MIFA on clients, eta = 1, client 1 loses h_1 before t=1. t=0: h = (-1, -2), hbar = -3/2: x = 3/2.
    # t=1: 0 sends -1 - (-1) = 0, hbar stays for this step: x = 3; then a new epoch, h = (0, 0), hbar = 0.
    # t=2: 0 sends -1: hbar = -1/2: x = 7/2. (Without epochs 1 would send -2 in t=1: hbar = -5/2, x = 4, for ever.)
    "mifa, lost": Three(
        {"name": "mifa", "memory": "client"},
        rivals.MIFADifferences(),
        [(1, 2), (1, 2), (1, None)],
        [1.5, 3, 3.5],
        lost=(1, 1),
    ),
    # FedVARP likewise. t=0: x = 0 + (1 + 2)/2 = 3/2, hbar = 3/2. t=1: only 0 counts: x = 3/2 + 3/2 + (1 - 1)/1 = 3;
    # then hbar = 0. t=2: x = 3 + 0 + (1 - 0)/1 = 4.
    "fedvarp, lost": Three(
        {"name": "fedvarp", "memory": "client"},
        rivals.FedVARPDifferences(),
        [(1, 2), (1, 2), (1, None)],
        [1.5, 3, 4],
        lost=(1, 1),
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_three_rounds_by_hand(case):
    options, method, updates, servers, eta, lost = BY_HAND[case]
    name = options["name"]
    algorithm = ALGORITHMS.registry[name].function(CONTEXT, **{k: v for k, v in options.items() if k != "name"})
    state, x0, found = algorithm.init(algorithm.params, np.zeros(1), 2), np.zeros(1), []
    for t, delta in enumerate(updates):
        if lost and lost[0] == t:
            state = algorithm.forget(algorithm.params, state, np.arange(2) == lost[1], x0, np.int32(t))
        active, step = np.array([d is not None for d in delta]), np.array([[d or 0.0] for d in delta])
        round_ = Round(
            np.int32(t),
            Link(active, np.full(2, 0.5)),
            np.float64(eta[t]),
            np.int32(1),
            active,
            lambda models, shift=None, proximal=None, last_gradient=False, step=step, eta=eta[t]: (
                -step / eta if last_gradient else models + step
            ),
        )
        state = algorithm.round(algorithm.params, state, round_)
        found.append(algorithm.models(state).server[0])
    np.testing.assert_allclose(found, [float(x) for x in servers], rtol=1e-14)

    links = np.array([[d is not None for d in delta] for delta in updates])
    states = rivals.simulate(
        method,
        lambda i, x, xi: np.full_like(x, -(updates[xi][i] or 0.0) / eta[xi]),
        links,
        np.zeros(1),
        steps=1,
        rate=lambda t: eta[t],
        sample=lambda t, i, k: t,
        lost={lost[0]: {lost[1]}} if lost else None,
    )
    np.testing.assert_allclose([s.server[0] for s in states[1:]], [float(x) for x in servers], rtol=1e-14)


def test_f3asts_ties_go_round():
    """Of equal rates the smaller (i - t) mod m comes first: in round t clients t and t + 1."""
    params, everybody = {"slots": np.int32(2), "beta": np.float64(0.1)}, Link(np.ones(5, bool), np.ones(5))
    for t in range(7):
        _, used = rated(params, first_rates(params, 5, np.float64), everybody, t)
        assert np.flatnonzero(used).tolist() == sorted([t % 5, (t + 1) % 5])


def test_f3asts_weights_are_bounded_after_a_long_absence():
    """No weight above 1/(m beta): a client that was away for 2000 rounds is chosen with r_i >= beta."""
    m, beta = 4, 0.01
    params, rng = {"slots": np.int32(2), "beta": np.float64(beta)}, np.random.default_rng(0)
    rates, largest = first_rates(params, m, np.float64), 0.0
    for t in range(4000):
        active = rng.random(m) < 0.7
        active[0] = t % 2000 == 1999
        rates, used = rated(params, rates, Link(active, np.ones(m)), t)
        largest = max(largest, used.max())
    assert 0.9 / (m * beta) < largest <= 1 / (m * beta)


def test_the_cutoffs_bias_under_links_with_memory():
    """FedAU, p = .1 and autocorrelation .9: 10 rounds between contacts on average, and K = 50 makes 8.8 of it.

    An absence of L rounds has P(L >= n) = .99^(n-1), for P(on given off) = (1 - .9) .1 = .01; stays last 1/.09 rounds,
    as P(on given on) = .9 + .1 * .1 = .91. A stay and an absence are 1/.09 + 100 rounds; they hold 1/.09 ends of
    intervals by contact, and one more for every K rounds of absence: sum over k >= 1 of .99^(50 k - 1).
    """
    cuts = sum(0.99 ** (50 * k - 1) for k in range(1, 1000))
    wanted = {0: 10.0, 50: (1 / 0.09 + 100) / (1 / 0.09 + cuts)}
    assert abs(wanted[50] - 8.8) < 0.05
    m, rounds, settled, rng = 1000, 4000, 500, np.random.default_rng(3)
    before = {}
    states = {cutoff: first_intervals(None, m, np.float64) for cutoff in wanted}
    on = rng.random(m) < 0.1
    for t in range(rounds):
        if t == settled:
            before = {cutoff: state.count.sum() for cutoff, state in states.items()}
        on = rng.random(m) < np.where(on, 0.91, 0.01)
        for cutoff in wanted:
            limit = np.int64(cutoff or np.iinfo(np.int32).max)
            states[cutoff], _ = weighed(limit, states[cutoff], Link(on, np.ones(m)), t)
    for cutoff, mean in wanted.items():
        ended = states[cutoff].count.sum() - before[cutoff]
        assert abs(m * (rounds - settled) / ended - mean) < 0.15, cutoff
