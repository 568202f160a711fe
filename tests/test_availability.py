"""FedScale's trace, and the reader of pickles that runs nothing."""

from __future__ import annotations

import json
import os
import pickle
import sys

import numpy as np
import pytest
from link_helpers import context, run_links

from fedpbc.errors import BadOption
from fedpbc.io.plainpickle import MAX_DEPTH, PickleError, load
from fedpbc.links.fedscale import fedscale

PHONE = {"duration": 60, "active": [10, 40], "inactive": [20, 55], "finish_time": 70, "model": "CPH1801"}
PLAIN = [
    None, True, False, 0, -1, 255, 70_000, -(2**40), 2**2100, 1.5, float("inf"), "", "é☃", "x" * 300,
    b"", b"\x00" * 300,
    [], (), {}, [1], (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[], [()]], {"a": [1, 2], 3: {"b": (None,)}},
    list(range(3000)), dict.fromkeys(range(5), PHONE),
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_is_read_back(protocol):
    for value in PLAIN:
        if isinstance(value, bytes) and protocol < 3:
            continue  # written as a call of codecs.encode
        read = load(pickle.dumps(value, protocol))
        assert read == value
        assert type(read) is type(value)


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def crafted(tmp_path):
    ring: list = []
    ring.append(ring)
    loop: dict = {}
    loop[1] = [loop]
    deep: list = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    target = str(tmp_path / "touched")
    return {
        "call": pickle.dumps(Evil(os.mkdir, (target,)), 0),
        "call by stack": pickle.dumps({1: Evil(os.mkdir, (target,))}, 4),
        "eval": pickle.dumps([Evil(eval, (f"__import__('os').mkdir({target!r})",))], 2),
        "inst": b"(S'" + target.encode() + b"'\nios\nmkdir\n.",
        "object": b"(cos\nmkdir\nS'" + target.encode() + b"'\no.",
        "new object": b"\x80\x02cos\nmkdir\nX\x01\x00\x00\x00a\x85\x81.",
        "build": b"}}b.",
        "persistent id": b"Pabc\n.",
        "binary persistent id": b"NQ.",
        "extension": b"\x80\x02\x82\x01.",
        "set": pickle.dumps({1, 2}, 4),
        "frozenset": pickle.dumps(frozenset([1]), 4),
        "bytearray": pickle.dumps(bytearray(b"x"), 5),
        "numpy": pickle.dumps(np.arange(3), 5),
        "buffer": b"\x80\x05\x97.",
        "ring": pickle.dumps(ring),
        "loop": pickle.dumps(loop),
        "deep": pickle.dumps(deep),
        "very deep": b"]" * 200_000 + b"a" * 199_999 + b".",
        "tuple key": pickle.dumps({(1, 2): 3}),
        "float key": pickle.dumps({1.5: 3}),
        "bool key": pickle.dumps({True: 3}),
        "empty": b"",
        "text": b"hello",
        "cut": pickle.dumps(PLAIN)[:-1],
        "no value": b".",
        "mark as value": b"(.",
        "tuple of a mark": b"(\x85.",
        "unknown memo": b"h\x07.",
        "no mark": b"]K\x01e.",
        "memo of a mark": b"(q\x00h\x00.",
        "no list": b"NNa.",
        "no dict": b"NNNs.",
        "odd dict": b"(K\x01d.",
        "odd update": b"}(K\x01u.",
        "pop nothing": b"0.",
        "long length": b"\x8d" + b"\xff" * 8,
        "huge digits": b"L" + b"9" * 10_000 + b"L\n.",
        "negative length": b"\x8b\xff\xff\xff\xff.",
    }  # fmt: skip


@pytest.mark.parametrize("name", crafted(__import__("pathlib").Path("/nonexistent")))
def test_anything_else_is_one_line_and_does_nothing(tmp_path, name):
    with pytest.raises(PickleError) as caught:
        load(crafted(tmp_path)[name])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_refusal_names_the_opcode():
    with pytest.raises(PickleError, match=r"holds more than plain data \(GLOBAL at byte 0\), which is never run"):
        load(pickle.dumps(os.getcwd, 0))


def test_shared_values_cost_nothing_and_a_bomb_is_cheap():
    laughs: list = ["ha"]
    for _ in range(MAX_DEPTH - 1):
        laughs = [laughs] * 50
    read = load(pickle.dumps(laughs))
    assert read[0] is read[49]
    assert sys.getsizeof(read) < 1000


def test_damage_anywhere_is_an_error_or_plain_data():
    data = bytearray(pickle.dumps(dict.fromkeys(range(3), PHONE), 2))
    rng = np.random.default_rng(0)
    messages = []
    for _ in range(3000):
        broken = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 4)):
            broken[place] = rng.integers(256)
        try:
            load(bytes(broken[: rng.integers(len(data) + 1)]))
        except PickleError as error:
            messages.append(str(error))
    assert len(messages) > 1000
    assert not any("\n" in message for message in messages)


