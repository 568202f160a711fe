"""Every algorithm with every link process on every problem: finite, compiled once, structure kept."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.server import SERVERS
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
VARIANTS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "fedavg", "server": {"name": "sgd", "learning_rate": 0.5}},
    {"name": "fedavg", "server": {"name": "momentum"}},
    {"name": "fedavg_all", "server": {"name": "adam"}},
    {"name": "fedau", "server": {"name": "yogi"}},
    {"name": "fedavg_all"},
    {"name": "fedavg_known"},
    {"name": "fedau", "cutoff": 3},
    {"name": "f3ast"},
    {"name": "f3ast", "slots": 2},
    {"name": "fedprox"},
    {"name": "amplified_fedavg", "window": 3},
    {"name": "mifa"},
    {"name": "mifa", "wait": True},
    {"name": "mifa", "memory": "client"},
    {"name": "fedvarp"},
    {"name": "fedvarp", "memory": "client"},
    {"name": "scaffold"},
    {"name": "scaffold", "epoch_reset": True},
    {"name": "scaffold", "controls": "server", "apply": "around"},
    {"name": "fedawe"},
    {"name": "fedawe", "clip": 2},
    {"name": "fedpbc"},
    {"name": "fedpbc", "max_catchup": 2},
    {"name": "fedpbc_corrected"},
    {"name": "fedpbc_corrected", "correction": "light"},
    {"name": "fedpbc_corrected", "correction": "light", "apply": "around"},
]
"""Every algorithm, and every option that takes another path through its code."""


def label(variant: dict[str, Any]) -> str:
    return "-".join(str(v["name"] if isinstance(v, dict) else v) for v in variant.values())


every_variant = pytest.mark.parametrize("algorithm", VARIANTS, ids=label)


def make(tmp_path, problem: str, link: dict[str, Any], algorithm: str | dict[str, Any], **changes: Any) -> Experiment:
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
        "algorithms": [{"name": algorithm} if isinstance(algorithm, str) else algorithm],
        **changes,
    }
    return Experiment.from_table(table, tmp_path)


def test_every_registered_component_is_tested_here():
    assert set(LINK_SETTINGS) == set(LINKS.registry)
    assert set(PROBLEM_SETTINGS) == set(PROBLEMS.registry)
    assert {variant["name"] for variant in VARIANTS} == set(ALGORITHMS.registry)
    servers = {variant["server"]["name"] for variant in VARIANTS if "server" in variant}
    assert servers == set(SERVERS.registry)


@every_variant
def test_a_variant_runs_finite_in_one_program(tmp_path, algorithm):
    check_runs(tmp_path, "synthetic", "bernoulli", algorithm)


@pytest.mark.parametrize("link", LINKS.registry)
@pytest.mark.parametrize("algorithm", ["fedavg_known", "fedpbc_corrected"])
def test_a_link_process_runs_finite_in_one_program(tmp_path, link, algorithm):
    check_runs(tmp_path, "quadratic", link, algorithm)


@pytest.mark.parametrize("problem", PROBLEMS.registry)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedpbc", "scaffold"])
def test_a_problem_runs_finite_in_one_program(tmp_path, problem, algorithm):
    check_runs(tmp_path, problem, "trace", algorithm)


def check_runs(tmp_path, problem, link, algorithm):
    changes = {"compute": ["all", "active"], "seeds": [0, 1], "state_loss": {"round": 3, "share": 0.3}}
    result = run(make(tmp_path, problem, LINK_SETTINGS[link], algorithm, **changes))
    assert result.manifest["programs_compiled"] == 2
    for cell in result.cells.values():
        assert all(np.all(np.isfinite(values)) for values in cell.rows.values())
        assert cell.models["server"].dtype == np.float32
    if link == "trace":
        for cell in result.cells.values():
            assert cell.rows["num_active"].tolist() == [0, *TRACE.sum(axis=1)]
            assert cell.rows["empty_rounds"][-1] == np.sum(TRACE.sum(axis=1) == 0) > 0


LIKE_FEDAVG = ["fedavg_all", "fedavg_known", "fedau", "f3ast", "mifa", "fedvarp", "fedawe", "fedpbc"]
LIKE_SCAFFOLD = [
    {"name": "scaffold", "controls": "server"},
    {"name": "fedpbc_corrected"},
    {"name": "fedpbc_corrected", "correction": "light"},
]
NOT_FEDAVG = [{"name": "fedprox", "mu": 2.0}, {"name": "scaffold"}, {"name": "amplified_fedavg", "window": 2}]


@pytest.fixture(scope="module")
def with_everybody(tmp_path_factory):
    """The server's model after 6 rounds with p = 1, of any algorithm."""
    folder = tmp_path_factory.mktemp("everybody")

    @functools.cache
    def server(variant: str) -> np.ndarray:
        always = {"name": "bernoulli", "prob": 1.0}
        experiment = make(folder, "synthetic", always, json.loads(variant), precision="float64")
        (cell,) = run(experiment).cells.values()
        return cell.models["server"]

    return lambda variant: server(json.dumps(variant))


