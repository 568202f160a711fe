"""What TensorBoard and MLflow are given: the metrics of every cell, once, also over a kill."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedpbc.experiment.grid import Experiment
from fedpbc.runs import cell as one_cell
from fedpbc.runs.callbacks import Callback, EarlyStop
from fedpbc.runs.runner import run


class Killed(BaseException):
    """As SIGKILL would."""


class KillAt(Callback):
    def __init__(self, t: int) -> None:
        self.t, self.cells = t, set()

    def on_rows(self, cell, rows):
        self.cells.add(cell)
        if len(self.cells) == 2 and rows["round"][0] == self.t:
            raise Killed


def events_of(folder):
    """{tag: [(step, value)]} as TensorBoard shows it: a START session log hides what came before, from its step on."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("*tfevents*"), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            if event.session_log.status == SessionLog.START:
                found = {tag: [one for one in steps if one[0] < event.step] for tag, steps in found.items()}
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def assert_as_rows(found, rows):
    assert set(found) == set(rows) - {"round"}
    for name, points in found.items():
        steps, values = zip(*points, strict=True)
        assert list(steps) == rows["round"].tolist(), "every row, once"
        np.testing.assert_allclose(values, rows[name].astype(np.float32), rtol=1e-6)


@pytest.fixture
def experiment(table):
    return Experiment.from_table(table | {"rounds": 40, "eval_every": 4})


def test_tensorboard_gets_every_metric_of_every_cell_over_a_kill(experiment, tmp_path, monkeypatch):
    from fedpbc.runs.writers.tensorboard import TensorBoard

    monkeypatch.setattr(one_cell, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(one_cell, "BLOCK_SECONDS", 1e-9)
    board = TensorBoard(tmp_path / "tb")
    with pytest.raises(Killed):
        run(experiment, tmp_path / "out", callbacks=[board, KillAt(24)])
    board._close()  # its thread would write on, which that of a killed process does not
    read = run(experiment, tmp_path / "out", resume=True, callbacks=[TensorBoard(tmp_path / "tb")])
    folders = {path.name: path for path in (tmp_path / "tb").iterdir()}
    assert len(folders) == 4
    for key, cell in read.cells.items():
        assert_as_rows(events_of(folders[f"half_{key.algorithm}_all_seed{key.seed}"]), cell.rows)
    finished = len(list((tmp_path / "tb").rglob("*tfevents*")))
    run(experiment, tmp_path / "out", resume=True, callbacks=[TensorBoard(tmp_path / "tb")])
    assert len(list((tmp_path / "tb").rglob("*tfevents*"))) == finished, "a finished run is not written again"


def test_labels_that_no_folder_can_have_stay_apart(table, tmp_path):
    from fedpbc.runs.writers.tensorboard import TensorBoard

    algorithms = [{"label": "a/b", "name": "fedavg"}, {"label": "a:b", "name": "fedpbc"}]
    run(Experiment.from_table(table | {"algorithms": algorithms}), callbacks=[TensorBoard(tmp_path / "tb")])
    assert len(list((tmp_path / "tb").iterdir())) == 4


@dataclass
class FakeClient:
    """The calls of mlflow.MlflowClient that are used, with its signatures."""

    tracking_uri: str | None = None
    experiments: dict[str, str] = field(default_factory=dict)
    runs: list[dict] = field(default_factory=list)

    def get_experiment_by_name(self, name):
        known = self.experiments.get(name)
        return types.SimpleNamespace(experiment_id=known) if known else None

    def create_experiment(self, name, artifact_location=None, tags=None):
        assert name not in self.experiments, "must be unique"
        self.experiments[name] = str(len(self.experiments) + 1)
        return self.experiments[name]

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        assert experiment_id in self.experiments.values()
        self.runs.append({"name": run_name, "metrics": [], "params": {}, "status": "RUNNING"})
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=str(len(self.runs) - 1)))

    def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None):
        assert len(metrics) <= 1000
        assert self.runs[int(run_id)]["status"] == "RUNNING"
        self.runs[int(run_id)]["metrics"] += metrics
        self.runs[int(run_id)]["params"] |= {param.key: param.value for param in params}

    def set_terminated(self, run_id, status=None, end_time=None):
        self.runs[int(run_id)]["status"] = status or "FINISHED"


