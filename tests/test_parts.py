"""A grid in parts on several machines, and what they are together: the run that one machine would have made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE, wait_until

import fedpbc as package
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.part import Part
from fedpbc.runs.directory import read_run
from fedpbc.runs.runner import run

SAME_BYTES = ("experiment.toml", "metrics.csv", "summary.json")


@pytest.fixture
def grid(table, tmp_path) -> dict[str, Any]:
    """Four methods and settings by three seeds, with centres from a file, which each part has a copy of."""
    np.savetxt(tmp_path / "centers.csv", np.arange(24.0).reshape(6, 4), delimiter=",")
    table["problem"] = {"name": "quadratic", "num_clients": 6, "dim": 4, "centers": str(tmp_path / "centers.csv")}
    table["links"].append({"label": "rare", "name": "bernoulli", "prob": 0.1})
    return {**table, "seeds": [7, 0, 3], "precision": "float32"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Where ``parts`` are computed once, to be copied."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def parts(grid, made, tmp_path) -> list[Path]:
    for name in ("part1", "part2", "part3"):
        if not (made / name).exists():
            run(Experiment.from_table(grid).only(f"{name[-1]}/3"), made / name)
        shutil.copytree(made / name, tmp_path / name)
    return [tmp_path / f"part{i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_parts_are_disjoint_complete_even_and_in_the_order_of_the_grid(grid, count):
    whole = Experiment.from_table(grid)
    keys = [cell.key for cell in whole.cells()]
    shares = [[cell.key for cell in whole.only(f"{i}/{count}").cells()] for i in range(1, count + 1)]
    assert sorted(key for share in shares for key in share) == sorted(keys)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(share == [key for key in keys if key in share] for share in shares)
    if count == 3:
        assert [{key.seed for key in share} for share in shares] == [{7}, {0}, {3}]


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/0", "-1/3", "1.5/3", "a/b", "", "1/3/3", 2, None])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ConfigError, match="must be I/N with I from 1 to N, like 2/8"):
        Part.parse(text, "--cells")


def test_more_parts_than_cells_are_refused(fedpbc):
    status, _, err = fedpbc("run", "counterexample", "--cells", "1/101")
    assert (status, err) == (2, "error: --cells 1/101: counterexample has 100 runs, not more parts than that\n")
    assert not Path("runs").exists()


def test_a_part_survives_a_change_of_the_experiment(grid):
    part = Experiment.from_table(grid).only("2/3")
    assert part.replace(rounds=5).part == Part(2, 3)
    assert part.replace(rounds=5).rounds == 5
    assert part.table() == Experiment.from_table(grid).table()


def test_merged_parts_are_the_whole_run(grid, parts, tmp_path):
    whole = run(Experiment.from_table(grid), tmp_path / "whole")
    together = package.merge([parts[2], parts[0], str(parts[1])], out=tmp_path / "together")
    for name in SAME_BYTES:
        assert (tmp_path / "together" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    for folder in ("models", "inputs"):
        names = sorted(path.name for path in (tmp_path / "whole" / folder).iterdir())
        assert sorted(path.name for path in (tmp_path / "together" / folder).iterdir()) == names
        for name in names:
            there, here = tmp_path / "together" / folder / name, tmp_path / "whole" / folder / name
            assert there.read_bytes() == here.read_bytes(), name
    assert {path.name for path in (tmp_path / "together").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }
    assert not list(tmp_path.glob(".*"))
    manifest = json.loads((tmp_path / "together" / "manifest.json").read_text())
    assert [part["part"] for part in manifest["merged_from"]] == ["1/3", "2/3", "3/3"]
    assert "part" not in manifest
    assert list(together.cells) == list(whole.cells)
    again = run(Experiment.from_table(grid), tmp_path / "together", resume=True)
    assert again.manifest["merged_from"]  # a finished run, which resuming leaves alone


def test_a_part_says_which_it_is_and_is_a_run_like_others(parts):
    assert json.loads((parts[1] / "manifest.json").read_text())["part"] == "2/3"
    part = read_run(parts[1])
    assert {key.seed for key in part.cells} == {0}
    assert part.to_markdown().count("fedpbc") == 2


def test_a_part_goes_on_as_that_part_alone(grid, parts):
    whole = Experiment.from_table(grid)
    assert run(whole.only("2/3"), parts[1], resume=True).manifest["part"] == "2/3"
    for other in (whole, whole.only("1/3"), whole.only("2/4")):
        with pytest.raises(ConfigError, match="it holds part 2/3 of the grid, go on with --cells 2/3"):
            run(other, parts[1], resume=True)


def test_a_whole_run_does_not_go_on_as_a_part(table, tmp_path):
    run(Experiment.from_table(table), tmp_path / "out")
    with pytest.raises(ConfigError, match="it holds the whole grid, not a part, not 1/2"):
        run(Experiment.from_table(table).only("1/2"), tmp_path / "out", resume=True)


def refuses(paths: list[Path], out: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        package.merge(paths, out=out)
    assert not out.exists()
    assert not list(out.parent.glob(".*"))


def test_missing_doubled_and_unfinished_parts_are_named(parts, tmp_path):
    out = tmp_path / "together"
    refuses([parts[0], parts[2]], out, r"^part 2/3 is missing; compute with fedpbc run \.\.\. --cells 2/3$")
    refuses([parts[1]], out, "^parts 1/3, 3/3 are missing")
    refuses([*parts, parts[0]], out, "part 1/3 is there twice: .*part1 and .*part1")
    refuses([], out, "must be a list of run directories")
    refuses([*parts[:2], tmp_path / "nowhere"], out, "nowhere: no such run directory")
    (parts[2] / "manifest.json").unlink()
    refuses(parts, out, "part3: part 3/3 is not finished; go on with --cells 3/3 --resume")


def test_foreign_parts_are_refused(grid, parts, tmp_path):
    out, whole = tmp_path / "together", Experiment.from_table(grid)
    run(whole, tmp_path / "whole")
    refuses([*parts[:2], tmp_path / "whole"], out, "whole: is not part of a grid")
    run(whole.only("3/4"), tmp_path / "quarter")
    refuses([*parts[:2], tmp_path / "quarter"], out, "is part 3/4, but .*part1 is part 1/3: not of one split")
    run(whole.replace(rounds=11).only("3/3"), tmp_path / "shorter")
    refuses([*parts[:2], tmp_path / "shorter"], out, "part of another experiment than .*: rounds was 12, is 11")
    np.savetxt(tmp_path / "centers.csv", np.ones((6, 4)), delimiter=",")
    run(Experiment.from_table(grid).only("3/3"), tmp_path / "elsewhere")
    refuses([*parts[:2], tmp_path / "elsewhere"], out, r"problem\.centers was .*SHA-256.*, is .*SHA-256")


def test_damaged_parts_are_refused(parts, tmp_path):
    (parts[2] / "part.json").write_text('{"index": 1, "count": 3}')
    refuses(parts[1:], tmp_path / "together", "parts 3/3 are missing|part 3/3 is missing")
    refuses([parts[2], *parts[1:2], parts[0]], tmp_path / "together", "part 1/3 is there twice")
    (parts[2] / "part.json").write_text("{")
    refuses(parts, tmp_path / "together", "part.json: is damaged")
    (parts[2] / "part.json").write_text('{"index": 3, "count": 3}')
    models = sorted((parts[2] / "models").iterdir())
    models[0].write_bytes(b"")
    package.merge(parts, out=tmp_path / "copied")  # models are copied as they are, and checked when they are read


def test_a_part_without_one_of_its_cells_is_damaged(parts, tmp_path, monkeypatch):
    from fedpbc.runs import merge as module

    def without_the_last(path):
        run = read(path)
        run.cells.pop(list(run.cells)[-1])
        return run

    read = module.read_run
    monkeypatch.setattr(module, "read_run", without_the_last)
    refuses(parts, tmp_path / "whole", "its runs are not those of part")


def test_a_merge_that_fails_leaves_nothing(parts, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("fedpbc.runs.merge.draw_figure", full)
    with pytest.raises(OSError, match="disk is full"):
        package.merge(parts, out=tmp_path / "whole")
    assert not [path for path in tmp_path.iterdir() if "whole" in path.name]


def test_taken_folders_are_refused(parts, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file, the output needs a folder"):
        package.merge(parts, out=tmp_path / "file")
    with pytest.raises(ConfigError, match="is not empty; choose another --out"):
        package.merge(parts, out=parts[0])
    (tmp_path / "empty").mkdir()
    assert package.merge(parts, out=tmp_path / "empty").path == tmp_path / "empty"


def test_different_versions_are_a_warning(parts, tmp_path):
    manifest = json.loads((parts[1] / "manifest.json").read_text())
    (parts[1] / "manifest.json").write_text(json.dumps({**manifest, "jax": "0.1"}))
    with pytest.warns(UserWarning, match=r"different jax \(0\.1, .*the last bits"):
        package.merge(parts, out=tmp_path / "together")


SLOW_MERGE = """
import sys, time, pathlib
from fedpbc.runs import merge
ends, seen = int(sys.argv[1]), 0
original = merge._copy
def copy(source, target):
    global seen
    original(source, target)
    seen += 1
    if seen == ends:
        pathlib.Path(sys.argv[2], "reached").touch()
        time.sleep(3600)
