"""The client's side: catching up in pieces, what it keeps, drift correction, and traces that drop messages."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest
import rivals
from apps import CASES, RATE, STEPS, D, centers, expected, flat, grid_of, names, play, quadratic_app, record_of, trace
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.errors import ConfigError
from fedpbc.flower import InProcessGrid, drift_correction, drop_by_trace, fedpbc_mod
from fedpbc.flower.client import mod as client
from fedpbc.flower.wire.protocol import CORRECTION, RECORD, TRAIN, Answer, Order

M = 5
U = centers(M)


class Calls:
    """Which rounds each client trained; every call takes 20 minutes of a clock that nobody waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.rounds = 0.0, [[] for _ in range(M)]
        monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: self.now))

    def __call__(self, t: int, i: int) -> None:
        self.rounds[i].append(t)
        self.now += 1200


@pytest.mark.parametrize("lost_in", [None, 14])
def test_a_long_catch_up_is_done_in_pieces(lost_in, monkeypatch, tmp_path):
    """Three rounds fit into an hour: a client that missed ten rounds is back after four more, not never."""
    back, rounds = (14, 24) if lost_in is None else (20, 30)
    up, down = np.ones((rounds, M), bool), np.ones((rounds, M), bool)
    down[:10, 2] = False
    calls = Calls(monkeypatch)
    grid = grid_of(quadratic_app(U, before=calls), up, down)
    nodes = list(grid.contexts)

    def lose(done: int) -> None:
        if done == lost_in:
            grid.disconnect(nodes[2])
            grid.connect("2")

    models = play(CASES["fedpbc"].make(M, directory=tmp_path), grid, rounds, after=lose)
    active = up.copy()
    active[:back, 2] = False
    np.testing.assert_allclose(models, expected(rivals.FedPBC(), U, active), atol=1e-9, rtol=0)
    once = list(range(rounds))
    assert calls.rounds[0] == once
    assert calls.rounds[2] == (once if lost_in is None else [*range(12), *once])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["catching_up"] != {} for line in lines] == [10 <= t < back for t in range(rounds)]
    assert lines[10]["catching_up"] == {"2": 8}  # of rounds 0..10 three are done


def test_a_reply_that_got_lost_is_not_computed_twice():
    up, seen = trace(20, M), []
    play(CASES["fedpbc"].make(M), grid_of(quadratic_app(U, before=lambda t, i: seen.append((t, i))), up), 20)
    assert sorted(seen) == [(t, i) for t in range(20) for i in range(M)]


def ask(grid: InProcessGrid, x: np.ndarray, **fields: Any) -> Message:
    """The reply of the only client to an order."""
    order = Order(TRAIN, "0", **{"budget": 1e9, "keep_progress": True, **fields})
    content = RecordDict({"arrays": record_of(x), "config": ConfigRecord({"lr": 1.0}), RECORD: order.record()})
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, MessageType.TRAIN)])
    return reply


def trained(x: np.ndarray, first: int, last: int) -> np.ndarray:
    """Client 0 from x through rounds first, ..., last."""
    for t in range(first, last + 1):
        for _ in range(STEPS):
            x = x - RATE(t) * (x - U[0])
    return x


def test_progress_belongs_to_a_base_and_a_first_round():
    grid, x, y = InProcessGrid(quadratic_app(U), ["0"]), np.full(D, 9.0), np.full(D, -4.0)
    cases = [
        (x, {"base": "a", "round": 2}, 3),
        (x, {"base": "a", "round": 2}, 0),
        (x, {"base": "a", "round": 4}, 2),
        (y, {"base": "b", "round": 4}, 5),
        (x, {"base": "a", "round": 4}, 5),
        (x, {"base": "a", "round": 3}, 4),
        (x, {"base": "a", "round": 4, "first": 2}, 3),
        (x, {"base": "a", "round": 6, "first": 2, "train_rounds": 6}, 1),
        (x, {"base": "a", "round": 6, "first": 2, "keep_progress": False}, 5),
        (x, {"base": "c", "round": 9, "train_rounds": 0}, 0),
    ]
    for base, fields, calls in cases:
        reply = ask(grid, base, **fields)
        answer = Answer.of(reply)
        assert answer is not None
        assert (answer.finished, answer.trained, answer.waiting, answer.base) == (True, calls, 0, fields["base"])
        last = min(fields["round"], fields.get("train_rounds", 99) - 1)
        np.testing.assert_allclose(flat(reply.content["arrays"]), trained(base, fields.get("first", 0), last))


