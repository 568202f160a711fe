"""Replies that are damaged, forged, late or doubled: refused by name, and nobody else notices."""

from __future__ import annotations

import copy
import io
import json
import logging
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from apps import CASES, D, by, centers, expected, flat, grid_of, names, play, quadratic_app, record_of, trace
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedpbc.flower import InProcessGrid, fedpbc_mod
from fedpbc.flower.wire.arrays import Refused, view
from fedpbc.flower.wire.protocol import RECORD, Answer

M, ROUNDS, WHEN, WHO = 6, 12, 7, 4
U = centers(M)
UP = trace(ROUNDS, M, seed=3)
UP[WHEN], UP[WHEN + 2, WHO] = True, True
DENIED = UP.copy()
DENIED[WHEN, WHO] = False
Attack = Callable[[Message, "Tampered"], list[Message]]


class Tampered(InProcessGrid):
    """What client ``WHO`` replies in round ``WHEN`` goes through ``attack``."""

    attack: Attack
    earlier: Message

    def pull_messages(self, message_ids: Any) -> Any:
        found = []
        for reply in super().pull_messages(message_ids):
            answer = Answer.of(reply) if reply.has_content() else None
            if answer is not None and answer.client == str(WHO) and answer.round < WHEN:
                self.earlier = reply
            if answer is not None and (answer.client, answer.round) == (str(WHO), WHEN):
                found += self.attack(reply, self)
            else:
                found.append(reply)
        return found


def changed(**records: Any) -> Attack:
    """These records in place of those of the reply (None: gone)."""

    def attack(reply: Message, grid: Tampered) -> list[Message]:
        for key, record in records.items():
            if record is None:
                del reply.content[key]
            else:
                reply.content[key] = record(reply) if callable(record) else record
        return [reply]

    return attack


def arrays(**parts: np.ndarray | None) -> Attack:
    """A model in which these arrays are different (None: gone)."""

    def forged(reply: Message) -> ArrayRecord:
        model = dict(reply.content["arrays"])
        for key, part in parts.items():
            name = f"layer.{key}"
            model[name] = part if part is None or isinstance(part, Array) else Array(part)
            if part is None:
                del model[name]
        return ArrayRecord(model)

    return changed(arrays=forged)


def with_value(value: float) -> Attack:
    def forged(reply: Message) -> ArrayRecord:
        x = flat(reply.content["arrays"])
        x[3] = value
        return record_of(x)

    return changed(arrays=forged)


def bytes_of(data: bytes) -> Array:
    return Array("float64", (2, 2), "numpy.ndarray", data)


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


GOOD = npy(np.ones((2, 2)))


def answer(**fields: Any) -> Attack:
    def forged(reply: Message) -> ConfigRecord:
        said = json.loads(reply.content[RECORD]["answer"])
        return ConfigRecord({"answer": json.dumps(said | fields)})

    return changed(**{RECORD: forged})


def other_id(reply: Message, grid: Tampered) -> list[Message]:
    reply.metadata.__dict__["_src_node_id"] = next(iter(grid.contexts))
    return [reply]


def replayed(reply: Message, grid: Tampered) -> list[Message]:
    return [grid.earlier]


def old_content(reply: Message, grid: Tampered) -> list[Message]:
    """An answer to this round's message with the content of an earlier one."""
    reply.content = grid.earlier.content
    return [reply]


def unasked(reply: Message, grid: Tampered) -> list[Message]:
    reply.metadata.__dict__["_reply_to_message_id"] = uuid.uuid4().hex
    return [reply]


