"""The skeletons of CONTRIBUTING.md: each runs in an experiment file as it is, and passes the conformance kit."""

from __future__ import annotations

import shutil
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pages import DOCS

import fedpbc
from fedpbc.core.outside import import_file
from fedpbc.experiment.grid import Experiment
from fedpbc.testing import check_algorithm, check_links, check_problem

SKELETONS = DOCS / "skeletons"
KINDS = {"algorithm", "links", "model", "problem"}


def skeleton(name: str) -> ModuleType:
    return import_file(SKELETONS / f"{name}.py", "skeleton")


def data() -> Any:
    x = np.random.default_rng(0).standard_normal((60, 3))
    return fedpbc.data.from_arrays(x, (x[:, 0] > 0).astype(int), test=0.2).iid(num_clients=5)


def test_there_is_one_for_each_kind():
    flower = {"flower_method"}  # tests/flower/test_methods.py has it
    assert {path.stem for path in SKELETONS.glob("*.py")} == KINDS | flower


def test_the_algorithm_conforms_and_is_fedavg_at_its_default():
    check_algorithm(skeleton("algorithm").example(), full_participation=fedpbc.algorithms.fedavg())
    check_algorithm(skeleton("algorithm").example(server_rate=0.5))


@pytest.mark.release
def test_the_links_conform():
    check_links(skeleton("links").example(prob=0.6, period=4))


@pytest.mark.release
def test_the_problem_conforms():
    check_problem(skeleton("problem").example())


@pytest.mark.release
def test_the_model_conforms():
    check_problem(fedpbc.problems.classification(data(), model=skeleton("model").example(8)))


@pytest.mark.release
@pytest.mark.slow
def test_all_of_them_run_together_from_a_file(tmp_path, table):
    for kind in KINDS:
        shutil.copy(SKELETONS / f"{kind}.py", tmp_path / f"own_{kind}.py")
    changes = {
        "problem": {"name": "own_problem.py:example"},
        "links": [{"name": "own_links.py:example", "prob": 0.5}],
        "algorithms": [{"name": "own_algorithm.py:example", "server_rate": [0.5, 1.0]}, {"name": "fedpbc"}],
    }
    run = fedpbc.run(Experiment.from_table({**table, **changes}, tmp_path), tmp_path / "out")
    assert len(run.cells) == 3 * len(table["seeds"])
    assert not run.diverged
    assert {path.name for path in (tmp_path / "out" / "inputs").iterdir()} >= {f"own_{k}.py" for k in KINDS - {"model"}}
