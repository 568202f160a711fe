"""The findings as a whole, the rules, the terminal page, and the command."""

from __future__ import annotations

import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_logs import LOGS
from rich.console import Console

from fedpbc.audit import ParticipationLog, audit
from fedpbc.audit.rules import HARMFUL, HARMLESS, MEMORY, RULES, UNKNOWN
from fedpbc.audit.terminal import report
from fedpbc.audit.types import to_json
from fedpbc.errors import ConfigError
from fedpbc.theory import cooldown_rounds, fedavg_weights

DOCS = Path(__file__).resolve().parents[2] / "docs"


def log_of(p: np.ndarray, rounds: int, seed: int = 0) -> ParticipationLog:
    return ParticipationLog.from_matrix(np.random.default_rng(seed).random((rounds, len(p))) < p)


def rules_for(log: ParticipationLog) -> list[str]:
    return [entry.rule for entry in audit(log).advice]


def two_groups(p0: float, p1: float, m: int = 100) -> np.ndarray:
    return np.where(np.arange(m) < m // 2, p0, p1)


def test_findings_are_plain_json_with_the_documented_keys():
    page = (DOCS / "audit.md").read_text(encoding="utf-8")
    found = audit(log_of(two_groups(0.1, 0.9, 20), 300)).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert list(found) == ["log", "participation", "bias", "stationarity", "mixing", "advice", "clients"]

    def keys(table: dict[str, Any]) -> set[str]:
        below = [
            keys(value) for value in table.values() if isinstance(value, dict) and value is not found["log"]["skipped"]
        ]
        return set(table).union(*below)

    for key in keys(found):
        assert f"`{key}`" in page, key


@pytest.mark.parametrize("name", LOGS)
def test_findings_become_the_json_that_they_always_were(name, tmp_path, monkeypatch):
    """golden/ was written by the code that computed dictionaries; what was added or tested anew since is in it too."""
    monkeypatch.setattr("fedpbc.audit.evidence.site", lambda: None)
    text = (Path(__file__).parent / "golden" / f"{name}.json").read_text(encoding="utf-8")
    written = json.dumps(audit(LOGS[name](tmp_path)).to_dict(), indent=1, allow_nan=False) + "\n"
    number = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")
    assert number.sub("0", written) == number.sub("0", text)
    found, expected = (np.array(number.findall(each), float) for each in (written, text))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_what_json_does_not_know_is_not_written():
    assert to_json(np.array([0.5, np.nan])) == [0.5, None]
    assert to_json({"a": (1, None, True)}) == {"a": [1, None, True]}
    with pytest.raises(TypeError, match="hold complex"):
        to_json(1j)


def test_numbers_of_a_two_group_log():
    p = two_groups(0.1, 0.9, 40)
    found = audit(log_of(p, 4000))
    rate = np.array(found.participation.rate)
    np.testing.assert_allclose(rate, p, atol=5 * np.sqrt(0.09 / 4000))
    exact = fedavg_weights(p)
    np.testing.assert_allclose(found.bias.realised_weight, exact, rtol=0.3)
    assert found.bias.total_variation == pytest.approx(np.abs(exact - 1 / 40).sum() / 2, abs=0.01)
    assert found.bias.total_variation_theoretical == pytest.approx(found.bias.total_variation, abs=0.01)
    assert found.mixing.local_work_ratio == pytest.approx(2, rel=0.02)
    assert {entry.client for entry in found.bias.most_over} <= {str(i) for i in range(20, 40)}
    assert all(entry.ratio < 1 for entry in found.bias.most_under)


@pytest.mark.parametrize(
    ("p", "rounds", "rule"),
    [
        (two_groups(0.1, 0.9), 1000, "biased"),
        (two_groups(0.5, 0.9), 1000, "biased"),
        (np.r_[0.832, 0.104, np.full(148, 0.1)], 3000, "even"),
        (two_groups(0.5, 0.5), 2000, "even"),
        (two_groups(0.5, 0.7), 5000, "between"),
        (two_groups(0.1, 0.1), 30, "by-chance"),
    ],
)
def test_the_experiments_of_the_results_page_get_the_advice_they_support(p, rounds, rule):
    """Sections 1 and 2 of docs/results.md give the thresholds; they must come out on their own sides."""
    given = rules_for(log_of(p, rounds))
    assert [name for name in given if name in ("biased", "even", "between", "by-chance")] == [rule]
    assert ("only-active-compute" in given) == (rule == "biased")


def test_memory_decides_between_correcting_the_drift_and_not():
    p, rng = two_groups(0.1, 0.9, 20), np.random.default_rng(0)
    plain = rng.random((2000, 20)) < p
    sticky = plain.copy()
    for t in range(1, 2000):
        sticky[t] = np.where(rng.random(20) < 0.9, sticky[t - 1], plain[t])
    for table, expected in ((plain, "correct-drift"), (sticky, "memory")):
        given = rules_for(ParticipationLog.from_matrix(table))
        assert "biased" in given
        assert [name for name in given if name in ("correct-drift", "memory")] == [expected]


def test_memory_that_may_be_chance_decides_nothing():
    """Two clients, the one always there, the other in runs: r = .55 in 24 rounds, which is not significant at .01."""
    runs = np.repeat([True, False, True, False, True, False], [3, 3, 3, 6, 3, 6])
    log = ParticipationLog.from_matrix(np.column_stack([np.ones(24, bool), runs]))
    memory = audit(log).stationarity.autocorrelation
    assert memory.pooled > MEMORY
    assert memory.p_value > 0.01
    given = rules_for(log)
    assert "correct-drift" in given
    assert "memory" not in given


def test_slow_mixing_begins_where_the_experiments_end():
    """A cool-down of between 200 and 2000 rounds is no quick one, and one of less is no slow one."""
    for p, quick in ((two_groups(0.02, 0.2, 20), False), (two_groups(0.3, 0.9, 20), True)):
        log = log_of(p, 3000)
        assert (audit(log).mixing.distance_cooldown_rounds_1e3 <= 200) == quick
        assert cooldown_rounds(p, 1e-6) < (200 if quick else 2000)
        given = rules_for(log)
        assert [name for name in given if name in ("cool-down", "slow-mixing")] == [
            "cool-down" if quick else "slow-mixing"
        ]


def test_thresholds_are_those_of_the_experiments():
    variation = [np.abs(fedavg_weights(p) - 1 / len(p)).sum() / 2 for p in (
        two_groups(0.5, 0.9), np.r_[0.832, 0.104, np.full(148, 0.1)])]  # fmt: skip
    assert HARMFUL < variation[0] < HARMFUL + 0.01
    assert HARMLESS - 0.015 < variation[1] < HARMLESS


def test_absent_and_separated_clients_get_advice():
    table = np.random.default_rng(0).random((300, 9)) < 0.5
    table[::2, :4] = False
    table[1::2, 4:] = False
    table[:, 8] = False
    found = audit(ParticipationLog.from_matrix(table))
    assert found.participation.components == (("0", "1", "2", "3"), ("4", "5", "6", "7"))
    assert found.participation.never_seen == ("8",)
    assert not found.participation.meets_all
    assert {"never-meet", "never-seen"} <= {entry.rule for entry in found.advice}
    assert found.mixing.distance_cooldown_rounds_1e3 is None


def test_drift_gets_advice():
    table = np.random.default_rng(0).random((400, 10)) < np.linspace(0.1, 0.8, 400)[:, None]
    assert "changing" in rules_for(ParticipationLog.from_matrix(table))


def test_every_rule_cites_a_section_that_exists_or_says_not_known():
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        if rule.evidence != UNKNOWN:
            assert rule.evidence.startswith("docs/results.md, section")
            numbers = re.search(r"sections? ([\d, and]+)", rule.evidence)[1]
            for number in re.findall(r"\d", numbers):
                assert f"\n## {number}. " in results, rule.name


def test_groups_and_sizes_are_compared():
    log = log_of(two_groups(0.2, 0.8, 10), 2000)
    log = ParticipationLog(
        **{**vars(log), "groups": ["rural"] * 5 + ["city"] * 5, "sizes": np.r_[np.ones(5), 4 * np.ones(5)]}
    )
    found = audit(log)
    city, rural = found.bias.by_group
    assert (city.group, rural.group, city.share_of_clients) == ("city", "rural", 0.5)
    assert city.share_of_samples == pytest.approx(0.8)
    assert city.weight == pytest.approx(sum(found.bias.realised_weight[5:]))
    assert found.bias.total_variation_to_sizes == pytest.approx(
        np.abs(np.array(found.bias.realised_weight) - log.sizes / 25).sum() / 2
    )


@pytest.mark.parametrize("log", [
    log_of(two_groups(0.1, 0.9, 20), 300),
    log_of(np.full(3, 0.5), 2),
    ParticipationLog([], 50, 1, np.empty(0, np.int32), np.empty(0, np.int32), counts_only=np.arange(50)),
    ParticipationLog.from_matrix(np.eye(4, dtype=bool)),
    ParticipationLog.from_matrix(np.ones((200, 4), bool)),
    ParticipationLog.from_matrix(np.eye(2, dtype=bool), ["[red]x[/red]", "\x1b[31m" + "y" * 300]),
])  # fmt: skip
def test_the_report_is_one_page_for_any_log(log):
    console = Console(width=100, record=True, force_terminal=False, file=io.StringIO())
    console.print(report(audit(log)))
    text = console.export_text()
    assert len(text.splitlines()) <= 50
    assert all(f"{number}. " in text for number in range(1, 6))
    assert "\x1b" not in text
    assert "nan" not in text.replace("nant", "")


@pytest.fixture
def file(tmp_path):
    table = np.random.default_rng(0).random((60, 5)) < 0.5
    rows = "".join(f"{t},{i},{int(table[t, i])}\n" for t in range(60) for i in range(5))
    (tmp_path / "log.csv").write_text(f"round,client,active\n{rows}")
    return tmp_path / "log.csv"


def test_the_command_leaves_two_files_and_says_so(fedpbc, file, tmp_path):
    status, out, err = fedpbc("audit", "log.csv", "--clients", "6")
    assert (status, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "audit-log").iterdir()) == ["audit.html", "audit.json"]
    found = json.loads((tmp_path / "audit-log" / "audit.json").read_text())
    assert (found["log"]["num_clients"], found["participation"]["never_seen"]) == (6, ["5"])
    assert "5. What should I use?" in out
    assert "audit-log: audit.json, audit.html" in out
    assert fedpbc("audit", "log.csv")[0] == 0  # over its own earlier audit