BROKEN: dict[str, tuple[Attack, str]] = {
    "another shape": (arrays(weight=np.ones((4, 1))), "shape"),
    "ten times the elements": (arrays(weight=np.ones((20, 2))), "shape"),
    "a scalar that is a vector": (arrays(bias=np.ones(1)), "shape"),
    "float32": (arrays(weight=np.ones((2, 2), np.float32)), "type"),
    "integers": (arrays(weight=np.ones((2, 2), np.int64)), "type"),
    "big-endian": (arrays(weight=np.ones((2, 2), ">f8")), "type"),
    "complex": (arrays(weight=np.ones((2, 2), np.complex128)), "type"),
    "an array is missing": (arrays(bias=None), "missing"),
    "one array too many": (arrays(extra=np.ones(3)), "unknown"),
    "no array": (changed(arrays=ArrayRecord()), "missing"),
    "no ArrayRecord": (changed(arrays=None), "ArrayRecord"),
    "two ArrayRecords": (changed(more=record_of(np.ones(D))), "ArrayRecord"),
    "NaN": (with_value(np.nan), "finite"),
    "infinity": (with_value(-np.inf), "finite"),
    "a number near overflow": (with_value(1e300), "huge"),
    "huge metrics": (changed(metrics=MetricRecord({"x": [0.0] * 1_000_000})), "bytes beside"),
    "a huge config": (changed(blob=ConfigRecord({"x": b"0" * 3_000_000})), "bytes beside"),
    "no record of fedpbc": (changed(**{RECORD: None}), "fedpbc_mod"),
    "metrics by that name": (changed(**{RECORD: MetricRecord({"round": WHEN})}), "fedpbc_mod"),
    "a round that is no number": (answer(round="7"), "fedpbc_mod"),
    "another round": (answer(round=WHEN - 1), "was not asked"),
    "another client": (answer(client="1"), "was not asked"),
    "another base": (answer(base="model-0"), "was not asked"),
    "a long name": (answer(client="x" * 500_000), "has no record of fedpbc"),
    "truncated bytes": (arrays(weight=bytes_of(GOOD[:-5])), "cannot be read"),
    "no bytes": (arrays(weight=bytes_of(b"")), "cannot be read"),
    "not an array": (arrays(weight=bytes_of(b"\x00" * 160)), "cannot be read"),
    "a header cut short": (arrays(weight=bytes_of(GOOD[:40])), "cannot be read"),
    "one byte of the header": (arrays(weight=bytes_of(GOOD.replace(b"}", b" "))), "cannot be read"),
    "another serialisation": (arrays(weight=Array("float64", (2, 2), "torch", GOOD)), "serialised"),
    "the content of an earlier reply": (old_content, "was not asked"),
}
UNMATCHED: dict[str, tuple[Attack, str]] = {
    "an earlier reply": (replayed, "answers nothing"),
    "from another node": (other_id, "another node"),
    "to a message that was never sent": (unasked, "answers nothing"),
}


def attacked(case: str, attack: Attack, folder: Any, **options: Any) -> tuple[np.ndarray, list[dict[str, Any]]]:
    grid = grid_of(quadratic_app(U), UP, kind=Tampered)
    grid.attack = attack
    models = play(CASES[case].make(M, directory=folder, **options), grid, ROUNDS)
    return models, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check(case: str, models: np.ndarray, lines: list[dict[str, Any]], active: np.ndarray = DENIED) -> None:
    np.testing.assert_allclose(models, expected(CASES[case].method, U, active), atol=1e-9, rtol=0)
    assert [line["active"] for line in lines] == active.sum(axis=1).tolist()
    assert [line["round"] for line in lines if line["refused"]] == [WHEN]


def test_it_matters_whether_the_reply_counts():
    """Otherwise the tests below would say nothing."""
    assert UP[:WHEN, WHO].any()
    for case in CASES.values():
        assert np.abs(expected(case.method, U, UP) - expected(case.method, U, DENIED)).max() > 1e-3


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_reply_is_refused(name, tmp_path, caplog):
    attack, why = BROKEN[name]
    with caplog.at_level(logging.WARNING, "flwr"):
        models, lines = attacked("fedpbc", attack, tmp_path)
    check("fedpbc", models, lines)
    (refused,) = lines[WHEN]["refused"]
    assert refused["client"] == str(WHO)
    assert why in refused["reason"]
    assert len(refused["reason"]) <= 300
    assert [r.message for r in caplog.records if "refused" in r.message] == [
        f"round {WHEN + 1}: reply of {WHO} refused: {refused['reason']}"
    ]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["NaN", "another shape", "one byte of the header"])