def write(path, clients):
    path.write_bytes(json.dumps(clients).encode() if path.suffix == ".json" else pickle.dumps(clients))
    return path


@pytest.mark.parametrize("name", ["trace.pkl", "trace", "trace.json"])
def test_clients_are_active_within_their_intervals_over_and_over(tmp_path, name):
    clients = {12: {**PHONE, "active": [], "inactive": []}, 3: PHONE, 2: {**PHONE, "active": [0], "inactive": [70]}}
    path = write(tmp_path / name, clients)
    active, prob = run_links(fedscale.function(context(3, rounds=30), path=path, round_seconds=5.0), 30)
    s = 5 * np.arange(30) % 70
    np.testing.assert_array_equal(active[:, 0], True)
    np.testing.assert_array_equal(active[:, 1], ((s >= 10) & (s <= 20)) | ((s >= 40) & (s <= 55)))
    np.testing.assert_array_equal(active[:, 2], False)
    np.testing.assert_allclose(prob, np.tile(active.mean(axis=0), (30, 1)), rtol=1e-6)
    two, _ = run_links(fedscale.function(context(2, rounds=30), path=path, round_seconds=5.0), 30)
    np.testing.assert_array_equal(two, active[:, :2])


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({1: PHONE}, "has 1 clients, the problem has 2"),
        ([PHONE, PHONE], "must hold a table: client id"),
        ({}, "must hold a table: client id"),
        ({1: PHONE, "2": PHONE}, "client ids must be all integers or all strings"),
        ({1: PHONE, 2: [1]}, "client 2 must be a table with active, inactive, finish_time"),
        ({1: PHONE, 2: {"active": [1], "inactive": [2]}}, "client 2 has no finish_time"),
        ({1: PHONE, 2: {**PHONE, "finish_time": 0}}, "client 2: finish_time must be > 0, is 0"),
        ({1: PHONE, 2: {**PHONE, "finish_time": "x"}}, 'client 2: finish_time must hold seconds, holds "x"'),
        ({1: PHONE, 2: {**PHONE, "active": 3}}, "client 2: active must be a list of seconds"),
        ({1: PHONE, 2: {**PHONE, "active": [True, 2]}}, "client 2: active must hold seconds, holds true"),
        ({1: PHONE, 2: {**PHONE, "active": [float("nan"), 2]}}, "client 2: active must hold seconds, holds nan"),
        ({1: PHONE, 2: {**PHONE, "active": [10**400, 2]}}, "client 2: active must hold seconds, holds 1000"),
        ({1: PHONE, 2: {**PHONE, "active": [1]}}, "client 2 has 1 active and 2 inactive times, must be as many"),
        ({1: PHONE, 2: {**PHONE, "active": [10, 56]}}, r"client 2: active\[1\] = 56 is after inactive\[1\] = 55"),
        ({1: PHONE, 2: Evil(os.getcwd, ())}, "cannot be read: holds more than plain data .STACK_GLOBAL at byte"),
    ],
)
def test_bad_availability_is_refused(tmp_path, clients, message):
    path = write(tmp_path / "trace.pkl", clients)
    with pytest.raises(BadOption, match=message) as caught:
        fedscale.function(context(2), path=path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00", '{"1": ' + "9" * 5000 + "}"])
def test_bad_json_is_refused(tmp_path, text):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(BadOption, match=r"path = .*: cannot be read: ") as caught:
        fedscale.function(context(2), path=tmp_path / "trace.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadOption, match=r"path = .*nothing.pkl.*: no such file"):
        fedscale.function(context(2), path=tmp_path / "nothing.pkl")


def test_keys_that_could_share_a_hash_are_refused():
    from fedpbc.io.plainpickle import PickleError, load

    assert load(pickle.dumps({2**60 - 1: 1})) == {2**60 - 1: 1}
    for key in (2**60, 2**61 - 1, -(2**60), -(2**61 - 1)):
        with pytest.raises(PickleError, match="int below"):
            load(pickle.dumps({key: 1}))
