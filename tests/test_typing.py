"""The public types, as a stranger's mypy sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedpbc

ROOT = Path(__file__).resolve().parents[1]

RIGHT = """
import numpy as np
import fedpbc
from fedpbc import Algorithm, Context

X, y = np.zeros((10, 3)), np.zeros(10, int)
data = fedpbc.data.from_arrays(X, y, test=(X, y))
problem = fedpbc.problems.classification(data.dirichlet(num_clients=100, alpha=0.1), model=fedpbc.models.mlp([128]))
run = fedpbc.simulate(problem, links=fedpbc.links.markov(prob=0.2, memory=0.9), algorithm=fedpbc.algorithms.fedau(),
                      rounds=300, local_steps=5, learning_rate=0.05, batch_size=32, seeds=range(3))
value: float = run.final("server_test_accuracy")
run.to_pandas()
run.plot()
run.save("runs/mine")


@fedpbc.register
def mine(context: Context, *, rate: float = 0.1) -> Algorithm:
    raise NotImplementedError


several = [fedpbc.algorithms.fedpbc(max_catchup=2).using(learning_rate=0.1), mine(rate=0.2)]
fedpbc.simulate(problem, links=[fedpbc.links.bernoulli(prob=fedpbc.probabilities.zipf())], algorithm=several,
                rounds=3, local_steps=1, learning_rate=fedpbc.schedules.inverse_sqrt(initial=0.1))
back: fedpbc.Run = fedpbc.read_run("runs/mine")
"""

WRONG = {
    "fedpbc.links.markov(prob=0.2, memori=0.9)": "Unexpected keyword argument",
    "fedpbc.links.markov(prob=0.2)": "Missing named argument",
    "fedpbc.links.markov(prob=0.2, memory=None)": "incompatible type",
    "fedpbc.algorithms.fedau(cutof=3)": "Unexpected keyword argument",
    "fedpbc.algorithms.fedau(cutoff='few')": "incompatible type",
    "fedpbc.models.mlp(hidden=3)": "incompatible type",
    "fedpbc.problems.quadratic(num_client=3)": "Unexpected keyword argument",
    "fedpbc.simulate(fedpbc.problems.quadratic(), links=fedpbc.links.deadline(), algorithm=fedpbc.algorithms.fedpbc(), "
    "rounds=3, local_steps=1, learning_rte=0.1)": "Unexpected keyword argument",
    "fedpbc.simulate(fedpbc.problems.quadratic(), links=fedpbc.links.deadline(), algorithm=fedpbc.algorithms.fedpbc(), "
    "rounds='3', local_steps=1, learning_rate=0.1)": "incompatible type",
    "fedpbc.simulate(fedpbc.problems.quadratic(), links=fedpbc.algorithms.fedpbc(), "
    "algorithm=fedpbc.algorithms.fedpbc(), rounds=3, local_steps=1, learning_rate=0.1)": "incompatible type",
    "fedpbc.simulate(fedpbc.problems.quadratic(), links=fedpbc.links.deadline(), algorithm=fedpbc.links.deadline(), "
    "rounds=3, local_steps=1, learning_rate=0.1)": "incompatible type",
    "fedpbc.read_run('x').final(3)": "incompatible type",
    "fedpbc.data.from_arrays([1], tests=0.2)": "Unexpected keyword argument",
    "fedpbc.data.from_arrays([1]).dirichlet(3, beta=0.1)": "Unexpected keyword argument",
}


def check(folder: Path, text: str) -> list[str]:
    """Errors of a script by the project's own, strict settings: what ``make lint`` found is known then."""
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "src/fedpbc", str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if "script.py:" in line and ": error:" in line]


@pytest.mark.slow
def test_right_calls_pass_and_wrong_ones_are_found(tmp_path):
    assert check(tmp_path, RIGHT) == []
    lines = ["import fedpbc", *WRONG]
    found = check(tmp_path, "\n".join(lines) + "\n")
    for number, (call, message) in enumerate(WRONG.items(), 2):
        assert any(f"script.py:{number}:" in line and message in line for line in found), f"{call}: {found}"


def test_the_package_says_that_it_is_typed():
    assert (Path(fedpbc.__file__).parent / "py.typed").is_file()
