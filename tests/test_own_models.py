"""The examples with models of other libraries learn what they should, and their parameters are compared with NumPy."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import fedpbc
from fedpbc.testing import check_problem

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.release
@pytest.mark.parametrize("library", ["equinox", pytest.param("flax", marks=pytest.mark.release)])
def test_the_example_learns(library, monkeypatch, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library, while it is imported
        pytest.importorskip(library)
        monkeypatch.syspath_prepend(EXAMPLES)
        example = importlib.import_module(f"own_model_{library}")
    run = example.main(rounds=30)
    accuracy = run.final("server_test_accuracy", algorithm="fedpbc")
    assert accuracy > 0.8
    params = run.model(algorithm="fedpbc")
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 400)
    angle = rng.uniform(0, 2 * np.pi, 400)
    features = (1 + labels)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    found = np.asarray(example.logits(params, features)).argmax(axis=1)
    assert np.mean(found == labels) == pytest.approx(accuracy, abs=0.15)
    data = fedpbc.data.from_arrays(features[:60], labels[:60]).iid(num_clients=3)
    check_problem(fedpbc.problems.loss(data, loss=example.loss, init=example.init))
    run.save(tmp_path / "run")
    assert fedpbc.read_run(tmp_path / "run").final("server_test_accuracy", algorithm="fedpbc") == accuracy
    sys.modules.pop(f"own_model_{library}")
