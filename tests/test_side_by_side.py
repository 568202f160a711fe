"""Cells side by side: the same bits as one after another, and nothing lost when one of them fails."""

import itertools
import threading
import time

import jax
import numpy as np
import pytest

import fedpbc
from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.runner import run
from fedpbc.runs.workers import Queue, Stopped, work

LINKS = [
    {"name": "bernoulli", "prob": {"name": "two_groups", "p0": 0.2, "p1": 0.8}},
    {"name": "markov", "prob": 0.4, "memory": 0.5},
]


def experiment(**changes) -> Experiment:
    table = {
        "name": "grid",
        "rounds": 40,
        "local_steps": 2,
        "learning_rate": 0.02,
        "seeds": [0, 1, 2],
        "eval_every": 3,
        "chunk_size": 4,
        "problem": {"name": "quadratic", "num_clients": 10, "dim": 5},
        "links": LINKS,
        "algorithms": [{"name": "fedpbc"}, {"name": "fedavg"}],
    }
    return Experiment.from_table(table | changes)


def columns(result) -> dict:
    return {(key, name): a.tobytes() for key, cell in result.cells.items() for name, a in cell.rows.items()}


def test_the_same_bits_however_cells_are_run():
    one = run(experiment(), programs=Programs(jax.devices()[:1]), devices=1)
    three = run(experiment(), programs=Programs(jax.devices()[:3]), devices=3)
    shared = run(experiment(), programs=Programs(jax.devices()[:3]), devices=3, side_by_side=False)
    assert one.manifest["cells_side_by_side"] == 1
    assert three.manifest["cells_side_by_side"] == 3
    assert {cell.info["num_devices"] for cell in shared.cells.values()} == {3}
    assert columns(one) == columns(three) == columns(shared)
    assert list(one.cells) == list(three.cells)


def test_programs_are_compiled_once_whoever_needs_them():
    programs = Programs(jax.devices()[:4])
    run(experiment(), programs=programs, devices=4)
    assert programs.num_compiled == 4  # 2 link processes x 2 algorithms, and not for each seed or thread


def test_a_callback_is_told_of_one_cell_after_another_unless_it_can_take_more():
    class Notes(fedpbc.Callback):
        def __init__(self):
            self.cells, self.inside, self.most = [], 0, 0

        def on_rows(self, cell, rows):
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.cells.append(cell)
            time.sleep(1e-4)
            self.inside -= 1

    class Many(Notes):
        side_by_side = True

    def changes(cells):
        return sum(a != b for a, b in itertools.pairwise(cells))

    notes, many = Notes(), Many()
    alone = run(experiment(), programs=Programs(jax.devices()[:3]), callbacks=[notes])
    both = run(experiment(), programs=Programs(jax.devices()[:3]), devices=3, callbacks=[many])
    assert [r.manifest["cells_side_by_side"] for r in (alone, both)] == [1, 3]
    assert changes(notes.cells) == len(alone.cells) - 1
    assert many.most == 1
    assert sorted(many.cells) == sorted(notes.cells)


def test_early_stop_keeps_cells_apart():
    def stopped(**how):
        return {
            key: cell.info.get("stopped_after")
            for key, cell in run(
                experiment(rounds=60),
                programs=Programs(jax.devices()[:3]),
                devices=3,
                callbacks=[fedpbc.EarlyStop("server_distance", patience=6)],
                **how,
            ).cells.items()
        }

    assert stopped() == stopped(side_by_side=False)
    assert any(stopped().values())


def test_the_first_error_ends_all_and_finished_cells_stay(tmp_path):
    class Fails(fedpbc.Callback):
        side_by_side = True
        seen = 0

        def on_cell_end(self, cell, result):
            self.seen += 1
            if self.seen == 3:
                raise RuntimeError("the disk is full")

    out, many = tmp_path / "run", experiment(rounds=300)
    with pytest.raises(RuntimeError, match="disk is full"):
        run(many, out, programs=Programs(jax.devices()[:2]), devices=2, callbacks=[Fails()])
    assert not (out / "manifest.json").exists()
    assert len([p for p in (out / "cells").glob("*.npz") if ".checkpoint" not in p.name]) >= 3
    again = run(many, out, resume=True, programs=Programs(jax.devices()[:2]), devices=2)
    assert columns(again) == columns(run(many, programs=Programs(jax.devices()[:1]), devices=1))


