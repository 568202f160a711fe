"""The loop: blocks, chunks, devices, determinism, divergence, compiled programs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from fedpbc.core import engine
from fedpbc.core.engine import CAPACITY
from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.runner import Grid, run


def synthetic_table(**changes: Any) -> dict[str, Any]:
    return {
        "name": "s",
        "rounds": 8,
        "local_steps": 2,
        "learning_rate": 0.05,
        "seeds": [0],
        "batch_size": 8,
        "eval_every": 2,
        "chunk_size": 3,
        "problem": {"name": "synthetic", "num_clients": 10},
        "links": [{"name": "bernoulli", "prob": 0.5}],
        "algorithms": [{"name": "fedpbc"}],
        **changes,
    }


def only_cell(result: Any) -> Any:
    (cell,) = result.cells.values()
    return cell


def assert_same(a: Any, b: Any) -> None:
    for part in ("rows", "models"):
        mine, theirs = getattr(a, part), getattr(b, part)
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


@pytest.mark.release
@pytest.mark.parametrize(
    ("algorithm", "minibatch"),
    [("fedavg", "round"), ("fedpbc", "round"), ("fedpbc", "step"), ("scaffold", "step"), ("fedprox", "round")],
)
def test_results_are_bit_identical_over_the_number_of_devices(algorithm, minibatch):
    experiment = Experiment.from_table(synthetic_table(algorithms=[{"name": algorithm}], minibatch=minibatch))
    one = only_cell(run(experiment, devices=1))
    for devices in (2, 3, 4, 8):
        other = only_cell(run(experiment, devices=devices))
        assert other.info["num_devices"] == devices
        assert_same(one, other)


def test_a_process_keeps_only_so_many_programs(table, monkeypatch):
    names = ["fedavg", "fedpbc", "mifa"]
    experiment = Experiment.from_table(table | {"algorithms": [{"name": name} for name in names]})
    kept, few = Programs(jax.devices()[:1]), Programs(jax.devices()[:1])
    plenty = run(experiment, devices=1, programs=kept)
    monkeypatch.setattr("fedpbc.core.programs.MAX_PROGRAMS", 2)
    scarce = run(experiment, devices=1, programs=few)
    assert (len(kept.compiled), kept.num_compiled) == (3, 3)
    assert (len(few.compiled), few.num_compiled) == (2, 6)  # two seeds, each in the order of the algorithms
    monkeypatch.setattr("fedpbc.core.programs._mappings", lambda: 10**6)
    crowded = Programs(jax.devices()[:1])
    run(experiment, devices=1, programs=crowded)
    assert (len(crowded.compiled), crowded.num_compiled) == (1, 6)  # of one, half goes
    for key, cell in plenty.cells.items():
        assert_same(cell, scarce.cells[key])


def test_quadratic_is_bit_identical_over_devices_too(table):
    experiment = Experiment.from_table(table | {"chunk_size": 2, "seeds": [0], "algorithms": [{"name": "fedpbc"}]})
    for devices in (2, 3):  # three chunks of clients: shared unevenly, and one each
        assert_same(only_cell(run(experiment, devices=1)), only_cell(run(experiment, devices=devices)))


@pytest.mark.release
def test_chunk_sizes_share_samples_and_links_and_differ_by_rounding_only():
    results = [
        only_cell(run(Experiment.from_table(synthetic_table(chunk_size=size, precision="float64"))))
        for size in (1, 4, 10, 1000)
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(other.rows["num_active"], results[0].rows["num_active"])
        np.testing.assert_allclose(other.models["server"], results[0].models["server"], rtol=1e-10, atol=1e-14)


def test_a_run_does_not_depend_on_how_it_is_cut_into_blocks(table):
    experiment = Experiment.from_table(table | {"eval_every": 5})
    grid = Grid(experiment)
    with jax.enable_x64(True):
        whole, pieces = grid.simulation(experiment.cells()[0]), grid.simulation(experiment.cells()[0])
        rows = [whole.start(), whole.advance(100)]
        parts = [pieces.start()]
        while not pieces.done:
            saved = pieces.save()
            pieces = grid.simulation(experiment.cells()[0])
            pieces.restore(saved)
            parts.append(pieces.advance(1))
        for name in rows[0]:
            together = [np.concatenate([part[name] for part in run_]) for run_ in (rows, parts)]
            np.testing.assert_array_equal(*together)
        for name, value in whole.models().items():
            np.testing.assert_array_equal(value, pieces.models()[name])


def test_rows_are_the_start_every_kth_round_and_the_last(table):
    result = run(Experiment.from_table(table | {"rounds": 11, "eval_every": 4, "seeds": [0]}))
    for cell in result.cells.values():
        assert cell.rows["round"].tolist() == [0, 4, 8, 11]
    result = run(Experiment.from_table(table | {"rounds": 3, "eval_every": 100, "seeds": [0]}))
    assert next(iter(result.cells.values())).rows["round"].tolist() == [0, 3]


def test_a_row_is_of_its_round(table):
    """With everybody active and one exact step, the distance to the minimiser falls by 1 - eta in every round."""
    changes = {
        "local_steps": 1,
        "eval_every": 5,
        "seeds": [0],
        "links": [{"name": "bernoulli", "prob": 1.0}],
        "algorithms": [{"name": "fedavg"}],
    }
    rows = only_cell(run(Experiment.from_table(table | changes))).rows
    assert rows["round"].tolist() == [0, 5, 10, 12]
    np.testing.assert_allclose(rows["server_distance"] / rows["server_distance"][0], 0.9 ** rows["round"], rtol=1e-12)
    assert rows["num_active"].tolist() == [0, 6, 6, 6]


def test_what_is_sent_and_received_is_counted_by_direction(table, tmp_path):
    """A broadcast goes to whom the server reaches, FedPBC's model to those of them that it heard."""
    rng = np.random.default_rng(0)
    up, down = rng.random((12, 6)) < 0.5, rng.random((12, 6)) < 0.6
    np.save(tmp_path / "up.npy", up)
    np.save(tmp_path / "down.npy", down)
    trace = [{"name": "trace", "path": f"{way}.npy"} for way in ("up", "down")]
    changes = {"seeds": [0], "links": [{"name": "two_way", "up": trace[0], "down": trace[1]}]}
    result = run(Experiment.from_table(table | changes, tmp_path))
    model = 4 * 8  # bytes
    for name, received, computed in (("fedavg", down, up), ("fedpbc", up & down, np.ones_like(up))):
        (key,) = result.select(algorithm=name)
        rows = result.cells[key].rows
        assert rows["bytes_up"][1:].tolist() == (up.sum(axis=1).cumsum() * model).tolist(), name
        assert rows["bytes_down"][1:].tolist() == (received.sum(axis=1).cumsum() * model).tolist(), name
        assert rows["gradient_steps"][1:].tolist() == (computed.sum(axis=1).cumsum() * 3).tolist(), name


