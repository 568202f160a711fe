"""One call, one result: ``simulate`` and ``Run``, computed, saved, read back and resumed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedpbc
from fedpbc import algorithms, links, problems

SNIPPET = """
import fedpbc
data = fedpbc.data.from_arrays(X, y, test=(X_test, y_test))
problem = fedpbc.problems.classification(data.dirichlet(num_clients=100, alpha=0.1), model=fedpbc.models.mlp([128]))
run = fedpbc.simulate(problem, links=fedpbc.links.markov(prob=0.2, memory=0.9), algorithm=fedpbc.algorithms.fedau(),
                      rounds=ROUNDS, local_steps=5, learning_rate=0.05, batch_size=32, seeds=range(3))
run.final("server_test_accuracy"); run.to_pandas(); run.plot(); run.save("runs/mine")
"""
QUADRATIC = problems.quadratic(num_clients=6, dim=4)
BASE: dict[str, Any] = {
    "links": links.bernoulli(prob=0.5),
    "algorithm": algorithms.fedpbc(),
    "rounds": 8,
    "local_steps": 2,
    "learning_rate": 0.1,
    "progress": False,
}


def simulate(**changes: Any) -> fedpbc.Run:
    return fedpbc.simulate(changes.pop("problem", QUADRATIC), **{**BASE, **changes})


def samples(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    features = rng.standard_normal((n, 5)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(int) + (features[:, 1] > 0)


def assert_same(run: fedpbc.Run, other: fedpbc.Run, times: bool = True) -> None:
    """Every bit of what a run says, and its types. ``times``: those of the clock too."""
    assert list(run.cells) == list(other.cells)
    for key, cell in run.cells.items():
        theirs = other.cells[key]
        assert set(cell.rows) == set(theirs.rows)
        for name, values in cell.rows.items():
            assert values.dtype == theirs.rows[name].dtype, name
            np.testing.assert_array_equal(values, theirs.rows[name], err_msg=name)
        assert set(cell.models) == set(theirs.models)
        for name, model in cell.models.items():
            assert model.dtype == theirs.models[name].dtype
            np.testing.assert_array_equal(model, theirs.models[name])
        if times:
            assert cell.info == theirs.info
        else:
            assert set(cell.info) == set(theirs.info)
    assert run.columns == other.columns
    assert run.groups == other.groups
    assert run.measures == other.measures
    assert run.summary == other.summary
    assert set(run.manifest) == set(other.manifest)
    if times:
        assert run.manifest == other.manifest
    assert run.to_pandas().equals(other.to_pandas())


def test_the_snippet_of_the_readme_runs_as_it_stands(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\nROUNDS = 6\nrng = np.random.default_rng(0)\n"
        "X = rng.standard_normal((1500, 12)); y = (X[:, 0] > 0) * 1 + (X[:, 1] > 0)\n"
        "X_test, y_test = X[:100], y[:100]\n" + SNIPPET + "import pathlib\n"
        "back = fedpbc.read_run('runs/mine')\n"
        "assert back.final('server_test_accuracy') == run.final('server_test_accuracy')\n"
        "assert pathlib.Path('runs/mine/figure.png').stat().st_size > 1000\n"
        "print(len(run.to_pandas()))\n"
    )
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(3 * 7)


@pytest.mark.first(1)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_run_is_the_same_computed_saved_and_read(tmp_path, precision):
    features, labels = samples()
    data = fedpbc.data.from_arrays(features, labels, test=0.25).iid(num_clients=4)
    run = simulate(
        problem=problems.classification(data, model=fedpbc.models.mlp([3])),
        algorithm=[algorithms.fedpbc(), algorithms.scaffold()],
        links=links.markov(prob=0.4, memory=0.5),
        compute=["all", "active"],
        seeds=[0, 3],
        precision=precision,
        learning_rate=0.037,
    )
    assert len(run.cells) == 2 * 2 * 2
    assert next(iter(run.cells.values())).rows["server_train_loss"].dtype == precision
    run.save(tmp_path / "saved")
    back = fedpbc.read_run(tmp_path / "saved")
    assert_same(run, back)
    for name in ("server", "mean", "server_average"):
        where = {"links": run.groups[-1].links, "algorithm": "scaffold", "compute": "active", "seed": 3}
        ours, theirs = run.model(name, **where), back.model(name, **where)
        assert isinstance(theirs, tuple)
        assert [a.shape for a in theirs] == [(3, 6), (3, 4)]
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    group = run.groups[0]
    for ours, theirs in zip(
        run.curves(*group, "server_train_loss"), back.curves(*group, "server_train_loss"), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert run.select(algorithm="scaffold", seed=0) == back.select(algorithm="scaffold", seed=0)
    assert run.final("mean_test_accuracy", **group._asdict()) == back.final("mean_test_accuracy", **group._asdict())
    assert run.to_markdown() == back.to_markdown()
    assert run.to_latex() == back.to_latex()


def test_a_run_with_a_directory_is_resumed_whole(tmp_path):
    out = tmp_path / "run"
    run = simulate(out=out, seeds=[0, 1])
    assert run.path == out
    again = simulate(out=out, seeds=[0, 1], resume=True)
    assert_same(run, again)
    assert_same(run, fedpbc.read_run(out))
    assert again.manifest["jax"] == jax.__version__
    assert len(again.manifest["cells"]) == 2
    memory = simulate(seeds=[0, 1])
    assert_same(run, memory, times=False)
    with pytest.raises(fedpbc.ConfigError, match="not empty"):
        simulate(out=out, seeds=[0, 1])
    with pytest.raises(fedpbc.ConfigError, match=r"rounds was 8, is 9"):
        simulate(out=out, seeds=[0, 1], rounds=9, resume=True)


def test_a_run_that_was_read_back_is_not_saved_anew(tmp_path):
    simulate(out=tmp_path / "run")
    with pytest.raises(fedpbc.ConfigError, match="copy that folder"):
        fedpbc.read_run(tmp_path / "run").save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_rows_by_hand():
    """p = 1 on the quadratic: gradient descent, x <- x - eta (x - ubar), and rows stand where they should."""
    run = simulate(
        problem=problems.quadratic(num_clients=2, dim=2),
        links=links.bernoulli(prob=1.0),
        rounds=10,
        local_steps=1,
        learning_rate=0.25,
        eval_every=4,
        precision="float64",
    )
    (cell,) = run.cells.values()
    assert cell.rows["round"].tolist() == [0, 4, 8, 10]
    assert cell.rows["gradient_steps"].tolist() == [0, 8, 16, 20]
    assert cell.rows["bytes_up"].tolist() == [0, 8 * 2 * 2 * 4, 8 * 2 * 2 * 8, 8 * 2 * 2 * 10]
    distances = cell.rows["server_distance"]
    np.testing.assert_allclose(distances[1:] / distances[0], 0.75 ** np.array([4, 8, 10]), rtol=1e-9)


def test_every_keyword_reaches_the_experiment():
    """Each changes the checked experiment in its own key, and nothing else."""
    plain = simulate().table
    changes: dict[str, Any] = {
        "rounds": 5,
        "local_steps": 3,
        "learning_rate": 0.2,
        "batch_size": 7,
        "minibatch": "step",
        "seeds": [4, 2],
        "compute": "active",
        "cooldown_rounds": 2,
        "eval_every": 3,
        "chunk_size": 2,
        "precision": "float64",
        "state_loss": {"round": 3, "share": 0.5},
        "figure": {"metrics": ["distance"]},
        "name": "other",
    }
    for key, value in changes.items():
        table = simulate(**{key: value}).table
        different = {k for k in {*table, *plain} if table.get(k) != plain.get(k)}
        assert different == {key}, key
    assert simulate(compute="active").table["compute"] == ["active"]
    assert simulate(learning_rate=fedpbc.schedules.inverse_sqrt(initial=0.3)).table["learning_rate"] == {
        "name": "inverse_sqrt",
        "initial": 0.3,
        "period": 10.0,
    }
    assert "devices" not in plain
    assert_same(simulate(devices=1), simulate(devices=2), times=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds = 0: must be an integer >= 1"),
        ({"rounds": "many"}, 'rounds = "many": must be an integer'),
        ({"local_steps": 1.5}, "local_steps = 1.5"),
        ({"learning_rate": -1}, "learning_rate = -1"),
        ({"learning_rate": "fast"}, 'learning_rate = "fast"'),
        ({"seeds": []}, "seeds"),
        ({"seeds": [0, 0]}, "seeds"),
        ({"seeds": 3}, "seeds = 3"),
        ({"minibatch": "epoch"}, "minibatch"),
        ({"compute": "al"}, "compute"),
        ({"eval_every": 0}, "eval_every = 0"),
        ({"eval_every": -1}, "eval_every = -1"),
        ({"precision": "float16"}, "precision"),
        ({"state_loss": {"round": 99}}, "state_loss.round = 99"),
        ({"state_loss": {"when": 1}}, "unknown key state_loss.when"),
        ({"state_loss": 3}, "state_loss = 3"),
        ({"figure": {"metrics": ["nothing"]}}, "figure.metrics"),
        ({"figure": "wide"}, "figure"),
        ({"name": "a/b"}, "name"),
        ({"devices": 0}, "devices = 0"),
        ({"links": []}, "links"),
        ({"links": 0.5}, "links"),
        ({"algorithm": "fedpbcc"}, 'did you mean "fedpbc"'),
        ({"algorithm": links.bernoulli(prob=0.5)}, "makes a LinkProcess, must be an algorithm"),
        ({"links": algorithms.fedpbc}, "links"),
        ({"problem": algorithms.fedpbc()}, "problem"),
        ({"problem": 7}, "problem = 7"),
        ({"algorithm": algorithms.fedpbc().using(rate=0.1)}, "unknown key algorithms.0..rate"),
        ({"links": links.bernoulli(prob=0.5).using(batch_size=2)}, "only algorithms"),
        ({"callbacks": [print]}, "callbacks"),
        ({"callbacks": print}, "callbacks"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_value_is_one_clear_line(change, message):
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        simulate(**change)
    assert "\n" not in str(caught.value)


def test_names_and_factories_do_for_components():
    """``algorithm=fedpbc`` or "fedpbc" is ``fedpbc()``; a probability alone is written as in TOML."""
    plain = simulate()
    assert_same(plain, simulate(algorithm=algorithms.fedpbc, problem=QUADRATIC), times=False)
    assert_same(plain, simulate(links=links.bernoulli(prob=fedpbc.probabilities.constant(value=0.5))), times=False)
    assert_same(plain, simulate(algorithm="fedpbc", links={"name": "bernoulli", "prob": 0.5}), times=False)
    both = simulate(algorithm=["fedpbc", algorithms.fedau, {"name": "fedavg", "label": "first"}])
    assert [key.algorithm for key in both.cells] == ["fedpbc", "fedau", "first"]


def test_settings_are_added_to_each_other():
    one = algorithms.fedavg().using(label="mine", learning_rate=0.3, local_steps=4)
    other = one.using(local_steps=2, batch_size=5)
    assert other.settings == {"learning_rate": 0.3, "local_steps": 2, "batch_size": 5}
    assert other.label == "mine"
    assert one.settings == {"learning_rate": 0.3, "local_steps": 4}


def test_settings_of_an_algorithm_are_separate_experiments():
    """learning_rate, local_steps and batch_size of a method give what an experiment with these gives."""
    features, labels = samples()
    data = fedpbc.data.from_arrays(features, labels).dirichlet(num_clients=5, alpha=0.5)
    problem = problems.classification(data)
    own = {"learning_rate": 0.3, "local_steps": 4, "batch_size": 5}
    decaying = fedpbc.schedules.inverse_sqrt(initial=0.2)
    together = simulate(
        problem=problem,
        algorithm=[
            algorithms.fedpbc(),
            algorithms.fedpbc().using(label="own", **own),
            algorithms.fedau().using(label="decaying", learning_rate=decaying),
        ],
        seeds=[0, 1],
    )
    for label, algorithm, changes in (
        ("fedpbc", algorithms.fedpbc(), {}),
        ("own", algorithms.fedpbc(), own),
        ("decaying", algorithms.fedau(), {"learning_rate": decaying}),
    ):
        alone = simulate(problem=problem, algorithm=algorithm, seeds=[0, 1], **changes)
        for key, cell in alone.cells.items():
            mine = together.cells[key._replace(algorithm=label)]
            for name, values in cell.rows.items():
                np.testing.assert_array_equal(values, mine.rows[name], err_msg=f"{label} {name}")
    rows = together.cells[together.select(algorithm="own", seed=0)[0]].rows
    assert (
        rows["gradient_steps"][-1]
        == 2 * together.cells[together.select(algorithm="fedpbc", seed=0)[0]].rows["gradient_steps"][-1]
    )


def test_a_list_is_a_sweep_in_python_and_in_toml(write_toml, tmp_path):
    run = simulate(algorithm=algorithms.fedpbc().using(learning_rate=[0.1, 0.2], local_steps=[1, 3]))
    assert len(run.cells) == 4
    table = {
        "name": "sweep",
        "rounds": 8,
        "local_steps": 2,
        "learning_rate": 0.1,
        "seeds": [0],
        "problem": {"name": "quadratic", "num_clients": 6, "dim": 4},
        "links": [{"name": "bernoulli", "prob": 0.5}],
        "algorithms": [{"name": "fedpbc", "learning_rate": [0.1, 0.2], "local_steps": [1, 3]}],
    }
    read = fedpbc.run(write_toml(table), tmp_path / "out")
    assert [key.algorithm for key in read.cells] == [key.algorithm for key in run.cells]
    for rate in (0.1, 0.2):
        for steps in (1, 3):
            alone = simulate(learning_rate=rate, local_steps=steps)
            (cell,) = alone.cells.values()
            (label,) = [k for k in run.cells if f"{rate:g}" in k.algorithm and f"local_steps={steps}" in k.algorithm]
            for found in (run.cells[label], read.cells[label]):
                np.testing.assert_array_equal(cell.rows["server_distance"], found.rows["server_distance"])
    again = fedpbc.run(tmp_path / "out" / "experiment.toml", tmp_path / "again")
    assert [key.algorithm for key in again.cells] == [key.algorithm for key in run.cells]
    options = simulate(algorithm={"name": "fedau", "cutoff": [5, 50]})
    assert len(options.cells) == 2
    with pytest.raises(fedpbc.ConfigError, match=r"algorithms\[0\].learning_rate = \[\]: a sweep needs"):
        simulate(algorithm=algorithms.fedpbc().using(learning_rate=[]))
    with pytest.raises(fedpbc.ConfigError, match=r"algorithms\[0\].learning_rate"):
        simulate(algorithm=algorithms.fedpbc().using(learning_rate=[0.1, -1.0]))


OLD = """
name = "old"
rounds = 6
local_steps = 2
seeds = [0, 1]
learning_rate = { name = "inverse_sqrt", initial = 0.1 }
batch_size = 8
compute = ["all", "active"]
cooldown_rounds = 1
eval_every = 2

