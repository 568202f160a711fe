"""Clients that count by their samples: the pooled objective, where the method allows it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import oracle
import pytest
import rivals
from apps import CASES, RATE, D, centers, flat, grid_of, play, quadratic_app, record_of, trace
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

from fedpbc.errors import ConfigError
from fedpbc.flower import STRATEGIES, InProcessGrid, fedpbc_mod

M = 5
U = centers(M)
N = np.array([10.0 * (i + 1) for i in range(M)])
"""As the app of the tests says."""
A = N / N.sum()
ALLOWED = [
    "fedavg", "fedau", "fedau without cutoff", "mifa", "mifa waiting", "fedvarp", "debiased", "fedstale",
    "fedstale, mean",
]  # fmt: skip
BY = {"client_weights": "samples"}


def scaled(case: str, active: np.ndarray) -> np.ndarray:
    """The method on losses m a_i F_i, as the simulator has them; one local step, so that Delta_i is as much longer."""

    def gradient(i: int, x: np.ndarray, sample: Any = None) -> np.ndarray:
        return M * A[i] * (x - U[i])

    states = rivals.simulate(CASES[case].method, gradient, active, np.zeros(D), steps=1, rate=RATE)
    return np.array([state.server for state in states])


@pytest.mark.parametrize("case", ALLOWED)
def test_it_is_the_method_on_scaled_losses(case, tmp_path):
    """From a first round with everybody on all n are known; the server is killed once in between."""
    active = trace(16, M)
    active[0] = True
    strategy = {"directory": tmp_path, **BY}
    app = quadratic_app(U, steps=1)
    first = play(CASES[case].make(M, **strategy), grid_of(app, active), 7)
    second = play(CASES[case].make(M, **strategy), grid_of(app, active), 16)
    models = np.concatenate([first, second])
    np.testing.assert_allclose(models, scaled(case, active), atol=1e-9, rtol=0)
    assert np.abs(models[-1] - scaled_uniform(case, active)[-1]).max() > 1e-2


def scaled_uniform(case: str, active: np.ndarray) -> np.ndarray:
    gradient = oracle.Quadratic(U).gradient
    states = rivals.simulate(CASES[case].method, gradient, active, np.zeros(D), steps=1, rate=RATE)
    return np.array([state.server for state in states])


@pytest.mark.parametrize("case", ["fedau", "mifa", "fedvarp"])
def test_what_it_finds_is_the_pooled_minimum(case):
    """sum_i a_i u_i, for clients that are heard in .5 to .9 of the rounds; FedAvg, and equal weights, end elsewhere."""
    rounds = 100
    active = np.random.default_rng(2).random((rounds, M)) < np.linspace(0.9, 0.5, M)
    active[0] = True
    options = {**BY, "learning_rate": lambda t: 0.1} if case == "mifa" else BY
    app = quadratic_app(U, rate=lambda t: 0.1, steps=1)
    models = play(CASES[case].make(M, **options), grid_of(app, active), rounds)
    found, pooled, uniform = models[-60:].mean(axis=0), A @ U, U.mean(axis=0)
    assert np.linalg.norm(pooled - uniform) > 0.8
    assert np.linalg.norm(found - pooled) < 0.15 * np.linalg.norm(pooled - uniform)


def test_fedavg_is_flowers_where_all_are_heard():
    """x = sum n_i x_i / sum n_i, with any number of local steps."""
    active = np.ones((4, M), bool)
    models = play(CASES["fedavg"].make(M, **BY), grid_of(quadratic_app(U), active), 4)
    grid = grid_of(quadratic_app(U, mods=()), active)
    theirs = FlowersFedAvg(fraction_evaluate=0.0, min_available_nodes=M)
    for t in range(4):
        content = {"arrays": record_of(models[t]), "config": ConfigRecord()}
        messages = list(theirs.configure_train(t + 1, content["arrays"], content["config"], grid))
        arrays, _ = theirs.aggregate_train(t + 1, grid.send_and_receive(messages))
        np.testing.assert_allclose(flat(arrays), models[t + 1], atol=1e-6)


@pytest.mark.parametrize("case", sorted(set(CASES) - set(ALLOWED)))
def test_where_it_would_be_another_method_it_is_refused(case):
    with pytest.raises(ConfigError, match=r'^client_weights = "samples": must be "uniform" for \w+: .{40,}') as raised:
        CASES[case].make(M, **BY)
    assert "\n" not in str(raised.value)


def test_every_strategy_has_its_answer():
    assert {kind.method for kind in STRATEGIES.values()} == {CASES[case].make(M).method for case in CASES}


@pytest.mark.parametrize("size", [None, 0, -3, float("nan"), 2.0**60, [1.0, 2.0]])
def test_a_reply_without_a_number_of_samples_is_refused(size, tmp_path):
    def lie(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["client-id"] == "1" and "metrics" in reply.content:
            reply.content["metrics"] = MetricRecord({} if size is None else {"num-examples": size})
        return reply

    active = np.ones((3, M), bool)
    app = quadratic_app(U, steps=1, mods=(lie, fedpbc_mod))
    play(CASES["fedavg"].make(M, directory=tmp_path, **BY), grid_of(app, active), 3)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["active"] for line in lines] == [M - 1] * 3
    why = "tells no num-examples from 1 to 2^53 to be weighted by"
    assert all(line["refused"] == [{"client": "1", "reason": why}] for line in lines)


def test_a_size_that_changes_counts_from_then_on(tmp_path):
    """Client 1 has ten times as many samples from round 2 on."""
    sizes = N.copy()

    def tell(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if "metrics" in reply.content:
            reply.content["metrics"]["num-examples"] = sizes[int(context.node_config["client-id"])]
        return reply

    grid = InProcessGrid(quadratic_app(U, steps=1, mods=(tell, fedpbc_mod)), [str(i) for i in range(M)])

    def after(done: int) -> None:
        sizes[1] = N[1] * (10 if done >= 2 else 1)

    models = play(CASES["fedavg"].make(M, **BY), grid, 4, after=after)
    x = np.zeros(D)
    for t in range(4):
        n = N * np.where((np.arange(M) == 1) & (t >= 2), 10, 1)
        x = x - RATE(t) * (n / n.sum()) @ (x - U)
        np.testing.assert_allclose(models[t + 1], x, atol=1e-9)


def test_other_weights_are_another_federation(tmp_path):
    active = np.ones((2, M), bool)
    play(CASES["fedavg"].make(M, directory=tmp_path), grid_of(quadratic_app(U), active), 1)
    with pytest.raises(ConfigError, match='client_weights was None, is "samples"'):
        play(CASES["fedavg"].make(M, directory=tmp_path, **BY), grid_of(quadratic_app(U), active), 2)