def test_the_budget_is_never_spent_on_nothing():
    """At least one round is trained, however long it takes; a reply that is not finished holds no model."""
    grid = InProcessGrid(quadratic_app(U), ["0"])
    for done in range(1, 4):
        reply = ask(grid, np.zeros(D), base="a", round=3, budget=0.0)
        assert not reply.content.array_records
        answer = Answer.of(reply)
        assert answer is not None
        assert (answer.finished, answer.trained, answer.waiting) == (False, 1, 4 - done)
    reply = ask(grid, np.zeros(D), base="a", round=3, budget=0.0)
    np.testing.assert_allclose(flat(reply.content["arrays"]), trained(np.zeros(D), 0, 3))


@pytest.mark.parametrize("record", [None, ConfigRecord({"kind": 3}), ConfigRecord({"note": "mine"}), ArrayRecord()])
def test_messages_of_other_strategies_pass_untouched(record):
    replies = []
    for mods in ((), (fedpbc_mod,)):
        grid = InProcessGrid(quadratic_app(U, mods=mods), ["0"])
        (node,) = grid.get_node_ids()
        content = RecordDict({"arrays": record_of(np.ones(D)), "config": ConfigRecord({"server-round": 5})})
        if record is not None:
            content[RECORD] = record
        (reply,) = grid.send_and_receive([Message(content, node, MessageType.TRAIN)])
        assert not reply.has_error()
        assert len(grid.contexts[node].state) == 0
        replies.append(reply.content)
    assert replies[0] == replies[1]
    np.testing.assert_allclose(flat(replies[1]["arrays"]), trained(np.ones(D), 4, 4))


