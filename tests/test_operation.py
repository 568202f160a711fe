"""What an operator sees: standing, alerts, page and Prometheus file, from logs made up here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpbc.operation.alerts import CODES, Alerts, Limits
from fedpbc.operation.standing import Standing, duration
from fedpbc.operation.watch import Watch

START = 1_700_000_000.0


def line_of(t: int, heard: list[str], **more: Any) -> dict[str, Any]:
    base = {
        "round": t, "time": START + 30 * t, "active": len(heard), "known": 4, "catching_up": {}, "refused": [],
        "failed": [], "busy": [], "late": [], "bytes_down": 10, "bytes_up": 7, "seconds": 30.0, "of": 100,
    }  # fmt: skip
    return base | more


def write(folder: Path, lines: list[tuple[dict[str, Any], list[str]]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line, _ in lines))
    (folder / "participation.jsonl").write_text(
        "".join(json.dumps({"round": line["round"], "clients": heard}) + "\n" for line, heard in lines)
    )


def failed(client: str, reason: str) -> dict[str, str]:
    return {"client": client, "reason": reason}


SILENCE = "no reply within 60 s"


def story() -> list[tuple[dict[str, Any], list[str]]]:
    """Ten rounds: a is always heard, b fails from round 4 on, c lags, d never answers."""
    lines = []
    for t in range(10):
        heard = ["a"] + (["b"] if t < 4 else []) + (["c"] if t % 5 == 0 else [])
        trouble = [failed("d", SILENCE)] + ([failed("b", f"ValueError: batch {t}")] if t >= 4 else [])
        catching = {"c": 5 - t % 5} if t % 5 else {}
        late = [{"client": "c", "round": t - 1, "seconds": 2.5 + t}] if t == 6 else []
        lines.append((line_of(t, heard, failed=trouble, catching_up=catching, late=late), heard))
    return lines


def test_the_standing_is_what_the_lines_say(tmp_path):
    write(tmp_path, story())
    watch = Watch(tmp_path, Limits())
    watch.look(lambda: START + 300)
    standing = watch.standing
    found = {c.name: (c.state, c.heard, c.last, standing.missed(c), c.behind, c.late) for c in standing.ordered()}
    assert found == {
        "a": ("heard", 10, 9, 0, 0, None),
        "b": ("failed", 4, 3, 6, 0, None),
        "c": ("catching up", 2, 5, 4, 1, 8.5),
        "d": ("silent", 0, None, 10, 0, None),
    }
    assert [c.name for c in standing.ordered()] == ["d", "b", "c", "a"]
    assert (standing.rounds, standing.target, standing.bytes_down, standing.bytes_up) == (10, 100, 100, 70)
    assert standing.rounds_a_day() == pytest.approx(86400 / 30)
    assert standing.remaining() == pytest.approx(90 * 30)


def test_lines_are_read_once_and_whole(tmp_path):
    """A half line is waited for, and the two logs need not be at the same round."""
    lines = story()
    write(tmp_path, lines[:3])
    watch = Watch(tmp_path, Limits())
    watch.look()
    text = json.dumps(lines[3][0]) + "\n"
    with open(tmp_path / "participation.jsonl", "a") as file:
        file.write(json.dumps({"round": 3, "clients": lines[3][1]}) + "\n")
    for part, rounds in ((text[:40], 3), (text[40:-1], 3), ("\n", 4)):
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write(part)
        watch.look()
        assert watch.standing.rounds == rounds
    assert watch.standing.clients["a"].heard == 4


def test_lines_that_are_cut_off_are_read_anew(tmp_path):
    """A server that is killed drops the lines of the round that did not come to count."""
    lines = story()
    write(tmp_path, lines[:5])
    watch = Watch(tmp_path, Limits())
    watch.look()
    write(tmp_path, lines[:4])
    watch.look()
    assert (watch.standing.rounds, watch.standing.clients["a"].heard) == (4, 4)


def test_alerts_are_raised_once_and_cleared(tmp_path):
    limits, said = Limits(silent_rounds=7, repeats=3, bias=0.9), []
    alerts, standing = Alerts(limits), Standing()
    lines = [*story(), *((line_of(t, list("abcd")), list("abcd")) for t in (10, 11))]
    for line, heard in lines:
        standing.add(line, heard)
        said += [(line["round"], text) for text in alerts.look(standing, line["time"])]
    assert [(t, *text.split(" ", 3)[1:3]) for t, text in said] == [
        (6, "ALERT", "FED102"), (6, "ALERT", "FED101"), (10, "CLEAR", "FED102"), (10, "CLEAR", "FED101"),
    ]  # fmt: skip
    assert said[1][1] == (
        '2023-11-14T22:16:20Z ALERT FED101 client "d" not heard for 7 rounds, never so far: no reply within 60 s'
    )
    assert said[0][1].endswith('FED102 client "b" failed 3 times in a row: ValueError: batch 6')
    assert said[2][1].endswith('CLEAR FED102 client "b", round 11')
    assert alerts.counts() == dict.fromkeys(CODES, 0)


def test_nobody_and_no_round():
    alerts, standing = Alerts(Limits(stalled=600)), Standing()
    for t in range(3):
        standing.add(line_of(t, []), [])
    assert [text.split(" ", 3)[2] for text in alerts.look(standing, START + 61)] == ["FED105"]
    (line,) = alerts.look(standing, START + 60 + 601)
    assert line.endswith("ALERT FED104 no round was closed for 10 min 1 s, after round 3")
    standing.add(line_of(99, ["a"]), ["a"])  # the last of all
    over = alerts.look(standing, START + 10**6)
    assert [text.split(" ", 3)[1:3] for text in over] == [["CLEAR", "FED105"], ["CLEAR", "FED104"]]


@pytest.mark.parametrize(("p", "raised"), [([0.9, 0.9, 0.9, 0.9], False), ([0.95, 0.95, 0.1, 0.1], True)])
def test_the_bias_is_the_audits(p, raised):
    alerts, standing = Alerts(Limits(silent_rounds=10**6)), Standing()
    rng, said = np.random.default_rng(1), []
    for t in range(80):
        heard = [name for name, q in zip("abcd", p, strict=True) if rng.random() < q]
        standing.add(line_of(t, heard), heard)
        said += alerts.look(standing, START + 30 * t)
    assert [text.split(" ", 3)[1:3] for text in said] == ([["ALERT", "FED103"]] if raised else [])


def test_prometheus_can_read_it(tmp_path):
    write(tmp_path / "in", [(line_of(0, ['o"d\\d']), ['o"d\\d']), *story()[1:]])
    out = tmp_path / "fedpbc.prom"
    Watch(tmp_path / "in", Limits(silent_rounds=9), metrics=out).look(lambda: START + 300)
    samples, kinds = {}, {}
    for line in out.read_text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = re.fullmatch(r'([a-z_]+)(?:\{([a-z]+)="((?:[^"\\]|\\["\\n])*)"\})? (\S+)', line)
            assert found, line
            samples[found[1], found[3]] = float(found[4])
    assert {name for name, _ in samples} == set(kinds)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())
    assert samples["fedpbc_rounds_total", None] == 10
    assert samples["fedpbc_client_missed_rounds", "b"] == 6
    assert samples["fedpbc_client_heard_total", r"o\"d\\d"] == 1
    assert samples["fedpbc_alerts", "FED101"] == 2
    assert samples["fedpbc_remaining_seconds", None] == pytest.approx(2700)
    assert [path.name for path in tmp_path.iterdir()] in (["in", "fedpbc.prom"], ["fedpbc.prom", "in"])


def test_the_page_shows_names_as_they_are(tmp_path):
    lines = story()
    lines[-1] = (line_of(9, ["<b>x</b>"], failed=[failed("d", "<script>")]), ["<b>x</b>"])
    write(tmp_path, lines)
    out = tmp_path / "page.html"
    Watch(tmp_path, Limits(silent_rounds=10), out=out).look(lambda: START + 300)
    text = out.read_text()
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert "<script" not in text
    assert "<b>" not in text
    assert 'http-equiv="refresh" content="5"' in text
    assert "FED101 client &quot;d&quot; not heard for 10 rounds" in text
    assert "round 10 of 100, 1 of 4 clients heard, 30.0 s a round, 2,880 rounds a day, 45 min 0 s left" in text


def test_the_command(fedpbc, tmp_path):
    write(tmp_path, story())
    status, out, _ = fedpbc("flower", "watch", str(tmp_path), "--once", "--silent-rounds", "10", "--stalled", "1e12")
    assert status == 3
    assert 'FED101 client "d" not heard for 10 rounds' in out
    assert re.search(r"^c +catching up +2 +6 +4 +1 +8\.5 s", out, re.MULTILINE)
    status, out, _ = fedpbc("flower", "watch", str(tmp_path), "--once", "--repeats", "99", "--stalled", "1e12")
    assert (status, "FED" in out) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--once"], "nowhere: no such directory; it is the directory=... of a strategy"),
        ([".", "--every", "0"], "--every 0: must be from 0.1 to 3600 seconds"),
        ([".", "--html", "no/where.html"], "--html no/where.html: "),
    ],
)
def test_bad_input_is_one_line(fedpbc, arguments, message):
    status, _, error = fedpbc("flower", "watch", *arguments)
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "not known"), (59, "59 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90000, "1 d 1 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("changed", "heard"),
    [({"time": "x"}, ["a"]), ({"time": float("nan")}, ["a"]), ({"bytes_up": None}, ["a"]), ({"of": "x"}, ["a"]),
     ({"seconds": None}, ["a"]), ({"failed": [3]}, ["a"]), ({"refused": [{"client": "b"}]}, ["a"]),
     ({"catching_up": {"b": "x"}}, ["a"]), ({"busy": "ab"}, ["a"]), ({"late": [{"client": "b"}]}, ["a"]),
     ({"round": -1}, ["a"]), ({}, None), ({}, "abc"), ({}, [1])],
)  # fmt: skip
def test_lines_that_no_strategy_writes_are_one_line(fedpbc, tmp_path, changed, heard):
    write(tmp_path / "federation", [(line_of(0, ["a"]) | changed, heard)])
    status, out, error = fedpbc("flower", "watch", "federation", "--once", "--html", "page.html")
    key = next(iter(changed), "clients")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert f": {key} = " in error
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    "arguments",
    [("watch", "d", "--stalled", "nan"), ("watch", "d", "--bias", "nan"), ("run", "d", "--directory", "e", "--every",
     "nan"), ("run", "d", "--directory", "e", "--silent", "inf")],
)  # fmt: skip
def test_limits_are_finite(fedpbc, arguments):
    status, _, error = fedpbc("flower", *arguments)
    assert status == 2
    assert "is not a finite number" in error
    assert not Path("e").exists()


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nflwr = 3", "[tool.flwr.app]\nconfig = 'directory'"])
def test_an_app_without_a_run_config_is_one_line(fedpbc, text):
    Path("app").mkdir()
    Path("app/pyproject.toml").write_text(text)
    status, _, error = fedpbc("flower", "run", "app", "--directory", "e")
    assert (status, error.count("\n")) == (2, 1)
    assert "has no directory under [tool.flwr.app.config]" in error
    assert not Path("e").exists()


@pytest.mark.parametrize("name", ["class", "json", "flwr", "a" * 300])
def test_an_app_that_python_could_not_import_is_refused(fedpbc, name):
    status, _, error = fedpbc("flower", "new", name)
    assert (status, error.count("\n")) == (2, 1)
    assert "APP" in error
    assert not list(Path().iterdir())
