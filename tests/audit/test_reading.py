"""What a file leaves open is asked: who took part, what a round is, what missing rounds and duplicates mean."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from fedpbc.audit import audit, read_log
from fedpbc.errors import ConfigError

T, M = 60, 8
NAMES = [f"node-{i}" for i in range(M)]


@pytest.fixture
def active():
    table = np.random.default_rng(0).random((T, M)) < np.linspace(0.1, 0.9, M)
    table[~table.any(1), 0] = True
    return table


def write(path, header: list[str], rows: list[tuple]) -> str:
    """A file of these rows, in the format of its ending."""
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows))
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        columns = [list(column) for column in zip(*rows, strict=True)]
        pq.write_table(pa.table(dict(zip(header, columns, strict=True))), path)
    return str(path)


def every_pair(active: np.ndarray, yes: object, no: object, *more: object) -> list[tuple]:
    return [(t, NAMES[i], yes if active[t, i] else no, *more) for t in range(T) for i in range(M)]


def matrix(log) -> np.ndarray:
    table = np.zeros((log.num_rounds, len(log.clients)), bool)
    table[log.rounds, log.members] = True
    return table


ENDINGS = ["csv", "parquet", "jsonl"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("column", "yes", "no", "command"),
    [
        ("status", "success", "failure", "status=success"),
        ("Train_Result", "done", "oom", "Train_Result=done"),
        ("success", 1, 0, "success"),
        ("participated", True, False, "participated"),
        ("responded", "Yes", "No", "responded"),
        ("failed", 0, 1, "failed=0"),
        ("timed_out", False, True, "timed_out=false"),
        ("phase", "a", "b", "phase=VALUE"),
        ("sent", 1.0, 0.0, "sent"),
    ],
)
def test_an_outcome_that_is_not_called_active_is_refused_and_then_read(
    tmp_path, active, ending, column, yes, no, command
):
    """Read as pairs, such a log says that everybody took part in every round."""
    path = write(tmp_path / f"log.{ending}", ["round", "client", column], every_pair(active, yes, no))
    with pytest.raises(ConfigError, match="does it say who took part") as caught:
        read_log(path)
    message = str(caught.value)
    folded = message.lower() if ending == "csv" else message
    assert f"--active-column {command.lower() if ending == 'csv' else command}".lower() in folded.lower()
    assert "--active-column none" in message
    option = f"{column}={yes}" if command.endswith("VALUE") else command
    np.testing.assert_array_equal(matrix(read_log(path, active_column=option)), active)
    assert matrix(read_log(path, active_column="none")).all()


@pytest.mark.parametrize("ending", ENDINGS)
def test_several_values_count_and_what_is_not_there_is_said(tmp_path, active, ending):
    kinds = np.where(active, np.random.default_rng(1).choice(["ok", "late"], active.shape), "lost")
    rows = [(t, NAMES[i], str(kinds[t, i])) for t in range(T) for i in range(M)]
    path = write(tmp_path / f"log.{ending}", ["round", "client", "status"], rows)
    np.testing.assert_array_equal(matrix(read_log(path, active_column="status=OK, late")), active)
    one = read_log(path, active_column="status=ok,okay")
    np.testing.assert_array_equal(matrix(one), kinds == "ok")
    assert "rows count as active where status is ok or okay" in one.notes
    assert "no row has status okay" in one.notes
    with pytest.raises(ConfigError, match=r"no row has status okay; it holds .*lost"):
        read_log(path, active_column="status=okay")
    with pytest.raises(ConfigError, match=r'no such column .did you mean "status".*beside round and client'):
        read_log(path, active_column="staus=ok")
    with pytest.raises(ConfigError, match="must name at least one value after ="):
        read_log(path, active_column="status=")
    with pytest.raises(ConfigError, match=r"status must be 0, 1, true, false, yes or no .--active-column status=VALUE"):
        read_log(path, active_column="status")


@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_that_cannot_say_it_are_left_alone(tmp_path, active, ending):
    """Many values, in rows of the active pairs only: a list of pairs; with every pair there it is asked."""
    pairs = [(t, NAMES[i], f"{t}.{i}") for t in range(T) for i in range(M) if active[t, i]]
    path = write(tmp_path / f"pairs.{ending}", ["round", "client", "ts"], pairs)
    log = read_log(path)
    np.testing.assert_array_equal(matrix(log), active)
    assert "columns not used: ts" in log.notes
    rows = [(t, NAMES[i], f"{t}.{i}") for t in range(T) for i in range(M)]
    full = write(tmp_path / f"full.{ending}", ["round", "client", "ts"], rows)
    with pytest.raises(ConfigError, match="every client takes part in every round, and ts is not used"):
        read_log(full)
    assert matrix(read_log(full, active_column="none")).all()
    nothing_else = write(tmp_path / f"bare.{ending}", ["round", "client"], [row[:2] for row in rows])
    assert matrix(read_log(nothing_else)).all()


def test_beside_a_column_active_others_are_only_named(tmp_path, active):
    path = write(tmp_path / "log.csv", ["round", "client", "active", "status"], every_pair(active, 1, 0, "x"))
    log = read_log(path)
    np.testing.assert_array_equal(matrix(log), active)
    assert log.notes == ("columns not used: status",)


def test_a_column_active_that_is_always_true_says_nothing(tmp_path, active):
    """Selected is not heard: beside it, the status says who took part."""
    path = write(tmp_path / "log.csv", ["round", "client", "active", "status"], [
        (t, name, 1, status) for t, name, status in every_pair(active, "ok", "lost")])  # fmt: skip
    with pytest.raises(ConfigError, match=r"column status is not used and holds .* --active-column status=ok"):
        read_log(path)
    np.testing.assert_array_equal(matrix(read_log(path, active_column="status=ok")), active)
    assert matrix(read_log(path, active_column="active")).all()


@pytest.mark.parametrize(("yes", "no"), [("yes", "no"), ("TRUE", "False"), (1.0, 0.0), (True, False), ("1", "0")])
@pytest.mark.parametrize("ending", ENDINGS)
def test_booleans_in_words(tmp_path, active, ending, yes, no):
    path = write(tmp_path / f"log.{ending}", ["round", "client", "active"], every_pair(active, yes, no))
    np.testing.assert_array_equal(matrix(read_log(path)), active)


def test_quoted_cells_and_long_ones_of_other_columns(tmp_path, active):
    rows = [(t, NAMES[i], 'said "no", ' * 40 if (t + i) % 3 else "", "ok" if active[t, i] else "late, lost")
            for t in range(T) for i in range(M)]  # fmt: skip
    path = write(tmp_path / "log.csv", ["round", "client", "text", "status"], rows)
    with pytest.raises(ConfigError, match=r"status is not used and holds .*late, lost"):
        read_log(path)
    np.testing.assert_array_equal(matrix(read_log(path, active_column="status=ok")), active)
    plain = [(t, name, "x" * 400, status) for t, name, _, status in rows]
    plain = [(t, name, text, status.replace(", ", "-")) for t, name, text, status in plain]
    path = write(tmp_path / "plain.csv", ["round", "client", "text", "status"], plain)
    np.testing.assert_array_equal(matrix(read_log(path, active_column="status=ok")), active)


def test_a_missing_status_is_not_active(tmp_path):
    rows = [(t, name, "ok" if t % 2 else None) for t in range(6) for name in "ab"]
    for ending in ("parquet", "jsonl"):
        path = write(tmp_path / f"log.{ending}", ["round", "client", "status"], rows)
        np.testing.assert_array_equal(
            matrix(read_log(path, active_column="status=ok")), [[t % 2, t % 2] for t in range(6)]
        )


def test_keys_of_rounds_may_be_outcomes_too(tmp_path):
    lines = [{"round": t, "clients": ["a", "b", "c"][: 2 + t % 2], "failures": ["a"], "loss": 0.1} for t in range(9)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ConfigError, match="key failures is not used: does it say which of the clients took part"):
        read_log(tmp_path / "log.jsonl")
    assert len(read_log(tmp_path / "log.jsonl", active_column="none").rounds) == 22
    for line in lines:
        del line["failures"]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_log(tmp_path / "log.jsonl").notes == ("columns not used: loss",)
    with pytest.raises(ConfigError, match="--active-column needs a line for every client"):
        read_log(tmp_path / "log.jsonl", active_column="loss")


@pytest.mark.parametrize(("unit", "scale", "start"), [
    ("seconds", 1, 1772323200),
    ("milliseconds", 1000, 1772323200123),
    ("nanoseconds", 10**9, 1772323200 * 10**9),
])  # fmt: skip
@pytest.mark.parametrize("ending", ENDINGS)
def test_times_are_asked_for_and_become_rounds(tmp_path, active, ending, unit, scale, start):
    rows = [(start + 300 * scale * t, NAMES[i]) for t in range(T) for i in range(M) if active[t, i]]
    path = write(tmp_path / f"log.{ending}", ["round", "client"], rows)
    for meaning in (None, "empty", "unknown"):
        with pytest.raises(ConfigError, match=f"times in {unit}. --round-seconds 300 makes"):
            read_log(path, missing_rounds=meaning)
    log = read_log(path, round_seconds=300)
    assert (log.num_rounds, log.first_round) == (T, 0)
    np.testing.assert_array_equal(matrix(log), active)
    assert f"a round is floor(time / 300 s), counted from the first, which is 0; times are in {unit}" in log.notes
    halves = read_log(path, round_seconds=150, missing_rounds="empty")
    np.testing.assert_array_equal(matrix(halves)[::2], active)


def test_times_that_waver_become_rounds_too(tmp_path, active):
    """The length of a round is a guess then: half of the gaps are shorter."""
    rng = np.random.default_rng(0)
    times = 1772323200 + 600 * np.arange(T) + rng.integers(0, 20, T)
    rows = [(int(times[t]), NAMES[i]) for t in range(T) for i in range(M) if active[t, i]]
    path = write(tmp_path / "log.csv", ["round", "client"], rows)
    with pytest.raises(ConfigError, match=r"half of them \d+ apart or less: are these times in seconds"):
        read_log(path)
    np.testing.assert_array_equal(matrix(read_log(path, round_seconds=600)), active)


def test_times_without_gaps_are_times_too(tmp_path):
    """Many clients, each with a time of its own: every second is there."""
    rows = [(1772323200 + second, f"{second % 7}") for second in range(600)]
    path = write(tmp_path / "log.csv", ["round", "client"], rows)
    with pytest.raises(ConfigError, match=r"600 of these 600 numbers are there: are these times .* --round-seconds N"):
        read_log(path)
    log = read_log(path, round_seconds=60, drop_duplicates=True)
    assert (log.num_rounds, log.dropped_duplicates) == (10, 600 - 70)
    assert read_log(path, round_seconds=1).num_rounds == 600


def test_what_a_round_is_must_make_sense(tmp_path):
    rows = [(1772323200123 + 300_000 * t, name) for t in range(6) for name in "ab"]
    path = write(tmp_path / "log.csv", ["round", "client"], rows)
    for wrong in (0, -3, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"--round-seconds .*: must be a number > 0"):
            read_log(path, round_seconds=wrong)
    with pytest.raises(ConfigError, match=r"--round-seconds 0.0001: must be a whole number of milliseconds"):
        read_log(path, round_seconds=0.0001)
    sparse = write(tmp_path / "sparse.csv", ["round", "client"], [(t, n) for t in (0, 100, 250) for n in "ab"])
    with pytest.raises(ConfigError, match=r"all a multiple of 50 apart: .* --round-seconds 50"):
        read_log(sparse)
    assert read_log(sparse, round_seconds=1, missing_rounds="empty").num_rounds == 251
    thinned = write(tmp_path / "thinned.csv", ["round", "client"], [(5 * t, n) for t in range(9) for n in "ab"])
    with pytest.raises(ConfigError, match="all are a multiple of 5 apart: --round-seconds 5 numbers them"):
        read_log(thinned)
    assert read_log(thinned, round_seconds=5).num_rounds == 9


def forms(tmp_path, active, ending, rounds):
    """The same log as every pair and as the active ones."""
    every = [(t, NAMES[i], int(active[t, i])) for t in rounds for i in range(M)]
    yield write(tmp_path / f"every.{ending}", ["round", "client", "active"], every)
    yield write(tmp_path / f"pairs.{ending}", ["round", "client"], [row[:2] for row in every if row[2]])
    if ending == "jsonl":
        lines = [{"round": t, "clients": [NAMES[i] for i in np.flatnonzero(active[t])]} for t in rounds]
        (tmp_path / "rounds.jsonl").write_text("\n".join(map(json.dumps, lines)))
        yield str(tmp_path / "rounds.jsonl")


@pytest.mark.parametrize("ending", ENDINGS)
def test_missing_rounds_follow_one_rule_in_every_form(tmp_path, active, ending):
    rounds = [t for t in range(T) if not 20 <= t < 30 and t != 40]
    shown = np.where(np.isin(np.arange(T), rounds)[:, None], active, False)
    for path in forms(tmp_path, active, ending, rounds):
        with pytest.raises(ConfigError, match=r"rounds 20 to 29, 40 are missing .11 of 60.: --missing-rounds empty"):
            read_log(path)
        empty, unknown = (read_log(path, missing_rounds=meaning) for meaning in ("empty", "unknown"))
        for log in (empty, unknown):
            np.testing.assert_array_equal(matrix(log), shown)
        assert len(empty.unknown) == 0
        assert unknown.unknown.tolist() == [*range(20, 30), 40]
        assert "11 rounds between the first and the last have no row: they count as unknown" in " ".join(unknown.notes)
        assert audit(unknown).participation.rate == pytest.approx(active[rounds].mean(0).tolist())
        assert audit(empty).participation.empty_rounds == 11
    with pytest.raises(ConfigError, match='--missing-rounds "ignore": must be empty or unknown'):
        read_log(path, missing_rounds="ignore")


def test_rounds_missing_from_a_console(tmp_path):
    lines = [f"[ROUND {t}]\naggregate_train: Received {t} results and 1 failures" for t in (1, 2, 5)]
    (tmp_path / "server.log").write_text("\n".join([*lines, "[ROUND 6]"]))
    with pytest.raises(ConfigError, match=r"rounds 3 to 4 are missing .2 of 6"):
        read_log(tmp_path / "server.log")
    unknown = read_log(tmp_path / "server.log", missing_rounds="unknown")
    assert (unknown.unknown.tolist(), unknown.counts_only.tolist()) == ([2, 3], [1, 2, 0, 0, 5, 0])
    assert audit(unknown).participation.mean_active == pytest.approx(8 / 4)
    assert audit(unknown).participation.empty_rounds == 1
    assert audit(read_log(tmp_path / "server.log", missing_rounds="empty")).participation.empty_rounds == 3
    for option in ({"active_column": "x"}, {"round_seconds": 3}, {"drop_duplicates": True}):
        with pytest.raises(ConfigError, match=r"cannot be used: it is the console of a Flower server"):
            read_log(tmp_path / "server.log", **option)


@pytest.mark.parametrize("ending", ENDINGS)
def test_duplicates_are_dropped_when_that_is_allowed_and_counted(tmp_path, active, ending):
    rows = every_pair(active, 1, 0)
    again = rows[3:10] + rows[3:5]
    t, name, value = rows[100]
    path = write(tmp_path / f"log.{ending}", ["round", "client", "active"], [*rows, *again, (t, name, 1 - value)])
    with pytest.raises(ConfigError, match=r"stands there twice.*10 duplicates in all.*--drop-duplicates"):
        read_log(path)
    log = read_log(path, drop_duplicates=True)
    expected = active.copy()
    expected[t, NAMES.index(name)] = True
    np.testing.assert_array_equal(matrix(log), expected)
    assert log.dropped_duplicates == 10
    assert audit(log).log.dropped_duplicates == 10
    assert (
        "10 duplicate rows were dropped; 1 of the pairs are active in one row and not in another: they count as active"
        in log.notes
    )


def test_lines_of_a_round_may_stand_there_twice_when_that_is_allowed(tmp_path):
    lines = [
        '{"round": 0, "clients": ["a", "b"]}',
        '{"round": 1, "clients": ["a", "a"]}',
        '{"round": 0, "clients": ["b"]}',
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match='line 2: client "a" stands there twice'):
        read_log(tmp_path / "log.jsonl")
    log = read_log(tmp_path / "log.jsonl", drop_duplicates=True)
    assert (matrix(log).tolist(), log.dropped_duplicates) == ([[True, True], [True, False]], 2)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("events.jsonl", '{"round": 1, "client": "a", "status": "success"}\n' * 3,
     'is a log of events, with a line for every client.*holds "success".*--active-column status=success'),
    ("log.jsonl", '{"round": 1, "participants": ["a"]}\n', 'key clients is missing; --columns client=participants'),
    ("log.jsonl", '{"round": 1, "client_id": "a"}\n' * 3, "key clients is missing; --columns client=client_id says"),
    ("log.jsonl", '{"rnd": 1, "clients": ["a", "b"]}\n', "key round is missing; --columns round=rnd says"),
    ("log.jsonl", '{"round": 1, "clients": ["a", "b"]}\n{"round": 1, "client": "a"}\n', "this one is of a client"),
    ("log.jsonl", '{"round": 1, "client": "a"}\n{"round": 1, "clients": ["a", "b"]}\n', "line 2: key client"),
    ("log.jsonl", '{"round": 1, "client": "a"}\n{"round": -1, "client": "b"}\n', "line 2: round must be"),
    ("log.jsonl", '{"round": 1, "client": "a"}\n{"round": 1, "client": 3}\n', "line 2: client ids must be all strings"),
    ("log.json", '{"0": {"active": [1], "inactive": [5], "finish_time": 9}}', "holds intervals.*--round-seconds N"),
    ("log.json", '[{"round": 1, "clients": ["a"]}]', "holds a single client"),
    ("log.json", '{\n "a": 1}', "is one JSON document; a log is JSON lines"),
])  # fmt: skip
def test_json_says_what_it_is(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_log(tmp_path / name)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(("keys", "columns"), [
    (("round", "members"), "client=members"), (("n", "clients"), "round=n"), (("n", "up"), "round=n,client=up"),
    (("n", "active"), "round=n"),
])  # fmt: skip
def test_keys_of_a_round_go_by_any_name(tmp_path, active, keys, columns):
    entries = [
        dict(zip(keys, (t, [NAMES[i] for i in np.flatnonzero(row)]), strict=True)) for t, row in enumerate(active)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, entries)))
    (tmp_path / "log.json").write_text(json.dumps(entries, indent=2))
    for name in ("log.jsonl", "log.json"):
        np.testing.assert_array_equal(matrix(read_log(tmp_path / name, columns=columns)), active)
        with pytest.raises(ConfigError, match='"absent": no such column'):
            read_log(tmp_path / name, columns="round=absent")
        with pytest.raises(ConfigError, match="must be like round=r,client=device_id"):
            read_log(tmp_path / name, columns=f"clients={keys[1]}")


def test_a_log_of_events_is_read(tmp_path, active):
    rows = [(t, NAMES[i], "2026-03-01", "success") for t in range(T) for i in range(M) if active[t, i]]
    path = write(tmp_path / "events.jsonl", ["round", "client", "ts", "status"], rows)
    np.testing.assert_array_equal(matrix(read_log(path, active_column="status=success")), active)
    np.testing.assert_array_equal(matrix(read_log(path, active_column="none")), active)


def test_the_command_takes_the_options(fedpbc, tmp_path, active):
    rows = [
        (1772323200 + 300 * t, NAMES[i], "ok" if active[t, i] else "lost") for t in range(T) if t != 9 for i in range(M)
    ]
    write(tmp_path / "log.csv", ["round", "client", "status"], [*rows, rows[0]])
    options = ["--round-seconds", "300", "--missing-rounds", "unknown", "--drop-duplicates"]
    status, out, err = fedpbc("audit", "log.csv", *options)
    assert (status, out) == (2, "")
    assert "--active-column status=ok" in err
    assert not (tmp_path / "audit-log").exists()
    status, out, err = fedpbc("audit", "log.csv", *options, "--active-column", "status=ok")
    assert (status, err) == (0, "")
    assert "log.csv: 60 rounds (1 of them unknown), 8 clients" in out
    assert "1 duplicate row was dropped" in out
    found = json.loads((tmp_path / "audit-log" / "audit.json").read_text())
    assert (found["log"]["unknown_rounds"], found["log"]["dropped_duplicates"]) == (1, 1)
    assert found["participation"]["rate"] == pytest.approx(np.delete(active, 9, axis=0).mean(0).tolist())


def test_a_table_without_names_says_that_columns_have_numbers(tmp_path, active):
    path = write(tmp_path / "log.csv", ["0", "a", "1"], [(t, NAMES[i], 1) for t, i in np.argwhere(active)])
    with pytest.raises(ConfigError, match=r"; --columns round=NAME,client=NAME says .*and numbers, round=1,client=2"):
        read_log(path)
    assert read_log(path, columns="round=1,client=2,active=3").num_rounds == T