BAD_MODELS = {
    "shape": ({"arrays": ArrayRecord({"layer.weight": Array(np.ones(4)), "layer.bias": Array(np.ones(()))})}, "shape"),
    "type": (
        {"arrays": ArrayRecord({"layer.weight": Array(np.ones((2, 2), np.float32)), "layer.bias": Array(np.ones(()))})},
        "float32",
    ),
    "names": ({"arrays": ArrayRecord({"layer.weight": Array(np.ones((2, 2)))})}, "layer.bias"),
    "nothing": ({}, "exactly one ArrayRecord"),
    "two": ({"a": record_of(np.ones(D)), "b": record_of(np.ones(D))}, "exactly one ArrayRecord"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_train_function_that_returns_another_model(name, tmp_path):
    records, why = BAD_MODELS[name]
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(records), reply_to=message)

    links = np.ones((2, 2), bool)
    models = play(CASES["fedpbc"].make(2, directory=tmp_path), grid_of(app, links), 2)
    assert not models.any()
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        failed = json.loads(line)["failed"]
        assert [entry["client"] for entry in failed] == ["0", "1"]
        assert all(entry["reason"].startswith("ValueError: the train function") for entry in failed)
        assert all(why in entry["reason"] for entry in failed)


def shifted(shift: ArrayRecord | None) -> Message:
    records = {RECORD: ConfigRecord({"length": 0.0})} | ({} if shift is None else {CORRECTION: shift})
    return Message(RecordDict(records), 1, MessageType.TRAIN)


def test_drift_correction_takes_gradients_in_any_form():
    message = shifted(record_of(np.arange(5.0)))
    correction = drift_correction(message)
    weight, bias = np.full((2, 2), 10.0), np.array(20.0)
    wanted = [np.array([[10.0, 11.0], [12.0, 13.0]]), np.array(24.0)]
    for given, values in (
        ([weight, bias], lambda g: g),
        ((weight, bias), lambda g: g),
        ({"layer.bias": bias, "layer.weight": weight}, lambda g: [g["layer.weight"], g["layer.bias"]]),
    ):
        corrected = correction.gradient(given, 0.25)
        assert type(corrected) is type(given)
        for found, value in zip(values(corrected), wanted, strict=True):
            np.testing.assert_array_equal(found, value)
    assert np.all(weight == 10)
    assert message.content[RECORD]["length"] == 0.75
    single = drift_correction(shifted(ArrayRecord({"x": Array(np.arange(3.0))})))
    np.testing.assert_array_equal(single.gradient(np.ones(3), 0.1), [1, 2, 3])
    with pytest.raises(ValueError, match="zip"):
        correction.gradient([weight], 0.1)


def test_drift_correction_without_a_correction_changes_nothing():
    message, gradient = shifted(None), [np.ones(2)]
    assert drift_correction(message).gradient(gradient, 0.5)[0] is gradient[0]
    assert message.content[RECORD]["length"] == 0.5
    plain = Message(RecordDict({"config": ConfigRecord({"server-round": 1})}), 1, MessageType.TRAIN)
    assert drift_correction(plain).gradient(gradient, 0.5)[0] is gradient[0]
    assert set(plain.content) == {"config"}


class Tensor:
    """What of a torch tensor is needed."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values, np.float32)

    def new_tensor(self, values: Any) -> Tensor:
        assert isinstance(values, (np.ndarray, float, list, int))
        assert not isinstance(values, np.ndarray) or values.flags.writeable  # torch warns about others
        return Tensor(values)

    def add_(self, other: Tensor) -> Tensor:
        assert self.values.shape == other.values.shape
        self.values += other.values
        return self


def test_drift_correction_of_torch_parameters():
    message = shifted(record_of(np.arange(5.0)))
    parameters = {
        "layer.weight": SimpleNamespace(grad=Tensor(np.ones((2, 2)))),
        "layer.bias": SimpleNamespace(grad=Tensor(1.0)),
        "frozen": SimpleNamespace(grad=None),
    }
    drift_correction(message).add_to_grads(iter(parameters.items()), 0.1)
    np.testing.assert_array_equal(parameters["layer.weight"].grad.values, [[1, 2], [3, 4]])
    assert parameters["layer.bias"].grad.values == 5
    assert message.content[RECORD]["length"] == 0.1


def committed(strategy: Any, grid: InProcessGrid, kept: str = "control") -> dict[str, np.ndarray]:
    """What every client keeps, as far as the server accepted it: its context's, for the round the server names."""
    found = {}
    for context in grid.contexts.values():
        name, of = str(context.node_config["client-id"]), context.state.get(f"fedpbc.{kept}-of")
        accepted = strategy.rule.epochs.accepted[strategy.federation.roster.clients[name].index]
        found[name] = np.zeros(D)
        if accepted >= 0:
            assert of["epoch"] == strategy.rule.epochs.epoch
            (key,) = ({of["pending"]: "-pending", of["kept"]: ""}[accepted],)
            found[name] = flat(context.state[f"fedpbc.{kept}{key}"])
    return found


def control(strategy: Any, table: str = "control") -> np.ndarray:
    return np.concatenate([part.ravel() for part in strategy.rule.tables[table].row(0).values()])


@pytest.mark.parametrize("rounds", [19, 20])
def test_lost_replies_do_not_spoil_scaffolds_controls(rounds):
    up, down = trace(20, M, seed=2), trace(20, M, seed=6)
    strategy, grid = CASES["scaffold by client"].make(M), grid_of(quadratic_app(U), up, down)
    play(strategy, grid, rounds)
    gradient = oracle.Quadratic(U).gradient
    links = (up & down)[:rounds]
    last = rivals.simulate(rivals.Scaffold(), gradient, links, np.zeros(D), steps=STEPS, rate=RATE)[-1]
    controls = committed(strategy, grid)
    for i, name in enumerate(names(M)):
        np.testing.assert_allclose(controls[name], last.extra["c_i"][i], atol=1e-9)
    np.testing.assert_allclose(control(strategy), np.mean(list(controls.values()), axis=0), atol=1e-12)
    assert np.abs(control(strategy)).max() > 1e-3


@pytest.mark.parametrize(("case", "sign", "key"), [("mifa by client", -1, "G"), ("fedvarp by client", 1, "y")])
@pytest.mark.parametrize("rounds", [19, 20])
def test_lost_replies_do_not_spoil_the_latest_updates(rounds, case, sign, key):
    up, down = trace(20, M, seed=2), trace(20, M, seed=6)
    strategy, grid = CASES[case].make(M), grid_of(quadratic_app(U), up, down)
    play(strategy, grid, rounds)
    gradient, links = oracle.Quadratic(U).gradient, (up & down)[:rounds]
    last = rivals.simulate(CASES[case].method, gradient, links, np.zeros(D), steps=STEPS, rate=RATE)[-1]
    updates = committed(strategy, grid, "update")
    for i, name in enumerate(names(M)):
        np.testing.assert_allclose(updates[name], sign * last.extra[key][i], atol=1e-9)
    np.testing.assert_allclose(control(strategy, "mean"), np.mean(list(updates.values()), axis=0), atol=1e-12)
    assert np.abs(control(strategy, "mean")).max() > 1e-3


@pytest.mark.parametrize("case", ["mifa by client", "fedvarp by client"])
def test_a_client_sends_one_model_and_keeps_one(case):
    """The differences go up in place of the models, and the server holds two models whatever m."""
    strategy, plain = CASES[case].make(M), CASES["fedavg"].make(M)
    up, sizes = np.ones((3, M), bool), []
    for kind in (strategy, plain):
        play(kind, grid_of(quadratic_app(U), up), 3, after=lambda done: None)
        sizes.append((kind.federation.ledger.bytes_up, kind.federation.ledger.bytes_down))
    (ours_up, ours_down), (plain_up, plain_down) = sizes
    assert abs(ours_up - plain_up) < M * 8 * D / 2
    assert 0 <= ours_down - plain_down < M * 200
    assert {kind: len(table.state()) for kind, table in strategy.rule.tables.items()} == {"mean": 1}


def test_differences_of_a_model_of_coarse_numbers_do_not_drift():
    """What is kept is what was counted, rounded as the model is: the mean on the server stays their mean."""
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        i, x = int(context.node_config["client-id"]), message.content["arrays"]["w"].numpy()
        x = x + (0.3 * (U[i] * 20 - x)).astype(np.float16)
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(x)})}), reply_to=message)

    strategy = CASES["mifa by client"].make(M)
    grid = grid_of(app, trace(30, M, seed=4))
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(D, np.float16))}), num_rounds=30)
    updates = {}
    for context in grid.contexts.values():
        name, of = str(context.node_config["client-id"]), context.state["fedpbc.update-of"]
        index = strategy.federation.roster.clients[name].index
        key = "-pending" if of["pending"] == strategy.rule.epochs.accepted[index] else ""
        updates[name] = context.state[f"fedpbc.update{key}"]["w"].numpy()
    mean = np.mean(list(updates.values()), axis=0, dtype=np.float64)
    np.testing.assert_allclose(strategy.rule.tables["mean"].row(0)["w"], mean, atol=1e-4 * np.abs(mean).max())


