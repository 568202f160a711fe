"""Names that are not there: one clear line, with one that is near."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedpbc
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.runner import run

ONE = {"links": "half", "algorithm": "fedpbc", "compute": "all"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where one run is kept for all tests of this file."""
    return tmp_path_factory.mktemp("made") / "out"


@pytest.fixture
def made(table, folder) -> fedpbc.Run:
    return fedpbc.read_run(folder if folder.exists() else run(Experiment.from_table(table), folder).path)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda r: r.model("servr", **ONE, seed=0), r'no model "servr" \(did you mean "server"\?\); there are '),
        (lambda r: r.model("bogus", **ONE, seed=0), 'no model "bogus"; there are (server|mean|server_average|, )+$'),
        (lambda r: r.model("bogus"), "no choice fits 4 of 4 cells; choose one by links, algorithm, compute, seed$"),
        (lambda r: r.curves(**ONE, metric="bogus"), 'no metric "bogus"; there are .*server_distance'),
        (lambda r: r.curves(**ONE, metric="distance"), r'no metric "distance" \(did you mean ".*distance"\?\); '),
        (
            lambda r: r.curves(**{**ONE, "algorithm": "fedpcb"}, metric="x"),
            r'no algorithm "fedpcb" \(did you mean "fedpbc"',
        ),
        (
            lambda r: r.curves(**{**ONE, "links": "hlf"}, metric="x"),
            r'no links "hlf" \(did you mean "half"\?\); there are',
        ),
        (lambda r: r.measure("bogus"), 'no metric "bogus"; there are .*server_distance.*, distance'),
        (lambda r: r.measure("server_distanc"), r'no metric "server_distanc" \(did you mean "server_distance"'),
        (lambda r: r.plot("bogus"), 'no metric "bogus"; there are distance, grad_norm, train_loss$'),
        (lambda r: r.plot("server_distance"), r'no metric "server_distance" \(did you mean "distance"\?\)'),
        (lambda r: r.to_markdown(["distanc"]), r'no metric "distanc" \(did you mean "distance"\?\)'),
        (lambda r: r.final("bogus", **ONE), 'no metric "bogus"; there are '),
        (lambda r: r.select(seed=9), "no seed 9; there are 0, 1$"),
        (
            lambda r: r.select(method="fedpbc"),
            'no key to choose by "method"; there are links, algorithm, compute, seed$',
        ),
    ],
)
def test_an_unknown_name_is_one_line_with_one_that_is_near(made, ask, message):
    with pytest.raises(ConfigError) as error:
        ask(made)
    assert re.match(message, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, KeyError), "as looking up a name does everywhere"


def test_one_metric_may_be_a_word(made):
    assert made.to_markdown("distance") == made.to_markdown(["distance"])
    assert "distance" in made.plot("distance").axes[0].get_ylabel()


def test_known_names_are_found(made):
    assert made.measure("mean_distance") == made.measure("distance")
    assert made.measure("bytes_up").unit == "B"
    assert made.model("mean", **ONE, seed=1).shape == (4,)
