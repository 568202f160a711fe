"""What newer rivals must be, exactly: their rules in NumPy, round by round, without the engine."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
import rivals
from stepwise import random_trace
from test_rivals_memory import cost
from test_rivals_oracle import Matrices

from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.debiased_fedavg import WEIGHTING
from fedpbc.core.local import local_steps
from fedpbc.core.schema import Context
from fedpbc.core.types import Link, Round
from fedpbc.problems import synthetic

M, D, STEPS, ETA, ROUNDS = 6, 3, 3, 0.05, 60
PROBLEM = Matrices(4, M, D)
PROB = np.linspace(0.1, 0.9, M)
LINKS = random_trace(3, ROUNDS, M, PROB)
LINKS[:8, 1], LINKS[[4, 20]], LINKS[7] = False, False, True
LOST = {12: {1, 3}, 30: {0}}


def played(
    options: dict[str, Any], links: np.ndarray = LINKS, steps: int = STEPS, lost: dict[int, set[int]] | None = None
) -> tuple[np.ndarray, Any]:
    """(x^0, ..., x^T of a method on matrices of curvatures, exact gradients; its last state)."""
    name, given = options["name"], {key: value for key, value in options.items() if key != "name"}
    algorithm = ALGORITHMS.registry[name].function(Context(0, np.dtype(np.float64), len(links)), **given)
    x0 = np.ones(D)
    state, servers = algorithm.init(algorithm.params, x0, M), [x0]

    def train(models: Any, shift: Any = None, proximal: Any = None, last_gradient: bool = False) -> Any:
        z, shift = models, 0 if shift is None else shift
        for k in range(steps):
            g = np.einsum("iab,ib->ia", np.stack(PROBLEM.hessians), z - PROBLEM.centers)
            if last_gradient and k == steps - 1:
                return g
            z = z - ETA * (g + shift)
        return z

    for t, active in enumerate(links):
        if lost and t in lost:
            gone = np.isin(np.arange(M), list(lost[t]))
            state = algorithm.forget(algorithm.params, state, gone, x0, np.int32(t))
        given_round = Round(np.int32(t), Link(active, PROB), np.float64(ETA), np.int32(steps), active, train)
        state = algorithm.round(algorithm.params, state, given_round)
        servers.append(algorithm.models(state).server)
    return np.array(servers), state


def wanted(method: rivals.Method, links: np.ndarray = LINKS, **given: Any) -> np.ndarray:
    """The oracle's."""
    states = rivals.simulate(
        method, PROBLEM.gradient, links, np.ones(D), steps=STEPS, rate=lambda t: ETA, compute="active", **given
    )
    return np.array([state.server for state in states])


FEDAVGS = {"mean": "fedavg", "intervals": "fedau", "known": "fedavg_known"}
RULES = {"mean": rivals.FedAvg(), "intervals": rivals.FedAU(50), "known": rivals.FedAvgKnown()}


@pytest.mark.parametrize("weights", FEDAVGS)
def test_fedstale_is_the_oracle_with_all_weights(weights):
    for beta, rate in ((0.3, 1.0), (0.8, 0.6)):
        options = {"name": "fedstale", "weights": weights, "beta": beta, "server_learning_rate": rate}
        method = rivals.FedStale(beta, RULES[weights], rate)
        models = played(options)[0]
        np.testing.assert_allclose(models, wanted(method, prob=np.tile(PROB, (ROUNDS, 1))), rtol=0, atol=1e-11)


@pytest.mark.parametrize("weights", FEDAVGS)
def test_fedstale_without_stale_updates_is_fedavg_bit_for_bit(weights):
    plain, _ = played({"name": FEDAVGS[weights]})
    np.testing.assert_array_equal(played({"name": "fedstale", "weights": weights, "beta": 0.0})[0], plain)
    assert np.abs(played({"name": "fedstale", "weights": weights, "beta": 0.2})[0] - plain).max() > 0.01


def test_fedstale_that_counts_them_fully_is_fedvarp():
    models, _ = played({"name": "fedstale", "weights": "mean", "beta": 1.0})
    np.testing.assert_allclose(models, played({"name": "fedvarp"})[0], rtol=0, atol=1e-12)


EQUAL = {
    "debiased": {"name": "debiased_fedavg"},
    "fedstale": {"name": "fedstale"},
    "fedstale, mean": {"name": "fedstale", "weights": "mean", "beta": 0.9},
    "fedawe": {"name": "fedawe", "norm_limit": 1e6},
}


@pytest.mark.parametrize("case", EQUAL)
def test_with_everybody_heard_they_are_fedavg(case):
    everybody = np.ones((20, M), bool)
    models, _ = played(EQUAL[case], everybody)
    np.testing.assert_allclose(models, played({"name": "fedavg"}, everybody)[0], rtol=0, atol=1e-12)