def test_millions_of_client_rounds_are_counted(table):
    """On the device counts have 32 bits in two parts; 2.4 million client-rounds of 2 steps and 8 bytes."""
    changes = {
        "rounds": 1200,
        "local_steps": 2,
        "eval_every": 400,
        "chunk_size": 2000,
        "seeds": [0],
        "problem": {"name": "quadratic", "num_clients": 2000, "dim": 1},
        "links": [{"name": "bernoulli", "prob": 1.0}],
        "algorithms": [{"name": "fedavg"}],
    }
    rows = only_cell(run(Experiment.from_table(table | changes))).rows
    for name, each in (("gradient_steps", 2), ("bytes_up", 8), ("bytes_down", 8)):
        assert rows[name].tolist() == [0, 800_000 * each, 1_600_000 * each, 2_400_000 * each], name


def test_more_rounds_than_one_block_can_hold(table):
    rounds = CAPACITY + 100
    result = run(Experiment.from_table(table | {"rounds": rounds, "seeds": [0], "algorithms": [{"name": "fedpbc"}]}))
    rows = only_cell(result).rows
    assert rows["round"].tolist() == list(range(rounds + 1))
    assert np.all(np.isfinite(rows["mean_grad_norm"]))


def test_row_zero_is_the_start(table):
    cell = only_cell(run(Experiment.from_table(table | {"seeds": [3], "algorithms": [{"name": "fedavg"}]})))
    first = {name: values[0] for name, values in cell.rows.items()}
    assert first["num_active"] == first["empty_rounds"] == first["consensus_distance"] == 0
    assert first["server_distance"] == first["mean_distance"] > 0


def test_the_same_seed_gives_the_same_run_and_another_seed_another(table):
    first, second = (run(Experiment.from_table(table)) for _ in range(2))
    for key, cell in first.cells.items():
        assert_same(cell, second.cells[key])
    keys = [key for key in first.cells if key.algorithm == "fedpbc"]
    assert not np.array_equal(*(first.cells[key].models["server"] for key in keys))


