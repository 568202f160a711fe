"""What is not installed is one line that says what for, and how to install it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import fedpbc
from fedpbc.errors import EXTRAS, FedpbcError, MissingPackage
from fedpbc.io.participation import read_participation
from fedpbc.runs.draws import write_links


def run() -> fedpbc.Run:
    return fedpbc.simulate(
        "quadratic", links=fedpbc.links.bernoulli(prob=0.5), algorithm="fedavg", rounds=2, local_steps=1,
        learning_rate=0.1, progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("package", ["pandas", "matplotlib", "mlflow", "tensorboardX", "pyarrow", "pyarrow to write"])
def test_one_line(package, monkeypatch, tmp_path):
    from fedpbc.runs.writers.mlflow import MLflow
    from fedpbc.runs.writers.tensorboard import TensorBoard

    (tmp_path / "log.parquet").write_bytes(b"x")
    finished = run()

    def write() -> None:
        write_links(finished.experiment, finished.experiment.links[0], 0, tmp_path / "out.parquet")

    calls = {
        "pandas": finished.to_pandas,
        "matplotlib": finished.plot,
        "mlflow": MLflow,
        "tensorboardX": lambda: TensorBoard(tmp_path),
        "pyarrow": lambda: read_participation(tmp_path / "log.parquet"),
        "pyarrow to write": write,
    }
    name = package.partition(" ")[0]
    for module in (name, f"{name}.parquet", f"{name}.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage, match=f" needs {name}: .*pip install") as caught:
        calls[package]()
    assert isinstance(caught.value, FedpbcError | ModuleNotFoundError)
    assert "\n" not in str(caught.value)
    how = f"-e '.[{EXTRAS[name]}]'" if name in EXTRAS else name
    assert str(caught.value).endswith(f"pip install {how}")
    assert not (tmp_path / "out.parquet").exists()


SIMULATE = "simulate('quadratic', links=[], algorithm=[], rounds=1, local_steps=1, learning_rate=1)"


@pytest.mark.parametrize(
    ("package", "name", "called"),
    [
        ("jax", "simulate()", SIMULATE),
        ("jax", "run()", "run('counterexample')"),
        ("jax", "testing", "testing"),
        ("flwr", "flower", "flower"),
    ],
)
def test_names_of_the_package(package, name, called):
    code = f"import sys; sys.modules['{package}'] = None; import fedpbc\ntry:\n    fedpbc.{called}\n"
    code += "except fedpbc.FedpbcError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    how = f"install fedpbc with its extra, pip install -e '.[{EXTRAS[package]}]'"
    assert done.stdout == f"fedpbc.{name} needs {package}: {how}\n"


def test_what_is_installed_is_used():
    frame = run().to_pandas()
    np.testing.assert_array_equal(frame["round"], [0, 1, 2])
