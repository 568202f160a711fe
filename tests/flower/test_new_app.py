"""The template of fedpbc flower new."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpbc.flower import InProcessGrid


@pytest.fixture
def app(fedpbc, tmp_path, monkeypatch):
    """(folder, its run config) of a new app that can be imported."""
    folder = tmp_path / "my-app"
    status, out, error = fedpbc("flower", "new", str(folder))
    assert status == 0, error
    assert out.splitlines()[-1] == f"yours to change: task.py; then: cd {folder} && flwr run . --stream"
    monkeypatch.syspath_prepend(str(folder))
    yield folder, tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_app"]:
        del sys.modules[name]


def run(config: dict[str, Any], grid: InProcessGrid) -> None:
    server = importlib.import_module("my_app.server_app")
    server.app(grid, Context(1, 1, {}, RecordDict(), config))


@pytest.mark.parametrize("strategy", ["fedpbc", "fedavg", "fedau", "fedvarp"])
def test_a_new_app_learns(strategy, app, tmp_path, capsys):
    _, config = app
    config |= {"strategy": strategy, "num-server-rounds": 8, "num-clients": 4, "directory": str(tmp_path / "out")}
    client = importlib.import_module("my_app.client_app")
    active = np.random.default_rng(3).random((8, 4)) < 0.7
    active[-1] = True
    grid = InProcessGrid(client.app, "0123", uplink=lambda t, name: bool(active[t, int(name)]), run_config=config)
    run(config, grid)
    assert "after round 8:" in capsys.readouterr().out
    lines = (tmp_path / "out" / "evaluation.jsonl").read_text().splitlines()
    accuracy = [json.loads(line)["clients"]["accuracy"] for line in lines]
    assert accuracy[-1] > 0.7


def test_a_new_app_can_be_replayed(app):
    """Its train function, called twice, gives the same bits, and other bits in another round or for another client."""
    _, config = app
    task = importlib.import_module("my_app.task")
    arguments = (config["learning-rate"], config["local-steps"], config["batch-size"])
    models = {(client, t): task.train(task.initial(), client, t, *arguments) for client in range(2) for t in (1, 2)}
    again = task.train(task.initial(), 0, 1, *arguments)
    assert all(np.array_equal(a, b) for a, b in zip(models[0, 1], again, strict=True))
    assert len({model[0].tobytes() for model in models.values()}) == 4


def test_a_new_app_is_clean(app):
    folder, config = app
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--line-length",
        "120",
        "--select",
        "E,F,W,B",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert not [
        path
        for path in folder.rglob("*")
        if path.is_file() and "@" in path.read_text().replace("@app", "").replace(" @ ", "")
    ]
    assert {"directory", "min-replies", "fraction-train", "pin-names"} <= set(config)


@pytest.mark.parametrize(
    ("name", "message"),
    [("My App", "its name must be small letters"), ("1st", "its name must be"), ("full", "must be new")],
)
def test_bad_names_are_one_line(fedpbc, tmp_path, name, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    status, _, error = fedpbc("flower", "new", str(tmp_path / name))
    assert (status, error.count("\n")) == (2, 1)
    assert message in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
