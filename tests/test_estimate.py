"""About how long a grid takes: what is counted is what a run then does, and the arithmetic of the rest."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import fedpbc as package
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.estimate import Estimate, estimate
from fedpbc.tuning.plan import plan_of
from fedpbc.tuning.tune import time_of


@pytest.mark.release
def test_programs_rounds_and_rows_are_those_of_the_run(table):
    table |= {"rounds": 7, "eval_every": 3, "metrics": ["server"]}
    table["links"].append({"name": "markov", "prob": 0.3, "memory": 0.5})
    table["algorithms"] = [
        {"name": "fedavg", "learning_rate": [0.1, 0.2]},  # one program
        {"name": "fedavg", "label": "falls", "learning_rate": {"name": "inverse_sqrt", "initial": 0.1}},
        {"name": "fedavg", "label": "steps", "local_steps": 2},
    ]
    experiment = Experiment.from_table(table)
    told, run = estimate(experiment, devices=1), package.run(experiment, devices=1)
    assert told.programs == run.manifest["programs_compiled"] == 6
    assert told.rounds == sum(int(cell.rows["round"][-1]) for cell in run.cells.values())
    assert told.rows == sum(len(cell.rows["round"]) for cell in run.cells.values())
    assert (told.workers, told.tried) == (1, experiment.algorithms[0].label)
    for measured in (told.compile_s, told.round_s, told.row_s):
        assert 0 < measured < math.inf
    assert told.saved_s >= 0


def test_a_tuning_counts_every_length(table):
    table["tune"] = {"budget": 2, "lengths": 2, "learning_rate": [0.1, 0.2, 0.3], "server": [1.0]}
    plan = plan_of(Experiment.from_table(table))
    told = time_of(plan)
    assert (told.rounds, told.rows) == (plan.rounds, 2 * plan.runs)
    assert told.programs == 2, "learning rates share one"


@pytest.mark.parametrize(("workers", "said"), [(1, "about 66 s on"), (2, "about 27 s to 66 s on"), (8, "about 7 s to")])
def test_the_line_is_a_range_where_something_is_not_known(workers, said):
    told = Estimate(3, 100, 10, workers, 1.0 if workers > 1 else 5.0, 4.0 if workers > 1 else 0.0, 0.5, 0.1, "fedavg")
    assert told.line.startswith(said)
    assert "100 rounds of 500 ms, 10 evaluations of 100 ms, 3 programs of 5.0 s to compile" in told.line


def test_a_plan_of_a_run_writes_nothing(table, write_toml, fedpbc, tmp_path):
    status, out, err = fedpbc("run", str(write_toml(table)), "--plan")
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first == "small: 4 runs of 12 rounds (link settings 1, methods 2, who computes 1, seeds 2)"
    assert second.startswith("about ")
    assert "48 rounds of" in second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment.toml"]
    assert not Path("runs").exists()