@pytest.mark.first(1)
@pytest.mark.parametrize("case", ["mifa by client", "fedvarp by client"])
@pytest.mark.parametrize("announced", [True, False], ids=["", "the reply that says so gets lost"])
def test_a_client_that_lost_its_latest_update(case, announced):
    """All start from 0 again, the mean is that of what the clients keep, and the limit is the uniform optimum."""
    rounds = 200
    up = trace(rounds, M, seed=8)
    up[::2] = True
    up[12, 1], up[9, 1] = announced, True
    up[13:16, 1] = True
    grid = grid_of(quadratic_app(U, rate=lambda t: 0.1), up)
    fixed = {"learning_rate": 0.1} if "mifa" in case else {}
    strategy, nodes, epochs = CASES[case].make(M, **fixed), list(grid.contexts), []

    def lose(done: int) -> None:
        if done == 12:
            grid.disconnect(nodes[1])
            grid.connect("1")
        epochs.append(strategy.rule.epochs.epoch if done else 0)

    models = play(strategy, grid, rounds, after=lose)
    assert epochs[12:15] == ([0, 1, 1] if announced else [0, 0, 1])
    assert epochs[-1] == 1
    kept = committed(strategy, grid, "update")
    np.testing.assert_allclose(control(strategy, "mean"), np.mean(list(kept.values()), axis=0), atol=1e-10)
    assert np.linalg.norm(models[-1] - U.mean(axis=0)) < 1e-6
    lost = {next(t for t in range(12, rounds) if up[t, 1]): {1}}
    method = rivals.MIFADifferences() if "mifa" in case else rivals.FedVARPDifferences(0.6)
    if announced:  # as the simulator has it
        gap = expected(method, U, up, rate=lambda t: 0.1, lost=lost) - models
        assert np.abs(gap).max() < 1e-9


