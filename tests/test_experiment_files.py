"""The files in experiments/: each runs as it stands on a folder in the real format, only smaller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest

import fedpbc
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment

FOLDER = Path(__file__).resolve().parents[1] / "experiments"
sys.path.insert(0, str(FOLDER.parent / "docs"))
CIFAR = sorted(FOLDER.glob("cifar10_*.toml"))
SMALL = {"rounds": 2, "local_steps": 1, "batch_size": 2, "seeds": [0], "eval_every": 1}


def test_all_files_are_tried_here():
    assert sorted(FOLDER.glob("*.toml")) == CIFAR


@pytest.mark.first(1)
@pytest.mark.parametrize("path", CIFAR, ids=lambda path: path.stem)
def test_on_a_folder_in_cifars_format(path, tmp_path):
    experiment = small(path, tmp_path, {"problem.model": "logistic"})
    one = experiment.replace(algorithms=experiment.algorithms[:1], links=experiment.links[:1], compute=["active"])
    check(one, tmp_path)


@pytest.mark.release
@pytest.mark.parametrize("path", CIFAR, ids=lambda path: path.stem)
def test_every_method_and_the_network_itself(path, tmp_path):
    check(small(path, tmp_path, {}), tmp_path)


def test_files_of_the_study_are_what_its_program_writes_and_can_be_tuned():
    import study

    tables = study.tables()
    assert {path.stem for path in study.FILES.glob("*.toml")} == set(tables)
    for name, table in tables.items():
        path = study.FILES / f"{name}.toml"
        assert path.read_text(encoding="utf-8") == study.text(name, table)
        experiment = load_experiment(path)
        assert (experiment.tune is None) == ("tune" not in table)
        assert not set(experiment.seeds) & set((experiment.tune or {}).get("seeds", ()))


def small(path: Path, folder: Path, more: dict[str, Any]) -> Experiment:
    files.write_cifar(folder / "cifar-10-batches-bin")
    here = {"problem.data.path": str(folder / "cifar-10-batches-bin")}
    assert load_experiment(path, here).rounds >= 2000, "as the authors have it, but for the path"
    return load_experiment(path, {**here, "problem.data.partition.num_clients": 3, **SMALL, **more})


def check(experiment: Experiment, folder: Path) -> None:
    run = fedpbc.run(experiment, folder / "out")
    assert len(run.cells) == len(experiment.cells())
    for cell in run.cells.values():
        assert np.all(np.isfinite(cell.rows["server_train_loss"]))