def test_links_and_samples_draw_from_different_keys():
    """A process may split its key, a client folds its number into that of the samples: of one key, the same draws."""
    links, samples = engine._keys(np.uint32(3))
    used = []
    for t in range(4):
        of_links, of_samples = jax.random.fold_in(links, t), jax.random.fold_in(samples, t)
        used += [of_links, *jax.random.split(of_links, 5), *(jax.random.fold_in(of_samples, i) for i in range(5))]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in used}) == len(used)


def test_algorithms_of_a_seed_see_the_same_links(table):
    result = run(Experiment.from_table(table | {"compute": ["all", "active"]}))
    by_seed: dict[int, set] = {}
    for key, cell in result.cells.items():
        by_seed.setdefault(key.seed, set()).add(tuple(cell.rows["num_active"].tolist()))
    assert all(len(draws) == 1 for draws in by_seed.values())
    assert len(set.union(*by_seed.values())) == 2


def test_programs_are_shared_by_seeds_links_and_settings(table):
    links = [{"name": "bernoulli", "prob": p} for p in (0.1, 0.5, 0.9)]
    experiment = Experiment.from_table(table | {"links": links, "seeds": [0, 1, 2]})
    result = run(experiment)
    assert result.manifest["programs_compiled"] == 2  # one per algorithm
    compile_times = [cell.info["compile_s"] for cell in result.cells.values()]
    assert sum(seconds > 0 for seconds in compile_times) == 2


def test_learning_rate_rounds_and_eval_every_are_arguments_of_the_program(table):
    programs = Programs(jax.devices())
    for changes in ({}, {"learning_rate": 0.01}, {"rounds": 7}, {"eval_every": 3}, {"cooldown_rounds": 2}):
        experiment = Experiment.from_table(table | changes)
        grid = Grid(experiment, programs=programs)
        with jax.enable_x64(True):
            grid.simulation(experiment.cells()[0])
    assert len(programs.compiled) == 1


def test_divergence_is_dated_and_the_other_cells_are_kept(table):
    changes = {"learning_rate": 1e200, "algorithms": [{"name": "fedpbc"}]}
    links = [{"label": "always", "name": "bernoulli", "prob": 1.0}]
    result = run(Experiment.from_table(table | changes | {"links": links}))
    dates = set(result.diverged.values())
    assert len(result.diverged) == 2
    assert all(1 <= date <= 2 for date in dates)
    for key, date in result.diverged.items():
        server = result.cells[key].rows["server_distance"]
        assert np.isfinite(server[0])
        assert not np.isfinite(server[date])
    assert run(Experiment.from_table(table)).diverged == {}


def test_cooldown_keeps_the_mean_and_joins_the_clients(table):
    changes = {"rounds": 60, "cooldown_rounds": 40, "algorithms": [{"name": "fedpbc"}], "seeds": [0]}
    rows = only_cell(run(Experiment.from_table(table | changes))).rows
    mean, distance = rows["mean_distance"], rows["consensus_distance"]
    np.testing.assert_allclose(mean[20:], mean[20], rtol=1e-12)
    assert np.all(np.diff(distance[20:]) <= 1e-12)
    assert distance[60] < 1e-6 * distance[20]
    assert rows["server_distance"][60] == pytest.approx(mean[60], rel=1e-3)


def test_server_average_is_the_mean_over_the_second_half(table):
    base = table | {"rounds": 6, "seeds": [0], "algorithms": [{"name": "fedavg"}]}
    servers = [only_cell(run(Experiment.from_table(base | {"rounds": t}))).models["server"] for t in (4, 5, 6)]
    average = only_cell(run(Experiment.from_table(base))).models["server_average"]
    np.testing.assert_allclose(average, np.mean(servers, axis=0), rtol=1e-12)
    average = only_cell(run(Experiment.from_table(base | {"rounds": 5}))).models["server_average"]
    servers = [only_cell(run(Experiment.from_table(base | {"rounds": t}))).models["server"] for t in (3, 4, 5)]
    np.testing.assert_allclose(average, np.mean(servers, axis=0), rtol=1e-12)


def test_a_run_leaves_the_callers_precision_alone(table):
    assert not jax.config.jax_enable_x64
    run(Experiment.from_table(table | {"rounds": 2}))
    assert not jax.config.jax_enable_x64
    assert run(Experiment.from_table(table | {"rounds": 2, "precision": "float32"})).cells
