"""Callbacks: what they are told, early stops that do not depend on speed, and stops over a kill."""

from __future__ import annotations

import numpy as np
import pytest

import fedpbc
from fedpbc.experiment.grid import Experiment
from fedpbc.plots.runs import draw
from fedpbc.plots.tables import terminal
from fedpbc.runs import cell as one_cell
from fedpbc.runs.callbacks import Callback, EarlyStop
from fedpbc.runs.directory import read_run
from fedpbc.runs.runner import run

METRIC = "server_distance"


class Recorder(Callback):
    """Remembers all it is told."""

    def __init__(self) -> None:
        self.rounds: dict[tuple, list[int]] = {}
        self.ended: list[tuple] = []

    def on_rows(self, cell, rows):
        assert all(len(values) == 1 for values in rows.values())
        self.rounds.setdefault(tuple(cell), []).extend(rows["round"].tolist())

    def on_cell_end(self, cell, result):
        self.ended.append(tuple(cell))


class Killed(BaseException):
    """As SIGKILL would: nothing after it runs."""


@pytest.fixture
def noisy(table):
    """An experiment whose curves go down and then up and down: early stops happen at different rounds."""
    return Experiment.from_table(table | {"rounds": 40, "learning_rate": 0.4})


def first_stop(values: list[float], rounds: list[int], patience: int, min_change: float) -> int | None:
    """The rule, written down once more: the first round by which nothing has improved for ``patience`` rounds."""
    for i, t in enumerate(rounds):
        records = [0]
        for j in range(1, i + 1):
            if values[j] < values[records[-1]] - min_change:
                records.append(j)
        if t - rounds[records[-1]] >= patience:
            return t
    return None


def test_callbacks_are_told_of_every_row_and_cell(table):
    recorder = Recorder()
    told = run(Experiment.from_table(table | {"eval_every": 5}), callbacks=[recorder])
    assert set(recorder.rounds) == set(map(tuple, told.cells))
    assert all(rounds == [0, 5, 10, 12] for rounds in recorder.rounds.values())
    assert sorted(recorder.ended) == sorted(map(tuple, told.cells))


@pytest.mark.parametrize("block_seconds", [1e-9, 10.0])
def test_a_cell_ends_where_the_rule_says_however_long_blocks_are(noisy, monkeypatch, block_seconds):
    monkeypatch.setattr(one_cell, "BLOCK_SECONDS", block_seconds)
    whole, after = run(noisy), Recorder()
    stopped = run(noisy, callbacks=[EarlyStop(METRIC, patience=4, min_change=0.01), after])
    lasts = set()
    for key, cell in stopped.cells.items():
        full = whole.cells[key].rows
        last = first_stop(full[METRIC].tolist(), full["round"].tolist(), 4, 0.01)
        assert last is not None
        lasts.add(last)
        assert stopped.stopped[key] == cell.rows["round"][-1] == last
        for name, values in cell.rows.items():
            np.testing.assert_array_equal(values, full[name][: last + 1])
        assert after.rounds[tuple(key)] == list(range(last + 1)), "nobody is shown rows that are not kept"
        assert "server_average" not in cell.models
        assert cell.info["first_nonfinite_round"] is None
    assert len(lasts) > 1, "the setting must tell cells apart"
    key = next(iter(stopped.cells))
    short = run(noisy.replace(rounds=stopped.stopped[key]))
    for name in ("server", "mean"):
        np.testing.assert_array_equal(stopped.cells[key].models[name], short.cells[key].models[name])


