"""Every algorithm with every link process on every problem: finite, compiled once, structure kept."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiment import Experiment
from fedpbc.links import LINKS
from fedpbc.problems import PROBLEMS
from fedpbc.runner import _Grid, run
from fedpbc.types import Link, Round

ROUNDS, CLIENTS = 6, 5
TRACE = np.random.default_rng(0).random((ROUNDS, CLIENTS)) < 0.5
TRACE[2] = False

LINK_SETTINGS: dict[str, dict[str, Any]] = {
    "bernoulli": {"name": "bernoulli", "prob": 0.4, "varying": {"name": "sine", "amplitude": 0.5, "period": 4}},
    "markov": {"name": "markov", "prob": 0.4, "memory": 0.5, "varying": {"name": "staircase", "half_period": 2}},
    "gilbert_elliott": {"name": "gilbert_elliott", "good_to_bad": 0.3, "bad_to_good": 0.4, "good": 0.9, "bad": 0.1},
    "cyclic": {"name": "cyclic", "prob": 0.4, "period": 3, "reset": True},
    "outages": {"name": "outages", "prob": 0.7, "groups": 2, "outage": 0.3, "memory": 0.5},
    "fading": {"name": "fading", "model": "rician", "doppler": 0.1},
    "deadline": {"name": "deadline"},
    "leo": {"name": "leo", "satellites": 4, "round_seconds": 300},
    "trace": {"name": "trace", "path": "trace.npy"},
    "fedscale": {"name": "fedscale", "path": "phones.json", "round_seconds": 10},
    "two_way": {
        "name": "two_way",
        "up": {"name": "markov", "prob": 0.5, "memory": 0.5},
        "down": {"name": "bernoulli", "prob": 0.8},
    },
}
PHONES = {i: {"active": [5 * i], "inactive": [5 * i + 30], "finish_time": 70} for i in range(CLIENTS + 1)}
PROBLEM_SETTINGS: dict[str, dict[str, Any]] = {
    "quadratic": {"name": "quadratic", "num_clients": CLIENTS, "dim": 3},
    "synthetic": {"name": "synthetic", "num_clients": CLIENTS},
}


def make(tmp_path, problem: str, link: dict[str, Any], algorithm: str, **changes: Any) -> Experiment:
    np.save(tmp_path / "trace.npy", TRACE)
    (tmp_path / "phones.json").write_text(json.dumps(PHONES))
    table = {
        "name": "conformance",
        "rounds": ROUNDS,
        "local_steps": 2,
        "learning_rate": 0.1,
        "seeds": [0],
        "batch_size": 4,
        "problem": PROBLEM_SETTINGS[problem],
        "links": [link],
        "algorithms": [{"name": algorithm}],
        **changes,
    }
    return Experiment.from_table(table, tmp_path)


def test_every_registered_component_is_tested_here():
    assert set(LINK_SETTINGS) == set(LINKS.registry)
    assert set(PROBLEM_SETTINGS) == set(PROBLEMS.registry)


@pytest.mark.parametrize("link", LINKS.registry)
@pytest.mark.parametrize("problem", PROBLEMS.registry)
@pytest.mark.parametrize("algorithm", ALGORITHMS.registry)
def test_runs_finite_in_one_program(tmp_path, problem, link, algorithm):
    experiment = make(tmp_path, problem, LINK_SETTINGS[link], algorithm, compute=["all", "active"], seeds=[0, 1])
    result = run(experiment)
    assert result.manifest["programs_compiled"] == 2
    for cell in result.cells.values():
        assert all(np.all(np.isfinite(values)) for values in cell.rows.values())
        assert cell.models["server"].dtype == np.float32
    if link == "trace":
        for cell in result.cells.values():
            assert cell.rows["num_active"].tolist() == [0, *TRACE.sum(axis=1)]
            assert cell.rows["empty_rounds"][-1] == np.sum(TRACE.sum(axis=1) == 0) > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS.registry)
def test_full_participation_is_fedavg(tmp_path, algorithm):
    always = {"name": "bernoulli", "prob": 1.0}
    ours = run(make(tmp_path, "synthetic", always, algorithm, precision="float64"))
    fedavg = run(make(tmp_path, "synthetic", always, "fedavg", precision="float64"))
    (mine,), (theirs,) = ours.cells.values(), fedavg.cells.values()
    np.testing.assert_allclose(mine.models["server"], theirs.models["server"], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("algorithm", ALGORITHMS.registry)
def test_nobody_ever_active_leaves_the_server_where_it_started(tmp_path, algorithm):
    never = {"name": "bernoulli", "prob": 0.0}
    (cell,) = run(make(tmp_path, "quadratic", never, algorithm)).cells.values()
    np.testing.assert_array_equal(cell.models["server"], np.zeros(3))
    assert cell.rows["empty_rounds"].tolist() == list(range(ROUNDS + 1))


@pytest.mark.parametrize("compute", ["all", "active"])
@pytest.mark.parametrize("algorithm", ALGORITHMS.registry)
def test_a_diverged_absent_client_cannot_reach_the_server(tmp_path, algorithm, compute):
    state, round_ = one_round(tmp_path, algorithm, active=[True, False, True, True, True])
    params, algorithm_ = round_.params, round_.algorithm
    poisoned = state._replace(clients=state.clients.at[1].set(jnp.nan))
    after = algorithm_.models(algorithm_.round(params, poisoned, round_.round))
    clean = algorithm_.models(algorithm_.round(params, state, round_.round))
    np.testing.assert_array_equal(after.server, clean.server)


@pytest.mark.parametrize("algorithm", ALGORITHMS.registry)
def test_only_oracle_methods_may_read_the_probabilities(tmp_path, algorithm):
    state, case = one_round(tmp_path, algorithm, active=[True, False, True, False, True])
    hidden = case.round._replace(link=Link(case.round.link.active, jnp.full(CLIENTS, jnp.nan)))
    after = case.algorithm.round(case.params, state, hidden)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(after))


@pytest.mark.parametrize("algorithm", ALGORITHMS.registry)
def test_permuting_the_clients_permutes_the_result(tmp_path, algorithm):
    order = np.array([3, 0, 4, 1, 2])
    active = np.array([True, False, True, True, False])
    state, case = one_round(tmp_path, algorithm, active=active)
    plain = case.algorithm.models(case.algorithm.round(case.params, state, case.round))
    permuted_round = case.round._replace(
        link=Link(jnp.asarray(active[order]), jnp.ones(CLIENTS)),
        train=lambda x: x + case.shift[order],
    )
    permuted_state = state._replace(clients=state.clients[order])
    permuted = case.algorithm.models(case.algorithm.round(case.params, permuted_state, permuted_round))
    np.testing.assert_allclose(permuted.server, plain.server, rtol=1e-6)
    np.testing.assert_allclose(permuted.clients, plain.clients[order], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS.registry)
def test_an_empty_round_leaves_the_server_model(tmp_path, algorithm):
    state, case = one_round(tmp_path, algorithm, active=[False] * CLIENTS)
    after = case.algorithm.models(case.algorithm.round(case.params, state, case.round))
    np.testing.assert_array_equal(after.server, state.server)
    np.testing.assert_allclose(after.clients, state.clients + case.shift, rtol=1e-6)


class Case:
    """One round of an algorithm with a training function that only shifts each client."""

    def __init__(self, algorithm: Any, active: Any) -> None:
        rng = np.random.default_rng(2)
        self.algorithm, self.params = algorithm, algorithm.params
        self.shift = jnp.asarray(rng.standard_normal((CLIENTS, 3)), jnp.float32)
        link = Link(jnp.asarray(active), jnp.ones(CLIENTS))
        self.round = Round(jnp.int32(4), link, jnp.float32(0.1), lambda x: x + self.shift)


def one_round(tmp_path, name: str, active: Any) -> tuple[Any, Case]:
    experiment = make(tmp_path, "quadratic", LINK_SETTINGS["bernoulli"], name)
    grid = _Grid(experiment)
    algorithm = experiment.algorithms[0].build(experiment.context(0, grid.problem(0)))
    case = Case(algorithm, active)
    state = algorithm.init(algorithm.params, jnp.zeros(3), CLIENTS)
    rng = np.random.default_rng(3)
    clients = jnp.asarray(rng.standard_normal((CLIENTS, 3)), jnp.float32)
    return state._replace(server=clients[0] + 1, clients=clients), case
