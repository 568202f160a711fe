"""What a breaker found: each ends in one line of ConfigError."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpbc.audit import ParticipationLog, read_log
from fedpbc.errors import ConfigError

FLOWER = (
    "[ROUND {r}]\nconfigure_train: Sampled 9 nodes (out of 20)\naggregate_train: Received {n} results and 0 failures\n"
)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.log", FLOWER.format(r=1, n=9), {"clients": 3}, "--clients 3: must be at least 20"),
        ("a.log", FLOWER.format(r=1, n="9" * 20), {}, "line 3: holds a number of more than nine digits"),
        ("a.log", FLOWER.format(r="9" * 20, n=9), {}, "line 1: holds a number of more than nine digits"),
        ("a.jsonl", '{"round": 0, "clients": ["\\ud800", "b"]}\n', {}, "line 1: a client id must be UTF-8"),
        ("a.jsonl", '{"round": 0, "clients": ["a\\u0000", "b"]}\n', {}, "line 1: a client id must be UTF-8"),
        ("a.csv", "round,client\n0,a\n0,b\n", {"clients": 10**20}, "must be at most 10,000,000"),
        ("a.csv", "round,client\n0,a\n0,b\n", {"sizes": '"client,size\na,1\nb,2\n'}, "line 1: is not CSV"),
        ("a.csv", "round,client\n0,a\n0,b\n", {"sizes": "client,size\na,1,5\nb,2,5\n"}, "line 2: must have 2 cells"),
        ("a.csv", "round,client\n0,a\n0,b\n", {"sizes": "client,size\na,1e308\nb,2\n"}, "must be a number > 0"),
        ("a.csv", "round,client\n0,\x1b[31ma\n0,\x1b[31ma\n", {}, r"client .*x1b\[31ma. stands there twice"),
    ],
)
def test_one_clear_line(tmp_path: Path, name, content, options, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    if isinstance(options.get("sizes"), str):
        (tmp_path / "sizes.csv").write_text(options["sizes"])
        options = {"sizes": tmp_path / "sizes.csv"}
    with pytest.raises(ConfigError, match=message) as caught:
        read_log(tmp_path / name, **options)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "active", [np.full((3, 3), 0.5), np.full((3, 3), np.nan), np.array([True]), np.zeros((0, 0, 0))]
)
def test_a_matrix_must_be_one(active):
    with pytest.raises(ConfigError, match="a matrix of 0 and 1"):
        ParticipationLog.from_matrix(active)


def test_names_must_fit_the_matrix():
    for names in (["a"], ["a", "a"]):
        with pytest.raises(ConfigError, match="2 different names"):
            ParticipationLog.from_matrix(np.ones((3, 2), bool), names)
