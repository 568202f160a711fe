"""Data divided between devices: the same bits, and each device holds its part alone."""

import jax
import pytest

from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.runner import run


def experiment(**changes) -> Experiment:
    table = {
        "name": "sharded",
        "rounds": 4,
        "local_steps": 2,
        "learning_rate": 0.02,
        "seeds": [1],
        "eval_every": 2,
        "chunk_size": 4,
        "problem": {"name": "synthetic", "num_clients": 42},
        "links": [{"name": "bernoulli", "prob": 0.4}],
        "algorithms": [{"name": "fedpbc"}],
    }
    return Experiment.from_table(table | changes)


def on(num_devices, e):
    return run(e, programs=Programs(jax.devices()[:num_devices]), devices=num_devices, side_by_side=False)


def columns(result) -> dict:
    return {(key, name): a.tobytes() for key, cell in result.cells.items() for name, a in cell.rows.items()}


@pytest.mark.parametrize("compute", ["all", "active"])
def test_the_same_bits_on_any_number_of_devices(compute):
    e = experiment(compute=[compute])
    results = [columns(on(n, e)) for n in (1, 2, 3, 7)]
    assert all(result == results[0] for result in results[1:])
