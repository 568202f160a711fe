"""The command line: every shipped experiment for three rounds, listing, reports, exit statuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpbc as package
from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiment.load import load_experiment, shipped_experiments
from fedpbc.links import LINKS
from fedpbc.problems import PROBLEMS


@pytest.mark.first(1)
@pytest.mark.parametrize("name", shipped_experiments())
def test_every_shipped_experiment_runs(fedpbc, tmp_path, name):
    status, out, err = fedpbc("run", name, "--quiet", "--set", "rounds=3", "--set", "cooldown_rounds=0", "--seeds", "0")
    assert (status, err) == (0, "")
    for algorithm in load_experiment(name).algorithms:
        assert algorithm.label in out
    assert "figure.png" in out
    assert "Infinity" not in (tmp_path / "runs" / name / "summary.json").read_text()


def test_shipped_experiments_are_the_published_ones():
    shipped = {name: load_experiment(name) for name in shipped_experiments()}
    fig2 = shipped["counterexample"]
    assert (fig2.rounds, fig2.local_steps, fig2.learning_rate.options) == (2000, 30, {"value": 3e-4})
    assert (fig2.compute, fig2.precision, len(fig2.links), len(fig2.seeds)) == (["all", "active"], "float64", 5, 5)
    assert fig2.problem.options == {"num_clients": 100, "dim": 100, "centers": None, "condition": 1.0}
    pairs = [(link.options["prob"].options["p0"], link.options["prob"].options["p1"]) for link in fig2.links]
    assert pairs == [(0.1, 0.9), (0.5, 0.9), (0.1, 0.5), (0.5, 0.5), (0.1, 0.1)]
    fig3 = shipped["synthetic"]
    assert (fig3.rounds, fig3.local_steps, fig3.batch_size, fig3.minibatch) == (3000, 10, 32, "round")
    assert fig3.learning_rate.options == {"value": 0.005}
    assert fig3.problem.options == {
        "num_clients": 150,
        "alpha": 1.0,
        "beta": 1.0,
        **{"hidden": 0, "weights": "uniform", "max_rows": None, "on_the_fly": False},
    }
    assert fig3.links[0].options["prob"].options == {"exponent": 3.0, "draws": 20000, "minimum": 0.1}


def test_list_names_everything_in_one_line_each(fedpbc):
    status, out, _ = fedpbc("list")
    assert status == 0
    lines = out.splitlines()
    components = [f"{name}(" for name in [*PROBLEMS.registry, *LINKS.registry, *ALGORITHMS.registry]]
    for start in [*components, *(f"{name}: " for name in shipped_experiments())]:
        assert sum(line.startswith(f"  {start}") for line in lines) == 1, start
    assert "num_clients=150, alpha=1.0, beta=1.0" in out


OWN = """
from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.types import Algorithm
from fedpbc.core.schema import Context
import fedpbc

@fedpbc.register(name="NAME")
def mine(context: Context, *, strength: float = 1.5) -> Algorithm:
    \"\"\"A method from outside.\"\"\"
    return ALGORITHMS.registry["fedavg"].function(context)
"""


def test_list_shows_every_kind_and_what_is_registered_outside(fedpbc, tmp_path, monkeypatch):
    from fedpbc.data import DATA
    from fedpbc.data.partition import PARTITIONS
    from fedpbc.models import MODELS

    monkeypatch.setitem(ALGORITHMS.registry, "listed_from_outside", None)
    monkeypatch.delitem(ALGORITHMS.registry, "listed_from_outside")  # what is registered goes after the test
    (tmp_path / "own.py").write_text(OWN.replace("NAME", "listed_from_outside"))
    status, out, err = fedpbc("list", "--import", "own.py")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    for kind in (DATA, PARTITIONS, MODELS):
        assert kind.registry
        for name in kind.registry:
            assert sum(line.startswith(f"  {name}(") for line in lines) == 1, name
    (own,) = (line for line in lines if line.startswith("  listed_from_outside("))
    assert own == f"  listed_from_outside(strength=1.5): A method from outside. (from {tmp_path / 'own.py'})"
    assert "[figure]: metrics=none" in out
    status, _, err = fedpbc("list", "--import", "nowhere.py")
    assert status == 2
    assert err.startswith("error: --import = ")
    assert err.count("\n") == 1


def test_list_says_which_of_several_values_is_the_default(fedpbc):
    _, out, _ = fedpbc("list")
    assert "fading(model=rayleigh (default) or rician or nakagami or shadowing, rate=" in out
    assert "missing_rounds=none (default) or empty" in out
    assert not [word for line in out.splitlines() if re.search(r"=\w+ or ", line) for word in [line]]


INSTALLED = """
from fedpbc import Algorithm, Context, algorithms
def damped(context: Context, *, strength: float = 1.5) -> Algorithm:
    \"\"\"A method of a package.\"\"\"
    return algorithms.fedavg.function(context)
