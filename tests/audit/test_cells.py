"""Reading by words and blocks, and pairs in order, against plain Python: the csv module, int(), sets and loops."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from fedpbc.audit import read_log, spectrum
from fedpbc.errors import ConfigError
from fedpbc.io.participation import assemble, cells, csvfile, pairs
from fedpbc.io.participation.log import ParticipationLog

ROUNDS, CLIENTS = 23, 17


def rows(seed: int, names: list[str]) -> list[tuple[int, str, int]]:
    """A row for every pair, in any order."""
    rng = np.random.default_rng(seed)
    table = rng.random((ROUNDS, len(names))) < 0.4
    found = [(t, name, int(table[t, i])) for t in range(ROUNDS) for i, name in enumerate(names)]
    return [found[k] for k in rng.permutation(len(found))]


def active_pairs(log: ParticipationLog) -> list[tuple[int, str]]:
    return [(int(t) + log.first_round, log.clients[i]) for t, i in zip(log.rounds, log.members, strict=True)]


def wanted(found: list[tuple[int, str, int]], clients: list[str]) -> list[tuple[int, str]]:
    """The active pairs by round, then client."""
    return sorted({(t, name) for t, name, yes in found if yes}, key=lambda pair: (pair[0], clients.index(pair[1])))


STYLES = {
    "plain": ("{0},{1},{2}\n", ""),
    "carriage returns": ("{0},{1},{2}\r\n", ""),
    "blanks": (" {0}\t,  {1} , {2}\n", ""),
    "quoted": ('"{0}","{1}",{2}\n', ""),
    "quoted, carriage returns": ('"{0}","{1}","{2}"\r\n', ""),
    "blank lines": ("{0},{1},{2}\n", "\n"),
    "quoted and blank lines": ('{0},"{1}",{2}\n', "\r\n"),
    "blanks within quotes": ('{0}," {1} ",{2}\n', ""),
}
NAMES = {
    "digits": [str(7 * i) for i in range(CLIENTS)],
    "one to forty bytes": [chr(97 + i) * (1 + 5 * i % 41) for i in range(CLIENTS)],
    "the same eight bytes": [f"station-{i}" for i in range(CLIENTS)],
    "not ASCII": [f"hôpital {i}" for i in range(CLIENTS)],
}


@pytest.mark.parametrize("block", [101, 999, 1 << 22])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_blocks_cut_anywhere_give_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: tuple[str, str], names: list[str], block: int
) -> None:
    monkeypatch.setattr(csvfile, "BLOCK", block)
    found = rows(0, names)
    path = tmp_path / "log.csv"
    text = "".join(style[0].format(*row) + style[1] * (k % 5 == 0) for k, row in enumerate(found))
    path.write_bytes(("round,client,active\n" + text).encode())
    log = read_log(path)
    assert log.clients == sorted(names, key=int if names[0].isdigit() else None)
    assert active_pairs(log) == wanted(found, log.clients)
    assert log.skipped == ({"blank lines": -(-len(found) // 5)} if style[1] else {})


@pytest.mark.parametrize("cell", ['a""b', "a,b", '""', ","])
def test_quotation_marks_and_commas_within_cells_are_the_csv_modules(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "log.csv"
    text = "round,client\n" + "".join(f'{t},"{cell}"\n{t},b\n' for t in range(3))
    path.write_text(text)
    log = read_log(path)
    assert set(log.clients) == {row["client"] for row in csv.DictReader(text.splitlines())}


def places(texts: list[bytes]) -> cells.Places:
    ends = np.cumsum([len(text) for text in texts])
    buffer = np.frombuffer(b"".join(texts) + bytes(cells.PAD), np.uint8)
    return cells.Places(buffer, ends - [len(text) for text in texts], ends)


def test_numbers_of_every_length() -> None:
    rng = np.random.default_rng(1)
    texts = [str(rng.integers(10 ** (k - 1), 10**k if k < 19 else 4 * 10**18)) for k in range(1, 20) for _ in range(50)]
    texts += ["0", "007", "00000000000000000012"[1:], "3999999999999999999"]
    values, right = places([text.encode() for text in texts]).numbers()
    assert right.all()
    assert values.tolist() == list(map(int, texts))


@pytest.mark.parametrize("bad", list(b"/:;@ a-+.\xb1\xff\r"))
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 19])
def test_what_is_no_digit_is_seen_in_every_place(bad: int, length: int) -> None:
    texts = [b"1" * k + bytes([bad]) + b"2" * (length - k - 1) for k in range(length)]
    assert not places(texts).numbers()[1].any()


@pytest.mark.parametrize("text", [b"", b"4000000000000000000", b"9999999999999999999", b"1" * 20, b"0" * 20 + b"1"])
def test_numbers_that_are_none(text: bytes) -> None:
    assert places([b"5", text, b"6"]).numbers()[1].tolist() == [True, False, True]


@pytest.mark.parametrize("bits", [12, 20])
def test_numbering_with_many_values_in_the_same_place(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(cells._Table, "MOST_BITS", bits)
    rng = np.random.default_rng(2)
    codes: dict[bytes, int] = {}
    numbering = cells.Numbering(lambda new: np.array([codes.setdefault(v, len(codes)) for v in new], np.int32))
    for _ in range(4):
        texts = [b"client-%d" % number for number in rng.integers(0, 9000, 20_000)]
        found = numbering.encode(places(texts).words(16)).tolist()
        assert found == [codes[text] for text in texts]
    assert len(codes) == len(set(codes.values()))


def test_a_duplicate_far_from_its_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "BLOCK", 200)
    found = rows(3, NAMES["digits"])
    t, name, yes = found[4]
    path = tmp_path / "log.csv"
    path.write_text("round,client,active\n" + "".join(f"{a},{b},{c}\n" for a, b, c in [*found, (t, name, 1 - yes)]))
    with pytest.raises(ConfigError, match=rf"line {len(found) + 2}: round {t}, client .{name}. .* first in line 6; 1 "):
        read_log(path)
    log = read_log(path, drop_duplicates=True)
    assert active_pairs(log) == wanted([*found, (t, name, 1)], log.clients)
    assert log.dropped_duplicates == 1
    assert "1 of the pairs are active in one row and not in another" in " ".join(log.notes)


def test_ids_and_answers_of_other_kinds_in_later_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "BLOCK", 128)
    names = [*map(str, range(12)), *(f"a client with a long name {i}" for i in range(5))]
    found = sorted(rows(4, names), key=lambda row: (len(row[1]), row[0]))
    says = [
        ("0", "no", "false", "FALSE")[k % 4] if not row[2] else ("1", "Yes", "1.0")[k % 3]
        for k, row in enumerate(found)
    ]
    path = tmp_path / "log.csv"
    path.write_text(
        "round,client,active\n" + "".join(f"{a},{b},{c}\n" for (a, b, _), c in zip(found, says, strict=True))
    )
    log = read_log(path)
    assert log.clients == sorted(names)
    assert active_pairs(log) == wanted(found, log.clients)


@pytest.mark.parametrize("room", [0, 1 << 30], ids=["sorted", "table"])
@pytest.mark.parametrize("order", ["in order", "by client", "any"])
@pytest.mark.parametrize("again", [0, 40])
def test_pairs(monkeypatch: pytest.MonkeyPatch, room: int, order: str, again: int) -> None:
    monkeypatch.setattr(pairs, "ROOM_A_ROW", room)
    monkeypatch.setattr(pairs, "BLOCK", 50)
    rng = np.random.default_rng(5)
    keys = np.sort(rng.permutation(ROUNDS * CLIENTS)[:300])
    keys = np.concatenate([keys, rng.permutation(keys)[:again]])
    t, i = np.divmod(keys, CLIENTS)
    if order != "in order":
        places = np.lexsort((t, i)) if order == "by client" else rng.permutation(len(keys))
        t, i = t[places], i[places]
    yes = rng.random(len(t)) < 0.5
    found = pairs.Pairs(t.astype(np.int32), i.astype(np.int32), yes, CLIENTS, ROUNDS).found()
    listed = list(zip(t.tolist(), i.tolist(), yes.tolist(), strict=True))
    active, other = ({pair[:2] for pair in listed if pair[2] is says} for says in (True, False))
    assert list(zip(found.rounds.tolist(), found.members.tolist(), strict=True)) == sorted(active)
    assert (found.distinct, found.split) == (len(active | other), len(active & other))


@pytest.mark.parametrize("room", [0, 1 << 30], ids=["sorted", "table"])
@pytest.mark.parametrize(
    "keys",
    [
        [0, 1, 1, 2, 3, 4, 5],  # a row follows itself
        [0, 1, 2, 2, 3, 4],  # over the end of a block
        [6, 7, 8, 0, 1, 2],  # the second block comes first
        [0, 1, 5, 4, 6, 7],  # two blocks overlap
    ],
)
def test_what_is_almost_in_order(monkeypatch: pytest.MonkeyPatch, room: int, keys: list[int]) -> None:
    monkeypatch.setattr(pairs, "ROOM_A_ROW", room)
    monkeypatch.setattr(pairs, "BLOCK", 3)
    t, i = np.divmod(np.array(keys, np.int32), 4)
    found = pairs.Pairs(t, i, np.ones(len(keys), bool), 4, 3).found()
    wanted_keys = sorted(set(keys))
    assert (found.rounds * 4 + found.members).tolist() == wanted_keys
    assert (found.distinct, found.split) == (len(wanted_keys), 0)


def test_stretches_of_known_rounds() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        known = rng.random(20) < 0.5
        known[rng.integers(20)] = True
        log = ParticipationLog.from_matrix(np.ones((20, 2), bool), unknown=np.flatnonzero(~known).tolist())
        inside = [t for t in range(20) if known[t]]
        firsts = [t for t in inside if t - 1 not in inside]
        afters = [t + 1 for t in inside if t + 1 not in inside]
        assert log.stretches().tolist() == [list(pair) for pair in zip(firsts, afters, strict=True)]


def test_p_values_of_ordinates_are_those_of_all() -> None:
    from scipy.stats import f

    ratio = np.random.default_rng(7).exponential(size=5000)
    ratio[[1, 17, 900]] = 40, 12, 25
    expected = np.minimum(f.sf(ratio, 2, 2 * spectrum.NEIGHBOURS) * len(ratio), 1)
    expected[: spectrum.CYCLES - 1] = 1
    assert np.array_equal(spectrum._improbable(ratio, 1.0), expected)
    assert expected[17] < 1


def test_fundamental_is_the_lowest_of_which_the_best_is_a_multiple() -> None:
    ratio = np.random.default_rng(8).exponential(size=400)
    ratio[119] = 60  # frequency 120, alone
    assert spectrum._fundamental(ratio, 1.0, 120.0) == 120
    ratio[[39, 79, 159, 199]] = 30, 25, 28, 26  # 40, 80, 160 and 200: 120 is the third harmonic of 40
    assert spectrum._fundamental(ratio, 1.0, 120.0) == 40
    ratio[np.arange(19, 400, 40)] = 27  # 20, 60, 100, ...: pulses
    assert spectrum._fundamental(ratio, 1.0, 120.0) == 20


def test_more_rows_than_memory_holds_are_refused_after_the_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csvfile, "BLOCK", 1000)
    monkeypatch.setattr(assemble, "total_memory", lambda: 240_000)
    read: list[int] = []
    path = tmp_path / "log.csv"
    path.write_text("round,client\n" + "".join(f"{t:04d},{i:02d}\n" for t in range(2000) for i in range(10)))
    with pytest.raises(ConfigError, match=r"about (19|20),\d{3} rows would need about .* enough for 10,000"):
        read_log(path, progress=lambda done, total: read.append(done))
    assert len(read) <= 1
    path.write_text("round,client\n" + "".join(f"{t:04d},{i:02d}\n" for t in range(900) for i in range(10)))
    assert read_log(path).num_rounds == 900
