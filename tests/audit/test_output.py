"""What the command says and leaves: groups, a comparison, JSON on standard output, a verdict, code and evidence."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedpbc.audit import ParticipationLog, audit, evidence, read_log
from fedpbc.audit.comparison import compare
from fedpbc.audit.numbers import percent
from fedpbc.audit.rules import HARMLESS, RULES
from fedpbc.errors import ConfigError
from fedpbc.experiment.overrides import parse_override
from fedpbc.io.participation import Reading, read_trace

ROOT = Path(__file__).parents[2]


def drawn(p, rounds, seed):
    return np.random.default_rng(seed).random((rounds, len(p))) < p


def write(path, table, region=None):
    lines = ["round,client,active" + (",region" if region else "")]
    for t, row in enumerate(table):
        lines += [f"{t},c{i},{int(a)}" + (f",{region[i]}" if region else "") for i, a in enumerate(row)]
    path.write_text("\n".join(lines) + "\n")


UNEVEN = np.r_[np.full(5, 0.9), np.full(5, 0.1)]


def test_the_verdict_is_in_the_exit_status(fedpbc, tmp_path):
    write(tmp_path / "uneven.csv", drawn(UNEVEN, 300, 0))
    write(tmp_path / "short.csv", drawn(np.full(10, 0.4), 12, 0))
    variation = audit(ParticipationLog.from_matrix(drawn(UNEVEN, 300, 0))).bias.total_variation
    assert 0.3 < variation < 0.45
    for limit, expected in (("tv=0.3", 3), ("tv=.45", 0)):
        status, out, err = fedpbc("audit", "uneven.csv", "--fail-above", limit, "--json", "-")
        assert (status, err.startswith(f"total variation {variation:.3f} is")) == (expected, True)
        assert json.loads(out)["bias"]["total_variation"] == pytest.approx(variation)
    short = audit(ParticipationLog.from_matrix(drawn(np.full(10, 0.4), 12, 0))).bias
    assert 0.02 < short.total_variation < short.total_variation_by_chance
    status, _, err = fedpbc("audit", "short.csv", "--fail-above", "tv=0.02", "--json", "-")
    assert (status, "not above what chance gives" in err) == (0, True)
    for wrong in ("0.2", "tv=x", "tv=2", "gini=0.1"):
        status, _, err = fedpbc("audit", "uneven.csv", "--fail-above", wrong)
        assert (status, f"--fail-above {wrong}: must be tv=X" in err) == (2, True)
    assert fedpbc("audit", "uneven.csv", "--json", "file")[0] == 2
    assert fedpbc("audit", "uneven.csv", "--json", "-", "--out", "x")[0] == 2
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_a_change_is_said_in_terminal_page_and_json(fedpbc, tmp_path):
    region = ["north", "south"] * 5
    write(tmp_path / "before.csv", drawn(UNEVEN, 400, 1), region)
    better = np.r_[np.full(9, 0.7), 0.1]
    write(tmp_path / "after.csv", drawn(better, 400, 3), region)
    status, out, err = fedpbc("audit", "after.csv", "--before", "before.csv", "--group", "region")
    assert (status, err) == (0, "")
    assert "(read as csv)" in out
    assert "By group: " in out
    assert "What changed since before.csv?" in out
    assert "Of 10 clients in both logs 9 changed" in out
    change = json.loads((tmp_path / "audit-after" / "audit.json").read_text())["change"]
    assert {entry["client"] for entry in change["changed"]} == {f"c{i}" for i in range(9)}
    assert change["total_variation"][1] < change["total_variation"][0]
    assert "What changed since before.csv?" in (tmp_path / "audit-after" / "audit.html").read_text()


def test_logs_of_the_same_system_seldom_differ():
    """Twelve pairs of logs with memory and 40 clients: level .05 for all clients of a pair together."""
    import simulated

    alarms = 0
    for seed in range(12):
        logs = [
            ParticipationLog.from_matrix(
                simulated.markov(np.random.default_rng(2 * seed + k), 400, np.full(40, 0.4), 0.5)
            )
            for k in (0, 1)
        ]
        alarms += bool(compare(logs[0], audit(logs[0]), logs[1], audit(logs[1])).changed)
    assert alarms <= 3


def test_what_cannot_be_compared_is_refused():
    one, other = (ParticipationLog.from_matrix(drawn(np.full(4, 0.5), 50, 0), names) for names in ("abcd", "wxyz"))
    with pytest.raises(ConfigError, match="no client in common"):
        compare(one, audit(one), other, audit(other))


def test_how_many_more_rounds_it_takes():
    """After so many more rounds like these, chance gives no more than what is harmless."""
    table = drawn(np.full(10, 0.4), 30, 0)
    found = audit(ParticipationLog.from_matrix(table))
    more = found.bias.more_rounds_to_tell
    assert more == pytest.approx(30 * ((found.bias.total_variation_by_chance / HARMLESS) ** 2 - 1), abs=1)
    again = np.concatenate([table] * round((30 + more) / 30))
    longer = audit(ParticipationLog.from_matrix(again[np.random.default_rng(0).permutation(len(again))]))
    assert longer.bias.total_variation_by_chance == pytest.approx(HARMLESS, rel=0.2)
    advice = next(entry for entry in found.advice if entry.rule == "by-chance")
    assert f"After {more:,} more rounds" in advice.reason


def test_who_evaluates_is_said_where_it_is_uneven(fedpbc, tmp_path):
    """The say of those heard least, by plain loops; of a log that is even, or too short to tell, nothing is said."""
    table = drawn(np.r_[np.full(4, 0.9), np.full(5, 0.1)], 300, 0)
    say = np.zeros(9)
    rounds = [row for row in table if row.any()]
    for row in rounds:
        say[row] += 1 / row.sum() / len(rounds)
    least = sum(sorted(say)[:4])
    found = audit(ParticipationLog.from_matrix(table)).bias
    assert found.rarest_half == pytest.approx(least)
    assert least < 0.1
    write(tmp_path / "uneven.csv", table)
    write(tmp_path / "even.csv", drawn(np.full(9, 0.5), 3000, 0))
    write(tmp_path / "short.csv", drawn(np.full(9, 0.4), 12, 0))
    told = {}
    for name in ("uneven", "even", "short"):
        _, out, _ = fedpbc("audit", f"{name}.csv")
        page = (tmp_path / f"audit-{name}" / "audit.html").read_text()
        told[name] = ["evaluated by the clients that are heard" in " ".join(text.split()) for text in (out, page)]
        if name == "uneven":
            assert f"4 of 9 clients heard least have {percent(least)} of the say" in " ".join(out.split())
    assert told == {"uneven": [True, True], "even": [False, False], "short": [False, False]}


def test_the_distance_is_halved_when_the_report_says_so():
    """Nine of ten clients meet in every round, the tenth one round in a hundred."""
    table = np.ones((600, 10), bool)
    table[:, 9] = np.arange(600) % 100 == 99
    mixing = audit(ParticipationLog.from_matrix(table)).mixing
    assert mixing.distance_halved_after == 1
    assert mixing.distance_tenth_after == 100
    assert mixing.distance_left_per_round > 0.9


def test_the_advised_commands_read_the_log_as_it_was_read(fedpbc, tmp_path):
    """With its options, whatever they hold; the replay has the log's clients and rounds, and its very links."""
    table = drawn(UNEVEN, 90, 0)
    said = {True: "it's in", False: "out"}
    rows = [f"{t};c{i};{said[bool(a)]};x" for t, row in enumerate(table) for i, a in enumerate(row)]
    (tmp_path / "the log.csv").write_text("server round;who;how;zone\n" + "\n".join(rows))
    options = {"columns": "round=server round,client=who", "active_column": "how=it's in", "group": "zone"}
    found = audit(read_log(tmp_path / "the log.csv", clients=11, **options))
    assert found.log.options == {"clients": 11} | options
    code = {entry.rule: shlex.split(entry.code.partition(" | ")[0]) for entry in found.advice}

    for rule in ("short", "never-seen"):
        argv = ["the log.csv" if part == "NEW_LOG" else part for part in code[rule][1:]]
        assert fedpbc(*argv)[::2] == (0, "")

    replay = code["only-active-compute"]
    assert replay[:5] == ["fedpbc", "run", "rivals", "--seeds", "0"]
    changes = dict(parse_override(text) for text in replay[6::2])
    assert (changes["problem.num_clients"], changes["rounds"]) == (10, 90)
    (links,) = changes["links"]
    assert links.pop("name") == "trace"
    assert "group" not in links
    path = tmp_path / links.pop("path")
    np.testing.assert_array_equal(read_trace("path", path, Reading(**links), 10), table)


