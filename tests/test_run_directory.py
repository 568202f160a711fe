"""The run directory: what it holds, and that a kill at any moment loses nothing."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from waiting import PATIENCE, wait_until

import fedpbc
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment
from fedpbc.runs import cell as one_cell
from fedpbc.runs import directory as results
from fedpbc.runs.directory import read_metrics, read_run, replacing
from fedpbc.runs.runner import run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Where ``finished`` is computed once, to be copied."""
    return tmp_path_factory.mktemp("made") / "out"


@pytest.fixture
def finished(table, made, tmp_path) -> Path:
    if not made.exists():
        run(Experiment.from_table(table), made)
    return Path(shutil.copytree(made, tmp_path / "out"))


def test_it_holds_what_the_documentation_says(finished):
    names = {path.name for path in finished.iterdir()} - {".lock"}
    assert names == {
        "experiment.toml",
        "metrics.csv",
        "summary.json",
        "manifest.json",
        "models",
        "figure.png",
        "figure.svg",
    }
    assert (finished / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (finished / "figure.svg").read_bytes()[:600]


def test_metrics_have_one_row_per_cell_and_round_and_round_trip(finished, table):
    with open(finished / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:5] == ["links", "algorithm", "compute", "seed", "round"]
    assert {"server_grad_norm", "mean_grad_norm", "server_distance", "mean_distance", "server_train_loss",
            "mean_train_loss", "consensus_distance", "num_active", "empty_rounds"} <= set(rows[0])  # fmt: skip
    assert len(rows) == 2 * 2 * 13
    result = run(Experiment.from_table(table))
    for key, cell in result.cells.items():
        mine = [r for r in rows if (r["algorithm"], int(r["seed"])) == (key.algorithm, key.seed)]
        assert [int(r["round"]) for r in mine] == list(range(13))
        for name, values in cell.rows.items():
            assert [float(r[name]) for r in mine] == values.tolist()


def test_float32_values_round_trip_too(table, tmp_path):
    table["precision"] = "float32"
    result = run(Experiment.from_table(table), tmp_path / "out")
    metrics = read_metrics(tmp_path / "out" / "metrics.csv", np.dtype(np.float32))
    written = metrics["server_distance"].astype(np.float32)
    expected = np.concatenate([cell.rows["server_distance"] for cell in result.cells.values()])
    assert expected.dtype == np.float32
    np.testing.assert_array_equal(written, expected)


def test_cells_of_one_seed_are_told_apart(table, tmp_path):
    ran = run(Experiment.from_table(table | {"seeds": [1], "compute": ["all", "active"]}), tmp_path / "out")
    read = fedpbc.read_run(tmp_path / "out")
    assert list(read.cells) == list(ran.cells)
    for key, cell in ran.cells.items():
        for name, values in cell.rows.items():
            np.testing.assert_array_equal(read.cells[key].rows[name], values)


def test_models_load_with_numpy_alone(finished, table):
    manifest = json.loads((finished / "manifest.json").read_text())
    result = run(Experiment.from_table(table))
    for cell in manifest["cells"]:
        with np.load(finished / cell["models"], allow_pickle=False) as models:
            mine = result.cells[(cell["links"], cell["algorithm"], cell["compute"], cell["seed"])].models
            assert set(models) == {"server", "mean", "server_average"}
            np.testing.assert_array_equal(models["server"], mine["server"])


def test_the_manifest_says_what_it_was_made_with(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert {"fedpbc", "commit", "python", "jax", "numpy", "device", "peak_memory_mb", "programs_compiled"} <= set(
        manifest
    )
    assert manifest["fedpbc"] == fedpbc.__version__
    assert manifest["peak_memory_mb"]["host"] > 50
    for cell in manifest["cells"]:
        assert {"compile_s", "ms_per_round", "total_s", "first_nonfinite_round", "num_devices"} <= set(cell)
        assert cell["total_s"] >= cell["run_s"] > 0
        assert cell["ms_per_round"] == pytest.approx(1e3 * cell["run_s"] / 12)


def test_the_summary_has_finals_means_and_standard_deviations(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert len(summary["cells"]) == 4
    for group in summary["groups"]:
        values = [
            cell["final"]["server_distance"] for cell in summary["cells"] if cell["algorithm"] == group["algorithm"]
        ]
        assert group["seeds"] == [0, 1]
        assert group["final"]["server_distance"]["mean"] == pytest.approx(np.mean(values))
        assert group["final"]["server_distance"]["sd"] == pytest.approx(np.std(values, ddof=1))


def test_the_resolved_experiment_runs_again_as_it_is(table, tmp_path):
    (tmp_path / "in").mkdir()
    np.savetxt(tmp_path / "in" / "u.csv", np.random.default_rng(0).standard_normal((6, 4)), delimiter=",")
    np.save(tmp_path / "in" / "a.npy", np.random.default_rng(0).random((12, 6)) < 0.5)
    table["problem"] = {"name": "quadratic", "centers": "u.csv"}
    table["links"] = [{"name": "trace", "path": "a.npy"}, {"name": "bernoulli", "prob": 0.3, "varying": "none"}]
    table["learning_rate"] = {"name": "inverse_sqrt", "initial": 0.1}
    (tmp_path / "in" / "e.toml").write_text(tomli_w.dumps(table))
    run(load_experiment(tmp_path / "in" / "e.toml"), tmp_path / "out")
    shutil.rmtree(tmp_path / "in")
    shutil.move(tmp_path / "out", tmp_path / "moved")
    again = load_experiment(tmp_path / "moved" / "experiment.toml")
    run(again, tmp_path / "again")
    for name in ("metrics.csv", "experiment.toml", "summary.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "moved" / name).read_bytes()
    resolved = tomllib.loads((tmp_path / "moved" / "experiment.toml").read_text())
    assert resolved["eval_every"] == 1
    assert resolved["learning_rate"] == {"name": "inverse_sqrt", "initial": 0.1, "period": 10.0}


def test_resuming_a_finished_run_changes_nothing(finished, table):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    result = run(Experiment.from_table(table), finished, resume=True)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
    fresh = run(Experiment.from_table(table))
    for key, cell in fresh.cells.items():
        np.testing.assert_array_equal(result.cells[key].rows["server_distance"], cell.rows["server_distance"])
        np.testing.assert_array_equal(result.cells[key].models["mean"], cell.models["mean"])


def test_a_changed_experiment_is_refused_and_the_change_named(finished, table):
    for changes, message in [
        ({"rounds": 13}, "rounds was 12, is 13"),
        ({"seeds": [0, 2]}, r"seeds\[1\] was 1, is 2"),
        ({"links": [{"label": "half", "name": "bernoulli", "prob": 0.4}]}, r"links\[0\].prob.value was 0.5, is 0.4"),
        ({"algorithms": [{"name": "fedpbc"}]}, "algorithms was"),
    ]:
        with pytest.raises(ConfigError, match=message):
            run(Experiment.from_table(table | changes), finished, resume=True)


def test_a_changed_input_file_is_refused(table, tmp_path):
    path = tmp_path / "u.npy"
    np.save(path, np.zeros((6, 4)))
    table["problem"] = {"name": "quadratic", "centers": "u.npy"}
    run(Experiment.from_table(table, tmp_path), tmp_path / "out")
    np.save(path, np.ones((6, 4)))
    with pytest.raises(ConfigError, match=r"problem.centers was .*SHA-256 .*, is .*SHA-256"):
        run(Experiment.from_table(table, tmp_path), tmp_path / "out", resume=True)


def test_finished_cells_without_their_experiment_are_not_trusted(table, tmp_path):
    (tmp_path / "out" / "cells").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds no experiment\.toml"):
        run(Experiment.from_table(table), tmp_path / "out", resume=True)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["manifest.json", "metrics.csv", "summary.json", "experiment.toml"])
@pytest.mark.parametrize("content", ["", "{}", "null", "round\n1\n"])
def test_damaged_run_directories_end_in_one_line(finished, table, name, content):
    (finished / name).write_text(content)
    with pytest.raises(fedpbc.FedpbcError) as caught:
        run(Experiment.from_table(table), finished, resume=True)
    assert "\n" not in str(caught.value)
    if name != "manifest.json":
        with pytest.raises(ConfigError, match="is damaged"):
            read_run(finished)


def test_a_truncated_metrics_file_is_noticed(finished):
    lines = (finished / "metrics.csv").read_text().splitlines(keepends=True)
    (finished / "metrics.csv").write_text("".join(lines[:-3]))
    with pytest.raises(ConfigError, match=r"has 10 rows of .*seed=1.*, not 13"):
        read_run(finished)


def test_a_foreign_checkpoint_is_refused(table, tmp_path):
    experiment = Experiment.from_table(table)
    directory = results.RunDirectory.open(tmp_path / "out", experiment, resume=False)
    path = directory.checkpoint_path(experiment.cells()[0])
    results.write_arrays(path, {"next_round": np.array(3), "carry0": np.zeros(2)})
    directory.close()
    with pytest.raises(fedpbc.FedpbcError, match=r"is damaged .*; delete it to do that run again"):
        run(experiment, tmp_path / "out", resume=True)


@pytest.mark.parametrize("layout", [None, 1, 1000])
def test_a_checkpoint_of_a_version_that_computed_otherwise_is_refused(table, tmp_path, monkeypatch, layout):
    experiment = Experiment.from_table(table | {"rounds": 40, "eval_every": 3})
    monkeypatch.setattr(one_cell, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(one_cell, "BLOCK_SECONDS", 1e-9)
    original = one_cell.write_arrays

    def killed_after(path: Path, arrays: Any) -> None:
        arrays = {name: a for name, a in arrays.items() if name != "layout"}
        original(path, arrays if layout is None else {**arrays, "layout": np.array(layout)})
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(one_cell, "write_arrays", killed_after)
        with pytest.raises(Killed):
            run(experiment, tmp_path / "out")
    with pytest.raises(fedpbc.ConfigError, match=r"checkpoint.npz: is of another version of fedpbc; go on with that"):
        run(experiment, tmp_path / "out", resume=True)


@pytest.mark.release
def test_the_environment_does_not_change_the_draws(table):
    code = (
        "import sys, json, fedpbc; e = fedpbc.Experiment.from_table(json.loads(sys.argv[1]));"
        "print(next(iter(fedpbc.run(e).cells.values())).rows['num_active'].tolist())"
    )
    outputs = set()
    for changes in ({}, {"JAX_THREEFRY_PARTITIONABLE": "0"}, {"JAX_DEFAULT_PRNG_IMPL": "rbg"}):
        command = [sys.executable, "-c", code, json.dumps(table | {"rounds": 30, "seeds": [0]})]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **changes})
        outputs.add(done.stdout)
    assert len(outputs) == 1


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


@pytest.mark.slow
@pytest.mark.release
def test_an_interrupt_from_the_keyboard_ends_with_130(tmp_path):
    arguments = ["run", "counterexample", "--set", "rounds=1000000", "--set", "eval_every=1000", "--seeds", "0"]
    for i in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "fedpbc", *arguments, "--out", f"out{i}"], cwd=tmp_path, stderr=subprocess.PIPE
        )
        cells = tmp_path / f"out{i}" / "cells"
        try:
            wait_until(lambda process=process, cells=cells: cells.exists() or ended(process), "no run begins")
            time.sleep(2 + 0.7 * i)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode == 130
        assert error.strip() == b"error: interrupted; go on with --resume"