@pytest.mark.parametrize("algorithm", LIKE_FEDAVG)
def test_full_participation_is_fedavg(with_everybody, algorithm):
    ours, fedavg = with_everybody({"name": algorithm}), with_everybody({"name": "fedavg"})
    np.testing.assert_allclose(ours, fedavg, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("algorithm", LIKE_SCAFFOLD, ids=label)
def test_full_participation_is_scaffold(with_everybody, algorithm):
    ours, scaffold = with_everybody(algorithm), with_everybody({"name": "scaffold"})
    np.testing.assert_allclose(ours, scaffold, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("algorithm", NOT_FEDAVG, ids=label)
def test_what_changes_local_training_or_the_server_is_not_fedavg(with_everybody, algorithm):
    assert np.abs(with_everybody(algorithm) - with_everybody({"name": "fedavg"})).max() > 1e-3


@every_variant
def test_nobody_ever_active_leaves_the_server_where_it_started(tmp_path, algorithm):
    never = {"name": "bernoulli", "prob": 0.0}
    (cell,) = run(make(tmp_path, "quadratic", never, algorithm)).cells.values()
    np.testing.assert_array_equal(cell.models["server"], np.zeros(3))
    assert cell.rows["empty_rounds"].tolist() == list(range(ROUNDS + 1))


@pytest.mark.parametrize("compute", ["all", "active"])
@every_variant
def test_a_diverged_absent_client_cannot_reach_the_server(tmp_path, algorithm, compute):
    state, round_ = one_round(tmp_path, algorithm, active=[True, False, True, True, True])
    params, algorithm_ = round_.params, round_.algorithm
    poisoned = with_clients(state, algorithm_.models(state).clients.at[1].set(jnp.nan))
    after = algorithm_.models(algorithm_.round(params, poisoned, round_.round))
    clean = algorithm_.models(algorithm_.round(params, state, round_.round))
    np.testing.assert_array_equal(after.server, clean.server)


@every_variant
def test_only_oracle_methods_may_read_the_probabilities(tmp_path, algorithm):
    if algorithm["name"] == "fedavg_known":
        pytest.skip("is the oracle method")
    state, case = one_round(tmp_path, algorithm, active=[True, False, True, False, True])
    hidden = case.round._replace(link=Link(case.round.link.active, jnp.full(CLIENTS, jnp.nan)))
    after = case.algorithm.round(case.params, state, hidden)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(after))


@every_variant
def test_permuting_the_clients_permutes_the_result(tmp_path, algorithm):
    order = np.array([3, 0, 4, 1, 2])
    active = np.array([True, False, True, True, False])
    state, case = one_round(tmp_path, algorithm, active=active)
    plain = case.algorithm.models(case.algorithm.round(case.params, state, case.round))
    permuted_round = case.round._replace(
        link=Link(jnp.asarray(active[order]), case.round.link.prob[order]), train=case.trainer(order)
    )
    permuted_state = jax.tree.map(lambda a: a[order] if a.shape[:1] == (CLIENTS,) else a, state)
    permuted = case.algorithm.models(case.algorithm.round(case.params, permuted_state, permuted_round))
    np.testing.assert_allclose(permuted.server, plain.server, rtol=1e-6)
    np.testing.assert_allclose(permuted.clients, plain.clients[order], rtol=1e-6)


@every_variant
def test_an_empty_round_leaves_the_server_model(tmp_path, algorithm):
    state, case = one_round(tmp_path, algorithm, active=[False] * CLIENTS)
    after = case.algorithm.models(case.algorithm.round(case.params, state, case.round))
    before = case.algorithm.models(state)
    np.testing.assert_array_equal(after.server, before.server)
    shift = 0 if algorithm["name"] == "fedawe" else case.shift
    np.testing.assert_allclose(after.clients, before.clients + shift, rtol=1e-6)


@every_variant
def test_a_client_that_lost_its_state_starts_from_the_first_model(tmp_path, algorithm):
    state, case = one_round(tmp_path, algorithm, active=[True] * CLIENTS)
    lost = jnp.arange(CLIENTS) == 2
    after = case.algorithm.forget(case.params, state, lost, jnp.zeros(3), jnp.int32(4))
    before = case.algorithm.models(state)
    np.testing.assert_array_equal(case.algorithm.models(after).clients[2], np.zeros(3))
    np.testing.assert_array_equal(case.algorithm.models(after).clients[:2], before.clients[:2])
    np.testing.assert_array_equal(case.algorithm.models(after).server, before.server)


class Case:
    """One round of an algorithm with a training function that only shifts each client."""

    def __init__(self, algorithm: Any, active: Any) -> None:
        rng = np.random.default_rng(2)
        self.algorithm, self.params = algorithm, algorithm.params
        self.shift = jnp.asarray(rng.standard_normal((CLIENTS, 3)), jnp.float32)
        link = Link(jnp.asarray(active), jnp.linspace(0.2, 1, CLIENTS))
        everybody = jnp.ones(CLIENTS, bool)
        self.round = Round(jnp.int32(4), link, jnp.float32(0.1), jnp.int32(2), everybody, self.trainer(slice(None)))

    def trainer(self, order: Any) -> Any:
        def train(models, shift=None, proximal=None):
            return models + self.shift[order] - (0 if shift is None else 0.2 * shift)

        return train


def one_round(tmp_path, variant: dict[str, Any], active: Any) -> tuple[Any, Case]:
    """(a state with different models everywhere, one round to apply to it)."""
    experiment = make(tmp_path, "quadratic", LINK_SETTINGS["bernoulli"], variant)
    grid = _Grid(experiment)
    algorithm = experiment.algorithms[0].build(experiment.context(0, grid.problem(0)))
    case = Case(algorithm, active)
    state = algorithm.init(algorithm.params, jnp.zeros(3), CLIENTS)
    state = jax.tree.map(jnp.asarray, state)
    rng = np.random.default_rng(3)
    clients = jnp.asarray(rng.standard_normal((CLIENTS, 3)), jnp.float32)
    if variant["name"] == "f3ast":  # no ties, which are settled by the client's id
        state = state._replace(weighting=jnp.linspace(0.5, 0.1, CLIENTS))
    return with_clients(state, clients, server=clients[0] + 1), case


def with_clients(state: Any, clients: Any, **changes: Any) -> Any:
    """``state`` with other models, wherever a method keeps them."""
    if hasattr(state, "fedavg"):
        return state._replace(fedavg=with_clients(state.fedavg, clients, **changes))
    if hasattr(state, "replays"):  # after a contact: the base is the model
        return state._replace(replays=(clients, *state.replays[1:]), **changes)
    return state._replace(clients=clients, **changes)