@pytest.mark.parametrize(
    "case",
    [
        "fedavg",
        "fedau",
        "debiased",
        "mifa",
        "mifa by client",
        "fedstale",
        "fedvarp",
        "fedvarp by client",
        "scaffold",
        "scaffold by client",
        "fedfade",
        "fedfade by client",
        "fedfade by client, around",
    ],
)
def test_the_other_strategies_refuse_it_too(case, name, tmp_path):
    check(case, *attacked(case, BROKEN[name][0], tmp_path))


@pytest.mark.parametrize("name", UNMATCHED)
def test_a_reply_to_something_else_is_refused(name, tmp_path, caplog):
    attack, why = UNMATCHED[name]
    models, lines = attacked("fedpbc", attack, tmp_path, round_deadline=0.5)  # one is not answered, others at once
    check("fedpbc", models, lines)
    (refused,) = lines[WHEN]["refused"]
    assert refused["client"].startswith("node ")
    assert why in refused["reason"]
    assert f"refused: {refused['reason']}" in caplog.text


@pytest.mark.parametrize("case", ["fedpbc", "fedavg", "mifa"])
def test_a_reply_that_comes_twice_counts_once(case, tmp_path):
    models, lines = attacked(case, lambda reply, grid: [reply, copy.copy(reply)], tmp_path)
    check(case, models, lines, UP)
    assert "already" in lines[WHEN]["refused"][0]["reason"]


def test_a_forged_second_reply_does_not_replace_the_first(tmp_path):
    def forge(reply: Message, grid: Tampered) -> list[Message]:
        second = copy.copy(reply)
        second.content = RecordDict({**reply.content, "arrays": record_of(np.full(D, 1e3))})
        return [reply, second]

    check("fedpbc", *attacked("fedpbc", forge, tmp_path), UP)


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_scaffold_refuses_what_would_spoil_its_control_variates(value, tmp_path):
    models, lines = attacked("scaffold by client", answer(length=value), tmp_path)
    check("scaffold by client", models, lines)
    assert "drift_correction" in lines[WHEN]["refused"][0]["reason"]


@pytest.mark.parametrize("case", ["fedpbc", "fedavg"])
def test_an_exception_in_the_train_function(case, tmp_path):
    tripped = []

    def trip(t: int, i: int) -> None:
        if (t, i) == (WHEN, WHO) and not tripped:
            tripped.append(True)
            raise RuntimeError("out of memory")

    grid = grid_of(quadratic_app(U, before=trip), UP)
    models = play(CASES[case].make(M, directory=tmp_path), grid, ROUNDS)
    np.testing.assert_allclose(models, expected(CASES[case].method, U, DENIED), atol=1e-9, rtol=0)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    failed = [entry for line in lines for entry in line["failed"] if "lost on" not in entry["reason"]]
    assert failed == [{"client": str(WHO), "reason": "RuntimeError: out of memory"}]
    assert tripped


def test_pickles_are_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "exploded"), "w"))

    data = npy(np.array([[Bomb(), 1], [2, 3]], object), allow_pickle=True)
    models, lines = attacked("fedpbc", arrays(weight=bytes_of(data)), tmp_path / "run")
    check("fedpbc", models, lines)
    assert "Python objects" in lines[WHEN]["refused"][0]["reason"]
    assert not (tmp_path / "exploded").exists()