[problem]
name = "synthetic"
num_clients = 4

[[links]]
label = "two"
name = "two_way"
up = { name = "markov", memory = 0.5, prob = { name = "two_groups", p0 = 0.2, p1 = 0.9 } }
down = { name = "bernoulli", prob = 0.8, varying = { name = "sine" } }

[[algorithms]]
name = "fedavg"
server = { name = "adam" }

[state_loss]
round = 3

[figure]
metrics = ["test_accuracy"]
"""


@pytest.mark.release
def test_an_experiment_written_before_still_runs(tmp_path):
    (tmp_path / "old.toml").write_text(OLD)
    run = fedpbc.run(tmp_path / "old.toml", tmp_path / "out")
    table = tomllib.loads((tmp_path / "out" / "experiment.toml").read_text())
    assert table["figure"]["metrics"] == ["test_accuracy"]
    assert len(run.cells) == 4


def test_a_run_directory_written_before_is_read(tmp_path):
    """A directory of the first layout: no measures, no structure of the model, floats as text."""
    folder = Path(__file__).parent / "data" / "run_before_the_contract"
    run = fedpbc.read_run(folder)
    assert run.measure("server_grad_norm").scale == "log"
    assert run.measure("server_test_accuracy").better == "higher"
    assert run.model(algorithm="fedpbc", seed=0).shape == (610,)
    assert "server_test_accuracy" in run.to_pandas()
    assert run.plot()
    assert "fedpbc" in run.to_markdown()
    (tmp_path / "out").mkdir()
    again = fedpbc.run(folder / "experiment.toml", tmp_path / "out")
    for key, cell in run.cells.items():
        np.testing.assert_allclose(cell.rows["server_grad_norm"], again.cells[key].rows["server_grad_norm"], rtol=1e-5)
        np.testing.assert_array_equal(cell.rows["num_active"], again.cells[key].rows["num_active"])