def test_an_interrupt_reaches_every_worker():
    queue = Queue(experiment().cells(), lambda cell: cell.algorithm.name, 2)
    left, both = threading.Event(), threading.Barrier(2)

    def loop(worker: int) -> None:
        cell = queue.take()
        both.wait(5)
        if worker == 0:
            raise KeyboardInterrupt
        try:
            for _ in range(10_000):
                queue.go_on()
                time.sleep(0.001)
        except Stopped:
            left.set()
            queue.finished(cell)
            raise

    with pytest.raises(KeyboardInterrupt):
        work(queue, 2, loop)
    assert left.is_set()


def test_after_a_stop_nobody_goes_on_and_none_of_what_is_left_is_taken():
    queue = Queue(experiment().cells(), lambda cell: cell.algorithm.name, 2)
    queue.go_on()
    queue.take()
    queue.stop()
    for ask in (queue.go_on, queue.take):
        with pytest.raises(Stopped):
            ask()


def test_the_queue_keeps_seeds_and_compilations_apart():
    cells = sorted(experiment().cells(), key=lambda cell: cell.seed)
    queue = Queue(cells, lambda cell: (cell.algorithm.name, cell.links.name), 1)
    taken = [queue.take() for _ in range(4)]
    assert {cell.seed for cell in taken} == {0}
    assert len({(cell.algorithm.name, cell.links.name) for cell in taken}) == 4  # none waits for another's program
    assert queue.finished(taken[0]) == {0, 1, 2}
    got = []
    waiting = threading.Thread(target=lambda: got.append(queue.take()))
    waiting.start()
    time.sleep(0.05)
    assert not got  # data of one seed at a time
    for cell in taken[1:]:
        queue.finished(cell)
    waiting.join(5)
    assert got[0].seed == 1


def test_a_program_that_is_being_compiled_is_not_waited_for_where_there_is_a_choice():
    cells = [cell for cell in experiment().cells() if cell.seed == 0]
    first, other = dict.fromkeys(cell.links.label for cell in cells)
    cells.sort(key=lambda cell: cell.links.label != first)
    queue = Queue(cells, lambda cell: cell.links.label, 1)
    one, two = queue.take(), queue.take()
    assert [one.links.label, two.links.label] == [first, other]
    queue.compiled(two)
    assert queue.take().links.label == other
    assert queue.take().links.label == first  # there is no other
    assert queue.take() is None


def test_the_data_of_seeds_that_are_over_are_let_go():
    from fedpbc.runs.runner import Grid, settings_of

    e = experiment()
    with settings_of(e):
        grid = Grid(e, 2, programs=Programs(jax.devices()[:2]))
        grid.check()
        grid.run(None)
    assert [len(grid._drawn), len(grid._problems)] == [1, 1]


def test_memory_decides_how_many_cells_run_side_by_side(monkeypatch):
    programs = Programs(jax.devices()[:4])
    state, data = 6 * 10 * 5 * 4, 10 * 5 * 4 + 100
    monkeypatch.setattr("fedpbc.runs.runner.total_memory", lambda: 2 * (3 * state + data))
    assert 1 < run(experiment(), programs=programs).manifest["cells_side_by_side"] < 4
    monkeypatch.setattr("fedpbc.runs.runner.total_memory", lambda: 1)
    assert run(experiment(), programs=programs).manifest["cells_side_by_side"] == 1


@pytest.mark.release
def test_metrics_of_the_server_alone_are_the_same_and_nothing_else_is_measured():
    e = experiment(seeds=[0])
    both = run(e, devices=1)
    alone = run(e.replace(metrics=["server"]), devices=1)
    for key, cell in both.cells.items():
        rows = alone.cells[key].rows
        gone = set(cell.rows) - set(rows)
        assert gone == {name for name in cell.rows if name.startswith("mean_")} | {"consensus_distance"}
        for name, values in rows.items():
            np.testing.assert_array_equal(values, cell.rows[name], err_msg=name)
    with pytest.raises(fedpbc.ConfigError, match=r'metrics = .*must hold "server"'):
        e.replace(metrics=["mean"])