HEADERS = [
    "{'descr': (), 'fortran_order': False, 'shape': (5,)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1" + "0" * 40 + ",)}",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (5,)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (5,)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "-" * 3000 + "1,)}",
    "-" * 3900 + "1",
    "[" * 3900,
    "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2)",
    "\x00" * 50,
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_a_header_made_to_confuse_the_parser(header):
    text = header.encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(40)
    with pytest.raises(Refused, match="cannot be read"):
        view("x", bytes_of(data))


def test_one_wrong_byte_anywhere_in_an_array_is_read_or_refused():
    refused = []
    for position in range(GOOD.index(b"\n") + 1):
        for byte in (0, 9, 32, 39, 40, 41, 48, 57, 92, 125, 200, 255):
            data = bytearray(GOOD)
            data[position] = byte
            try:
                assert isinstance(view("x", bytes_of(bytes(data))), np.ndarray)
            except Refused as error:
                refused.append(str(error))
    assert len(refused) > 100
    assert not any("\n" in why for why in refused)


def test_a_client_app_without_the_mod_is_never_taken_in(tmp_path, caplog):
    plain = quadratic_app(U, mods=())

    class Mixed(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            client = self.contexts[message.metadata.dst_node_id].node_config["client-id"]
            self.app = plain if client == str(WHO) else with_mod
            return super()._answer(message)

    with_mod = quadratic_app(U, mods=(fedpbc_mod,))
    active = UP.copy()
    active[:, WHO] = False
    grid = grid_of(with_mod, UP, kind=Mixed)
    models = play(CASES["fedpbc"].make(M - 1, directory=tmp_path), grid, ROUNDS)
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, active), atol=1e-9, rtol=0)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    node = list(grid.contexts)[WHO]
    assert all(f"node {node}" in [entry["client"] for entry in line["failed"]] for line in lines)


def test_a_reply_that_does_not_say_who_it_is(caplog):
    def silent(message: Message, context: Any, call_next: Any) -> Message:
        reply = fedpbc_mod(message, context, call_next)
        if context.node_config["client-id"] == str(WHO) and "client-id" in reply.content[RECORD]:
            reply.content[RECORD] = ConfigRecord({"hello": 1})
        return reply

    active = UP.copy()
    active[:, WHO] = False
    grid = grid_of(quadratic_app(U, mods=(silent,)), UP)
    models = play(CASES["fedpbc"].make(M - 1), grid, ROUNDS)
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, active), atol=1e-9, rtol=0)
    assert "does not say who it is: the client app needs @app.train(mods=[fedpbc_mod])" in caplog.text


@pytest.mark.parametrize("case", ["fedpbc", "mifa"])
def test_a_second_node_of_the_same_client_does_not_count_twice(case, caplog):
    """The node that came first stays the client."""
    grid = grid_of(quadratic_app(U), UP)
    models = play(CASES[case].make(M), grid, ROUNDS, after=lambda t: t == WHEN and grid.connect(str(WHO)))
    np.testing.assert_allclose(models, expected(CASES[case].method, U, UP), atol=1e-9, rtol=0)
    assert len(grid.contexts) == M + 1
    first, second = list(grid.contexts)[WHO], list(grid.contexts)[-1]
    assert f'node {second} calls itself "{WHO}": not asked, while node {first} is online' in caplog.text


class Keyed(InProcessGrid):
    """SuperNodes with keys: one for each client id, and another one for nodes that came later."""

    thief = -1

    def get_nodes(self) -> Any:
        for node, context in self.contexts.items():
            key = b"thief" if node == self.thief else str(context.node_config["client-id"]).encode()
            yield NodeInfo(node_id=node, public_key=key)


@pytest.mark.parametrize("there", [True, False], ids=["while it is there", "when it has gone"])
def test_a_client_id_belongs_to_the_key_that_used_it_first(there, caplog):
    grid = Keyed(quadratic_app(U), names(M), uplink=by(UP))
    owner, active = list(grid.contexts)[WHO], UP.copy()
    active[WHEN:, WHO] &= there

    def steal(done: int) -> None:
        if done == WHEN:
            grid.thief = grid.connect(str(WHO))
            if not there:
                grid.disconnect(owner)

    models = play(CASES["fedpbc"].make(M, pin_names=True), grid, ROUNDS, after=steal)
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, active), atol=1e-9, rtol=0)
    assert f'node {grid.thief} calls itself "{WHO}": not asked' in caplog.text
    assert len(grid.contexts[grid.thief].state) == 0