"""


def test_list_shows_what_installed_packages_offer(tmp_path):
    (tmp_path / "stranger.py").write_text(INSTALLED)
    info = tmp_path / "stranger-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fedpbc.components]\nof_a_stranger = stranger:damped\n")
    source = str(Path(package.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source])}
    command = [sys.executable, "-m", "fedpbc", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert "  of_a_stranger(strength=1.5): A method of a package. (from " in done.stdout


def test_the_file_of_a_run_directory_runs_elsewhere_and_resumes_there(fedpbc, write_toml, table):
    assert fedpbc("run", str(write_toml(table)), "--quiet")[0] == 0
    before = {path: path.read_bytes() for path in Path("runs/small").rglob("*") if path.is_file()}
    for again in ("runs/small-2", "runs/small-3"):
        status, out, err = fedpbc("run", "runs/small/experiment.toml", "--quiet")
        assert (status, err) == (0, "")
        assert f"{again}: figure.png" in out
    assert {path: path.read_bytes() for path in before} == before
    Path("runs/small").rename("moved")
    assert "moved: figure.png" in fedpbc("run", "moved/experiment.toml", "--quiet", "--resume")[1]
    assert "runs/small: figure.png" in fedpbc("run", "moved/experiment.toml", "--quiet")[1]
    changed = fedpbc("run", "moved/experiment.toml", "--quiet", "--resume", "--set", "rounds=5")
    assert changed[0] == 2
    assert "moved: cannot resume, the experiment changed: rounds was 12, is 5" in changed[2]


@pytest.mark.parametrize("columns", [60, 80])
def test_list_and_help_fit_a_terminal(columns, tmp_path):
    """Words that are longer than the terminal stay whole, and there are few."""
    for arguments in (["list"], ["--help"], ["run", "--help"], ["theory", "--help"], ["report", "--help"]):
        shown = on_a_terminal([sys.executable, "-m", "fedpbc", *arguments], columns)
        long = [line for line in shown.splitlines() if len(line) > columns]
        assert all(max(map(len, line.split())) > columns - 8 for line in long), long


def on_a_terminal(command, columns):
    code = (
        "import os, pty, sys, re\n"
        "pieces = []\n"
        "def read(fd):\n    data = os.read(fd, 65536)\n    pieces.append(data)\n    return b''\n"
        "pty.spawn(sys.argv[1:], read)\n"
        "text = b''.join(pieces).decode().replace('\\r', '')\n"
        "sys.stdout.write(re.sub(r'\\x1b\\[[0-9;]*m', '', text))\n"
    )
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "24"}
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True, env=env)
    return done.stdout


@pytest.mark.first(1)
@pytest.mark.parametrize("columns", [60, 80])
def test_the_table_of_a_run_fits_columns(fedpbc, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = fedpbc("run", "counterexample", "--set", "rounds=2", "--seeds", "0,1")
    assert status == 0
    assert max(map(len, out.splitlines()[:-1])) <= columns


QUADRATIC = '[problem]\nname = "quadratic"\n'
BERNOULLI = '[[links]]\nname = "bernoulli"\nprob = 0.5\n'
IS_OF_THE_EXPERIMENT = "is a key of the experiment; in a TOML file it must stand above"
IS_LOST = "and so belongs to that table; in a TOML file it must stand above"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (QUADRATIC + "rounds = 3\n" + BERNOULLI, f"missing key rounds: it stands below [problem] {IS_LOST} [problem]"),
        (QUADRATIC + BERNOULLI + "seeds = [1]\n", f"missing key seeds: it stands below [[links]] {IS_LOST} [[links]]"),
        (
            QUADRATIC + "eval_every = 3\n" + BERNOULLI,
            f"unknown key problem.eval_every: eval_every {IS_OF_THE_EXPERIMENT} [problem]",
        ),
        (
            QUADRATIC + BERNOULLI + "compute = ['all']\n",
            f"unknown key links[0].compute: compute {IS_OF_THE_EXPERIMENT} [[links]]",
        ),
        (
            QUADRATIC + BERNOULLI + "[figure]\neval_every = 3\n",
            f"unknown key figure.eval_every: eval_every {IS_OF_THE_EXPERIMENT} [figure]",
        ),
    ],
)
def test_a_key_below_a_table_is_explained(fedpbc, tmp_path, tables, message):
    keys = {"name": '"x"', "local_steps": 1, "learning_rate": 0.1, "rounds": 3, "seeds": [1]}
    head = "".join(f"{key} = {value}\n" for key, value in keys.items() if key == "name" or f"{key} =" not in tables)
    (tmp_path / "e.toml").write_text(head + tables + '[[algorithms]]\nname = "fedavg"\n')
    status, out, err = fedpbc("run", "e.toml", "--quiet")
    assert (status, out) == (2, "")
    assert err == f"error: {message} and every other table\n"
    assert not (tmp_path / "runs").exists()


def test_warnings_are_one_line_on_standard_error(fedpbc, monkeypatch):
    import warnings

    monkeypatch.setattr("fedpbc.runs.directory.draw_figure", None)

    def warn(*_):
        warnings.warn("something is\nodd", stacklevel=1)
        warnings.warn("an old name", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        monkeypatch.setattr("fedpbc.runs.runner.draw_figure", warn)
        status, _, err = fedpbc("run", "counterexample", "--quiet", "--set", "rounds=2", "--seeds", "0")
    assert (status, err) == (0, "warning: something is odd\n")


def test_output_is_quiet_and_free_of_escape_codes_when_not_on_a_terminal(fedpbc):
    status, out, err = fedpbc("run", "counterexample", "--quiet", "--set", "rounds=2", "--seeds", "0")
    assert status == 0
    assert "\x1b" not in out
    assert err == ""


def test_report_redraws_one_run_and_compares_several(fedpbc, tmp_path):
    for name, p in (("a", 0.2), ("b", 0.8)):
        links = f'links=[{{name="bernoulli", prob={p}}}]'
        quick = ["--set", "rounds=4", "--set", 'compute=["all"]', "--seeds", "0,1"]
        assert fedpbc("run", "counterexample", "--set", links, *quick, "--out", name)[0] == 0
    (tmp_path / "a" / "figure.png").unlink()
    status, out, _ = fedpbc("report", "a")
    assert status == 0
    assert (tmp_path / "a" / "figure.png").is_file()
    assert "prob=0.2" in out
    status, out, _ = fedpbc("report", "a", "b")
    assert status == 0
    assert (tmp_path / "comparison" / "comparison.svg").is_file()
    assert "prob=0.2" in out
    assert "prob=0.8" in out


@pytest.mark.parametrize("ending", ["csv", "npy", "parquet"])
def test_links_are_written_and_the_audit_reads_them(fedpbc, tmp_path, ending):
    log = f"trace.{ending}"
    (tmp_path / log).write_text("an older file")
    status, out, err = fedpbc("links", "counterexample", "--links", "1", "--set", "rounds=30", "--out", log)
    assert (status, err) == (0, "")
    assert out.startswith(f"{log}: 30 rounds, 100 clients, mean participation 0.")
    assert "uplink" not in out
    status, out, err = fedpbc("audit", log)
    assert (status, err) == (0, "")
    assert '"num_rounds": 30' in (tmp_path / "audit-trace" / "audit.json").read_text()


def test_links_of_a_seed_are_its_own_and_a_downlink_is_mentioned(fedpbc, tmp_path):
    two = 'links=[{name="two_way", up={name="bernoulli", prob=0.3}, down={name="bernoulli", prob=0.9}}]'
    for seed in ("3", "4"):
        status, out, _ = fedpbc("links", "synthetic", "--seed", seed, "--set", two, "--out", f"{seed}.npy")
        assert status == 0
        assert out.endswith("; the uplink only, the downlink is not written\n")
    three, four = (np.load(tmp_path / f"{seed}.npy") for seed in (3, 4))
    assert three.shape == (3000, 150)
    assert not np.array_equal(three, four)
    assert three.mean() == pytest.approx(0.3, abs=0.005)


def test_divergence_is_reported_and_the_exit_status_is_not_zero(fedpbc, tmp_path):
    status, out, err = fedpbc(
        "run", "counterexample", "--set", "rounds=5", "--set", "learning_rate=1e200", "--seeds", "0,1",
        "--set", 'links=[{label="L", name="bernoulli", prob=1}]', "--set", 'compute=["all"]',
    )  # fmt: skip
    assert status == 1
    assert "not finite" in out
    assert "diverged: L, fedpbc, compute all, seed 1: first model that is not finite after round" in err
    assert (tmp_path / "runs" / "counterexample" / "metrics.csv").is_file()
    assert (tmp_path / "runs" / "counterexample" / "figure.png").is_file()


def test_without_jax_the_message_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['jax'] = None; sys.argv = ['fedpbc', 'run', 'counterexample'];"
        "from fedpbc import cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert (
        done.stderr == "error: fedpbc.run() needs jax: install fedpbc with its extra, pip install -e '.[simulation]'\n"
    )


def test_a_full_disk_is_one_line(fedpbc, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedpbc.runs.directory.write_arrays", full)
    status, _, err = fedpbc("run", "counterexample", "--quiet", "--set", "rounds=2", "--seeds", "0")
    assert status == 1
    assert err == "error: No space left on device; a run that had started goes on with --resume\n"


def test_the_version_and_help(fedpbc):
    assert fedpbc("--version")[1].startswith("fedpbc, version ")
    assert "run" in fedpbc("--help")[1]


def test_help_is_quick_because_jax_is_not_imported(tmp_path):
    code = "import sys, fedpbc.cli; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_the_entry_point_is_installed():
    executable = Path(sys.executable).with_name("fedpbc")
    done = subprocess.run([executable, "list"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_trace_that_cannot_be_written_is_a_mistake_of_out(fedpbc, tmp_path):
    status, out, err = fedpbc("links", "rivals", "--set", "rounds=2", "--out", "a" * 300 + ".csv")
    assert (status, out) == (2, "")
    assert err.startswith("error: --out")
    assert "cannot be written: File name too long" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "log.csv", "--out", "log.csv/x"], "log.csv/x: cannot be created: Not a directory"),
        (["data", "wine", "--partition", '{name="iid", num_clients=2}', "--out", "log.csv/x.png"], "is no directory"),
        (
            ["data", "wine", "--partition", '{name="iid", num_clients=2}', "--out", "d.png"],
            "d.png: is a folder, must be",
        ),
        (["audit", "log.csv", "--columns", "", "--json", "-"], "must be like round=r"),
        (["report", "log.csv", "--target", "x=1", "--deadline", "nan"], "nan is not a finite number"),
        (["report", "log.csv", "--target", "x=1", "--step-seconds", "inf"], "inf is not a finite number"),
    ],
)
def test_places_and_numbers_that_cannot_be_are_bad_input(fedpbc, arguments, message):
    Path("d.png").mkdir()
    rows = "".join(f"{t},{i},{int(t % (i + 2) == 0)}\n" for t in range(9) for i in range(3))
    Path("log.csv").write_text(f"round,client,active\n{rows}")
    status, out, err = fedpbc(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "--resume" not in err
    assert sorted(path.name for path in Path().iterdir()) == ["d.png", "log.csv"]