def test_resume_without_a_directory_is_a_fresh_start(table, tmp_path):
    run(Experiment.from_table(table), tmp_path / "new" / "out", resume=True)
    assert (tmp_path / "new" / "out" / "manifest.json").is_file()


def test_two_runs_cannot_write_to_one_directory(table, tmp_path):
    experiment = Experiment.from_table(table)
    directory = results.RunDirectory.open(tmp_path / "out", experiment, resume=False)
    with pytest.raises(ConfigError, match="another run is writing there"):
        run(experiment, tmp_path / "out", resume=True)
    directory.close()
    run(experiment, tmp_path / "out", resume=True)


class Killed(BaseException):
    """As SIGKILL would: nothing after it runs."""


def test_interrupted_anywhere_and_resumed_gives_the_same_bits(table, tmp_path, monkeypatch):
    """Stop at every write in turn; each time go on from what is on the disk."""
    table |= {"rounds": 40, "eval_every": 3}
    experiment = Experiment.from_table(table)
    run(experiment, tmp_path / "whole")
    monkeypatch.setattr(one_cell, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(one_cell, "BLOCK_SECONDS", 1e-9)
    original, count, stop_at = os.replace, 0, 0

    def counting_replace(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count == stop_at:
            raise Killed
        original(source, target)

    monkeypatch.setattr(os, "replace", counting_replace)
    interruptions = 0
    for stop_at in [*range(1, 12), 15, 20, 10_000]:  # noqa: B007
        count = 0
        try:
            run(experiment, tmp_path / "pieces", resume=True)
        except Killed:
            interruptions += 1
    assert interruptions >= 8
    assert_same_directory(tmp_path / "whole", tmp_path / "pieces")


def test_killed_after_the_manifest_the_cells_go_when_it_is_resumed(table, tmp_path, monkeypatch):
    experiment = Experiment.from_table(table)
    run(experiment, tmp_path / "whole")
    original = os.replace

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == ".cells.done":
            raise Killed
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Killed):
            run(experiment, tmp_path / "pieces")
    assert (tmp_path / "pieces" / "manifest.json").is_file()
    assert (tmp_path / "pieces" / "cells").is_dir()
    run(experiment, tmp_path / "pieces", resume=True)
    assert_same_directory(tmp_path / "whole", tmp_path / "pieces")


def assert_same_directory(first: Path, second: Path) -> None:
    assert (first / "metrics.csv").read_bytes() == (second / "metrics.csv").read_bytes()
    models = sorted(path.name for path in (first / "models").iterdir())
    assert models == sorted(path.name for path in (second / "models").iterdir())
    for name in models:
        assert (first / "models" / name).read_bytes() == (second / "models" / name).read_bytes()
    assert (first / "summary.json").read_bytes() == (second / "summary.json").read_bytes()
    assert not (second / "cells").exists()


@pytest.mark.slow
@pytest.mark.release
def test_sigkill_and_resume_from_the_command_line(tmp_path):
    """A real process, really killed, several times; after two writes it waits for that."""
    arguments = ["run", "synthetic", "--set", "problem.num_clients=20", "--set", "rounds=1500", "--seeds", "0"]
    code = """if True:
        import os, sys, time
        from fedpbc import cli
        from fedpbc.runs import cell as one_cell
        one_cell.CHECKPOINT_SECONDS = one_cell.BLOCK_SECONDS = 0.05
        sys.argv[0], left, replace = "fedpbc", int(sys.argv.pop()), os.replace
        def replace_or_wait(source, target):
            global left
            left -= 1
            if left < 0:
                open("waits", "w").close()
                time.sleep(3600)
            replace(source, target)
        os.replace = replace_or_wait
        cli.main()
    """

    def start(out: str, writes: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, *arguments, "--out", out, "--resume", str(writes)]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish(out: str) -> None:
        process = start(out, 10**9)
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output.decode()

    finish("whole")
    cells, waits = tmp_path / "pieces" / "cells", tmp_path / "waits"

    def stored() -> set[tuple[str, int]]:
        return {(path.name, path.stat().st_mtime_ns) for path in cells.glob("*.npz")}

    for wait in (0.1, 0.6, 0.3):
        before, process = stored(), start("pieces", 2)  # a whole run needs more than 10 writes, so none of these ends

        def due(before: Any = before, process: Any = process) -> bool:
            return stored() != before or waits.exists() or ended(process)

        try:
            wait_until(due, "nothing is written", pause=0.01)
            time.sleep(wait)
        finally:
            process.kill()
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, output.decode()
        waits.unlink(missing_ok=True)
    finish("pieces")
    assert_same_directory(tmp_path / "whole", tmp_path / "pieces")


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("ne")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_last_checkpoint_usable(table, tmp_path, monkeypatch):
    experiment = Experiment.from_table(table | {"rounds": 40})
    run(experiment, tmp_path / "whole")
    monkeypatch.setattr(one_cell, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(one_cell, "BLOCK_SECONDS", 1e-9)
    original, count = results.write_arrays, 0

    def full_after_five(path: Path, arrays: dict[str, np.ndarray]) -> None:
        nonlocal count
        count += 1
        if count > 5:
            with replacing(path) as temporary:
                temporary.write_bytes(b"half a file")
                raise OSError(28, "No space left on device")
        original(path, arrays)

    monkeypatch.setattr(one_cell, "write_arrays", full_after_five)
    with pytest.raises(OSError, match="No space"):
        run(experiment, tmp_path / "out")
    monkeypatch.undo()
    assert any((tmp_path / "out" / "cells").iterdir())
    run(experiment, tmp_path / "out", resume=True)
    assert_same_directory(tmp_path / "whole", tmp_path / "out")


def test_reading_back(finished):
    read = read_run(finished)
    rounds, values = read.curves("half", "fedpbc", "all", "server_distance")
    assert rounds.tolist() == list(range(13))
    assert values.shape == (2, 13)
    assert read.name == "small"


def test_what_is_no_run_directory_is_refused(finished, tmp_path):
    with pytest.raises(ConfigError, match="no such run directory"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not a finished run directory"):
        read_run(tmp_path / "empty")
    (finished / "summary.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        read_run(finished)


def test_arrays_given_in_python_resume_and_changed_ones_are_refused(tmp_path):
    x = np.random.default_rng(0).standard_normal((20, 2))

    def again(x: np.ndarray) -> fedpbc.Run:
        data = fedpbc.data.from_arrays(x, x[:, 0] > 0, client=np.arange(20) % 4)
        return fedpbc.simulate(
            fedpbc.problems.classification(data), links=fedpbc.links.bernoulli(prob=0.5),
            algorithm=fedpbc.algorithms.fedavg(), rounds=2, local_steps=1, learning_rate=0.1,
            out=tmp_path / "out", resume=True, progress=False,
        )  # fmt: skip

    first = again(x)
    assert again(x.copy()).final("server_train_loss") == pytest.approx(first.final("server_train_loss"), abs=1e-6)
    changed = x.copy()
    changed[3, 1] += 1e-9
    with pytest.raises(ConfigError, match=r"cannot resume, the experiment changed: problem\.data\.path was"):
        again(changed)