@pytest.fixture
def mlflow(monkeypatch):
    """A small module with MLflow's calls; the real one is large."""
    client = FakeClient()

    def connect(tracking_uri=None, registry_uri=None):
        client.tracking_uri = tracking_uri
        return client

    @dataclass
    class Metric:
        key: str
        value: float
        timestamp: int
        step: int = 0

    @dataclass
    class Param:
        key: str
        value: str

    entities = types.ModuleType("mlflow.entities")
    entities.Metric, entities.Param = Metric, Param
    module = types.ModuleType("mlflow")
    module.MlflowClient, module.entities = connect, entities
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return client


def test_mlflow_gets_every_metric_of_every_cell(experiment, mlflow):
    from fedpbc.runs.writers.mlflow import MLflow

    stop = EarlyStop("server_distance", patience=16, min_change=0.01)
    result = run(experiment, callbacks=[stop, MLflow("mine", "http://127.0.0.1:1")])
    assert mlflow.tracking_uri == "http://127.0.0.1:1"
    assert list(mlflow.experiments) == ["mine"]
    assert len(mlflow.runs) == len(result.cells) == 4
    by_cell = {tuple(entry["params"].values()): entry for entry in mlflow.runs}
    for key, cell in result.cells.items():
        entry = by_cell[tuple(map(str, key))]
        assert entry["status"] == "FINISHED"
        assert list(entry["params"]) == ["links", "algorithm", "compute", "seed"]
        found: dict[str, list[tuple[int, float]]] = {}
        for metric in entry["metrics"]:
            assert isinstance(metric.timestamp, int)
            assert metric.timestamp > 1e12, "milliseconds"
            found.setdefault(metric.key, []).append((metric.step, metric.value))
        assert_as_rows(found, cell.rows)
    run(experiment, callbacks=[MLflow("mine")])
    assert len(mlflow.experiments) == 1
    assert len(mlflow.runs) == 8


def test_mlflow_is_spared_what_is_not_finite_and_long_requests(table, mlflow):
    from fedpbc.runs.writers.mlflow import MLflow

    changes = {"learning_rate": 1e60, "rounds": 300, "seeds": [0]}
    result = run(Experiment.from_table(table | changes), callbacks=[MLflow()])
    assert result.diverged
    values = [metric.value for entry in mlflow.runs for metric in entry["metrics"]]
    assert np.all(np.isfinite(values))
    finite = sum(np.isfinite(v).sum() for cell in result.cells.values() for n, v in cell.rows.items() if n != "round")
    assert len(values) == finite > 2000


@pytest.mark.parametrize(
    ("writer", "package"), [("tensorboard.TensorBoard('x')", "tensorboardX"), ("mlflow.MLflow()", "mlflow")]
)
def test_what_is_missing_is_said_before_the_run(writer, package):
    module, _, call = writer.partition(".")
    code = (
        f"import sys; sys.modules[{package!r}] = None\nfrom fedpbc.runs.writers.{module} import *\n"
        f"try: {call}\nexcept ModuleNotFoundError as error: print(error.name)\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == package


def test_the_page_of_callbacks_runs_as_it_stands(monkeypatch, tmp_path, table):
    page = (Path(__file__).parent.parent / "docs" / "howto" / "callbacks.md").read_text(encoding="utf-8")
    first, _, own = re.findall(r"```python[^\n]*\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(first, "callbacks.md", "exec"), names)
    assert names["run"].stopped
    assert len(list((tmp_path / "logs").iterdir())) == 2
    runs = []

    class Started:
        def __init__(self, name):
            self.name, self.logged, self.finished = name, {}, False
            runs.append(self)

        def log(self, data, step=None):
            assert not self.finished
            self.logged[step] = data

        def finish(self):
            self.finished = True

    wandb = types.ModuleType("wandb")
    wandb.init = lambda project=None, name=None, reinit=None: Started(name)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    exec(compile(own, "callbacks.md", "exec"), names)
    result = run(Experiment.from_table(table), callbacks=[names["WandB"]()])
    assert len(runs) == len(result.cells)
    for started, (key, cell) in zip(sorted(runs, key=lambda r: r.name), sorted(result.cells.items()), strict=True):
        assert started.finished
        assert str(key.seed) in started.name
        assert [row["server_distance"] for row in started.logged.values()] == cell.rows["server_distance"].tolist()