def test_a_stopped_run_is_written_read_drawn_and_says_so(noisy, tmp_path):
    stop = EarlyStop(METRIC, patience=4, min_change=0.01)
    ended = run(noisy, tmp_path / "out", callbacks=[stop])
    read = read_run(tmp_path / "out")
    assert read.stopped == ended.stopped
    assert len(set(read.stopped.values())) > 1
    for key, cell in ended.cells.items():
        np.testing.assert_array_equal(read.cells[key].rows[METRIC], cell.rows[METRIC])
    again = run(noisy, tmp_path / "out", resume=True, callbacks=[Recorder()])
    assert again.stopped == ended.stopped
    printed = terminal([read], 80)
    assert "last round" in printed
    for group in read.groups:
        lasts = sorted(read.stopped[key] for key in read.select(**group._asdict()))
        span = f"{lasts[0]} to {lasts[-1]}" if lasts[0] < lasts[-1] else f"{lasts[0]}"
        assert span in printed
        assert span in read.to_markdown()
        assert span in read.to_latex()
    table = read.to_pandas()
    assert len(table) == sum(last + 1 for last in read.stopped.values())
    figure = draw([read], ["distance"])
    for line, algorithm in zip(figure.axes[0].lines[::2], ("fedavg", "fedpbc"), strict=True):
        last = max(read.stopped[key] for key in read.select(algorithm=algorithm))
        assert line.get_xdata()[-1] == last
        assert line.get_ydata()[-1] == pytest.approx(read.final(METRIC, algorithm=algorithm)), "as the table says"