@pytest.mark.parametrize("announced", [True, False], ids=["", "the reply that says so gets lost"])
@pytest.mark.parametrize("active", ["everybody", "some"])
def test_scaffold_with_a_client_that_lost_its_control_variate(active, announced):
    """All start from 0 again, and the limit is the uniform optimum as before."""
    rounds = 140
    up = np.ones((rounds, M), bool) if active == "everybody" else trace(rounds, M, seed=8)
    up[::2] = True
    up[12, 1], up[9, 1] = announced, True
    up[13:16, 1] = True
    grid = grid_of(quadratic_app(U, rate=lambda t: 0.1), up)
    strategy, nodes = CASES["scaffold by client"].make(M), list(grid.contexts)
    epochs = []

    def lose(done: int) -> None:
        if done == 12:
            grid.disconnect(nodes[1])
            grid.connect("1")
        epochs.append(strategy.rule.epochs.epoch if done else 0)

    final = play(strategy, grid, rounds, after=lose)[-1]
    assert epochs[12:15] == ([0, 1, 1] if announced else [0, 0, 1])
    assert epochs[-1] == 1
    np.testing.assert_allclose(control(strategy), np.mean(list(committed(strategy, grid).values()), axis=0), atol=1e-10)
    assert np.linalg.norm(final - U.mean(axis=0)) < 1e-6


@pytest.mark.parametrize("case", ["fedpbc", "fedavg", "mifa", "scaffold by client"])
def test_a_trace_drops_the_same_as_the_grid(case, tmp_path):
    up, down = trace(20, M, seed=2), trace(13, M, seed=6)
    np.save(tmp_path / "up.npy", up)
    rows = [f"{t},{i},{int(down[t, i])}" for t in range(13) for i in range(M)]
    (tmp_path / "down.csv").write_text("\n".join(["round,client,active", *rows]) + "\n")
    mods = (drop_by_trace(tmp_path / "up.npy", tmp_path / "down.csv"), fedpbc_mod)
    active = up & np.concatenate([down, down[:7]])  # the shorter trace begins anew
    models = play(CASES[case].make(M), InProcessGrid(quadratic_app(U, mods=mods), names(M)), 20)
    np.testing.assert_allclose(models, expected(CASES[case].method, U, active), atol=1e-9, rtol=0)


def test_traces_of_the_run_config(tmp_path):
    up, down = trace(12, M, seed=2), trace(12, M, seed=6)
    np.save(tmp_path / "up.npy", up)
    np.save(tmp_path / "down.npy", down)
    config = {"trace": str(tmp_path / "up.npy"), "downlink-trace": str(tmp_path / "down.npy")}
    seen: list[tuple[int, int]] = []
    app = quadratic_app(U, mods=(drop_by_trace(), fedpbc_mod), before=lambda t, i: seen.append((t, i)))
    models = play(CASES["fedavg"].make(M), InProcessGrid(app, names(M), run_config=config), 12)
    np.testing.assert_allclose(models, expected(rivals.FedAvg(), U, up & down), atol=1e-9, rtol=0)
    assert sorted(seen) == [(t, i) for t, i in np.argwhere(down).tolist()]


