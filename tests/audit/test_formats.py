"""Every format, told from the content, gives the log that its rows say; oracles are loops over rounds."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fedpbc.audit import read_log
from fedpbc.errors import ConfigError, MissingPackage
from fedpbc.io.participation import FORMATS

T, M = 40, 5
NAMES = ["a", "b", "c", "d", "e"]
ACTIVE = np.random.default_rng(0).random((T, M)) < np.linspace(0.2, 0.8, M)
ACTIVE[:, 0] |= ~ACTIVE.any(1)
START = 1772323200  # midnight


def matrix(log) -> np.ndarray:
    table = np.zeros((log.num_rounds, len(log.clients)), bool)
    table[log.rounds, log.members] = True
    return table


def rows(yes="1", no="0"):
    return [(t, NAMES[i], yes if ACTIVE[t, i] else no) for t in range(T) for i in range(M)]


def separated(separator: str, header, lines) -> bytes:
    out = io.StringIO()
    csv.writer(out, delimiter=separator, lineterminator="\n").writerows([header, *lines])
    return out.getvalue().encode()


HEADER = ("round", "client", "active")
WIDE = [("round", *NAMES), *((t, *ACTIVE[t].astype(int)) for t in range(T))]
EVENTS = [dict(zip(("round", "client", "status"), row, strict=True)) for row in rows("ok", "lost")]
ROUNDS = [{"round": t, "clients": [NAMES[i] for i in np.flatnonzero(ACTIVE[t])]} for t in range(T)]
OK = {"active_column": "status=ok"}
LINES = "\n".join(map(json.dumps, EVENTS)).encode()
TEXTS = {
    "tsv": (separated("\t", HEADER, rows()), {}, "csv"),
    "semicolon": (separated(";", HEADER, rows("yes", "no")), {}, "csv"),
    "fractions": (separated(",", HEADER, rows("1.0", "0.0")), {}, "csv"),
    "words": (separated(",", ("round", "client", "status"), rows("ok", "failed")), OK, "csv"),
    "renamed": (separated(",", ("r", "device_id", "active"), rows()), {"columns": "round=r,client=device_id"}, "csv"),
    "numbered": (separated(",", HEADER, rows()).split(b"\n", 1)[1], {"columns": "round=1,client=2,active=3"}, "csv"),
    "wide": (separated(",", WIDE[0], WIDE[1:]), {}, "csv"),
    "wide, index of pandas": (separated(",", ("", *NAMES), WIDE[1:]), {}, "csv"),
    "array of events": (json.dumps(EVENTS, indent=1).encode(), OK, "json"),
    "array of rounds": (json.dumps(ROUNDS).encode(), {}, "json"),
    "lines of events": (LINES, OK, "jsonl"),
    "lines of rounds": ("\n".join(map(json.dumps, ROUNDS)).encode(), {}, "jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", list(TEXTS))
def test_text_in_every_form_is_told_from_its_content(tmp_path, kind, packed):
    content, options, name = TEXTS[kind]
    path = tmp_path / "log"  # no ending says what it is
    path.write_bytes(gzip.compress(content) if packed else content)
    log = read_log(path, **options)
    np.testing.assert_array_equal(matrix(log), ACTIVE)
    assert (log.clients, log.format) == (NAMES, name)


def test_standard_input_is_read(monkeypatch, fedpbc, tmp_path):
    content = gzip.compress(separated(";", HEADER, rows()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    status, out, err = fedpbc("audit", "-", "--json", "-")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["log"]["format"], found["log"]["source"]) == ("csv", "standard input")
    assert found["participation"]["rate"] == pytest.approx(ACTIVE.mean(0).tolist())
    assert list(tmp_path.iterdir()) == []


def test_a_database_is_read_by_table_or_query(tmp_path):
    path = tmp_path / "fl.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE heard (round INT, client TEXT, active INT)")
        database.executemany("INSERT INTO heard VALUES (?, ?, ?)", rows(1, 0))
        database.execute("CREATE TABLE models (round INT, loss REAL)")
    database.close()
    np.testing.assert_array_equal(matrix(read_log(path, table="heard")), ACTIVE)
    query = "SELECT round AS r, client FROM heard WHERE active"
    np.testing.assert_array_equal(matrix(read_log(path, query=query, columns="round=r")), ACTIVE)
    for options, message in (
        ({}, "holds 2 tables: --table NAME, one of heard, models"),
        ({"table": "hear"}, r'--table "hear": no such table .did you mean "heard"'),
        ({"table": "models"}, "column client is missing"),
        ({"query": "SELECT loss FROM heard"}, "--query .*no such column: loss"),
        ({"query": "DELETE FROM heard"}, "--query .*must be a SELECT|readonly"),
        ({"table": "heard", "query": "x"}, "choose one of it and --table"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            read_log(path, **options)
        assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(matrix(read_log(path, table="heard")), ACTIVE)
    sqlite3.connect(tmp_path / "empty.db").execute("PRAGMA user_version = 1").connection.close()
    with pytest.raises(ConfigError, match="an SQLite database without a table"):
        read_log(tmp_path / "empty.db")


def test_a_workbook_is_read_or_its_package_named(tmp_path, monkeypatch):
    (tmp_path / "log.xlsx").write_bytes(b"PK\x03\x04broken")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "openpyxl", None)
        with pytest.raises(MissingPackage, match=r"log.xlsx: Excel needs openpyxl: .*pip install") as caught:
            read_log(tmp_path / "log.xlsx")
    assert "\n" not in str(caught.value)
    openpyxl = pytest.importorskip("openpyxl")
    with pytest.raises(ConfigError, match="cannot be read as a workbook, is it truncated"):
        read_log(tmp_path / "log.xlsx")
    book = openpyxl.Workbook()
    book.active.title = "heard"
    for row in [("Round", "Client", "Active"), *rows(1, 0)]:
        book.active.append(row)
    book.save(tmp_path / "one.xlsx")
    np.testing.assert_array_equal(matrix(read_log(tmp_path / "one.xlsx")), ACTIVE)
    other = book.create_sheet("by time")
    for t, client, status in rows("ok", "lost"):
        other.append((datetime(2026, 3, 1) + timedelta(minutes=t), client, status))
    other.insert_rows(1)
    for k, name in enumerate(("time", "client", "status"), start=1):
        other.cell(1, k, name)
    book.save(tmp_path / "two.xlsx")
    with pytest.raises(ConfigError, match="holds 2 sheets: --table NAME, one of heard, by time"):
        read_log(tmp_path / "two.xlsx")
    log = read_log(tmp_path / "two.xlsx", table="by time", round_seconds=60, **OK)
    np.testing.assert_array_equal(matrix(log), ACTIVE)


@pytest.mark.filterwarnings("ignore:Feather V1")
@pytest.mark.parametrize("version", [1, 2])
def test_feather_is_read(tmp_path, version):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather

    columns = dict(zip(("when", "client", "active"), map(list, zip(*rows(True, False), strict=True)), strict=True))
    moments = [datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=30 * t) for t in columns.pop("when")]
    columns["time"] = moments if version == 2 else [moment.timestamp() + 0.25 for moment in moments]
    feather.write_feather(pa.table(columns), tmp_path / "log", version=version)
    log = read_log(tmp_path / "log", round_seconds=30)
    np.testing.assert_array_equal(matrix(log), ACTIVE)
    assert log.format == "feather"


def times(write, step=30):
    """Rows of the active pairs, with a time of their own within the round."""
    rng = np.random.default_rng(1)
    return [(write(START + step * t + rng.uniform(0.1, 2)), NAMES[i]) for t, i in np.argwhere(ACTIVE)]


def iso(zone=UTC):
    return lambda seconds: datetime.fromtimestamp(seconds, zone).isoformat()


@pytest.mark.parametrize(("name", "write", "note"), [
    ("time", iso(), "a round is floor(time / 30 s), counted from the first, which is 0"),
    ("timestamp", lambda s: f"{s:.3f}", "times are in seconds"),
    ("ts", lambda s: f"{s * 1000:.2f}", "times are in milliseconds"),
    ("ts", lambda s: f"{s * 1e9:.17e}", "times are in nanoseconds"),
    ("ts", lambda s: f"{s * 1e9:.1f}", "times are in nanoseconds"),
    ("ts", lambda s: int(1000 * s), "in milliseconds"),
    ("TS", lambda s: datetime.fromtimestamp(s, UTC).strftime("%Y-%m-%d %H:%M:%S,%f"), "times have no zone"),
])  # fmt: skip
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_times_become_rounds(tmp_path, name, write, note, ending):
    lines = times(write)
    path = tmp_path / f"log.{ending}"
    keys = (name.lower(), "client")
    as_json = json.dumps([dict(zip(keys, line, strict=True)) for line in lines]).encode()
    path.write_bytes(separated(",", (name, "client"), lines) if ending == "csv" else as_json)
    with pytest.raises(ConfigError, match=r"holds times.*: --round-seconds .*--round-gap auto"):
        read_log(path)
    log = read_log(path, round_seconds=30)
    np.testing.assert_array_equal(matrix(log), ACTIVE)
    assert any(note in each for each in log.notes)
    np.testing.assert_array_equal(matrix(read_log(path, round_gap="auto")), ACTIVE)
    np.testing.assert_array_equal(matrix(read_log(path, round_gap="10")), ACTIVE)
    shifted = read_log(path, round_seconds=30, round_start=str(START + 15), missing_rounds="empty")
    assert shifted.num_rounds == T  # all times are before the shifted beginnings, in the rounds before
    halves = read_log(path, round_seconds=60, round_start=str(START + 30), drop_duplicates=True)
    expected = np.concatenate([ACTIVE[:1], ACTIVE[1:-1].reshape(-1, 2, M).any(1), ACTIVE[-1:]])
    np.testing.assert_array_equal(matrix(halves), expected)


def test_what_is_wrong_with_times_is_said(tmp_path):
    zone = "2026-03-01T00:00:00+01:00"
    for content, options, message in (
        (f"{zone},a\n2026-03-01T00:00:30,b\n", {}, "line 3: time has none of a time zone, times before it have one"),
        ("1772323200,a\n2026-03-01T00:00:30Z,b\n", {}, "line 3: time must be a whole number .* like the times before"),
        (f"{zone},a\nnoon,b\n", {}, 'line 3: time must be a time, Unix time or like .*, is "noon"'),
        (f"{zone},a\n,b\n", {}, "line 3: time must be a time, .*is empty"),
        (f"{zone},a\n{zone},b\n", {"round_start": "soon"}, '--round-start "soon": must be a time'),
        (f"{zone},a\n{zone},b\n", {"round_start": "2026-03-01"}, "must have a time zone"),
        (
            "1,a\n2,b\n3,a\n",
            {"round_seconds": None, "round_gap": "auto"},
            "no pause .* stands out.*--round-gap SECONDS",
        ),
        ("1,a\n2,b\n", {"round_gap": "10"}, "--round-gap 10: choose one of it and --round-seconds"),
        ("1,a\n2,b\n", {"round_seconds": None, "round_start": "3"}, "--round-start 3: needs --round-seconds N"),
        ("1,a\n2,b\n", {"round_seconds": None, "round_gap": "soon"}, "must be auto or a number of seconds"),
    ):
        (tmp_path / "log.csv").write_text("time,client\n" + content)
        with pytest.raises(ConfigError, match=message):
            read_log(tmp_path / "log.csv", **({"round_seconds": 30} | options))
    (tmp_path / "log.csv").write_text(f"time,client\n{zone},a\n2026-02-28T23:00:10Z,b\n")
    assert read_log(tmp_path / "log.csv", round_seconds=30).num_rounds == 1  # zones may differ: the times are the same


def up(intervals, begin, end, throughout):
    """Is a client up when the round begins, or throughout it: by rounds of whole seconds."""
    seconds = np.zeros(10_000, bool)
    for low, high in intervals:
        seconds[low:high] = True
    return bool(seconds[begin:end].all()) if throughout else bool(seconds[begin])


INTERVALS = {"a": [(0, 65), (65, 130), (200, 390)], "b": [(40, 100), (90, 300)], "c": [(10, 390)]}


@pytest.mark.parametrize("when", [None, "start", "throughout"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "avt", "evt", "fta", "fta failures", "fedscale"])
def test_intervals_become_rounds(tmp_path, kind, when):
    path = tmp_path / "log"
    if kind == "csv":
        lines = [(name, *pair) for name, pairs in INTERVALS.items() for pair in pairs]
        path.write_bytes(separated(",", ("client", "start", "end"), lines))
    elif kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        lines = [(name, *pair) for name, pairs in INTERVALS.items() for pair in pairs]
        pq.write_table(pa.table(dict(zip(("client", "start", "end"), zip(*lines, strict=True), strict=True))), path)
    elif kind == "avt":
        path.write_text("".join(
            f"{name} {len(pairs)} {' '.join(f'{low} {high}' for low, high in pairs)}\n"
            for name, pairs in INTERVALS.items()
        ))  # fmt: skip
    elif kind == "evt":
        changes = [(0, "a", "up"), (10, "c", "up"), (40, "b", "up"), (130, "a", "down"), (200, "a", "up"),
                   (300, "b", "down"), (390, "a", "down"), (390, "c", "down")]  # fmt: skip
        path.write_text("".join(f"{t} {name} {what}\n" for t, name, what in changes))
    elif kind == "fedscale":
        path.write_text(json.dumps({
            name: {"active": [low for low, _ in pairs], "inactive": [high for _, high in pairs], "finish_time": 390}
            for name, pairs in INTERVALS.items()
        }))  # fmt: skip
    else:
        only_failures = kind == "fta failures"
        down = {"a": [(130, 200)], "b": [(0, 40), (300, 390)], "c": [(0, 10)]}
        found = down if only_failures else INTERVALS
        text = "# event_id\tcomponent_id\tnode_id\tplatform_id\tnode_name\tevent_type\tstart\tstop\treason\n"
        for number, (name, pairs) in enumerate(found.items()):
            text += "".join(
                f"{number}\t1\t{number}\t0\t{name}\t{int(not only_failures)}\t{low}.0\t{high}.0\tNULL\n"
                for low, high in pairs
            )
        path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ConfigError, match=r"holds intervals, half of them .*--round-seconds N"):
        read_log(path)
    log = read_log(path, round_seconds=30, active_when=when)
    rounds = range(0, 390, 30)
    expected = [[up(INTERVALS[name], t, t + 30, when == "throughout") for name in "abc"] for t in rounds]
    np.testing.assert_array_equal(matrix(log), expected)
    assert log.clients == ["a", "b", "c"]
    assert {"evt": "avt-events", "fta failures": "fta"}.get(kind, kind) == log.format


def test_intervals_may_be_open_have_zones_and_failed_ones(tmp_path):
    (tmp_path / "log.csv").write_text(
        "client,start,end,state\na,2026-03-01T00:00:00Z,2026-03-01T00:02:00Z,up\nb,2026-03-01T01:01:00+01:00,,up\n"
        "b,2026-03-01T00:00:00Z,2026-03-01T00:01:00Z,down\nc,2026-03-01T00:00:00Z,2026-03-01T00:03:00Z,up\n"
    )
    log = read_log(tmp_path / "log.csv", round_seconds=60, active_column="state=up")
    np.testing.assert_array_equal(matrix(log), [[1, 0, 1], [1, 1, 1], [0, 1, 1]])
    assert any("1 intervals have no end" in note for note in log.notes)
    (tmp_path / "log.csv").write_text("client,start,end\na,9,3\n")
    with pytest.raises(ConfigError, match="line 2: the interval ends before it begins"):
        read_log(tmp_path / "log.csv", round_seconds=1)


def spot(folder, data, gap=195):
    folder.mkdir(exist_ok=True)
    for name, values in data.items():
        (folder / f"{name}.json").write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": values}))
    return folder


def test_a_folder_of_spot_traces(tmp_path):
    folder = spot(tmp_path / "zones", {name: ACTIVE[:, i].astype(int).tolist() for i, name in enumerate(NAMES)})
    with pytest.raises(
        ConfigError, match=r"--active-column data=1 if 1 is available, --active-column data=0 if 1 is pre"
    ):
        read_log(folder)
    np.testing.assert_array_equal(matrix(read_log(folder, active_column="data=1")), ACTIVE)
    np.testing.assert_array_equal(matrix(read_log(folder, active_column="data=0")), ~ACTIVE)
    log = read_log(folder, active_column="data=1", round_seconds=390)
    np.testing.assert_array_equal(matrix(log), ACTIVE[::2])
    with pytest.raises(ConfigError, match="must be a multiple of gap_seconds, 195"):
        read_log(folder, active_column="data=1", round_seconds=200)
    with pytest.raises(ConfigError, match=r"holds a single machine.*give the folder"):
        read_log(folder / "a.json")
    spot(folder, {"z": [0, 1]}, gap=60)
    with pytest.raises(ConfigError, match="gap_seconds must be the same in all files, is 60 in one and 195 in another"):
        read_log(folder)


def test_spot_traces_of_counts(tmp_path):
    counts = np.random.default_rng(2).integers(0, 5, (30, 3))
    folder = spot(tmp_path / "zones", {name: counts[:, i].tolist() for i, name in enumerate("xyz")})
    np.testing.assert_array_equal(matrix(read_log(folder)), counts > 0)
    np.testing.assert_array_equal(matrix(read_log(folder, active_column="data>=3")), counts >= 3)
    one = read_log(folder / "x.json")
    assert (one.counts_only.tolist(), one.num_clients, one.format) == (counts[:, 0].tolist(), 4, "spot")


def test_flash_devices_are_up_while_locked_charging_and_on_wifi(tmp_path):
    begin = datetime(2020, 1, 2)

    def said(changes):
        return "\n".join(f"{begin + timedelta(minutes=m):%Y-%m-%d %H:%M:%S}\t{state}" for m, state in changes)

    ready = [(0, "wifi"), (0, "screen_lock"), (0, "battery_charged_on")]
    first = [*ready, (30, "screen_unlock"), (50, "screen_lock"), (60, "4G")]
    second = [(0, "80.0%"), *ready, (10, "phone_off"), (60, "screen_on")]
    devices = {
        "1": {"guid": "p", "model": "x", "messages": said(first)},
        "2": {"guid": "q", "model": "y", "messages": said(second)},
    }
    (tmp_path / "log").write_text(json.dumps(devices))
    log = read_log(tmp_path / "log", round_seconds=600)
    np.testing.assert_array_equal(matrix(log).T.astype(int), [[1, 1, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0]])
    assert (log.clients, log.format) == (["p", "q"], "flash")
    devices["1"]["messages"] = "2020-01-02 00:00:00\tdancing"
    (tmp_path / "log").write_text(json.dumps(devices))
    with pytest.raises(ConfigError, match='device "p", line 1: state "dancing" is not known'):
        read_log(tmp_path / "log", round_seconds=600)


FLARE = "2026-03-01 10:00:00,123 - {who} - INFO - [identity=server, run=1, wf=controller] - {text}\n"


def flare_log() -> str:
    text = FLARE.format(who="ClientManager", text="Client: New client site-9@10.0.0.9 joined. Sent token: x")
    for t in range(T):
        text += FLARE.format(who="ScatterAndGather", text=f"Round {t} started.")
        for i in range(M):
            text += FLARE.format(who="ServerRunner", text=f"assigned task to client {NAMES[i]}: name=train, id=1")
            if ACTIVE[t, i]:
                text += FLARE.format(
                    who="ServerRunner", text=f"got result from client {NAMES[i]} for task: name=train, id=1"
                )
            text += FLARE.format(
                who="ServerRunner", text=f"got result from client {NAMES[i]} for task: name=validate, id=2"
            )
    return text


def test_a_result_that_says_it_failed_is_none(tmp_path):
    lines = flare_log().splitlines()
    got = [i for i, line in enumerate(lines) if "got result" in line and "name=train" in line]
    for i, code in zip(got, ("OK", "EXECUTION_EXCEPTION", "OK"), strict=False):
        lines[i] = lines[i].replace("wf=controller]", f"wf=controller, peer=x, peer_rc={code}, task_name=train]")
    (tmp_path / "server.log").write_text("\n".join(lines))
    expected = np.array(ACTIVE, bool)
    expected[tuple(np.argwhere(expected)[1])] = False
    np.testing.assert_array_equal(matrix(read_log(tmp_path / "server.log"))[:, :M], expected)


def test_two_times_that_are_near_make_no_rounds(tmp_path):
    times = [0.0, 0.001, 30.0, 60.0, 90.0, 120.0, 150.0]
    rows = "".join(f"{1772323200 + time:.3f},{'abc'[k % 3]}\n" for k, time in enumerate(times))
    (tmp_path / "log.csv").write_text("time,client\n" + rows)
    with pytest.raises(ConfigError, match=r"no pause .* stands out"):
        read_log(tmp_path / "log.csv", round_gap="auto")


def openfl_log() -> str:
    text = ""
    for t in range(T):
        text += f"INFO     Starting round {t}...             aggregator.py:897\n"
        for i in range(M):
            text += f"INFO     Sending tasks to collaborator {NAMES[i]} for round {t}    aggregator.py:329\n"
            sent = (
                f"INFO     Collaborator {NAMES[i]} is sending task results for train, round {t}   aggregator.py:520\n"
            )
            if ACTIVE[t, i]:
                text += sent
            elif i == 4:  # too late
                text += (
                    sent
                    + f"WARNING  STRAGGLER: Collaborator {NAMES[i]} is reporting results after task train has ended\n"
                )
            text += f"INFO     Collaborator {NAMES[i]} is sending task results for local_validation, round {t}\n"
    return text


@pytest.mark.parametrize(("kind", "text", "never"), [("flare", flare_log(), ["site-9"]), ("openfl", openfl_log(), [])])
def test_server_logs_that_name_clients(tmp_path, kind, text, never):
    (tmp_path / "server.log").write_text(text)
    log = read_log(tmp_path / "server.log")
    assert (log.format, log.clients) == (kind, NAMES + never)
    np.testing.assert_array_equal(matrix(log)[:, :M], ACTIVE)
    assert any("result of task train" in note for note in log.notes)
    other = next(task for task in ("validate", "local_validation") if task in text)
    assert matrix(read_log(tmp_path / "server.log", active_column=f"task={other}"))[:, :M].all()
    with pytest.raises(ConfigError, match=f"--active-column task=NAME: there are results of .*{other}"):
        read_log(tmp_path / "server.log", active_column="task=x")
    (tmp_path / "server.log").write_text(text.replace("=train,", "=fit,").replace("for train,", "for fit,"))
    assert matrix(read_log(tmp_path / "server.log")).any()


def test_groups_come_from_a_column(tmp_path):
    lines = [(*row, "north" if row[1] in "ab" else "south") for row in rows()]
    for ending, content in (
        ("csv", separated(",", (*HEADER, "region"), lines)),
        ("json", json.dumps([dict(zip((*HEADER, "region"), line, strict=True)) for line in lines]).encode()),
    ):
        (tmp_path / f"log.{ending}").write_bytes(content)
        log = read_log(tmp_path / f"log.{ending}", group="region", clients=6)
        assert log.groups == ["(no group)", "north", "north", "south", "south", "south"]
        with pytest.raises(ConfigError, match=r'--group "regio": no such column .did you mean "region"'):
            read_log(tmp_path / f"log.{ending}", group="regio")
    lines[-1] = (*lines[-1][:3], "north")
    (tmp_path / "log.csv").write_bytes(separated(",", (*HEADER, "region"), lines))
    with pytest.raises(ConfigError, match=r'client "e" is in two groups, ".*" and ".*"; column region must say one'):
        read_log(tmp_path / "log.csv", group="region")


@pytest.mark.parametrize(("name", "content", "options", "message"), [
    ("log.csv.gz", gzip.compress(separated(",", HEADER, rows()))[:-20], {}, "is gzip that is cut off or damaged"),
    ("log.csv.gz", b"\x1f\x8bnot gzip", {}, "is gzip that is cut off or damaged"),
    ("log.csv", separated(",", HEADER, rows()), {"columns": "round=nope"}, '--columns "nope": no such column'),
    ("log.csv", separated(",", HEADER, rows()), {"columns": "turn=round"}, "must be like round=r,client=device_id"),
    ("log.csv", separated(",", HEADER, rows()), {"columns": "round=1,client=9"}, '--columns "9": no such column'),
    ("log.csv", separated(",", ("round", "device", "x"), rows()), {}, "column client is missing.*--columns round=NAME"),
    ("log.csv", separated(",", HEADER, rows()), {"table": "x"}, "--table cannot be used: it is a table of comma"),
    ("log.csv", separated(",", ("round", "a", "b"), [(1, "x", "y")]), {}, r"a cell must be 0, 1, .*\*=VALUE,VALUE"),
    ("log.json", json.dumps(EVENTS).encode()[:-30], OK, "line 1: is not JSON"),
    ("log.json", b'[{"round": 1, "client": "a"}, 3]', {}, "entry 2: must be like"),
    ("log.sqlite", b"SQLite format 3\0" + b"\xff" * 90, {}, "cannot be read as SQLite"),
    ("log.feather", b"ARROW1\0\0", {}, "cannot be read as Feather, is it truncated"),
    ("log.avt", b"a 2 1 2 3 4\nb 2 1 2 3\n", {"round_seconds": 1}, "line 2: must be id, count and .*truncated"),
    ("log.evt", b"1 a up\n0 b up\n", {"round_seconds": 1}, "line 2: is before the line above it"),
    ("log.tab", b"0\t0\t1\t0\tn\t1\t5\t3\tx\n", {"round_seconds": 1}, "line 1: the event stops before it starts"),
    ("log", b"hello world", {}, "is in none of the formats"),
])  # fmt: skip
def test_what_cannot_be_read_gets_one_line(tmp_path, name, content, options, message):
    if "feather" in name:
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_log(tmp_path / name, **options)
    assert "\n" not in str(caught.value)


def test_every_format_has_a_name_and_a_row_in_help_and_docs(fedpbc):
    assert len({format.name for format in FORMATS}) == len(FORMATS)
    _, out, _ = fedpbc("audit", "--help")
    for format in FORMATS:
        assert format.name in out
