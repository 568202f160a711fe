"""A stranger's method, network and data, outside the package: as an installed package, and as one plain file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from components import LINK_SETTINGS, write_inputs
from components import own as package_own
from outside_files import call, package, plain_file

import fedpbc
from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.outside import import_file
from fedpbc.testing import check_algorithm, check_links, check_problem

BLOBS = {"name": "blobs"}
OWN_LOSS = {"name": "loss", "data": "DATA", "loss": "my_methods.py:loss", "init": "my_methods.py:init"}


def table(**changes):
    return {
        "name": "own",
        "rounds": 6,
        "local_steps": 2,
        "learning_rate": 0.1,
        "seeds": [0],
        "problem": {"name": "classification", "data": BLOBS, "model": {"name": "tiny"}},
        "links": [{"name": "every_third"}],
        "algorithms": [{"name": "damped"}],
        **changes,
    }


def by_path(file: str = "my_methods.py", **changes):
    """Everything named as file:factory."""
    problem = {
        "name": "loss",
        "data": {"name": f"{file}:blobs"},
        "loss": f"{file}:loss",
        "init": f"{file}:init",
        "metrics": {"my_score": f"{file}:my_score"},
    }
    own = {"links": [{"name": f"{file}:every_third"}], "algorithms": [{"name": f"{file}:damped", "damping": 0.3}]}
    return table(**{"problem": problem, **own, **changes})


def write(folder: Path, content, name: str = "experiment.toml") -> Path:
    path = folder / name
    path.write_text(tomli_w.dumps(content))
    return path


def metrics(folder: Path) -> str:
    return (folder / "metrics.csv").read_text()


def ok(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.release
def test_an_installed_package_against_every_method_from_toml(tmp_path):
    path = package(tmp_path / "site")
    methods = [{"name": name} for name in sorted(package_own(ALGORITHMS))]
    outside = {"name": "every_third"}
    experiment = table(
        algorithms=[*methods, {"name": "damped", "damping": 0.2}],
        links=[outside, {"name": "two_way", "up": outside, "down": {"name": "strangers:every_third"}}],
    )
    write(tmp_path, experiment)
    done = ok(call("run", "experiment.toml", "--out", "run", "--quiet", cwd=tmp_path, path=path))
    run = fedpbc.read_run(tmp_path / "run")
    assert len(run.cells) == 2 * (len(methods) + 1)
    for cell in run.cells.values():
        assert np.isfinite(cell.rows["server_train_loss"]).all()
        assert cell.rows["num_active"].tolist() == [0, 3, 4, 3, 3, 4, 3]  # i = -t mod 3 is away
    assert "damped(damping=0.2)" in done.stdout
    warned = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(warned) == 2, done.stderr
    assert "broken" in done.stderr
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert "warn(" not in done.stderr
    ok(call("report", "run", "--out", "report", cwd=tmp_path, path=path))
    assert (tmp_path / "report" / "figure.png").is_file()
    ok(call("run", "run/experiment.toml", "--out", "again", "--quiet", cwd=tmp_path, path=path))
    assert metrics(tmp_path / "again") == metrics(tmp_path / "run")


def test_an_installed_package_is_suggested(tmp_path):
    path = package(tmp_path / "site")
    write(tmp_path, table(algorithms=[{"name": "dampd"}]))
    done = call("run", "experiment.toml", "--out", "run", cwd=tmp_path, path=path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert 'algorithms[0].name = "dampd": unknown algorithm (did you mean "damped"?)' in line
    assert "fedpbc.register" in line
    assert '"file.py:factory"' in line
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The plain file, imported as an experiment does."""
    return import_file(plain_file(tmp_path_factory.mktemp("own") / "my_methods.py", register=False), "test")


@pytest.mark.release
def test_the_conformance_kit_passes_the_stranger(own):
    check_algorithm(own.damped(damping=0.2))
    check_links(own.every_third(), random=False, marginal=False)
    check_links(fedpbc.links.two_way(up=own.every_third(), down=own.every_third), random=False, marginal=False)
    problem = fedpbc.problems.loss(own.blobs(), loss=own.loss, init=own.init, metrics={"my_score": own.my_score})
    check_problem(problem)
    check_problem(fedpbc.problems.classification(own.blobs(), model=own.tiny))


