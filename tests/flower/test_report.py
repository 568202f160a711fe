"""The figure and the numbers of a strategy's directory, and options of strategies."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from apps import CASES, centers, grid_of, play, quadratic_app
from matplotlib.colors import to_rgb

from fedpbc.errors import ConfigError
from fedpbc.flower import MIFA, DebiasedFedAvg, FedAU, FedPBC, FedPBCCorrected, FedStale, FedVARP
from fedpbc.io.journal import Journal
from fedpbc.io.participation import read_participation
from fedpbc.plots.deployment import STATES, describe_deployment, draw_deployment, read_deployment, warnings_of

M, ROUNDS = 4, 6
ACTIVE = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0]], bool)


@pytest.fixture
def directory(tmp_path):
    play(CASES["fedpbc"].make(M, directory=tmp_path / "run"), grid_of(quadratic_app(centers(M)), ACTIVE), ROUNDS)
    return tmp_path / "run"


def test_the_numbers_are_those_of_the_logs(directory):
    found = dict(describe_deployment(read_deployment(directory)))
    assert found["rounds"] == "6, 1 of them without anybody"
    assert found["clients"] == f"4, on average {ACTIVE.sum(axis=1).mean():.1f} heard in a round"


def test_a_mean_over_those_heard_is_said_to_be_one_and_how_uneven(fedpbc, directory):
    """The say of a client by plain loops; nothing where the server evaluated, or there is no number."""
    evaluation = directory / "evaluation.jsonl"
    evaluation.unlink(missing_ok=True)
    for t in (2, 3, 4):
        Journal(evaluation).append({"round": t, "clients": {"accuracy": 0.5}})
    say = np.zeros(M)
    for t in (2, 3, 4):
        for i in np.flatnonzero(ACTIVE[t]):
            say[i] += 1 / 3 / ACTIVE[t].sum()
    least, away = np.sort(say)[:2].sum(), np.abs(say - 1 / M).sum() / 2
    assert 0.05 < away < least < 0.45
    (line,) = warnings_of(read_deployment(directory))
    assert line.startswith("accuracy: evaluated by the clients that were heard, not by all: the 2 of 4 heard least")
    assert f"have {least:.0%} of the say, and {away:.0%} of it is with other clients" in line
    assert f"warning: {line}\n" in fedpbc("report", str(directory))[2]
    Journal(evaluation).append({"round": 5, "server": {"accuracy": 0.4}})
    assert warnings_of(read_deployment(directory)) == []


def test_every_client_has_a_row_and_every_round_a_column(directory):
    line = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    refused = [{"client": name, "reason": "x"} for name in "0123"]  # which says less than a reply that counted
    changed = line | {"round": 6, "refused": refused[::3] + refused[2:3], "catching_up": {"2": 4}}
    Journal(directory / "metrics.jsonl").append(changed)
    Journal(directory / "participation.jsonl").append({"round": 6, "clients": ["0"]})
    figure = draw_deployment(read_deployment(directory))
    ax = next(ax for ax in figure.axes if ax.images)
    image = ax.images[0].get_array()
    assert image.shape == (M, ROUNDS + 1, 3)
    colors = [tuple(color) for color in image[:, -1]]
    assert colors == [to_rgb(STATES[state]) for state in ("heard", "not heard", "still catching up", "reply refused")]
    heard = (image[:, :-1] == image[0, 0]).all(axis=2).T
    np.testing.assert_array_equal(heard, ACTIVE)


def test_odd_logs_are_drawn(tmp_path):
    """Nobody heard; odd names; values that are no numbers; a line that is cut short."""
    numbers = {
        "active": 0,
        "caught_up": 0,
        "catching_up": {},
        "failed": [],
        "bytes_down": 1,
        "bytes_up": 1,
        "seconds": 1,
    }
    for t in range(2):
        Journal(tmp_path / "participation.jsonl").append({"round": t, "clients": []})
        Journal(tmp_path / "metrics.jsonl").append(numbers | {"round": t, "refused": [], "train": None})
    assert dict(describe_deployment(read_deployment(tmp_path)))["clients"].startswith("0, on average 0.0")
    draw_deployment(read_deployment(tmp_path))
    refused = [{"client": name, "reason": "x"} for name in ("²", "a10", "a9", "node 5", "node 12345678901234", "$x$")]
    line = numbers | {"round": 2, "refused": refused, "train": {"a": float("nan"), "b": 10**400, "c": "x", "d": 1.0}}
    Journal(tmp_path / "participation.jsonl").append({"round": 2, "clients": []})
    Journal(tmp_path / "metrics.jsonl").append(line)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"round": 3, "act')
    found = read_deployment(tmp_path)
    assert found.clients == ["$x$", "a9", "a10", "node 5", "²"]
    assert found.curves == {"d": [(3, 1.0)]}
    draw_deployment(found)


def test_who_was_heard_is_read_as_the_audit_reads_it(directory):
    """A last line that is cut is refused by both; in numbers of rounds nobody needs it may be cut."""
    log = directory / "participation.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"round": 6, "cli')
    messages = []
    for read in (lambda: read_deployment(directory), lambda: read_participation(log)):
        with pytest.raises(
            ConfigError, match=r"participation.jsonl: line 7: is not JSON .*is the file truncated\?"
        ) as e:
            read()
        messages.append(str(e.value))
    assert messages[0] == messages[1]
    lines = whole.splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert [line["round"] for line in read_deployment(directory).rounds] == [0, 1, 3, 4, 5]


def test_the_command_writes_the_figure(fedpbc, directory):
    status, out, error = fedpbc("report", str(directory))
    assert status == 0, error
    assert (directory / "figure.png").stat().st_size > 10_000
    assert "6, 1 of them without anybody" in out


def test_the_figure_needs_no_simulator(directory):
    command = ["report", str(directory)]
    code = f"import sys; sys.modules['jax'] = None; sys.argv[1:] = {command}; from fedpbc.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert (directory / "figure.png").is_file()


def test_a_directory_without_a_closed_round_is_one_line(fedpbc, tmp_path):
    (tmp_path / "participation.jsonl").write_text("")
    status, _, error = fedpbc("report", str(tmp_path))
    assert status == 2
    assert error.count("\n") == 1
    assert "no round is closed yet" in error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedPBC(round_deadline=0), r"round_deadline = 0: must be a number > 0"),
        (lambda: FedPBC(round_deadline="60"), r'round_deadline = "60": must be a number > 0'),
        (lambda: FedPBC(round_deadline=float("nan")), r"round_deadline = nan"),
        (lambda: FedPBC(round_deadline=1, poll_interval=2), r"poll_interval = 2: must be at most round_deadline"),
        (lambda: FedPBC(round_deadline=60, fraction_train=0), r"fraction_train = 0: must be a number > 0 and <= 1"),
        (lambda: FedPBC(round_deadline=60, fraction_train=1.5), r"fraction_train = 1.5: must be a number in \[0, 1\]"),
        (
            lambda: FedPBC(round_deadline=60, min_replies=0),
            r"min_replies = 0: must be an integer >= 1 \(so many\), or a",
        ),
        (lambda: FedPBC(round_deadline=60, min_replies=1.5), r"min_replies = 1.5: must be an integer >= 1"),
        (lambda: FedPBC(round_deadline=60, min_replies=True), r"min_replies = true: must be an integer >= 1"),
        (lambda: FedPBC(round_deadline=60, num_clients=3, min_replies=4), r"min_replies = 4: must be at most num_cl"),
        (lambda: FedPBC(round_deadline=60, selection_seed=-1), r"selection_seed = -1: must be an integer >= 0"),
        (
            lambda: FedAU(round_deadline=60, num_clients=99, fraction_train=0.02),
            r"cutoff = 50: must be 0, or more than",
        ),
        (lambda: FedPBC(round_deadline=60, max_catchup=-1), r"max_catchup = -1: must be an integer >= 0"),
        (lambda: FedPBC(round_deadline=60, newcomers="later"), r'newcomers = "later": must be "start" or "now"'),
        (lambda: FedPBC(round_deadline=60, spill=True), r"spill = true: must be False without a directory"),
        (lambda: FedPBC(round_deadline=60, num_clients=2.5), r"num_clients = 2.5: must be an integer >= 1"),
        (lambda: FedPBC(round_deadline=60, cooldown=True), r"cooldown = true: must be an integer >= 0"),
        (lambda: FedAU(round_deadline=60, num_clients=None), r"num_clients = None: must be given"),
        (lambda: FedAU(round_deadline=60, num_clients=3, cutoff=-1), r"cutoff = -1"),
        (lambda: MIFA(round_deadline=60, num_clients=3, learning_rate=0), r"learning_rate = 0: must be a number > 0"),
        (lambda: FedVARP(round_deadline=60, num_clients=3, server_learning_rate=-1), r"server_learning_rate = -1"),
        (lambda: DebiasedFedAvg(round_deadline=60, num_clients=None), r"num_clients = None: must be given"),
        (lambda: FedStale(round_deadline=60, num_clients=3, beta=1.5), r"beta = 1.5: must be a number in \[0, 1\]"),
        (
            lambda: FedStale(round_deadline=60, num_clients=3, weights="known"),
            r'weights = "known": must be "intervals" or',
        ),
        (lambda: FedPBCCorrected(round_deadline=60, num_clients=3, correction="half"), r'correction = "half"'),
        (lambda: FedPBCCorrected(round_deadline=60, num_clients=3, max_catchup=2), r"max_catchup = 2: must be 0"),
    ],
)
def test_a_bad_option_is_one_line(make, message):
    with pytest.raises(ConfigError, match=f"^{message}") as raised:
        make()
    assert "\n" not in str(raised.value)


def test_the_log_says_when_rounds_closed_and_how_many_there_will_be(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert abs(times[-1] - time.time()) < 3600
    assert {line["of"] for line in lines} == {6}
