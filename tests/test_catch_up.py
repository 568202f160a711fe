"""What docs/catch-up.md claims about ``max_catchup``: its limits are known methods, and what it gives up.

``test_rivals.py`` compares it round by round with an oracle that replays the rounds literally.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stepwise import Simulated, random_trace, simulate

import fedpbc

M, ROUNDS, K_MAX = 6, 20, 20
PROB = np.array([0.1, 0.3, 0.5, 0.5, 0.7, 0.9])
SYNTHETIC = {"name": "synthetic", "num_clients": M}


def run(folder: Any, active: np.ndarray, max_catchup: int, compute: str = "all", **changes: Any) -> Simulated:
    """Stopped after every round; unless ``changes`` say otherwise, a falling rate, fresh minibatches, a cool-down."""
    np.save(folder / "active.npy", active)
    table = {
        "name": "catch_up",
        "rounds": len(active),
        "local_steps": 3,
        "learning_rate": {"name": "inverse_sqrt", "initial": 0.05, "period": 4},
        "seeds": [0],
        "batch_size": 4,
        "minibatch": "step",
        "cooldown_rounds": 3,
        "precision": "float64",
        "compute": [compute],
        "problem": SYNTHETIC,
        "links": [{"name": "trace", "path": "active.npy"}],
        "algorithms": [{"name": "fedpbc", "max_catchup": max_catchup}],
        **changes,
    }
    experiment = fedpbc.Experiment.from_table(table, folder)
    return simulate(experiment, experiment.cells()[0])


def late(rounds: int) -> np.ndarray:
    """Client 0 is heard in the last round only, client 5 always, the others at random."""
    links = random_trace(4, rounds, M, PROB)
    links[:, 0], links[:, 5] = np.arange(rounds) == rounds - 1, True
    return links


def test_one_round_is_fedpbc_whose_absent_clients_do_not_compute(tmp_path: Any) -> None:
    links = random_trace(3, ROUNDS, M, PROB)
    ours, theirs = run(tmp_path, links, 1), run(tmp_path, links, 0, compute="active")
    np.testing.assert_array_equal(ours.servers, theirs.servers)
    np.testing.assert_array_equal(ours.rows["gradient_steps"], theirs.rows["gradient_steps"])
    for t, active in enumerate(links, 1):
        np.testing.assert_array_equal(ours.clients[t][active], theirs.clients[t][active])
    assert np.abs(ours.servers[-1] - run(tmp_path, links, 0).servers[-1]).max() > 1e-3


@pytest.mark.release
def test_as_many_rounds_as_there_are_is_fedpbc_and_one_less_is_not(tmp_path: Any) -> None:
    links = late(ROUNDS)
    unlimited = run(tmp_path, links, 0, cooldown_rounds=0)
    for k, same in {K_MAX: True, ROUNDS - 1: False}.items():
        limited = run(tmp_path, links, k, cooldown_rounds=0)
        np.testing.assert_array_equal(limited.servers[:-1], unlimited.servers[:-1])
        assert np.array_equal(limited.servers[-1], unlimited.servers[-1]) == same
        assert np.array_equal(limited.clients, unlimited.clients) == same


@pytest.mark.release
def test_with_no_more_rounds_than_k_a_cooldown_and_a_lossy_downlink_change_nothing(tmp_path: Any) -> None:
    np.save(tmp_path / "down.npy", random_trace(9, ROUNDS, M, 0.6))
    trace = {"name": "trace", "path": "active.npy"}
    two_way = {"name": "two_way", "up": trace, "down": {"name": "trace", "path": "down.npy"}}
    unlimited, limited = (run(tmp_path, late(ROUNDS), k, links=[two_way]) for k in (0, K_MAX))
    np.testing.assert_array_equal(limited.servers, unlimited.servers)
    np.testing.assert_array_equal(limited.clients, unlimited.clients)


@pytest.mark.first(1)
@pytest.mark.parametrize("k", [1, 3])
def test_there_is_nothing_to_catch_up_where_absent_clients_do_not_compute(tmp_path: Any, k: int) -> None:
    links = random_trace(3, ROUNDS, M, PROB)
    limited, unlimited = (run(tmp_path, links, n, compute="active") for n in (k, 0))
    np.testing.assert_array_equal(limited.servers, unlimited.servers)
    np.testing.assert_array_equal(limited.clients, unlimited.clients)


@pytest.mark.release
def test_a_client_that_was_away_through_the_cooldown_brings_its_base(tmp_path: Any) -> None:
    """Of its latest 3 rounds none has local steps."""
    links = late(12)
    links[:, 0] = False
    limited, longer = (run(tmp_path, links, k, cooldown_rounds=3) for k in (3, 4))
    np.testing.assert_array_equal(limited.clients[12][0], np.zeros_like(limited.servers[0]))
    assert longer.clients[12][0].any()


def mean_models(folder: Any, max_catchup: int) -> list[np.ndarray]:
    """xbar^t after every round, on quadratics of one curvature, on links of three kinds."""
    quadratic = {"name": "quadratic", "num_clients": M, "dim": 3}
    traces = [np.ones((ROUNDS, M), bool), random_trace(1, ROUNDS, M, PROB), late(ROUNDS)]
    return [run(folder, links, max_catchup, problem=quadratic).clients.mean(axis=1) for links in traces]


def test_the_mean_of_all_models_does_not_depend_on_the_links_without_a_limit(tmp_path: Any) -> None:
    everybody, *failing = mean_models(tmp_path, 0)
    assert np.abs(everybody[-1]).max() > 0.1
    for mean in failing:
        np.testing.assert_allclose(mean, everybody, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("k", [1, 5])
def test_with_a_limit_the_mean_of_all_models_depends_on_the_links(tmp_path: Any, k: int) -> None:
    everybody, *failing = mean_models(tmp_path, k)
    for mean in failing:
        assert np.abs(mean - everybody).max() > 0.01 * np.abs(everybody).max()


@pytest.mark.parametrize("k", [-1, 21])
def test_a_limit_out_of_bounds_is_refused(tmp_path: Any, k: int) -> None:
    with pytest.raises(fedpbc.ConfigError, match=r"max_catchup = .*must be an integer in \[0, 20\]"):
        run(tmp_path, np.ones((2, M), bool), k)
