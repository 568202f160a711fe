"""Reading participation logs: every format says the same, every mistake gets one line."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

from fedpbc.audit import ParticipationLog, read_log
from fedpbc.errors import ConfigError
from fedpbc.io.participation import cells, csvfile, formats
from fedpbc.io.participation.columns import Columns
from fedpbc.io.participation.reading import Format, Names, Rows, Table

T, M = 40, 7
NAMES = ["a", "b,b", "Zoë", "node-000000000000000001", "node-000000000000000002", "c d", "z"]


@pytest.fixture
def active():
    table = np.random.default_rng(0).random((T, M)) < 0.4
    table[5] = False
    table[0, :] = table[-1, :] = True
    return table


def quoted(name: str) -> str:
    return f'"{name}"' if "," in name else name


def write(folder, kind: str, active: np.ndarray, names: list[str], first: int = 3):
    rows = [(t + first, names[i], int(active[t, i])) for t in range(len(active)) for i in range(len(names))]
    path = folder / f"log.{'csv' if kind in ('csv', 'pairs', 'crlf') else kind}"
    if kind in ("csv", "crlf"):
        end = "\r\n" if kind == "crlf" else "\n"
        body = end.join(["round,client,active", *(f"{t},{quoted(i)},{a}" for t, i, a in rows)])
        path.write_bytes(b"\xef\xbb\xbf" + body.encode())
    elif kind == "pairs":
        body = "\n".join(["client , round", *(f" {quoted(i)}, {t} " for t, i, a in rows[::-1] if a)])
        path.write_text(body + "\n", encoding="utf-8")
    elif kind == "jsonl":
        lines = [
            {"round": t + first, "clients": [names[i] for i in np.flatnonzero(row)]} for t, row in enumerate(active)
        ]
        path.write_text("\n".join(map(json.dumps, lines)))
    elif kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        columns = dict(zip(("round", "client", "active"), map(list, zip(*rows, strict=True)), strict=True))
        pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "crlf", "pairs", "jsonl", "parquet"])
def test_every_format_gives_the_same_log(tmp_path, active, kind):
    assert np.flatnonzero(~active.any(1)).tolist() == [5, 10, 11]
    if kind == "pairs":
        with pytest.raises(ConfigError, match=r"rounds 8, 13 to 14 are missing .3 of 40"):
            read_log(write(tmp_path, kind, active, NAMES))
    log = read_log(write(tmp_path, kind, active, NAMES), missing_rounds="empty")
    assert log.clients == sorted(NAMES)
    assert (log.num_rounds, log.first_round) == (T, 3)
    table = np.zeros((T, M), bool)
    table[log.rounds, log.members] = True
    np.testing.assert_array_equal(table, active[:, [NAMES.index(name) for name in log.clients]])
    assert np.all(np.diff(log.rounds.astype(np.int64) * M + log.members) > 0)
    np.testing.assert_array_equal(log.active_counts(), active.sum(1))
    np.testing.assert_array_equal(log.round_slice(7), np.flatnonzero(table[7]))
    empty = "3 rounds between the first and the last have no row"
    assert any(empty in note for note in log.notes) == (kind == "pairs")


def test_a_dense_array_is_read_as_it_is(tmp_path, active):
    np.save(tmp_path / "log.npy", active.astype(np.int8))
    log = read_log(tmp_path / "log.npy")
    assert log.clients == [str(i) for i in range(M)]
    np.testing.assert_array_equal(np.stack([log.rounds, log.members]), np.nonzero(active))


@pytest.mark.parametrize("block", [64, 1000])
def test_blocks_may_end_anywhere(tmp_path, active, monkeypatch, block):
    monkeypatch.setattr(csvfile, "BLOCK", block)
    for names in (NAMES, [f"client-{i:012d}" for i in range(M)]):
        log = read_log(write(tmp_path, "csv", active, names))
        assert np.array_equal(np.bincount(log.members), active.sum(0)[[names.index(name) for name in log.clients]])


def test_equal_hashes_do_not_merge_clients(monkeypatch):
    monkeypatch.setattr(cells, "hashes", lambda words: np.zeros(len(words), np.uint64))
    words = np.array([[7, 1], [7, 2], [8, 1]] * 5, np.uint64)
    values, inverse = cells.unique(words)
    assert len(values) == 3
    np.testing.assert_array_equal(values[inverse], words)


def test_integer_ids_are_in_numeric_order_and_the_missing_ones_are_named(tmp_path):
    (tmp_path / "log.csv").write_text("round,client\n1,10\n1,2\n2,9\n")
    assert read_log(tmp_path / "log.csv").clients == ["2", "9", "10"]
    assert read_log(tmp_path / "log.csv", clients=12).clients == [str(i) for i in range(12)]
    log = read_log(tmp_path / "log.csv", clients=10)
    assert log.clients == [str(i) for i in range(1, 11)]
    assert [log.clients[i] for i in log.members] == ["2", "10", "9"]


def test_sizes_and_groups_name_clients_never_seen(tmp_path):
    (tmp_path / "log.csv").write_text("round,client\n1,b\n2,d\n")
    (tmp_path / "sizes.csv").write_text("client,size\nd,4\nb,2\na,1\n")
    (tmp_path / "groups.csv").write_text("group,client\nx,d\ny,b\nx,a\n")
    log = read_log(tmp_path / "log.csv", sizes=tmp_path / "sizes.csv", groups=tmp_path / "groups.csv")
    assert (log.clients, log.groups) == (["a", "b", "d"], ["x", "y", "x"])
    np.testing.assert_array_equal(log.sizes, [1, 2, 4])
    np.testing.assert_array_equal(log.members, [1, 2])


@pytest.mark.parametrize(
    ("received", "sampled"),
    [("aggregate_train: Received {} results and {} failures", "configure_train: Sampled 9 nodes (out of 20)"),
     ("aggregate_fit: received {} results and {} failures", "configure_fit: strategy sampled 9 clients (out of 20)")],
)  # fmt: skip
def test_a_flower_console_gives_counts(tmp_path, received, sampled):
    lines = []
    for number, count in enumerate([8, 0, 5], start=1):
        lines += [f"INFO :      [ROUND {number}/4]", f"INFO : {sampled}", f"INFO : {received.format(count, 9 - count)}"]
        lines += ["INFO : aggregate_evaluate: received 3 results and 0 failures"]
    (tmp_path / "server.log").write_text("\n".join([*lines, "INFO :      [ROUND 4/4]"]))
    log = read_log(tmp_path / "server.log")
    assert (log.counts_only.tolist(), log.first_round, log.num_clients) == ([8, 0, 5, 0], 1, 20)
    assert log.skipped == {"lines of a console log that are no results": 3}
    assert "weights cannot be had" in log.notes[0]
    assert "14 failures" in log.notes[1]


def test_a_format_is_one_entry_that_knows_its_content(tmp_path, monkeypatch):
    """Everything else, sorting, checks, options and messages, is that of all formats."""

    def read_words(path, reading, progress):
        columns = Columns(path, ["round", "client"], reading)
        table = Table(iter(()), Names(), reading, columns)
        for t, line in enumerate(path.read().decode().splitlines()[1:]):
            table.listed_rounds.append(t)
            codes = table.names.encode(line.split())
            table.pieces = chain(table.pieces, [Rows(np.full(len(codes), t), codes, np.ones(len(codes), bool))])
        return table

    words = Format("words", "words", read_words, recognises=lambda source: source.head.startswith(b"# words"))
    monkeypatch.setattr(formats, "FORMATS", (words, *formats.FORMATS))
    path = tmp_path / "log.txt"
    path.write_text("# words\nb a\n\na c\n")
    log = read_log(path)
    assert (log.clients, log.num_rounds, log.format) == (["a", "b", "c"], 3, "words")
    assert list(zip(log.rounds.tolist(), log.members.tolist(), strict=True)) == [(0, 0), (0, 1), (2, 0), (2, 2)]
    path.write_text("# words\nb a a\n")
    with pytest.raises(ConfigError, match=r'log\.txt: row 2: round 0, client "a" stands there twice'):
        read_log(path)
    path.write_text("aggregate_fit: received 3 results and 2 failures\n")
    assert read_log(path).format == "flower"


BAD: list[tuple[str, bytes, str]] = [
    ("log.csv", b"", "the file is empty"),
    ("log.csv", b"round,client,active\n", "holds no rows"),
    ("log.csv", b"\nround,client\n", "line 1: must be the header, is blank"),
    ("log.csv", b"rond,client\n1,a\n", 'line 1: column round is missing .did you mean "rond".*round,client,active or'),
    ("log.csv", b"round,client,client\n1,a,b\n", "line 1: column client stands there twice"),
    ("log.csv", b"round,client\n1,a\n\n1,b\n1,a\n", 'line 5: round 1, client "a" stands there twice, first in line 2'),
    ("log.csv", b"round,client,active\n1,a,1\n3,a,1\n", "round 2 is missing .1 of 3.: --missing-rounds empty if"),
    ("log.csv", b"round,client\n1,a\n2,a\n", "holds a single client"),
    ("log.csv", b"round,client,active\n1,a,0\n1,b,0\n", "no client is active in any of 1 rounds"),
    ("log.csv", b"round,client\n1,a\nx,b\n", 'line 3: round must be an integer >= 0, is "x"'),
    ("log.csv", b"round,client\n1,a\n1.5,b\n", 'line 3: round must be an integer >= 0, is "1.5"'),
    ("log.csv", b"round,client\n1,a\n,b\n", "line 3: round must be an integer >= 0, is empty"),
    ("log.csv", b"round,client\n1,a\n4234567890123456789,b\n", "line 3: round must be an integer"),
    ("log.csv", b"round,client\n1,a\n1700000000000,b\n", "at most 10,000,000 rounds.*time stamps.*--round-seconds"),
    ("log.csv", b"round,client\n1,a\n2,\n", "line 3: client is empty"),
    ("log.csv", b"round,client,active\n1,a,1\n1,b,maybe\n", 'line 3: active must be 0, 1, true, .* is "maybe"'),
    ("log.csv", b"round,client,active\n1,a,1\n1,b", "line 3: must have 3 cells like the header, has 2.*truncated"),
    ("log.csv", b"round,client\n1,a\n1,\xff\n", "line 3: is not UTF-8 .byte 0xff"),
    ("log.csv", "round,client\n1,a\n".encode("utf-16"), "line 1: is not UTF-8"),
    ("log.csv", b"round,client\n1,a\n1,b\0\n", "line 3: holds a zero byte"),
    ("log.csv", b'round,client\n1,a\n1,"b\n', "line 3"),
    ("log.csv", b"round,client\n1,a\n1," + b"x" * 300 + b"\n", "line 3: holds a cell of 300 bytes, at most 256"),
    ("log.jsonl", b'{"round": 1, "clients": ["a", "b"]}\n{"round": 2, "cli', "line 2: is not JSON .*truncated"),
    ("log.jsonl", b"[1]\n", "line 1: must be like"),
    ("log.jsonl", b'{"round": 1, "client": ["a"]}\n', 'line 1: key clients is missing; --columns client=client says'),
    ("log.jsonl", b'{"round": 1, "clients": ["a", 3]}\n', "line 1: client ids must be all strings or all integers"),
    ("log.jsonl", b'{"round": 1, "clients": ["a", "a"]}\n', 'line 1: client "a" stands there twice'),
    ("log.jsonl", b'{"round": 1, "clients": [null]}\n', "line 1: a client id must be a string or an integer"),
    ("log.jsonl", b'{"round": true, "clients": []}\n', "line 1: round must be an integer >= 0, is true"),
    ("log.jsonl", b'{"round": 1, "clients": "ab"}\n', "line 1: clients must be a list"),
    ("log.jsonl", b'{"round": 1, "clients": ["a"]}\n{"round": 1, "clients": ["b"]}', "line 2: round 1 stands in"),
    ("log.jsonl", b'{"round": 1, "clients": ["a", "b"]}\n{"round": 3, "clients": []}', "round 2 is missing"),
    ("log.jsonl", b'{"round": 1, "clients": []}\n', "no client is active"),
    ("log.npy", b"\x93NUMPY", "cannot be read as .npy, is it truncated"),
    ("log.parquet", b"PAR1", "cannot be read as Parquet, is it truncated"),
    ("log.log", b"hello\n", "holds no line like 'aggregate_train"),
    ("log.log", b"aggregate_fit: received 0 results and 2 failures\n", "no client is active"),
    ("log.csx", b"x", "is in none of the formats that are read: npy, parquet, .*did you mean .*csv"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=[f"{n}-{m[:30]}" for n, _, m in BAD])
def test_every_mistake_gets_one_line(tmp_path, name, content, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_log(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[0, 2]]), "row 0, column 1: must be 0 or 1, is 2"),
        (np.array([[0, np.nan]]), "row 0, column 1: must be 0 or 1, is nan"),
        (np.ones(3), "must have shape"),
        (np.array([["a", "b"]]), "must hold only 0 and 1"),
        (np.ones((3, 1)), "a single client"),
        (np.zeros((3, 2)), "no client is active"),
    ],
)
def test_bad_arrays(tmp_path, array, message):
    np.save(tmp_path / "log.npy", array)
    with pytest.raises(ConfigError, match=message):
        read_log(tmp_path / "log.npy")


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("size", "client,size\na,1\n", 'has no row for client "b"'),
        ("size", "client,size\na,1\nb,-2\n", 'size of client "b" must be a number > 0, is "-2"'),
        ("size", "client,weight\na,1\n", 'line 1: must be client,size, is "client,weight"'),
        ("size", "client,size\na,1\na,1\n", 'line 3: client "a" stands there twice'),
        ("group", "client,group\na\nb,x\n", "line 2: must be a client id and a group"),
        ("group", "", "line 1: must be client,group"),
    ],
)
def test_bad_files_beside_the_log(tmp_path, column, text, message):
    (tmp_path / "log.csv").write_text("round,client\n1,a\n1,b\n")
    (tmp_path / "beside.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_log(tmp_path / "log.csv", **{f"{column}s": tmp_path / "beside.csv"})


def test_fewer_clients_than_ids_is_an_error(tmp_path):
    (tmp_path / "log.csv").write_text("round,client\n1,a\n1,b\n1,c\n")
    with pytest.raises(ConfigError, match="--clients 2: must be at least 3"):
        read_log(tmp_path / "log.csv", clients=2)


def test_blank_lines_and_missing_pairs_are_counted(tmp_path):
    (tmp_path / "log.csv").write_text("round,client,active,when\n1,a,1,x\n\n1,b,1,y\n2,a,0,z\n\n")
    log = read_log(tmp_path / "log.csv")
    assert log.skipped == {"blank lines": 2}
    assert log.notes == ("columns not used: when", "1 pair of round and client has no row; it counts as not active")


def test_importing_the_audit_imports_nothing_heavy():
    heavy = "('jax', 'matplotlib', 'pyarrow', 'scipy')"
    code = f"import fedpbc.audit, sys; assert not [m for m in sys.modules if m.split('.')[0] in {heavy}]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.release
@pytest.mark.slow
def test_ten_million_rows_stay_below_a_gigabyte(tmp_path):
    """Memory is asserted; time is stated in docs/audit.md, for it depends on what else the machine does."""
    path = tmp_path / "big.csv"
    rng = np.random.default_rng(0)
    with open(path, "w") as file:
        file.write("round,client,active\n")
        for t in range(20_000):
            flags = (rng.random(500) < 0.3).astype(int)
            file.write("".join(f"{t},c{i},{flag}\n" for i, flag in enumerate(flags)))
    code = (
        "import resource, sys; from fedpbc.audit import audit, read_log\n"
        "found = audit(read_log(sys.argv[1])); scale = 1 if sys.platform == 'darwin' else 1024\n"
        "print(found.log.num_rounds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    rounds, peak = map(int, done.stdout.split())
    assert rounds == 20_000
    assert peak < 1e9


def test_a_matrix_in_memory_is_a_log_too(active):
    log = ParticipationLog.from_matrix(active)
    np.testing.assert_array_equal(log.active_counts(), active.sum(1))
    with pytest.raises(ConfigError, match="single client"):
        ParticipationLog.from_matrix(np.ones((3, 1)))