def test_a_trace_is_read_with_the_options_of_the_audit(tmp_path):
    """A log of events whose rounds are times, a minute each, whose outcome is a column, and with a row said twice."""
    up = trace(12, M, seed=2)
    up[:, 0] = ~up[:, 1]  # every round has a row
    rows = [f"{60 * t + 7},{i},{'ok' if up[t, i] else 'lost'}" for t in range(12) for i in range(M)]
    (tmp_path / "up.csv").write_text("\n".join(["at,device,status", *rows, rows[-1]]) + "\n")
    options = {"active_column": "status=ok", "round_seconds": 60, "drop_duplicates": True}
    options["columns"] = "time=at,client=device"
    mods = (drop_by_trace(tmp_path / "up.csv", **options), fedpbc_mod)
    models = play(CASES["fedavg"].make(M), InProcessGrid(quadratic_app(U, mods=mods), names(M)), 12)
    np.testing.assert_allclose(models, expected(rivals.FedAvg(), U, up), atol=1e-9, rtol=0)


def test_rounds_that_a_trace_leaves_out_are_empty_where_that_is_said(tmp_path):
    (tmp_path / "up.csv").write_text("round,client\n0,0\n0,1\n2,1\n2,0\n")
    errors = []
    mods = (drop_by_trace(tmp_path / "up.csv", missing_rounds="empty"), fedpbc_mod)
    grid = InProcessGrid(quadratic_app(U, mods=mods), ["0"])
    (node,) = grid.get_node_ids()
    for number in (1, 2, 3):
        content = RecordDict({"arrays": record_of(np.ones(D)), "config": ConfigRecord({"server-round": number})})
        (reply,) = grid.send_and_receive([Message(content, node, MessageType.TRAIN)])
        errors.append(reply.has_error())
    assert errors == [False, True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"round_seconds": 0}, "round_seconds = 0: must be a number > 0"),
        ({"round_seconds": "60"}, 'round_seconds = "60": must be a number > 0'),
        ({"missing_rounds": "skip"}, 'missing_rounds = "skip": must be empty or unknown'),
        ({"active_column": 3}, "active_column = .*3.*: must be NAME"),
    ],
)
def test_bad_options_of_a_trace_are_refused_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        drop_by_trace("up.csv", **options)


def test_a_trace_drops_messages_of_other_strategies_too(tmp_path):
    np.save(tmp_path / "up.npy", np.array([[True], [False]]))
    grid = InProcessGrid(quadratic_app(U, mods=(drop_by_trace(tmp_path / "up.npy"), fedpbc_mod)), ["0"])
    (node,) = grid.get_node_ids()
    errors = []
    for number in (1, 2, 3):
        content = RecordDict({"arrays": record_of(np.ones(D)), "config": ConfigRecord({"server-round": number})})
        (reply,) = grid.send_and_receive([Message(content, node, MessageType.TRAIN)])
        errors.append(reply.error.reason if reply.has_error() else None)
    assert errors == [None, "dropped by the trace", None]


@pytest.mark.parametrize(
    ("client_id", "path", "why"),
    [("0", "gone.npy", "gone.npy"), ("7", "up.npy", "client-id must be 0..4"), ("x", "up.npy", "client-id must be")],
)
def test_a_trace_that_does_not_fit(client_id, path, why, tmp_path):
    np.save(tmp_path / "up.npy", trace(6, M))
    grid = InProcessGrid(quadratic_app(U, mods=(drop_by_trace(downlink=tmp_path / path), fedpbc_mod)), [client_id])
    reply = ask(grid, np.zeros(D), base="a")
    assert reply.has_error()
    assert "ConfigError" in reply.error.reason or "BadOption" in reply.error.reason
    assert why in reply.error.reason
