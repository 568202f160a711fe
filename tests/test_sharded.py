"""Data divided between devices: the same bits, and each device holds its part alone."""

import jax
import numpy as np
import pytest
from tests.components import PROBLEM_SETTINGS, write_inputs

from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.runner import Grid, run, settings_of


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


@pytest.mark.release
@pytest.mark.parametrize("compute", ["all", "active"])
def test_the_same_bits_on_any_number_of_devices(compute):
    e = experiment(compute=[compute])
    results = [columns(on(n, e)) for n in (1, 2, 3, 7)]
    assert all(result == results[0] for result in results[1:])


@pytest.mark.first(5)
@pytest.mark.parametrize("name", ["synthetic", "classification", "regression", "loss"])
@pytest.mark.parametrize("num_devices", [2, 3, 7])
def test_each_device_holds_the_samples_of_its_clients_and_blocks_and_little_more(tmp_path, name, num_devices):
    write_inputs(tmp_path)
    table = {**PROBLEM_SETTINGS[name], **({"num_clients": 42} if name == "synthetic" else {})}
    e = Experiment.from_table(experiment().table() | {"problem": table, "chunk_size": 2}, tmp_path)
    with settings_of(e):
        grid = Grid(e, num_devices, programs=Programs(jax.devices()[:num_devices]), side_by_side=False)
        whole = grid.drawn(1).params
        problem = grid.problem(1)
    block = {"synthetic": 2048}.get(name) or len(whole["train"]["pooled"]) // problem.num_blocks
    chunks = -(-problem.num_clients // 2)
    share = -(-chunks // num_devices)  # chunks of each device
    ends = np.concatenate([[0], np.cumsum(whole["sizes"])])
    evaluated = []
    for k in range(num_devices):
        here = jax.tree.map(
            lambda a, k=k: np.asarray(next(s.data for s in a.addressable_shards if s.device.id == k)), problem.params
        )
        for part in {"train", "test"} & set(here):
            start, rows = int(here[part]["start"][0]), len(here[part]["pooled"])
            for given, all_ in zip(
                jax.tree.leaves({**here[part], "start": None}),
                jax.tree.leaves({**whole[part], "start": None}),
                strict=True,
            ):
                np.testing.assert_array_equal(given, all_[start : start + rows])
            if part == "train":
                first, last = (min(i * share * 2, problem.num_clients) for i in (k, k + 1))
                assert first == last or start <= ends[first] < ends[last] <= start + rows
                blocks = [b for b in np.asarray(problem.owned)[k].tolist() if b < problem.num_blocks]
                evaluated += blocks
                real = [b for b in blocks if b * block < ends[-1]]
                assert all(start <= b * block and (b + 1) * block <= start + rows for b in real)
    assert sorted(evaluated) == list(range(problem.num_blocks))


def test_two_devices_hold_about_half_each():
    e = experiment(problem={"name": "synthetic", "num_clients": 400, "max_rows": 300}, chunk_size=25)

    def held(num_devices):
        with settings_of(e):
            grid = Grid(e, num_devices, programs=Programs(jax.devices()[:num_devices]), side_by_side=False)
            whole = sum(a.nbytes for a in jax.tree.leaves(grid.drawn(1).params))
            params = grid.problem(1).params
        held = [0] * num_devices
        for a in jax.tree.leaves(params):
            for shard in a.addressable_shards:
                held[shard.device.id] += shard.data.nbytes
        return np.array(held) / whole

    assert held(1) == 1
    assert np.all(held(2) < 0.56)
    assert np.all(held(4) < 0.31)