def test_advice_on_times_and_standard_input(tmp_path, monkeypatch):
    table = drawn(UNEVEN, 90, 0)
    lines = [f"{600 * t},c{i}" for t, row in enumerate(table) for i in np.flatnonzero(row)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(["time,client", *lines]).encode())))
    found = audit(read_log("-", round_seconds=600.0, missing_rounds="unknown"))
    code = {entry.rule: entry.code for entry in found.advice}
    assert code["short"] == "fedpbc audit NEW_LOG --before LOG --round-seconds 600 --missing-rounds unknown"
    assert 'path="LOG", round_seconds=600, missing_rounds="empty"}]' in code["only-active-compute"]


def test_no_comparison_is_advised_that_would_be_refused():
    """A log of counts only cannot be compared."""
    counts = ParticipationLog([], 50, 1, *np.empty((2, 0), np.int32), source="server.log", counts_only=np.arange(50))
    assert {entry.code for entry in audit(counts).advice if entry.rule == "short"} == {"fedpbc audit NEW_LOG"}


def test_a_line_of_code_is_not_broken(fedpbc, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    write(tmp_path / "uneven.csv", drawn(UNEVEN, 90, 0))
    _, out, _ = fedpbc("audit", "uneven.csv")
    advice = json.loads((tmp_path / "audit-uneven" / "audit.json").read_text())["advice"]
    assert max(len(entry["code"]) for entry in advice) > 100
    assert {f"     {entry['code']}" for entry in advice} <= set(out.splitlines())


def test_every_advice_has_its_line_of_code_and_links_where_documentation_is_published(monkeypatch):
    found = audit(ParticipationLog.from_matrix(drawn(UNEVEN, 300, 0)))
    for rule in RULES:
        assert "\n" not in rule.code(found)
        assert rule.code(found)
    strategies = {name for entry in found.advice for name in re.findall(r"fedpbc\.flower\.(\w+)\(", entry.code)}
    text = (ROOT / "src/fedpbc/flower/__init__.py").read_text()
    assert strategies
    assert all(f"import {name} as {name}" in text for name in strategies)
    for rule in RULES:
        if "strategy = " in rule.code(found):
            exec("import fedpbc.flower\n" + rule.code(found), {})
    monkeypatch.setattr(evidence, "site", lambda: "https://docs.example")
    results = (ROOT / "docs" / "results.md").read_text()
    heads = {
        re.sub(r"[^\w\s-]", "", head).strip().lower().replace(" ", "-")
        for head in re.findall(r"^## (.+)$", results, re.M)
    }
    for anchor in evidence.ANCHORS.values():
        assert anchor in heads
    links = [entry.link for entry in audit(ParticipationLog.from_matrix(drawn(UNEVEN, 300, 0))).advice]
    assert f"https://docs.example/results.html#{evidence.ANCHORS['5']}" in links