merge._copy = copy
merge.merge(sys.argv[3:], out=pathlib.Path(sys.argv[2], "together"))
"""


@pytest.mark.parametrize("copies", [1, 5])
def test_a_killed_merge_leaves_nothing_half_written(grid, parts, tmp_path, copies):
    command = [sys.executable, "-c", SLOW_MERGE, str(copies), str(tmp_path), *map(str, parts)]
    process = subprocess.Popen(command)
    try:
        wait_until((tmp_path / "reached").exists, "the merge to be under way")
        with pytest.raises(ConfigError, match="another merge is writing there"):
            package.merge(parts, out=tmp_path / "together")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
    assert not (tmp_path / "together").exists()
    run(Experiment.from_table(grid), tmp_path / "whole")
    package.merge(parts, out=tmp_path / "together")
    for name in SAME_BYTES:
        assert (tmp_path / "together" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / ".together.merging").exists()


def test_a_killed_part_goes_on(grid, parts, tmp_path):
    """As if killed after its last cell but before the end: cells, no manifest."""
    whole = Experiment.from_table(grid)
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in ("experiment.toml", "part.json"):
        shutil.copy(parts[0] / name, begun)
    shutil.copytree(parts[0] / "inputs", begun / "inputs")
    with pytest.raises(ConfigError, match="go on with --cells 1/3"):
        run(whole.only("3/3"), begun, resume=True)
    run(whole.only("1/3"), begun, resume=True)
    assert (begun / "metrics.csv").read_bytes() == (parts[0] / "metrics.csv").read_bytes()


def test_from_the_command_line(fedpbc, write_toml, grid, tmp_path):
    file = str(write_toml(grid))
    assert fedpbc("run", file, "--quiet")[0] == 0
    for i in (1, 2):
        status, out, err = fedpbc("run", file, "--quiet", "--cells", f"{i}/2")
        assert (status, err) == (0, "")
        assert out.endswith("experiment.toml\n")
    status, _, err = fedpbc("merge", "runs/small.parts/1-of-2", "--out", "runs/together")
    assert (status, err) == (2, "error: part 2/2 is missing; compute with fedpbc run ... --cells 2/2\n")
    found = [str(path) for path in sorted(Path("runs/small.parts").iterdir())]
    status, out, err = fedpbc("merge", *found, "--out", "runs/together")
    assert (status, err) == (0, "")
    assert "runs/together: figure.png, metrics.csv, summary.json, manifest.json, models, experiment.toml" in out
    assert Path("runs/together/metrics.csv").read_bytes() == Path("runs/small/metrics.csv").read_bytes()


def test_parts_from_python_in_memory(grid):
    run = package.run(Experiment.from_table(grid), cells="2/6")
    assert len(run.cells) == 2
    with pytest.raises(ConfigError, match='cells = "7/6": must be I/N'):
        package.run(Experiment.from_table(grid), cells="7/6")


@pytest.mark.release
def test_over_ray(write_toml, grid, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    script = Path(__file__).resolve().parent.parent / "examples" / "ray_cells.py"
    command = [sys.executable, str(script), str(write_toml(grid)), "2", str(tmp_path / "together")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| fedpbc |" in done.stdout
    run(Experiment.from_table(grid), tmp_path / "whole")
    whole, together = (tmp_path / name / "metrics.csv" for name in ("whole", "together"))
    assert together.read_bytes() == whole.read_bytes()
