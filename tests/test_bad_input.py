"""Every mistake gets one clear message that names the key, the value and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment
from fedpbc.experiment.overrides import parse_override, set_key
from fedpbc.runs.runner import run

HUGE = 10**12

BAD_VALUES: list[tuple[str, Any, str]] = [
    ("rounds", 0, "rounds = 0: must be an integer >= 1"),
    ("rounds", -3, "rounds = -3: must be an integer >= 1"),
    ("rounds", 1.5, "rounds = 1.5: must be an integer"),
    ("rounds", True, "rounds = true: must be an integer"),
    ("rounds", "ten", 'rounds = "ten": must be an integer'),
    ("rounds", HUGE, "rounds = 1000000000000: must be an integer"),
    ("rounds", 10**9, r"rounds = 1000000000: .* rows of metrics .* would need about"),
    ("local_steps", 0, "local_steps = 0: must be an integer >= 1"),
    ("learning_rate", 0, "learning_rate = 0: must be a finite number > 0"),
    ("learning_rate", -0.1, "learning_rate = -0.1: must be a finite number > 0"),
    ("learning_rate", float("inf"), "learning_rate = inf: must be a finite number > 0"),
    ("learning_rate", float("nan"), "learning_rate = nan: must be a finite number > 0"),
    ("learning_rate", True, "learning_rate = true: must be a number > 0 or a table with a name"),
    ("learning_rate", {"name": "inverse_sqr", "initial": 1}, 'unknown learning rate .*did you mean "inverse_sqrt"'),
    ("learning_rate", {"name": "inverse_sqrt"}, "missing key learning_rate.initial"),
    ("learning_rate", {"name": "inverse_sqrt", "initial": 0}, "learning_rate.initial = 0: must be a finite number > 0"),
    ("seeds", [], r"seeds = \[\]: must be a non-empty list"),
    ("seeds", 3, "seeds = 3: must be a non-empty list"),
    ("seeds", [0, 0], r"seeds = \[0, 0\]: 0 is given twice"),
    ("seeds", [0, 1.0], r"seeds\[1\] = 1.0: must be an integer"),
    ("seeds", [-1], r"seeds\[0\] = -1: must be an integer >= 0"),
    ("seeds", [True], r"seeds\[0\] = true: must be an integer"),
    ("compute", ["everyone"], r'compute\[0\] = "everyone": must be one of "all", "active"'),
    ("compute", ["all", "all"], "is given twice"),
    ("minibatch", "epoch", 'minibatch = "epoch": must be one of "round", "step"'),
    ("precision", "float16", 'precision = "float16": must be one of "float32", "float64".*did you mean'),
    ("batch_size", 0, "batch_size = 0: must be an integer >= 1"),
    ("chunk_size", 0, "chunk_size = 0: must be an integer >= 1"),
    ("eval_every", 0, "eval_every = 0: must be an integer >= 1"),
    ("cooldown_rounds", 13, "cooldown_rounds = 13: must be at most rounds, 12"),
    ("cooldown_rounds", -1, "cooldown_rounds = -1: must be an integer >= 0"),
    ("name", "", "name = \"\": must be usable as the name of a folder"),
    ("name", "../escape", "must be usable as the name of a folder"),
    ("name", "a\x9bb", "must be usable as the name of a folder"),
    ("name", "x" * 101, "must be usable as the name of a folder"),
    ("name", 7, "name = 7: must be a string"),
    ("rouns", 3, 'unknown key rouns .did you mean "rounds".*; allowed: name, rounds'),
    ("problem", 3, "problem = 3: must be a table with a name"),
    ("problem", {"num_clients": 3}, "missing key problem.name: one of classification, loss, quadratic,"),
    ("problem.name", "quadratc", 'problem.name = "quadratc": unknown problem .did you mean "quadratic"'),
    ("problem.num_clients", 0, "problem.num_clients = 0: must be an integer >= 1"),
    ("problem.num_client", 3, 'unknown key problem.num_client .did you mean "num_clients".*; allowed'),
    ("problem.num_clients", 2 * 10**9, "problem.num_clients = 2000000000: .* would need about .* GB; this machine has"),
    ("problem.dim", 2 * 10**9, "problem.dim = 2000000000: .* would need about"),
    ("problem.centers", "missing.csv", "problem.centers = .*missing.csv.*: no such file"),
    ("problem.centers", 5, "problem.centers = 5: must be the path of a file"),
    ("links", [], r"links = \[\]: must be one or more tables \[\[links\]\]"),
    ("links", {"name": "bernoulli"}, r"must be one or more tables \[\[links\]\]"),
    ("links.0.name", "bernouli", r'links\[0\].name = "bernouli": unknown link process .did you mean "bernoulli"'),
    ("links.0.prob", 1.1, r"links\[0\].prob = 1.1: must be a finite number in \[0, 1\]"),
    ("links.0.prob", float("nan"), r"links\[0\].prob = nan: must be a finite number in \[0, 1\]"),
    ("links.0.prob", [0.5] * 5, r"links\[0\].prob = .*: has 5 values, must have one per client, 6"),
    ("links.0.prob", [0.5] * 5 + [-0.1], r"links\[0\].prob\[5\] = -0.1: must be a finite number in \[0, 1\]"),
    ("links.0.prob", "p.csv", r"links\[0\].prob = .*p.csv.*: no such file"),
    ("links.0.prob", {"name": "two_groups", "p0": 0.1}, r"missing key links\[0\].prob.p1"),
    ("links.0.prob", {"name": "zipf", "exponent": 1}, r"links\[0\].prob.exponent = 1: must be a finite number > 1"),
    ("links.0.prob", {"name": "by_trait"}, r'prob.trait = "mean_label": unknown trait; allowed: center_mean'),
    ("links.0.prob", True, r"links\[0\].prob = true: must be a number in \[0, 1\], a list"),
    ("links.0.varying", {"name": "sine", "amplitude": 2}, r"links\[0\].varying.amplitude = 2: must be .* in \[0, 1\]"),
    ("links.0.varying", {"name": "sine", "period": 0}, r"varying.period = 0: must be .* in \[0.001, 1e\+09\]"),
    ("links.0.varying", {"name": "sine", "phase": "odd"}, 'varying.phase = "odd": must be one of "common", "random"'),
    ("links.0.varying", {"name": "sine", "minimum": 2}, r"varying.minimum = 2: must be .* in \[0, 1\]"),
    ("links.0.varying", {"name": "interleaved", "cutoff": -1}, r"varying.cutoff = -1: must be .* in \[0, 1\]"),
    ("links.0.varying", {"name": "staircase", "low": 2}, r"varying.low = 2: must be .* in \[0, 1\]"),
    ("links.0.varying", {"name": "staircase", "half_period": 0}, "varying.half_period = 0: must be an integer >= 1"),
    ("links.0.varying", {"name": "diurnal"}, r"missing key links\[0\].varying.round_seconds"),
    ("links.0.varying", {"name": "diurnal", "round_seconds": 1, "swing": 0.5}, "varying.swing = 0.5: must be .* >= 1"),
    ("links.0.varying", {"name": "diurnal", "round_seconds": 1, "zones": 0}, "varying.zones = 0: must be an integer"),
    ("links.0.varying", {"name": "absence", "first": -1, "rounds": 1}, "varying.first = -1: must be an integer >= 0"),
    ("links.0.varying", {"name": "absence", "first": 1, "rounds": 0}, "varying.rounds = 0: must be an integer >= 1"),
    ("links.0.varying", {"name": "absence", "first": 1, "rounds": 1, "share": 0}, "varying.share = 0: must be .* > 0"),
    ("links.0.prob", {"name": "by_label"}, r'prob.name = "by_label": needs samples with labels'),
    ("links.0.prob", {"name": "by_label", "weights": "x"}, 'prob.weights = "x": must be one of "lognormal"'),
    ("links.0.prob", {"name": "by_label", "concentration": 0}, "prob.concentration = 0: must be .* > 0"),
    ("links.0", {"name": "markov", "prob": 0.5}, r"missing key links\[0\].memory"),
    ("links.0", {"name": "markov", "prob": 0.5, "memory": 1.1}, r"links\[0\].memory = 1.1: must be .* in \[0, 1\]"),
    ("links.0", {"name": "gilbert_elliott", "good_to_bad": 0, "bad_to_good": 0}, r"links\[0\].good_to_bad = 0.0: and"),
    ("links.0", {"name": "gilbert_elliott", "good_to_bad": 2, "bad_to_good": 0}, r"links\[0\].good_to_bad = 2: must"),
    ("links.0", {"name": "cyclic", "prob": 0.5, "period": 0}, r"links\[0\].period = 0: must be an integer >= 1"),
    ("links.0", {"name": "cyclic", "prob": 0.5, "period": 3, "reset": 1}, r"links\[0\].reset = 1: must be true"),
    ("links.0", {"name": "outages", "prob": 0.5, "groups": 7, "outage": 0.1}, r"links\[0\].groups = 7: must be at"),
    ("links.0", {"name": "outages", "prob": 0.5, "groups": 2, "outage": 2}, r"links\[0\].outage = 2: must be .* in"),
    ("links.0", {"name": "fading", "model": "rice"}, r'links\[0\].model = "rice": must be .*did you mean "rician"'),
    ("links.0", {"name": "fading", "model": "nakagami", "shape": 0.7}, r"links\[0\].shape = 0.7: must be a multiple"),
    ("links.0", {"name": "fading", "minimum_distance": 600}, r"links\[0\].minimum_distance = 600.0: must be at most"),
    ("links.0", {"name": "fading", "rate": 0}, r"links\[0\].rate = 0: must be a finite number > 0"),
    ("links.0", {"name": "fading", "doppler": -1}, r"links\[0\].doppler = -1: must be a finite number >= 0"),
    ("links.0", {"name": "fading", "k_factor": 101}, r"links\[0\].k_factor = 101: must be .* in \[0, 100\]"),
    ("links.0", {"name": "deadline", "deadline": 0}, r"links\[0\].deadline = 0: must be a finite number > 0"),
    ("links.0", {"name": "deadline", "spread": 0}, r"links\[0\].spread = 0: must be a finite number > 0"),
    ("links.0", {"name": "leo", "elevation": 90}, r"links\[0\].elevation = 90: must be .* in \[0, 89\]"),
    ("links.0", {"name": "leo", "altitude": 0}, r"links\[0\].altitude = 0: must be .* > 0 and <= 1e.06"),
    ("links.0", {"name": "fedscale", "path": "no.pkl"}, r"links\[0\].path = .*no.pkl.*: no such file"),
    ("links.0", {"name": "two_way", "up": 3, "down": 3}, r"links\[0\].up = 3: must be a table with a name"),
    ("links.0", {"name": "two_way", "up": {"name": "cyclic", "prob": 2}, "down": 3}, r"links\[0\].up.prob = 2: must"),
    ("links.0", {"name": "two_way", "up": {"name": "two_way"}, "down": 3}, r"links\[0\].up.name = .two_way.: unknown"),
    ("links.0.label", 3, r"links\[0\].label = 3: must be a non-empty string"),
    ("links.0.label", "a\nb", r"links\[0\].label = .*: must be a non-empty string of printable characters"),
    ("links.0.path", "x", r"unknown key links\[0\].path"),
    ("algorithms", "fedpbc", r'algorithms = "fedpbc": must be one or more tables'),
    ("algorithms.1.name", "fedpcb", r'algorithms\[1\].name = "fedpcb": unknown algorithm .did you mean "fedpbc"'),
    ("algorithms.0.server", -1, r"algorithms\[0\].server.* = -1: must be a finite number > 0"),
    ("algorithms.0.server", True, r"algorithms\[0\].server = true: must be a number > 0 .* or a table with a name"),
    ("algorithms.0.server", {"name": "adm"}, r'unknown server optimiser \(did you mean "adam"'),
    ("algorithms.0.server", {"name": "adam", "beta2": 1}, r"beta2 = 1: must be .* in \[0, 0.999999\]"),
    ("algorithms", [{"name": "FedYogi"}], r'unknown algorithm \(write name = "fedavg", server = { name = "yogi" }\)'),
    ("algorithms", [{"name": "fedau", "cutoff": -1}], r"cutoff = -1: must be an integer >= 0"),
    ("algorithms", [{"name": "f3ast", "slots": 0}], r"slots = 0: must be an integer >= 1"),
    ("algorithms", [{"name": "f3ast", "beta": 1}], r"beta = 1: must be a finite number > 0 and <= 0.999"),
    ("algorithms", [{"name": "fedprox", "mu": -1}], r"mu = -1: must be a finite number >= 0"),
    ("algorithms", [{"name": "amplified_fedavg", "window": 0}], r"window = 0: must be an integer >= 1"),
    ("algorithms", [{"name": "mifa", "wait": 1}], r"wait = 1: must be true or false"),
    (
        "algorithms", [{"name": "scaffold", "controls": "cloud"}],
        r"controls = .cloud.: must be one of .client., .server.",
    ),
    (
        "algorithms", [{"name": "fedpbc_corrected", "correction": "ful"}],
        r'must be one of "full", "light" .*mean "full"',
    ),
    ("problem.condition", 0.5, r"condition = 0.5: must be a finite number in \[1, 1e\+06\]"),
    ("links.0", {"name": "leo", "round_seconds": 1e308}, r"round_seconds = 1e\+308: must be .* > 0 and <= 1e\+09"),
    ("links.0", {"name": "deadline", "client_spread": 1e308}, r"client_spread = 1e\+308: must be .* in \[0, 100\]"),
    ("links.0.prob", {"name": "by_label", "concentration": 1e308}, r"concentration = 1e\+308: must be .* <= 1e\+06"),
    ("name", "漢" * 100, "name = .*: must be usable as the name of a folder"),
    ("state_loss", 3, "state_loss = 3: must be a table"),
    ("state_loss", {}, "missing key state_loss.round"),
    ("state_loss", {"round": 12}, "state_loss.round = 12: must be below rounds, 12"),
    ("state_loss", {"round": 1, "share": 0}, "state_loss.share = 0: must be a finite number > 0 and <= 1"),
    ("algorithms.0.speed", 9, r"unknown key algorithms\[0\].speed; allowed: server"),
    ("algorithms.1.name", "fedavg", r'algorithms\[1\].label = "fedavg": is also the label of algorithms\[0\]'),
    ("figure", 3, "figure = 3: must be a table"),
    ("figure", {"metrics": ["grad_nrm"]}, 'figure.metrics: "grad_nrm" is not measured .did you mean "grad_norm"'),
    ("problem.centers", "\0.csv", "problem.centers = .*: cannot be used as a path"),
    ("figure", {"models": ["best"]}, r'figure.models\[0\] = "best": must be one of'),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "message"), BAD_VALUES)
def test_a_bad_value_is_named(table, tmp_path, key, value, message):
    set_key(table, key, value)
    with pytest.raises(ConfigError, match=message) as caught:
        run(Experiment.from_table(table, tmp_path), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "key", ["name", "rounds", "local_steps", "learning_rate", "seeds", "problem", "links", "algorithms"]
)
def test_required_keys(table, key):
    del table[key]
    with pytest.raises(ConfigError, match=f"missing key {key}"):
        Experiment.from_table(table)


def test_only_those_keys_are_required(table):
    del table["precision"]
    Experiment.from_table(table)


def test_duplicate_labels_are_refused_and_made_labels_are_unique(table):
    two = [{"label": "x", "name": "bernoulli", "prob": p} for p in (0.1, 0.2)]
    with pytest.raises(ConfigError, match=r'links\[1\].label = "x": is also the label of links\[0\]'):
        Experiment.from_table(table | {"links": two})
    long = [{"name": "bernoulli", "prob": [0.5] * 5 + [p]} for p in (0.1, 0.2)]
    labels = [link.label for link in Experiment.from_table(table | {"links": long}).links]
    assert len(set(labels)) == 2
    with pytest.raises(ConfigError, match="is also the label of"):
        Experiment.from_table(table | {"links": [long[0], long[0]]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"rounds = = 3", "is not TOML: "),
        (b"\xff\xfe\x00binary", "is not a text file"),
        (b"rounds = " + b"9" * 5000, "is not TOML"),
        (b"x = " + b"[" * 5000, "is not TOML"),
    ],
)
def test_files_that_are_no_experiment(tmp_path, content, message):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_experiment(path)


def test_what_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="File name too long"):
        load_experiment("x" * 300)
    with pytest.raises(ConfigError, match=r'no such file or shipped experiment .did you mean "counterexample"'):
        load_experiment("counterexmple")
    with pytest.raises(ConfigError, match="is a folder"):
        load_experiment(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds", "must be key=value"),
        ("=3", "must be key=value"),
        ("name=x", "strings need quotes"),
        ("rounds=3\nname='x'", "must be one value"),
        ("rounds=", "not TOML"),
    ],
)
def test_bad_overrides(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_override(text)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("links.3.prob", r"links.3.prob: 3 must be a position from 0 to 0"),
        ("links.first.prob", "must be a position"),
        ("links." + "9" * 5000, "must be a position"),
        ("rounds.x", "rounds = 12 is not a table or list"),
        ("", "is not a key"),
    ],
)
def test_overrides_of_what_is_not_there(table, key, message):
    with pytest.raises(ConfigError, match=message):
        set_key(table, key, 1)


def test_overrides_reach_everything(table):
    set_key(table, "links[0].prob", 0.25)
    set_key(table, "problem.dim", 9)
    set_key(table, "figure.from_round", 3)
    experiment = Experiment.from_table(table)
    assert experiment.links[0].options["prob"].options == {"value": 0.25}
    assert experiment.problem.options["dim"] == 9
    assert experiment.figure["from_round"] == 3


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedpbc.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "nowhere.toml"],
        ["run", "counterexample", "--set", "rounds=0"],
        ["run", "counterexample", "--seeds", "a,b"],
        ["run", "counterexample", "--devices", "0"],
        ["run", "counterexample", "--bogus"],
        ["report", "nowhere"],
        ["links", "counterexample", "--out", "a.csv"],
        ["links", "counterexample", "--out", "a.csv", "--links", "7"],
        ["links", "counterexample", "--out", "a.txt", "--links", "0"],
        ["links", "counterexample", "--out", "no/a.csv", "--links", "0"],
        ["links", "counterexample", "--out", "a.csv", "--links", "0", "--seed", "-1"],
        ["links", "counterexample", "--links", "0"],
        ["fly"],
    ],
)
def test_the_command_line_says_it_in_a_few_lines_and_exits_with_2(tmp_path, arguments):
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert 1 <= len(done.stderr.splitlines()) <= 4
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_is_not_touched_without_resume(table, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    experiment = Experiment.from_table(table)
    with pytest.raises(ConfigError, match="is not empty"):
        run(experiment, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"holds no experiment\.toml"):
        run(experiment, tmp_path / "out", resume=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        run(experiment, tmp_path / "file")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["precious.txt"]


def test_paths_start_from_the_file_and_on_the_command_line_from_the_current_folder(table, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    np.save(tmp_path / "a" / "c.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b" / "c.npy", np.zeros((4, 5)))
    table["problem"] = {"name": "quadratic", "centers": "c.npy"}
    (tmp_path / "a" / "e.toml").write_text(tomli_w.dumps(table))
    monkeypatch.chdir(tmp_path / "b")
    experiment = load_experiment(tmp_path / "a" / "e.toml")
    assert experiment.problem.build(experiment.context(0)).num_clients == 2
    experiment = load_experiment(tmp_path / "a" / "e.toml", dict([parse_override('problem.centers="c.npy"')]))
    assert experiment.problem.build(experiment.context(0)).num_clients == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rate", 1e-300, "learning_rate = 1e-300: is 0.0 in float32"),
        ("learning_rate", 1e300, "learning_rate = 1e\\+300: is inf in float32"),
        ("algorithms.0.server", 1e-300, "learning_rate = 1e-300: is 0.0 in float32|server = 1e-300: is 0.0 in float32"),
    ],
)
def test_a_number_must_survive_the_precision_of_the_run(table, key, value, message):
    set_key(table, key, value)
    set_key(table, "precision", "float32")
    with pytest.raises(ConfigError, match=message):
        run(Experiment.from_table(table))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"links.0.prob": 0.5, "links": 5}, "links = 5: must be one or more tables"),
        ({"links.1.prob": 0.5}, r"links.1.prob: 1 must be a position from 0 to 0"),
        ({"algorithms.0.server": 1, "algorithms": []}, r"algorithms = \[\]: must be one or more tables"),
        ({"links": {"a": {"name": "bernoulli"}}, "links.a.prob": 0.4}, "links = .*: must be one or more tables"),
    ],
)
def test_overrides_that_do_not_fit_together(table, write_toml, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_experiment(write_toml(table), changes)


def test_an_override_of_a_part_that_the_file_lacks(table, write_toml):
    del table["links"]
    with pytest.raises(ConfigError, match=r"links = .*: must be one or more tables"):
        load_experiment(write_toml(table), {"links.0.prob": 0.5})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rate", 1e-39, "learning_rate = 1e-39: is 1.0.*e-39 in float32"),
        ("algorithms", [{"name": "fedprox", "mu": 1e300}], "mu = 1e\\+300: is inf in float32"),
        ("links.0", {"name": "gilbert_elliott", "good_to_bad": 1e-50, "bad_to_good": 1e-45}, "both 0 for client 0"),
    ],
)
def test_numbers_that_float32_cannot_hold(table, tmp_path, key, value, message):
    table["precision"] = "float32"
    set_key(table, key, value)
    with pytest.raises(ConfigError, match=message):
        run(Experiment.from_table(table, tmp_path))
