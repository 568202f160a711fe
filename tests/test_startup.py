"""What a command imports before it does its work: waiting for JAX, SciPy or Matplotlib is for those that compute."""

from __future__ import annotations

import ast
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedpbc
from fedpbc.experiment.overrides import parse_override

HEAVY = {
    "jax",
    "jaxlib",
    "scipy",
    "matplotlib",
    "pyarrow",
    "pandas",
    "flwr",
    "ray",
    "torch",
    "sklearn",
    "mlxtend",
    "PIL",
}
SOURCE = Path(fedpbc.__file__).parent


def imported(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has after ``code``."""
    script = f"import sys\n{code}\nprint('\\n', *sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    return set(done.stdout.splitlines()[-1].split())


def command(*words: str) -> str:
    run = f"_cli({list(words)!r}, standalone_mode=False)"
    return f"from fedpbc.cli import _cli\ntry: {run}\nexcept Exception as error: print(error)"


def test_list_needs_neither_jax_nor_scipy_nor_matplotlib():
    assert not imported(command("list")) & HEAVY


@pytest.mark.parametrize(
    "words", [(), *((name,) for name in ("run", "merge", "data", "links", "list", "report", "theory"))]
)
def test_help_is_words_alone(words):
    assert not imported(command(*words, "--help")) & HEAVY


def test_data_are_read_without_jax(tmp_path):
    """A loader imports what it needs when it reads; who has what is NumPy's."""
    (tmp_path / "a.csv").write_text("a,label\n1,0\n2,1\n")
    assert not imported("import fedpbc.data") & HEAVY
    needed = imported(command("data", str(tmp_path / "a.csv"), "--partition", '{name="iid", num_clients=2}'))
    assert needed & HEAVY <= {"pyarrow", "pandas"}, "pyarrow imports pandas where it is there"


def test_an_audit_starts_with_its_log(tmp_path):
    """A log that is not there is said before anything heavy is waited for."""
    assert not imported(command("audit", str(tmp_path / "missing.csv"))) & HEAVY


def test_an_experiment_is_read_and_checked_without_jax():
    code = "import fedpbc\nassert len(fedpbc.load_experiment('counterexample').cells()) == 100"
    assert not imported(code) & {*HEAVY}


def test_jax_comes_with_its_first_name():
    code = "from fedpbc.core.lazy import jax, jnp\n{0}assert float(jnp.asarray(2.0)) == 2.0\n"
    assert "jax" not in imported(code.partition("\n")[0])
    assert "jax" in imported(code.format(""))


def test_components_import_jax_on_first_use():
    """All of them: one that imports it at once makes every command wait."""
    for folder in ("links", "problems", "models", "algorithms", "data", "experiment", "io"):
        for path in (SOURCE / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not {name.partition(".")[0] for name in names} & HEAVY, path


def made(target: str, venv: Path) -> str:
    """What ``make target`` would do."""
    command = ["make", "--dry-run", target, f"VENV={venv}"]
    return subprocess.run(command, cwd=SOURCE.parents[1], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_demo_installs_the_simulator_alone(tmp_path):
    demo = made("demo", tmp_path)
    assert "'.[simulation]'" in demo
    assert "[dev]" not in demo
    assert demo.count("pip install") == 1
    (tmp_path / ".simulation").touch()
    assert "pip install" not in made("demo", tmp_path)
    assert "'.[dev]'" in made("test", tmp_path), "the demo's environment lacks what tests need"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_tests_environment_serves_the_demo(tmp_path):
    (stamps,) = (line for line in made("test", tmp_path).splitlines() if line.startswith("touch "))
    for stamp in stamps.split()[1:]:
        Path(stamp).touch()
    for target in ("demo", "test", "lint", "docs"):
        assert "pip install" not in made(target, tmp_path)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_demo_runs_experiments_that_are_there(tmp_path):
    """Its own settings are checked as the commands would check them."""
    commands = [shlex.split(line) for line in made("demo", tmp_path).splitlines() if "/bin/fedpbc run" in line]
    assert [words[2] for words in commands] == ["counterexample", "synthetic"]
    for words in commands:
        changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        experiment = fedpbc.load_experiment(words[2], dict(map(parse_override, changes)))
        assert {"fedavg", "fedpbc"} <= {algorithm.label for algorithm in experiment.algorithms}
