"""The strategies on Flower, round by round: the oracles' models and the simulator's on the same A^t."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import rivals
from apps import (
    CASES,
    KEPT_BY_CLIENTS,
    RATE,
    STEPS,
    D,
    by,
    centers,
    expected,
    flat,
    grid_of,
    names,
    play,
    quadratic_app,
    trace,
)
from flwr.serverapp.strategy.strategy import Strategy
from stepwise import random_trace, simulate

import fedpbc
from fedpbc.flower import InProcessGrid
from fedpbc.flower.client import mod as client
from fedpbc.flower.methods import fedpbc as rule
from fedpbc.flower.server.bases import Bases

M, ROUNDS = 10, 60
U = centers(M)
UP, DOWN = trace(ROUNDS, M), random_trace(7, ROUNDS, M, 0.7)
EVERYBODY = np.ones_like(UP)
LINKS = {"uplink": (UP, EVERYBODY), "downlink": (EVERYBODY, UP), "both": (UP, DOWN)}
AWAY = slice(ROUNDS // 6, ROUNDS // 6 + ROUNDS // 2)


SHORT = 28
"""Rounds where the whole trace is not needed; client 3 is away from the 10th on."""


def played(case: str, up: np.ndarray, down: np.ndarray, rounds: int = ROUNDS, **options: Any) -> np.ndarray:
    return play(CASES[case].make(M, **options), grid_of(quadratic_app(U), up, down), rounds)


def gap(models: np.ndarray, others: np.ndarray) -> float:
    assert models.shape == others.shape
    return float(np.abs(models - others).max())


def test_the_trace_has_what_is_hard():
    assert not UP.all(axis=1).any()
    assert not UP[ROUNDS // 3].any()
    assert not UP[AWAY, 3].any()
    assert UP.any(axis=0).all()
    assert (UP & DOWN).any(axis=0).all()


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("case", "links"),
    [(case, "both") for case in CASES]
    + [(case, links) for case in ("fedpbc", "scaffold by client") for links in ("uplink", "downlink")],
)
def test_every_round_is_the_oracles(case, links):
    up, down = LINKS[links]
    assert gap(played(case, up, down), expected(CASES[case].method, U, up & down)) < 1e-9


def test_fedpbc_is_the_papers_algorithm_too():
    states = oracle.run(oracle.FedPBC(), oracle.Quadratic(U).gradient, UP & DOWN, np.zeros(D), steps=STEPS, rate=RATE)
    assert gap(played("fedpbc", UP, DOWN), np.array([state.server for state in states])) < 1e-9


@pytest.mark.parametrize("case", ["fedpbc", "fedavg"])
def test_the_simulator_says_the_same(case, tmp_path):
    np.save(tmp_path / "centers.npy", U)
    np.save(tmp_path / "up.npy", UP & DOWN)
    table = {
        "name": "same", "rounds": ROUNDS, "local_steps": STEPS, "seeds": [0], "precision": "float64",
        "learning_rate": {"name": "inverse_sqrt", "initial": 0.1, "period": 4}, "compute": ["all"],
        "problem": {"name": "quadratic", "centers": "centers.npy"},
        "links": [{"name": "trace", "path": "up.npy"}], "algorithms": [{"name": case}],
    }  # fmt: skip
    experiment = fedpbc.Experiment.from_table(table, tmp_path)
    simulated = simulate(experiment, experiment.cells()[0])
    assert gap(played(case, UP, DOWN), simulated.servers) < 1e-9


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CASES)
def test_flowers_own_loop_gives_the_same(case):
    models = play(CASES[case].make(M), grid_of(quadratic_app(U), UP, DOWN), SHORT, start=Strategy.start)
    assert gap(models, expected(CASES[case].method, U, (UP & DOWN)[:SHORT])) < 1e-9


@pytest.mark.every(3)
@pytest.mark.parametrize("case", [case for case in CASES if case not in KEPT_BY_CLIENTS])
def test_a_client_under_a_new_node_id_is_the_same_client(case):
    grid = grid_of(quadratic_app(U), UP, DOWN)
    nodes = dict(zip(names(M), grid.get_node_ids(), strict=True))
    moves = {8: "3", 15: "9", 16: "9", 20: "3", 22: "0"}

    def move(done: int) -> None:
        if done in moves:
            grid.disconnect(nodes[moves[done]])
            nodes[moves[done]] = grid.connect(moves[done])

    models = play(CASES[case].make(M), grid, SHORT, after=move)
    assert gap(models, expected(CASES[case].method, U, (UP & DOWN)[:SHORT])) < 1e-9
    assert len(grid.contexts) == M


def test_a_client_that_is_offline_is_inactive():
    """No node at all for a while, rather than messages that fail."""
    grid = grid_of(quadratic_app(U), UP)
    nodes = list(grid.get_node_ids())
    active = UP.copy()
    active[12:31, 8] = False

    def go(done: int) -> None:
        if done == 12:
            grid.disconnect(nodes[8])
        if done == 31:
            grid.connect("8")

    assert gap(play(CASES["fedpbc"].make(M), grid, ROUNDS, after=go), expected(rivals.FedPBC(), U, active)) < 1e-9


@pytest.mark.parametrize("seed", range(2))
def test_the_mean_of_all_models_does_not_depend_on_the_links(seed):
    """(1/m) sum_i x_i = (1 - (1 - eta)^(s t)) ubar; in a last round of all without local steps, x is the mean."""
    eta, rounds, p = 0.01, 31, np.linspace(0.1, 0.9, M)
    up, down = (random_trace(seed + k, rounds, M, p[:: 1 - 2 * k]) for k in (0, 1))
    up[-1] = down[-1] = True
    up[:20, 2] = False
    grid = grid_of(quadratic_app(U, rate=lambda t: eta), up, down)
    last = play(CASES["fedpbc"].make(M, cooldown=1), grid, rounds)[-1]
    mean = U.mean(axis=0)
    expected_mean = (1 - (1 - eta) ** (STEPS * (rounds - 1))) * mean
    assert np.linalg.norm(last - expected_mean) < 1e-12 * np.linalg.norm(mean)
    assert np.linalg.norm(expected_mean - mean) > 0.1 * np.linalg.norm(mean)  # far from where any method would be


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CASES)
def test_cooldown(case):
    models, active = played(case, UP, DOWN, SHORT, cooldown=7), (UP & DOWN)[:SHORT]
    assert gap(models, expected(CASES[case].method, U, active, cooldown=7)) < 1e-9
    assert gap(models, expected(CASES[case].method, U, active)) > 1e-6


def capped(active: np.ndarray, k: int, since: np.ndarray | None = None) -> np.ndarray:
    """Rounds max(v_i, t+1-k), ..., t from x^(v_i); a client that is new in round ``since[i]`` begins with v_i = it."""
    servers, last = [np.zeros(D)], [0] * M if since is None else since.tolist()
    for t in range(ROUNDS):
        reported = []
        for i in np.flatnonzero(active[t]):
            x = servers[last[i]]
            for missed in range(max(last[i], t + 1 - k), t + 1):
                for _ in range(STEPS):
                    x = x - RATE(missed) * (x - U[i])
            reported.append(x)
            last[i] = t + 1
        servers.append(sum(reported) / len(reported) if reported else servers[-1])
    return np.array(servers)


@pytest.mark.parametrize("k", [1, 4])
def test_max_catchup(k):
    models, reference = played("fedpbc", UP, DOWN, max_catchup=k), capped(UP & DOWN, k)
    assert gap(models, reference) < 1e-9
    assert gap(reference, expected(rivals.FedPBC(), U, UP & DOWN)) > 1e-6


def test_max_catchup_that_is_never_reached_is_no_cap():
    np.testing.assert_allclose(capped(UP & DOWN, ROUNDS), expected(rivals.FedPBC(), U, UP & DOWN), atol=1e-9)
    assert gap(played("fedpbc", UP, DOWN, max_catchup=ROUNDS), expected(rivals.FedPBC(), U, UP & DOWN)) < 1e-9


@pytest.mark.parametrize("newcomers", ["start", "now"])
def test_clients_that_come_later(newcomers):
    since = np.array([0] * (M - 3) + [9, 20, 21])
    active = (UP & DOWN) & (np.arange(ROUNDS)[:, None] >= since)
    grid = InProcessGrid(quadratic_app(U), names(M - 3), uplink=by(UP), downlink=by(DOWN))

    def come(done: int) -> None:
        for i in np.flatnonzero((since == done) & (since > 0)):
            grid.connect(str(i))

    strategy = CASES["fedpbc"].make(M - 3, newcomers=newcomers)
    models = play(strategy, grid, ROUNDS, after=come)
    references = {"start": expected(rivals.FedPBC(), U, active), "now": capped(active, ROUNDS, since)}
    assert gap(models, references.pop(newcomers)) < 1e-9
    assert gap(models, *references.values()) > 1e-6


def test_who_comes_when_everybody_has_left_x0_begins_there_all_the_same():
    """All others were heard in every round: x^0 is kept for who was never met."""
    active = np.ones((8, 4), bool)
    active[:4, 3] = False
    grid = InProcessGrid(quadratic_app(U), names(3))
    models = play(CASES["fedpbc"].make(3), grid, 8, after=lambda done: grid.connect("3") if done == 4 else None)
    assert gap(models, expected(rivals.FedPBC(), U[:4], active)) < 1e-9


def weighted(layout: Any, model: Any, replies: list[Any]) -> Any:
    weights = [reply.content["metrics"]["num-examples"] for reply in replies]
    models = [layout.flatten(reply.arrays) for reply in replies]
    return {name: np.average([x[name] for x in models], axis=0, weights=weights) for name in model}


get, train, mean = Bases.get, client._Replay._train, rule.FedPBCRule.step
MISTAKES = {
    "the current model for everybody": (Bases, "get", lambda self, name: get(self, self.latest)),
    "weights by num-examples": (rule, "mean_of_replies", weighted),
    "a reply counted twice": (
        rule.FedPBCRule,
        "step",
        lambda self, round, replies: mean(self, round, replies + replies[:1]),
    ),
    "the current eta in replays": (client._Replay, "_train", lambda self, round: train(self, self.order.round)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(mistake, monkeypatch):
    monkeypatch.setattr(*MISTAKES[mistake])
    assert gap(played("fedpbc", UP, DOWN), expected(rivals.FedPBC(), U, UP & DOWN)) > 1e-6


def test_every_client_goes_on_from_the_object_of_its_base():
    """Those with the same base are sent the same ArrayRecord; bases nobody needs are dropped."""
    strategy, grid = CASES["fedpbc"].make(M, num_clients=M), grid_of(quadratic_app(U), UP, DOWN)
    heard = [0] * M

    def look(done: int) -> None:
        if done == 0:
            return
        for i in np.flatnonzero((UP & DOWN)[done - 1]):
            heard[i] = done
        clients, bases = strategy.federation.roster.clients, strategy.federation.bases
        kept = {clients[name].base for name in names(M)} | {bases.latest}
        assert set(bases.names()) == kept
        assert [clients[name].version for name in names(M)] == heard
        assert len(kept) <= len(set(heard)) + 1

    models = play(strategy, grid, ROUNDS, after=look)
    clients, bases = strategy.federation.roster.clients, strategy.federation.bases
    for name, version in zip(names(M), heard, strict=True):
        np.testing.assert_array_equal(flat(bases.get(clients[name].base)), models[version])
