"""A trained model leaves and comes back: names, JAX, NumPy, and PyTorch by the rules of the how-to page."""

from __future__ import annotations

import importlib
import sys

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from pages import DOCS, blocks

import fedpbc
from fedpbc import models
from fedpbc.cli import _cli
from fedpbc.core.schema import Context
from fedpbc.runs.exported import load_model, save_model

LAYER = ("layers.0.hidden", "layers.0.input")
CONTEXT = Context(0, np.dtype(np.float32), 10, (0,))


def drawn(model, shape, num_outputs):
    rng = np.random.default_rng(0)
    params = model.build(CONTEXT).init(rng, shape, num_outputs)
    return jax.tree.map(lambda a: (a + 0.1 * rng.standard_normal(np.shape(a))).astype(np.float32), params)


@pytest.mark.parametrize(
    ("model", "shape", "names"),
    [
        (models.logistic(), (3,), ["params"]),
        (models.mlp([4]), (3,), ["params.0", "params.1"]),
        (models.cnn([2], hidden=[3]), (4, 4), ["params.conv.0", "params.dense.0", "params.dense.1"]),
        (models.gru([2], vocabulary=5), (3,), [f"params.{n}" for n in ("dense", "embedding", *LAYER)]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_every_leaf_has_its_name_and_comes_back(model, shape, names, tmp_path):
    params = drawn(model, shape, 3)
    path = save_model(tmp_path / "new" / "model.npz", params, has_buffers=False)
    assert sorted(np.load(path).files) == names
    again = fedpbc.load_model(path)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_predict_is_the_network(tmp_path):
    first, second = drawn(models.mlp([4]), (3,), 2)
    x = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    expected = np.maximum(x @ first[:, :-1].T + first[:, -1], 0) @ second[:, :-1].T + second[:, -1]
    np.testing.assert_allclose(models.predict(models.mlp([4]), (first, second), x), expected, rtol=1e-5)
    np.testing.assert_allclose(models.predict({"name": "mlp", "hidden": [4]}, (first, second), x), expected, rtol=1e-5)


def test_lists_are_tuples_and_other_containers_are_refused(tmp_path):
    path = save_model(tmp_path / "m.npz", {"layers": [np.zeros(2), np.ones(3)], "n": np.int32(4)}, has_buffers=False)
    again = fedpbc.load_model(path)
    assert [a.shape for a in again["layers"]] == [(2,), (3,)]
    assert again["n"] == 4
    for tree, why in (
        ({"a": object()}, "params.a: is an object; only dicts, tuples and lists"),
        ({"a.b": np.zeros(1)}, "key 'a.b' must be a word"),
        ({"a": np.array([1.0, np.nan])}, "params.a: row 1 holds a value that is not finite"),
    ):
        with pytest.raises(fedpbc.ConfigError, match=why):
            save_model(tmp_path / "bad.npz", tree, has_buffers=False)
    with pytest.raises(fedpbc.ConfigError, match=r"must end in \.npz"):
        save_model(tmp_path / "m.txt", np.zeros(2), has_buffers=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.npz"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"no archive", "is damaged"), ({"x": np.zeros(1)}, "is no exported model")],
)
def test_a_file_that_is_no_model_is_refused(content, message, tmp_path):
    path = tmp_path / "m.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(fedpbc.ConfigError, match=message) as caught:
        fedpbc.load_model(path)
    assert "\n" not in str(caught.value)


def test_the_command_writes_what_save_model_writes(tmp_path):
    run = fedpbc.simulate(
        fedpbc.problems.quadratic(num_clients=3, dim=2), links=fedpbc.links.bernoulli(prob=1.0), algorithm="fedavg",
        rounds=2, local_steps=1, learning_rate=0.1, seeds=[0, 1], out=tmp_path / "run", progress=False,
    )  # fmt: skip
    run.save_model(tmp_path / "a.npz", "mean", seed=1)
    command = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "b.npz")]
    result = CliRunner().invoke(_cli, [*command, "--model", "mean", "--seed", "1"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].split() == ["params", "float32[2]"]
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    np.testing.assert_array_equal(fedpbc.load_model(tmp_path / "a.npz"), run.model("mean", seed=1))
    (tmp_path / "folder.npz").mkdir()
    for more, message in (
        ([], "choose one by links"),
        (["--seed", "7"], "7"),
        (["--seed", "0", "--model", "x"], "server_average"),
        (["--seed", "0", "--out", str(tmp_path / "a.npz" / "c.npz")], "a.npz: cannot be created"),
        (["--seed", "0", "--out", str(tmp_path / "folder.npz")], "folder.npz: is a folder, must be a file"),
    ):
        with pytest.raises(fedpbc.FedpbcError, match=message):
            CliRunner().invoke(_cli, [*command, *more], catch_exceptions=False, standalone_mode=False)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The files of the how-to page, as modules."""
    files, _ = blocks(DOCS / "howto" / "export.md")
    for name in ("to_torch.py", "in_torch.py"):
        (tmp_path / name).write_text(files[name])
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: importlib.import_module(name)
    for name in ("to_torch", "in_torch"):
        sys.modules.pop(name, None)


def agree(network, model, params, x, given):
    """PyTorch's outputs are ours."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        theirs = network(torch.tensor(given)).numpy()
    np.testing.assert_allclose(models.predict(model, params, x), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.release
def test_pytorch_loads_the_network_of_the_papers(page):
    pytest.importorskip("torch")
    params = drawn(models.cnn_cifar10(), (32, 32, 3), 10)
    x = np.random.default_rng(1).standard_normal((2, 32, 32, 3)).astype(np.float32)
    agree(page("in_torch").cifar10(params), models.cnn_cifar10(), params, x, x.transpose(0, 3, 1, 2))


@pytest.mark.release
def test_pytorch_loads_the_gru(page):
    torch = pytest.importorskip("torch")
    model = models.gru([5, 4], embedding=3, vocabulary=7)
    params, rules = drawn(model, (6,), 7), page("to_torch")
    x = np.random.default_rng(1).integers(0, 7, (3, 6))

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(7, 3)
            self.first, self.second = torch.nn.GRU(3, 5, batch_first=True), torch.nn.GRU(5, 4, batch_first=True)
            self.dense = torch.nn.Linear(4, 7)

        def forward(self, x):
            return self.dense(self.second(self.first(self.embedding(x))[0])[0][:, -1])

    network = Network()
    modules = {
        "embedding": {"weight": params["embedding"].T},
        "first": rules.gru(params["layers"][:1]),
        "second": rules.gru(params["layers"][1:]),
        "dense": rules.linear(params["dense"]),
    }
    network.load_state_dict(rules.state_dict(modules))
    agree(network, model, params, x, x)


@pytest.mark.release
def test_pytorch_loads_a_residual_network(page):
    torch = pytest.importorskip("torch")
    model = models.resnet([4, 8], groups=2)
    params, rules = drawn(model, (6, 6, 3), 5), page("to_torch")
    x = np.random.default_rng(1).standard_normal((2, 6, 6, 3)).astype(np.float32)

    class Block(torch.nn.Module):
        def __init__(self, depth, width, stride):
            super().__init__()
            self.conv1 = torch.nn.Conv2d(depth, width, 3, stride, padding=1, bias=False)
            self.conv2 = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm1, self.norm2 = torch.nn.GroupNorm(2, width), torch.nn.GroupNorm(2, width)
            if stride > 1:
                self.project = torch.nn.Conv2d(depth, width, 1, stride, bias=False)
                self.norm3 = torch.nn.GroupNorm(2, width)

        def forward(self, x):
            inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
            return torch.relu(inner + (self.norm3(self.project(x)) if hasattr(self, "project") else x))

    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(),
        Block(4, 4, 1), Block(4, 8, 2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5),
    )  # fmt: skip
    modules = {
        "0": rules.convolution(params["stem"]["conv"]),
        "1": rules.norm(params["stem"]["norm"]),
        "7": rules.linear(params["dense"]),
    }
    for name, (block,) in zip("34", params["stages"], strict=True):
        for part, array in block.items():
            kind = rules.norm if part.startswith("norm") else rules.convolution
            modules[f"{name}.{part}"] = kind(array, 1) if part == "project" else kind(array)
    network.load_state_dict(rules.state_dict(modules))
    agree(network, model, params, x, x.transpose(0, 3, 1, 2))


def test_parameters_and_buffers_are_told_apart(tmp_path):
    params, buffers = {"w": np.arange(6.0).reshape(2, 3)}, {"mean": np.ones(3), "count": np.array(7, np.int32)}
    path = save_model(tmp_path / "model.npz", (params, buffers), True)
    with np.load(path) as file:
        assert sorted(file.files) == ["buffers.count", "buffers.mean", "params.w"]
        np.testing.assert_array_equal(file["params.w"], params["w"])
    read = load_model(path)
    assert isinstance(read, tuple)
    np.testing.assert_array_equal(read[0]["w"], params["w"])
    np.testing.assert_array_equal(read[1]["mean"], buffers["mean"])
    assert read[1]["count"] == 7
