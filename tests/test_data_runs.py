"""Runs on data from disk: what is copied, what is hashed, who has what in the run directory; and ``fedpbc data``."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest
from click.testing import CliRunner

import fedpbc
from fedpbc.cli import _cli
from fedpbc.io import content


def experiment(path: Path, **changes: Any) -> dict[str, Any]:
    data = {"name": "mnist", "path": str(path), "partition": {"name": "dirichlet", "num_clients": 3, "alpha": 0.5}}
    return {
        "name": "digits",
        "rounds": 3,
        "local_steps": 1,
        "learning_rate": 0.1,
        "seeds": [0],
        "problem": {"name": "classification", "data": data},
        "links": [{"name": "bernoulli", "prob": {"name": "by_trait", "trait": "share:1"}}],
        "algorithms": [{"name": "fedavg"}],
        **changes,
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, Path, Path]:
    """A folder of images, an experiment on it, and its run directory."""
    base = tmp_path_factory.mktemp("ran")
    files.write_idx(base / "images")
    import tomli_w

    (base / "e.toml").write_text(tomli_w.dumps(experiment(base / "images")))
    fedpbc.run(base / "e.toml", base / "out")
    return base / "images", base / "e.toml", base / "out"


def test_a_folder_is_hashed_and_not_copied(ran):
    folder, _, out = ran
    assert [path.name for path in (out / "inputs").iterdir()] == ["hashes.json"]
    kept = json.loads((out / "inputs" / "hashes.json").read_text())
    assert kept == {str(folder): {"sha256": content.digest_of(folder)[:12], "bytes": content.size_of(folder)}}
    table = tomllib.loads((out / "experiment.toml").read_text())
    assert table["problem"]["data"]["path"] == str(folder)
    again = fedpbc.run(out / "experiment.toml", out.parent / "again")
    assert again.final("server_train_loss") == fedpbc.read_run(out).final("server_train_loss")


def test_a_run_goes_on_only_on_the_same_content(ran, tmp_path):
    folder, toml, out = ran
    assert fedpbc.run(toml, out, resume=True).path == out
    label = folder / "t10k-labels-idx1-ubyte"
    before = label.read_bytes()
    try:
        label.write_bytes(before[:-1] + bytes([(before[-1] + 1) % 3]))
        with pytest.raises(fedpbc.ConfigError, match=r"problem.data.path was .*content .*, is .*content "):
            fedpbc.run(toml, out, resume=True)
    finally:
        label.write_bytes(before)
    assert fedpbc.run(toml, out, resume=True).path == out


def test_a_run_does_not_write_into_what_it_reads(ran):
    folder, toml, _ = ran
    with pytest.raises(fedpbc.ConfigError, match=r"lies inside problem.data.path = .* choose another --out"):
        fedpbc.run(toml, folder / "runs")
    assert not (folder / "runs").exists()


def test_the_hash_of_a_folder_is_that_of_names_and_contents(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_bytes(b"1")
    (tmp_path / "a" / "y").write_bytes(b"22")
    first = content.digest_of(tmp_path / "a")
    (tmp_path / "a" / ".hidden").write_bytes(b"3")
    assert content.digest_of(tmp_path / "a") == first
    (tmp_path / "a" / "y").write_bytes(b"23")
    changed = content.digest_of(tmp_path / "a")
    (tmp_path / "a" / "y").rename(tmp_path / "a" / "z")
    assert len({first, changed, content.digest_of(tmp_path / "a")}) == 3
    assert content.size_of(tmp_path / "a") == 3
    import hashlib

    assert content.digest_of(tmp_path / "a" / "z") == hashlib.sha256(b"23").hexdigest()


def test_a_large_file_is_hashed_too(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpbc.runs.inputs.COPIED_UP_TO", 10)
    (tmp_path / "t.csv").write_text("a,label,client\n" + "1,0,a\n2,1,b\n" * 3)
    fedpbc.simulate(
        fedpbc.problems.classification(fedpbc.data.table(tmp_path / "t.csv")),
        links=fedpbc.links.bernoulli(prob=1.0), algorithm="fedavg", rounds=1, local_steps=1, learning_rate=0.1,
        progress=False, out=tmp_path / "out",
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "out" / "inputs").iterdir()] == ["hashes.json"]


def test_who_has_what_is_in_the_run_directory(ran):
    _, _, out = ran
    with (out / "partition.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["seed", "client", "samples", "label 0", "label 1", "label 2"]
    counts = np.array([[int(row[f"label {k}"]) for k in range(3)] for row in rows])
    assert counts.sum(axis=0).tolist() == [4, 4, 4]
    assert [int(row["samples"]) for row in rows] == counts.sum(axis=1).tolist()
    data = fedpbc.load_experiment(ran[1]).problem.options["data"].build(fedpbc.Context(0, np.float32, 3, (0,)))
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (data.client, data.train[1]), 1)
    np.testing.assert_array_equal(counts, expected)
    assert (out / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_drawn_again_and_saved_from_memory(ran, tmp_path):
    _, toml, out = ran
    picture = (out / "partition.png").read_bytes()
    (out / "partition.png").unlink()
    fedpbc.run(toml, out, resume=True)
    assert (out / "partition.png").read_bytes() == picture
    fedpbc.run(toml).save(tmp_path / "saved")
    assert (tmp_path / "saved" / "partition.csv").read_text() == (out / "partition.csv").read_text()
    assert (tmp_path / "saved" / "partition.png").read_bytes() == picture


@pytest.mark.parametrize(("clients", "labels"), [(1, 1), (10, 10), (70, 3), (1300, 62)])
def test_a_picture_of_any_size_shows_the_shares(clients, labels):
    from fedpbc.plots.partition import COLUMNS, draw

    counts = np.random.default_rng(0).integers(0, 9, (clients, labels)) + (np.arange(labels) == 0)
    figure = draw(counts.sum(axis=1), counts)
    shown = np.asarray(figure.axes[1].images[0].get_array())
    assert shown.shape == (labels, min(clients, COLUMNS))
    if clients <= 10:
        np.testing.assert_allclose(shown, (counts / counts.sum(axis=1, keepdims=True)).T)
    elif clients == 70:
        order = np.argsort(counts @ np.arange(labels) / counts.sum(axis=1))
        np.testing.assert_allclose(np.arange(labels) @ shown, (counts @ np.arange(labels) / counts.sum(axis=1))[order])


def said(*words: str) -> tuple[int, str]:
    """Exit status (of an error: 2) and what is printed."""
    done = CliRunner().invoke(_cli, ["data", *words])
    if isinstance(done.exception, fedpbc.ConfigError):
        return 2, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_command_says_what_is_there_and_how_to_use_it(ran, tmp_path):
    folder, _, _ = ran
    status, text = said(str(folder))
    assert status == 0
    for part in ("12 to train on, 5 to test on", "6 x 4 x 1 bytes", "3 classes, 4 samples of each", "none are named"):
        assert part in text
    table = tomllib.loads(text.partition("experiment file:")[2])
    assert table["problem"]["name"] == "classification"
    assert table["problem"]["data"]["path"] == str(folder)
    made = fedpbc.core.schema.bind_component(fedpbc.problems.PROBLEMS, table["problem"], "problem", Path())
    assert made.build(fedpbc.Context(0, np.dtype(np.float32), 3, (0,))).num_clients == 2


def test_the_command_draws_a_partition(ran, tmp_path):
    folder, _, _ = ran
    how = '{name="shards", num_clients=3, labels_per_client=2}'
    status, text = said(str(folder), "--partition", how, "--out", str(tmp_path / "p.svg"), "--set", "max_rows=9")
    assert status == 0
    assert "3, with 3 training samples each" in text
    assert "<svg" in (tmp_path / "p.svg").read_text()
    assert tomllib.loads(text.partition("experiment file:")[2])["problem"]["data"]["max_rows"] == 9


def test_the_command_knows_clients_and_targets(tmp_path):
    files.write_leaf(tmp_path / "leaf", "femnist")
    status, text = said(str(tmp_path / "leaf"), "--out", str(tmp_path / "p.png"))
    assert status == 0
    assert "3 (u1, u2, u3), with 2 to 4 samples each" in text
    assert (tmp_path / "p.png").is_file()
    (tmp_path / "t.csv").write_text("a,b,y\n1,2,0.5\n3,4,-1.5\n")
    _, text = said(str(tmp_path / "t.csv"))
    assert "numbers from -1.5 to 0.5, mean -0.5: for regression" in text
    assert 'name = "regression"' in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}", "--out", "p.gif"], r"--out p.gif: must end in .png, .svg or .pdf"),
        (["{}", "--out", "p.png"], "needs --partition"),
        (["{}", "--partition", "{alpha=.1}"], r"is not TOML.*digit before the point"),
        (["{}", "--partition", "dirichlet"], "must be a table, like"),
        (["{}", "--partition", '{name="dirichlt"}'], 'did you mean "dirichlet"'),
        (["{}", "--partition", '{name="iid", num_clients=99}'], r"partition.num_clients = 99: the data has 12 samples"),
        (["{}", "--set", "nope=1"], "unknown key mnist.nope"),
        (["{}", "--format", "minst"], "no loader .minst. .did you mean .mnist."),
        (["{}/none"], "no such file or folder"),
        (["{}", "--format", "cifar"], "holds no CIFAR"),
    ],
    ids=range(10),
)
def test_bad_input_is_one_line(words, message, ran, tmp_path, monkeypatch):
    import re

    monkeypatch.chdir(tmp_path)
    status, text = said(*(word.replace("{}", str(ran[0])) for word in words))
    assert status == 2
    assert re.search(message, text)
    assert "\n" not in text
    assert not list(tmp_path.iterdir())
