"""The contract of metrics: a problem from outside that measures one thing, under a name of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import tomli_w

import fedpbc
from fedpbc.plots.choice import shown_metrics
from fedpbc.plots.runs import draw
from fedpbc.plots.tables import terminal
from fedpbc.runs.directory import read_run

PROBLEM = '''
import dataclasses

import jax.numpy as jnp

import fedpbc
from fedpbc.core.schema import Context
from fedpbc.problems.quadratic import quadratic


def _metrics(params, models, sums):
    return {"my_score": 100.0 - jnp.sum(models ** 2, axis=1)}


def scored(context: Context, *, clients: int = 5) -> fedpbc.Problem:
    """A problem that measures a score and nothing else."""
    base = quadratic.function(context, num_clients=clients, dim=3)
    title = fedpbc.Measure("score of $\\\\mine$", "points", scale="SCALE", better="higher", shown=True)
    return dataclasses.replace(base, metrics=_metrics, measures={"my_score": title})


fedpbc.register(scored)
'''


@pytest.fixture
def experiment(tmp_path):
    """experiment.toml and own.py in the current folder."""
    (tmp_path / "own.py").write_text(PROBLEM.replace("SCALE", "linear"))
    table = {
        "name": "own", "rounds": 6, "local_steps": 2, "learning_rate": 0.05, "seeds": [0, 1],
        "problem": {"name": "own.py:scored"}, "links": [{"name": "bernoulli", "prob": 0.5}],
        "algorithms": [{"name": "fedavg"}, {"name": "fedpbc"}],
    }  # fmt: skip
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(table))
    return table


def test_it_runs_draws_tabulates_and_reports(fedpbc, experiment, tmp_path):
    status, out, err = fedpbc("run", "experiment.toml", "--quiet")
    assert (status, err) == (0, "")
    heading = out.partition("─")[0]
    assert all(word in heading.split() for word in ("server", "score", "of", "$\\mine$", "[points]"))
    assert "loss" not in out
    read = read_run(tmp_path / "runs" / "own")
    assert shown_metrics([read]) == ["my_score"]
    assert read.measures["my_score"].better == "higher"
    (tmp_path / "runs" / "own" / "figure.png").unlink()
    status, out, _ = fedpbc("report", "runs/own", "--markdown")
    assert status == 0
    assert (tmp_path / "runs" / "own" / "figure.png").is_file()
    assert "| links | algorithm | server score of \\$\\\\mine\\$ \\[points] |" in out
    figure = draw([read])
    assert [ax.get_ylabel() for ax in figure.axes] == ["score of $\\mine$ [points]"]


def test_several_runs_are_compared_by_it(fedpbc, experiment, tmp_path):
    for name, rate in (("slow", 0.01), ("fast", 0.05)):
        changes = ["--set", f"learning_rate={rate}", "--set", f'name="{name}"', "--out", name, "--quiet"]
        assert fedpbc("run", "experiment.toml", *changes)[0] == 0
    status, out, err = fedpbc("report", "slow", "fast", "--latex")
    assert status == 0
    assert err == "comparison: comparison.png, comparison.svg\n", "the table alone goes into a file"
    assert out.count(r" \\") == 5
    rows = [line.split(" & ")[:3] for line in out.splitlines() if line.endswith(r" \\")][1:]
    assert [(run, method) for run, _, method in rows] == [
        ("slow", "fedavg"), ("slow", "fedpbc"), ("fast", "fedavg"), ("fast", "fedpbc"),
    ]  # fmt: skip
    status, _, err = fedpbc("report", "slow", "--metrics", "my_scor")
    assert status == 2
    assert err == 'error: no metric "my_scor" (did you mean "my_score"?); there are my_score\n'
    status, _, err = fedpbc("report", "slow", "--latex", "--markdown")
    assert (status, err) == (2, "error: --markdown and --latex: choose one of them\n")


def test_more_methods_than_colours_are_ranked_by_it_the_best_on_top(fedpbc, experiment, tmp_path):
    rates = [round(0.01 * i, 2) for i in range(1, 10)]
    methods = f'algorithms=[{{name="fedavg", learning_rate={rates}}}]'
    assert fedpbc("run", "experiment.toml", "--set", methods, "--out", "many", "--quiet")[0] == 0
    read = read_run(tmp_path / "many")
    (ax,) = draw([read]).axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    finals = [read.final("server_my_score", algorithm=name) for name in names]
    assert len(names) == 9
    assert finals == sorted(finals, reverse=True)
    assert ax.yaxis_inverted()
    assert ax.get_xlabel() == "score of $\\mine$ [points]"


def test_a_log_scale_with_values_below_zero_is_no_failure(fedpbc, experiment, tmp_path):
    (tmp_path / "own.py").write_text(PROBLEM.replace("SCALE", "log").replace("100.0 - jnp", "-1.0 - jnp"))
    status, _, err = fedpbc("run", "experiment.toml", "--quiet")
    assert (status, err) == (0, "")
    assert (tmp_path / "runs" / "own" / "figure.png").is_file()


def test_python_sees_the_same(tmp_path, experiment, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = fedpbc.simulate(
        problem=fedpbc.load_experiment("experiment.toml").problem, links=fedpbc.links.bernoulli(prob=0.5),
        algorithm=fedpbc.algorithms.fedpbc(), rounds=4, local_steps=2, learning_rate=0.05, seeds=[0, 1],
        progress=False, figure={"spread": "ci"},
    )  # fmt: skip
    frame = run.to_pandas()
    assert list(frame.columns) == ["links", "algorithm", "compute", "seed", "round", *run.columns]
    assert frame[frame["round"] == 4]["server_my_score"].mean() == pytest.approx(run.final("server_my_score"))
    assert len(frame) == 2 * 5
    for table in (run.to_markdown(), run.to_latex(), terminal([run])):
        assert "mine" in table
    assert "95 % confidence interval" in terminal([run])
    assert len(run.plot().axes) == 1
    assert repr(run) == "<Run simulation: 2 cells of 4 rounds>"


def test_a_picture_that_fails_is_one_line_and_the_run_is_there(fedpbc, experiment, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no paint\nleft")

    with monkeypatch.context() as patch:
        patch.setattr("fedpbc.plots.runs.draw", fail)
        status, out, err = fedpbc("run", "experiment.toml", "--quiet")
    assert status == 0
    folder = tmp_path / "runs" / "own"
    assert err == (
        "warning: runs/own: no figure could be drawn (RuntimeError: no paint); the results are there, "
        "try fedpbc report runs/own\n"
    )
    assert "figure.png" not in out
    assert (folder / "manifest.json").is_file()
    assert not (folder / "figure.png").exists()
    status, out, err = fedpbc("report", "runs/own")
    assert (status, err) == (0, "")
    assert (folder / "figure.png").is_file()


def test_without_matplotlib_a_run_is_a_run(experiment, tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None;"
        "sys.argv[1:] = ['run', 'experiment.toml', '--quiet', '--markdown'];"
        "from fedpbc.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^warning: runs/own: no figure could be drawn \(ModuleNotFoundError: .*matplotlib", done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("| links | algorithm |")