@pytest.mark.parametrize("kill_at", [2, 18])
def test_killed_and_resumed_it_stops_at_the_same_round(noisy, tmp_path, monkeypatch, kill_at):
    def stop() -> EarlyStop:
        return EarlyStop(METRIC, patience=20, min_change=2.0)

    assert len(run(noisy, tmp_path / "whole", callbacks=[stop()]).stopped) == 4
    monkeypatch.setattr(one_cell, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(one_cell, "BLOCK_SECONDS", 1e-9)

    class Kill(Callback):
        def __init__(self) -> None:
            self.cells: set[tuple] = set()

        def on_rows(self, cell, rows):
            self.cells.add(cell)
            if len(self.cells) == 2 and rows["round"][0] == kill_at:
                raise Killed

    with pytest.raises(Killed):
        run(noisy, tmp_path / "pieces", callbacks=[stop(), Kill()])
    checkpoints = list((tmp_path / "pieces" / "cells").glob("*.checkpoint.npz"))
    assert len(checkpoints) == (kill_at > 16), "the first block is 16 rounds"
    recorder = Recorder()
    run(noisy, tmp_path / "pieces", resume=True, callbacks=[stop(), recorder])
    assert all(rounds[0] == 0 for rounds in recorder.rounds.values()), "all rows of the unfinished cell"
    assert len(recorder.ended) == 4
    assert len(recorder.rounds) == 3, "a cell that was finished has no rows to show"
    for name in ("metrics.csv", "summary.json"):
        assert (tmp_path / "pieces" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for path in (tmp_path / "whole" / "models").iterdir():
        assert (tmp_path / "pieces" / "models" / path.name).read_bytes() == path.read_bytes()


def test_a_stricter_callback_on_resuming_takes_back_what_it_would_not_have_had(noisy, tmp_path, monkeypatch):
    monkeypatch.setattr(one_cell, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(one_cell, "BLOCK_SECONDS", 1e-9)

    class At(Callback):
        def __init__(self, t: int, kill: bool) -> None:
            self.t, self.kill = t, kill

        def on_rows(self, cell, rows):
            if rows["round"][0] >= self.t:
                if self.kill:
                    raise Killed
                return True
            return None

    with pytest.raises(Killed):
        run(noisy, tmp_path / "out", callbacks=[At(20, kill=True)])
    ended = run(noisy, tmp_path / "out", resume=True, callbacks=[At(7, kill=False)])
    short = run(noisy.replace(rounds=7))
    for key, cell in ended.cells.items():
        assert ended.stopped[key] == 7
        np.testing.assert_array_equal(cell.rows[METRIC], short.cells[key].rows[METRIC])
        np.testing.assert_array_equal(cell.models["server"], short.cells[key].models["server"])


def test_a_stop_at_the_start_and_at_the_end(table, tmp_path):
    class Stop(Callback):
        def __init__(self, t: int) -> None:
            self.t = t

        def on_rows(self, cell, rows):
            return rows["round"][0] == self.t

    experiment = Experiment.from_table(table)
    at_once = run(experiment, tmp_path / "out", callbacks=[Stop(0)])
    assert set(at_once.stopped.values()) == {0}
    assert read_run(tmp_path / "out").stopped == at_once.stopped
    assert run(experiment, callbacks=[Stop(12)]).stopped == {}, "a cell that ran to its end was not stopped"


def test_a_metric_that_is_not_finite_ends_a_cell(table):
    links = [{"label": "always", "name": "bernoulli", "prob": 1.0}]
    experiment = Experiment.from_table(table | {"learning_rate": 1e60, "links": links, "rounds": 30})
    ended = run(experiment, callbacks=[EarlyStop(METRIC, patience=30)])
    for key, cell in ended.cells.items():
        assert not np.isfinite(cell.rows[METRIC][-1])
        assert np.all(np.isfinite(cell.rows[METRIC][:-1]))
        assert ended.stopped[key] < 30


def test_higher_may_be_better():
    stop = EarlyStop("score", patience=2, better="higher")
    values = [0.1, 0.5, 0.4, 0.6, 0.6, 0.6]
    answers = [stop.on_rows("cell", {"round": np.array([t]), "score": np.array([v])}) for t, v in enumerate(values)]
    assert answers == [False, False, False, False, False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"better": "larger"}, 'better = "larger": must be "lower" or "higher"'),
        ({"patience": 0}, "patience = 0: must be an integer, at least 1 round"),
        ({"patience": 2.5}, "patience = 2.5: must be an integer"),
        ({"min_change": -1.0}, "min_change = -1.0: must be a number >= 0"),
        ({"min_change": float("nan")}, "min_change = nan: must be"),
        ({"min_change": "0.1"}, 'min_change = "0.1": must be a number >= 0'),
        ({"min_change": True}, "min_change = true: must be a number >= 0"),
        ({"patience": "3"}, 'patience = "3": must be an integer'),
        ({"better": 1}, 'better = 1: must be "lower" or "higher"'),
        ({"metric": 3}, "metric = 3: must be the name of a column"),
        ({"metric": ""}, 'metric = "": must be the name of a column'),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(fedpbc.ConfigError, match=message):
        EarlyStop(**{"metric": METRIC, "patience": 3, **options})


def test_an_unknown_metric_is_named_with_what_there_is(table, tmp_path):
    with pytest.raises(fedpbc.ConfigError, match=r'no metric "server_distanse" \(did you mean "server_distance"\?\)'):
        run(Experiment.from_table(table), tmp_path / "out", callbacks=[EarlyStop("server_distanse", patience=3)])
    assert not (tmp_path / "out").exists()


def test_callbacks_are_told_the_columns_before_anything_is_written(table, tmp_path):
    told, out = [], tmp_path / "out"

    class First(Callback):
        def on_start(self, columns):
            assert not out.exists()
            told.append(list(columns))

    found = run(Experiment.from_table(table), out, callbacks=[First()])
    assert [sorted(columns) for columns in told] == [sorted(next(iter(found.cells.values())).rows)]


def test_each_cell_is_judged_by_itself():
    """A new cell, of the same labels too (another run), starts anew: it gets better, from a worse start."""
    for second in ("cell", "other"):
        stop = EarlyStop("x", patience=3)
        for cell, values in (("cell", [1.0, 0.5]), (second, [9.0, 8.0, 7.0, 6.0, 5.0])):
            rows = [{"round": np.array([t]), "x": np.array([x])} for t, x in enumerate(values)]
            assert not any(stop.on_rows(cell, row) for row in rows)