@pytest.mark.release
def test_from_python_a_stranger_meets_every_method_and_every_link(own, tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    problem = fedpbc.problems.loss(own.blobs(), loss=own.loss, init=own.init, metrics={"my_score": own.my_score})
    settings = {"rounds": 4, "local_steps": 2, "learning_rate": 0.1, "progress": False}
    every_method = fedpbc.simulate(
        problem,
        links=own.every_third(),
        algorithm=[*(ALGORITHMS.registry[name] for name in sorted(package_own(ALGORITHMS))), own.damped()],
        **settings,
    )
    assert len(every_method.cells) == len(package_own(ALGORITHMS)) + 1
    every_link = fedpbc.simulate(problem, links=list(LINK_SETTINGS.values()), algorithm=own.damped, **settings)
    assert len(every_link.cells) == len(LINK_SETTINGS)
    for run in (every_method, every_link):
        for cell in run.cells.values():
            assert np.isfinite(cell.rows["server_train_loss"]).all()
            assert np.isin(cell.rows["server_test_my_score"][-1] * 9, np.arange(10)).all()
    assert every_method.measure("server_test_my_score").title == "test my score"


def test_a_problem_that_measures_only_my_score_runs_and_reports(own, tmp_path):
    """A Problem by hand: no loss, no accuracy."""

    def build(context):
        made = fedpbc.problems.loss(own.blobs(), loss=own.loss, init=own.init).build(context)
        score = fedpbc.Measure("my score", unit="points", better="higher", shown=True)
        return fedpbc.Problem(
            made.params,
            made.num_clients,
            made.init,
            made.sample,
            made.gradient,
            1,
            _no_sums,
            _my_score,
            made.work,
            measures={"my_score": score},
        )

    run = fedpbc.simulate(
        build, links=own.every_third, algorithm=own.damped, rounds=4, local_steps=1, learning_rate=0.1, progress=False
    )
    run.save(tmp_path / "run")
    assert [c for c in run.columns if "score" in c] == ["server_my_score", "mean_my_score"]
    assert "my score" in run.to_markdown()
    assert run.plot().axes
    done = ok(call("report", "run", cwd=tmp_path))
    assert "my score" in done.stdout


def _no_sums(params, models, block):
    return {}


def _my_score(params, models, sums):
    return {"my_score": (models**2).sum(axis=1)}


@pytest.mark.release
def test_three_ways_to_name_a_file_are_one(tmp_path):
    plain_file(tmp_path / "my_methods.py", register=True)
    write(tmp_path, by_path(), "path.toml")
    named = table(problem=by_path()["problem"] | {"data": BLOBS}, algorithms=[{"name": "damped", "damping": 0.3}])
    write(tmp_path, named | {"imports": ["my_methods.py"]}, "imports.toml")
    write(tmp_path, named, "flag.toml")
    ok(call("run", "path.toml", "--out", "path", "--quiet", cwd=tmp_path))
    ok(call("run", "imports.toml", "--out", "imports", "--quiet", cwd=tmp_path))
    ok(call("run", "flag.toml", "--import", "my_methods.py", "--out", "flag", "--quiet", cwd=tmp_path))
    values = [metrics(tmp_path / name).replace("\r", "") for name in ("path", "imports", "flag")]
    numbers = [[line.split(",")[-12:] for line in text.splitlines()] for text in values]
    assert numbers[0] == numbers[1] == numbers[2]
    without = call("run", "flag.toml", "--out", "none", cwd=tmp_path)
    assert without.returncode == 2
    assert "--import" in without.stderr
    for name in ("path", "imports", "flag"):
        copies = list((tmp_path / name / "inputs").glob("*.py"))
        assert [copy.read_text() for copy in copies] == [(tmp_path / "my_methods.py").read_text()], name
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert manifest["outside_code"]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "my_methods.py").unlink()
    for name in ("path", "imports", "flag"):
        shutil.move(tmp_path / name, moved / name)
        ok(call("run", f"{name}/experiment.toml", "--out", f"{name}2", "--quiet", cwd=moved))
        assert metrics(moved / name) == metrics(moved / f"{name}2")
        ok(call("run", f"{name}/experiment.toml", "--out", name, "--resume", "--quiet", cwd=moved))