def test_without_matplotlib_there_is_no_page_and_no_stale_one(fedpbc, file, tmp_path, monkeypatch):
    assert fedpbc("audit", "log.csv")[0] == 0
    for name in [
        name for name in sys.modules if name.startswith(("matplotlib", "fedpbc.audit.page", "fedpbc.audit.fig"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr(importlib.import_module("fedpbc.audit"), "page", raising=False)
    monkeypatch.delattr(importlib.import_module("fedpbc.audit"), "figures", raising=False)
    status, out, _ = fedpbc("audit", "log.csv")
    assert status == 0
    assert "no audit.html: needs matplotlib" in out
    assert [path.name for path in (tmp_path / "audit-log").iterdir()] == ["audit.json"]


def test_a_folder_with_other_things_is_left_alone(fedpbc, file, tmp_path):
    (tmp_path / "audit-log").mkdir()
    (tmp_path / "audit-log" / "thesis.txt").write_text("x")
    status, out, err = fedpbc("audit", "log.csv")
    assert (status, out) == (2, "")
    assert err == "error: --out audit-log: holds thesis.txt; must be new, empty, or hold only an earlier audit\n"
    assert fedpbc("audit", "log.csv", "--out", "log.csv")[0] == 2


@pytest.mark.parametrize("content", ["", "round,client\n1,a\n2,a\n", "round,client,active\n1,a,1\n3,b,1\n"])
def test_bad_logs_end_with_status_2_one_line_and_no_output(fedpbc, tmp_path, content):
    (tmp_path / "bad.csv").write_text(content)
    status, out, err = fedpbc("audit", "bad.csv")
    assert (status, out) == (2, "")
    assert err.startswith("error: bad.csv: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "audit-bad").exists()


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ConfigError, match="no client is active"):
        audit(ParticipationLog(["a", "b"], 3, 0, np.empty(0, np.int32), np.empty(0, np.int32), source="x"))


def test_an_audit_needs_no_jax(file):
    code = (
        "import sys; from fedpbc.audit import audit, read_log; audit(read_log(sys.argv[1])); "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('jax', 'matplotlib', 'pyarrow')]"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, timeout=600)


def test_the_whole_command_needs_no_jax(tmp_path):
    """The page too: its pictures need matplotlib alone."""
    (tmp_path / "log.csv").write_text("round,client\n0,a\n0,b\n1,a\n2,b\n3,a\n3,b\n")
    code = (
        "import sys; sys.modules['jax'] = None; sys.argv = ['fedpbc', 'audit', 'log.csv', '--out', 'out'];"
        "from fedpbc import cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["audit.html", "audit.json"]