def test_the_debiased_weight_is_unbiased_though_it_knows_its_own_round():
    """E[1_A w_i] = P(n_i > 0)/m: all histories of five rounds with p = .3, by their probabilities."""
    p, total = 0.3, np.zeros(5)
    for history in itertools.product([False, True], repeat=5):
        state, chance = WEIGHTING.init((), 1, np.float64), np.prod([p if heard else 1 - p for heard in history])
        for t, heard in enumerate(history):
            state, w = WEIGHTING.step((), state, Link(np.array([heard]), np.ones(1)), t)
            total[t] += chance * w[0] * heard
    np.testing.assert_allclose(total, 1 - 0.7 ** np.arange(1, 6), rtol=1e-13)


def test_focus_is_exact_at_a_constant_rate_where_fedavg_is_not():
    long = random_trace(5, 2500, M, PROB)
    models, state = played({"name": "focus", "server_learning_rate": 0.2}, long)
    assert np.abs(models[-1] - PROBLEM.solution).max() < 1e-9
    assert np.abs(played({"name": "fedavg"}, long[:500])[0][-1] - PROBLEM.solution).max() > 0.1
    own = [PROBLEM.gradient(i, models[-1]) for i in range(M)]
    np.testing.assert_allclose(state.kept.own, own, atol=1e-8)  # local steps stay where they begin


def test_focus_with_one_step_and_everybody_is_gradient_descent():
    everybody = np.ones((20, M), bool)
    models, _ = played({"name": "focus", "server_learning_rate": 1 / M}, everybody, steps=1)
    np.testing.assert_allclose(models, played({"name": "fedavg"}, everybody, steps=1)[0], rtol=0, atol=1e-12)


def test_a_gradient_that_focus_loses_does_not_bias_for_ever():
    long = random_trace(5, 2500, M, PROB)
    options = {"name": "focus", "server_learning_rate": 0.2}
    models, state = played(options, long, lost=LOST)
    assert int(state.kept.server_epoch) >= 2
    assert np.abs(models[-1] - PROBLEM.solution).max() < 1e-9
    np.testing.assert_allclose(played(options, LINKS, lost=LOST)[0], wanted(rivals.FOCUS(0.2), lost=LOST), atol=1e-11)


def test_what_they_cost():
    """Models up, down, on the server, there per client, on a client; numbers beside them."""
    found = {name: cost({"name": name}) for name in ("debiased_fedavg", "fedstale", "focus")}
    counted = {k: (c.up, c.down, c.server, c.server_per_client, c.client, *c.scalars) for k, c in found.items()}
    assert counted == {
        "debiased_fedavg": (1, 1, 1, 0, 0, 0, 0),
        "fedstale": (1, 1, 2, 1, 0, 0, 0),
        "focus": (1, 1, 2, 0, 1, 1, 1),
    }
    assert found["focus"].needs.startswith("a hook in the local gradient")
    assert "p_i^t" in cost({"name": "fedstale", "weights": "known"}).needs
    assert not cost({"name": "fedstale"}).needs


def test_the_norm_limit_is_one():
    limit, rate = 0.4, 0.5
    models, _ = played({"name": "fedawe", "norm_limit": limit, "server_learning_rate": rate})
    np.testing.assert_allclose(models, wanted(rivals.FedAWE(rate, norm_limit=limit)), rtol=0, atol=1e-12)
    alone = np.arange(20)[:, None] % 7 == np.arange(M)  # one client a round: x_i + eta_g v, and a round without anybody
    models, _ = played({"name": "fedawe", "norm_limit": limit, "server_learning_rate": rate}, alone)
    moved = np.linalg.norm(models[1 : M + 1] - 1, axis=1)  # from x_i = x^0
    np.testing.assert_allclose(moved, rate * limit, rtol=1e-12)
    free, _ = played({"name": "fedawe"})
    np.testing.assert_allclose(played({"name": "fedawe", "norm_limit": 1e9})[0], free, rtol=1e-9)


@pytest.mark.first(1)
@pytest.mark.parametrize(("minibatch", "steps"), [("round", 3), ("step", 3), ("step", 1)])
def test_the_last_gradient_is_that_of_the_last_step(minibatch, steps):
    """g = (z_(s-1) - z_s)/eta - shift, where all steps on one minibatch are one program too."""
    made = synthetic(num_clients=3, max_rows=60).build(Context(0, np.dtype(np.float32), 1, seeds=(0,)))
    problem = jax.tree.map(jax.numpy.asarray, made)
    assert problem.several is not None
    x, shift = problem.init + np.float32(0.1), 0.3 * np.ones_like(problem.init)
    key, eta = jax.random.key(1), np.float32(0.02)

    def after(steps: int, **given: Any) -> Any:
        client = np.int32(1)
        return np.array(local_steps(problem, x, client, key, eta, steps, 8, minibatch, shift=shift, **given)[0])

    before = after(steps - 1) if steps > 1 else x
    gradient = after(steps, last_gradient=True)
    np.testing.assert_allclose(gradient, (before - after(steps)) / eta - shift, atol=2e-4)
    assert np.abs(gradient).max() > 0.01