@pytest.mark.release
def test_other_code_is_not_resumed(tmp_path):
    own = plain_file(tmp_path / "my_methods.py", register=True)
    write(tmp_path, by_path(), "path.toml")
    write(tmp_path, table(imports=["my_methods.py"]), "imports.toml")
    for name in ("path", "imports"):
        ok(call("run", f"{name}.toml", "--out", name, "--quiet", cwd=tmp_path))
    own.write_text(own.read_text() + "\nANOTHER = 1\n")
    for name in ("path", "imports"):
        done = call("run", f"{name}.toml", "--out", name, "--resume", cwd=tmp_path)
        assert done.returncode == 2
        assert "cannot resume, the experiment changed" in done.stderr
        assert "Traceback" not in done.stderr
        assert "content" in done.stderr


def test_a_killed_run_of_a_stranger_goes_on(tmp_path):
    plain_file(tmp_path / "my_methods.py", register=False)
    write(tmp_path, by_path(rounds=20_000, eval_every=10_000, seeds=list(range(8))))
    source = str(Path(fedpbc.__file__).parents[1])
    command = [sys.executable, "-m", "fedpbc", "run", "experiment.toml", "--out", "run", "--quiet"]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": source}, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("run/cells/*.npz")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert not (tmp_path / "run" / "manifest.json").exists(), "it was over before it was killed"
    ok(call("run", "experiment.toml", "--out", "run", "--resume", "--quiet", cwd=tmp_path))
    ok(call("run", "experiment.toml", "--out", "whole", "--quiet", cwd=tmp_path))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


SCRIPT = """
import fedpbc
from my_methods import blobs, damped, every_third, init, loss

def go(out):
    problem = fedpbc.problems.loss(blobs(), loss=loss, init=init)
    return fedpbc.simulate(problem, links=every_third(), algorithm=damped(), rounds=4, local_steps=1,
                           learning_rate=0.1, out=out, progress=False)

"""


@pytest.mark.release
def test_simulate_in_a_file_that_is_imported_is_one_clear_line(tmp_path):
    text = plain_file(tmp_path / "my_methods.py", register=False).read_text()
    body = SCRIPT.replace("from my_methods import blobs, damped, every_third, init, loss\n", "")
    (tmp_path / "bare.py").write_text(text + body + "go('bare')\n")
    ok(call(cwd=tmp_path, code="import runpy; runpy.run_path('bare.py', run_name='__main__')"))
    done = call("run", "bare/experiment.toml", "--out", "again", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert 'bare.py calls simulate() when it is imported: put that under if __name__ == "__main__":' in line
    (tmp_path / "good.py").write_text(text + body + "if __name__ == '__main__':\n    go('good')\n")
    env = {**os.environ, "PYTHONPATH": str(Path(fedpbc.__file__).parents[1])}
    subprocess.run([sys.executable, "good.py"], cwd=tmp_path, env=env, check=True, timeout=300)
    (tmp_path / "good.py").unlink()
    ok(call("run", "good/experiment.toml", "--out", "good2", "--quiet", cwd=tmp_path))
    assert metrics(tmp_path / "good") == metrics(tmp_path / "good2")


def test_what_only_python_can_make_says_so(tmp_path, own):
    """A loss made inside a function has no name; its run can be read, and resumed by its script."""

    def made(scale):
        def scaled(params, batch):
            return scale * own.loss(params, batch)

        return scaled

    def go(scale, **options):
        problem = fedpbc.problems.loss(own.blobs(), loss=made(scale), init=own.init)
        return fedpbc.simulate(
            problem,
            links=own.every_third,
            algorithm=own.damped,
            rounds=4,
            local_steps=1,
            learning_rate=0.1,
            progress=False,
            out=tmp_path / "run",
            **options,
        )

    run = go(2.0)
    again = go(2.0, resume=True)
    assert run.summary == again.summary
    done = call("run", "run/experiment.toml", "--out", "again", cwd=tmp_path)
    assert done.returncode == 2
    assert "no file can name it; run the Python script that made it again" in done.stderr
    with pytest.raises(fedpbc.ConfigError, match="the experiment changed"):
        go(2.0, resume=True, chunk_size=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithms": [{"name": "my_methods.py:dampd"}]}, 'my_methods.py has no "dampd" (did you mean "damped"?)'),
        ({"algorithms": [{"name": "gone.py:damped"}]}, "No such file"),
        ({"algorithms": [{"name": "no_such_module:damped"}]}, 'no module "no_such_module"'),
        ({"algorithms": [{"name": "my_methods.py:every_third"}]}, "makes a LinkProcess, must be an algorithm"),
        ({"algorithms": [{"name": "my_methods.py:State"}]}, "algorithms[0]"),
        ({"algorithms": [{"name": "my_methods.py:np"}]}, "must be a function of a context"),
        ({"algorithms": [{"name": "my_methods.py:loss"}]}, "algorithms[0]"),
        (
            {"algorithms": [{"name": "my_methods.py:damped", "damp": 1}]},
            "unknown key algorithms[0].damp (did you",
        ),
        (
            {"algorithms": [{"name": "my_methods.py:damped", "damping": "much"}]},
            'algorithms[0].damping = "much": ',
        ),
        ({"algorithms": [{"name": "my_methods.py:damped", "damping": 1e60}]}, "algorithms[0].damping = 1e+60: is inf"),
        ({"algorithms": [{"name": "broken.py:damped"}]}, "importing it failed: SyntaxError"),
        ({"algorithms": [{"name": "raises.py:damped"}]}, "importing it failed: ZeroDivisionError: division by zero"),
        ({"algorithms": [{"name": "exits.py:damped"}]}, "importing it failed: SystemExit"),
        ({"algorithms": [{"name": "needs.py:damped"}]}, 'needs.py": needs no_such_package, which is not installed'),
        ({"algorithms": [{"name": ":damped"}]}, "algorithms[0].name"),
        ({"algorithms": [{"name": "my_methods.py:"}]}, "algorithms[0].name"),
        ({"algorithms": [{"name": "faulty.py:raises"}]}, "algorithms[0]: raises fails: KeyError: 'x'"),
        (
            {"algorithms": [{"name": "faulty.py:gives_three"}]},
            "algorithms[0]: gives_three gave an int, must give",
        ),
        ({"links": [{"name": "faulty.py:gives_three"}]}, "links[0]: gives_three gave an int, must give a LinkProcess"),
        ({"problem": {"name": "faulty.py:gives_three"}}, "problem: gives_three gave an int, must give a Problem"),
        ({"imports": ["gone.py"]}, "imports"),
        ({"imports": ["raises.py"]}, "imports"),
        ({"imports": "my_methods.py"}, "imports"),
    ],
    ids=range(23),
)
def test_outside_code_that_cannot_be_used_is_one_clear_line(tmp_path, change, message):
    plain_file(tmp_path / "my_methods.py", register=False)
    (tmp_path / "broken.py").write_text("def damped(:\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    (tmp_path / "faulty.py").write_text(
        "def raises(context):\n    return {}['x']\n\ndef gives_three(context):\n    return 3\n"
    )
    path = write(tmp_path, by_path(**change))
    with pytest.raises(fedpbc.ConfigError) as caught:
        fedpbc.run(path, tmp_path / "out")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_name_that_is_taken_is_refused(own):
    with pytest.raises(fedpbc.ConfigError, match="is an algorithm of the package"):
        fedpbc.register(own.damped.function, name="fedavg")

    def unclear(context):
        return 3

    with pytest.raises(fedpbc.ConfigError, match="return annotation must be one of Algorithm"):
        fedpbc.register(unclear)

    def rated(context, *, learning_rate: float = 0.1) -> fedpbc.Algorithm:
        raise NotImplementedError

    with pytest.raises(fedpbc.ConfigError, match="must not be called learning_rate"):
        fedpbc.register(rated)
    with pytest.raises(fedpbc.ConfigError, match='did you mean "partition"'):
        fedpbc.register(unclear, kind="partitions")
