"""How many clients are computed side by side, and on how many devices, where nobody says."""

import jax
import numpy as np
import pytest

import fedpbc
from fedpbc.experiment.grid import Experiment
from fedpbc.runs import sharing
from fedpbc.runs.runner import Grid, settings_of


def images(side: int, num_clients: int = 30):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2 * num_clients, side, side)), rng.integers(0, 3, 2 * num_clients)
    return fedpbc.data.from_arrays(*data, client=np.repeat(np.arange(num_clients), 2))


def grid_of(problem, **changes) -> Grid:
    table = {
        "name": "shared", "rounds": 3, "local_steps": 2, "learning_rate": 0.1, "seeds": [0], "problem": problem,
        "links": [fedpbc.links.bernoulli(prob=0.5)], "algorithms": [fedpbc.algorithms.fedpbc()],
    }  # fmt: skip
    return Grid(Experiment.from_table(table | changes), 1)


def chosen(problem, **changes) -> int:
    grid = grid_of(problem, **changes)
    with settings_of(grid.experiment):
        return sharing.chunk_size(grid.experiment, grid.drawn(0))


def network(side: int, **options):
    return fedpbc.problems.classification(images(side), model=fedpbc.models.cnn(**options))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere chunks have one size")
def test_the_more_a_step_takes_the_fewer_are_side_by_side():
    assert chosen(fedpbc.problems.quadratic(num_clients=30, dim=5)) == 25
    assert chosen(network(28)) == 1
    assert 1 < chosen(network(28, channels=[4, 8], hidden=[8])) < 25
    assert chosen(network(28), batch_size=1) > chosen(network(28))
    assert chosen(network(28), algorithms=[{"name": "fedpbc"}, {"name": "fedavg", "batch_size": 1}]) == 1


def test_what_the_experiment_says_stands():
    assert chosen(network(28), chunk_size=7) == 7


def test_the_manifest_says_how_many_they_were():
    run = fedpbc.simulate(
        fedpbc.problems.quadratic(num_clients=3, dim=2), links=fedpbc.links.bernoulli(prob=0.5),
        algorithm=fedpbc.algorithms.fedpbc(), rounds=2, local_steps=1, learning_rate=0.1,
    )  # fmt: skip
    assert run.manifest["chunk_size"] == 25


def test_elsewhere_they_are_as_many_whatever_a_step_takes(monkeypatch):
    monkeypatch.setattr(sharing, "on_cpu", lambda: False)
    assert chosen(network(28)) == sharing.SIDE_BY_SIDE


def test_a_round_is_shared_where_it_is_worth_it_and_there_is_a_chunk_for_each():
    grid = grid_of(network(28))
    small = grid_of(fedpbc.problems.quadratic(num_clients=30, dim=5))
    with settings_of(grid.experiment):
        problem = grid.drawn(0)
        assert sharing.num_devices(grid.experiment, problem, 4) == 4
        assert sharing.num_devices(grid.experiment, problem, 64) == 30
    with settings_of(small.experiment):
        assert sharing.num_devices(small.experiment, small.drawn(0), 4) == 1


def test_large_models_that_are_soon_trained_are_not_moved_between_devices(monkeypatch):
    grid = grid_of(network(28))
    with settings_of(grid.experiment):
        problem = grid.drawn(0)
        monkeypatch.setattr(sharing, "LARGE", problem.num_clients * len(problem.init) - 1)
        assert sharing.num_devices(grid.experiment, problem, 4) == 4
        monkeypatch.setattr(sharing, "WORK_OF_A_NUMBER", 2 * problem.work * 2 / len(problem.init))
        assert sharing.num_devices(grid.experiment, problem, 4) == 1
        monkeypatch.setattr(sharing, "LARGE", problem.num_clients * len(problem.init))
        assert sharing.num_devices(grid.experiment, problem, 4) == 4
