"""What must not get in, and what must not get lost: odd answers, odd numbers, other people's files, odd metrics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from apps import CASES, OPTIONS, D, centers, expected, flat, grid_of, play, quadratic_app, record_of, sealed
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.errors import ConfigError
from fedpbc.flower import FedAU, FedPBC, FedVARP, InProcessGrid, fedpbc_mod
from fedpbc.flower.server import exchange
from fedpbc.flower.wire.protocol import RECORD

M, ROUNDS, WHO = 4, 6, 1
U = centers(M)
ACTIVE = np.ones((ROUNDS, M), bool)


def saying(**fields: Any) -> Any:
    """A mod under which client WHO says something else in its answers; None leaves a field out."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["client-id"] == str(WHO) and "answer" in reply.content[RECORD]:
            said = json.loads(reply.content[RECORD]["answer"]) | fields
            said = {key: value for key, value in said.items() if value is not None}
            reply.content[RECORD] = ConfigRecord({"answer": json.dumps(said)})
        return reply

    return mod


@pytest.mark.parametrize(
    "fields",
    [
        {"trained": None}, {"trained": 2**70}, {"waiting": 10**400}, {"trained": -7}, {"trained": 2**62},
        {"trained": ROUNDS + 1}, {"waiting": 2**62, "finished": False},
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_refused(fields, tmp_path):
    app = quadratic_app(U, mods=(saying(**fields), fedpbc_mod))
    models = play(CASES["fedpbc"].make(M, directory=tmp_path), grid_of(app, ACTIVE), ROUNDS)
    without = ACTIVE.copy()
    without[:, WHO] = False
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, without), atol=1e-9, rtol=0)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["refused"][0]["client"] == str(WHO) for line in lines)


@pytest.mark.parametrize(
    "case", ["scaffold", "scaffold by client", "fedfade by client", "corrected", "corrected light"]
)
@pytest.mark.parametrize("length", [1e-320, 1e-30, 1e30, 0.0, -1.0, float("nan")])
def test_a_length_that_nobody_trains_leaves_no_trace(case, length, tmp_path):
    app = quadratic_app(U, mods=(saying(length=length), fedpbc_mod))
    models = play(CASES[case].make(M, directory=tmp_path), grid_of(app, ACTIVE), ROUNDS)
    without = ACTIVE.copy()
    without[:, WHO] = False
    np.testing.assert_allclose(models, expected(CASES[case].method, U, without), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "case",
    [
        "mifa",
        "mifa by client",
        "fedvarp",
        "fedvarp by client",
        "scaffold",
        "fedau",
        "debiased",
        "fedstale",
        "fedfade",
        "fedfade by client",
        "corrected",
    ],
)
def test_a_model_that_would_not_be_finite_leaves_no_trace(case, monkeypatch):
    """The rule is asked again without the replies, and nothing of the first try is remembered."""
    strategy = CASES[case].make(M)
    grid, seen = grid_of(quadratic_app(U), ACTIVE), []
    kind, inner = type(strategy.rule), type(strategy.rule).step

    def exploding(self, round, replies):
        step = inner(self, round, replies)
        if step.model is None or round.t != 2 or not replies:
            return step
        return step._replace(model={name: np.full_like(x, np.inf) for name, x in step.model.items()})

    monkeypatch.setattr(kind, "step", exploding)

    def look(done):
        if done:
            seen.append(len(strategy.federation.ledger.replies))

    models = play(strategy, grid, ROUNDS, after=look)
    without = ACTIVE.copy()
    without[2] = False
    np.testing.assert_allclose(models, expected(CASES[case].method, U, without), atol=1e-9, rtol=0)
    assert seen == [M, M, 0, M, M, M]


def constant_app(**changes: float) -> ClientApp:
    """Clients that add a constant to some arrays, and return the others as they are."""
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}
        for name, change in changes.items():
            model[name] = (model[name] + change).astype(model[name].dtype)
        return Message(RecordDict({"arrays": ArrayRecord({n: Array(a) for n, a in model.items()})}), reply_to=message)

    return app


ODD = {
    "int64": np.array([2**53, -(2**53), 7]), "uint8": np.array([0, 250, 255], np.uint8), "int8": np.int8([[60], [-60]]),
    "bool": np.array([True, False]), "half": np.array([60000.0], np.float16), "scalar": np.array(3.0),
    "empty": np.zeros((0, 3), np.float32), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "a/b ü": np.ones(2),
}  # fmt: skip


@pytest.mark.parametrize("make", [FedPBC, FedAU, FedVARP])
def test_what_clients_leave_alone_stays_as_it_is(make):
    strategy = make(**OPTIONS | {"num_clients": 3, "min_available_nodes": 3})
    initial = ArrayRecord({name: Array(array) for name, array in ODD.items()})
    result = strategy.start(InProcessGrid(constant_app(), "012"), initial, num_rounds=3)
    for name, array in ODD.items():
        after = result.arrays[name].numpy()
        assert after.dtype == array.dtype
        np.testing.assert_array_equal(after, array)


def test_integers_are_averaged_and_not_extrapolated():
    strategy = FedVARP(**OPTIONS | {"num_clients": 2, "min_available_nodes": 2}, server_learning_rate=3.0)
    initial = ArrayRecord({"int8": Array(np.int8([60, -60]))})
    result = strategy.start(InProcessGrid(constant_app(int8=40), "01"), initial, num_rounds=1)
    assert result.arrays["int8"].numpy().tolist() == [100, -20]


def test_a_model_that_its_own_type_cannot_hold_is_not_taken():
    """float16 is computed in float32: 4000 + 10 * 8000 is fine there."""
    strategy = FedVARP(**OPTIONS | {"num_clients": 2, "min_available_nodes": 2}, server_learning_rate=10.0)
    initial = ArrayRecord({"half": Array(np.float16([4000]))})
    result = strategy.start(InProcessGrid(constant_app(half=8000.0), "01"), initial, num_rounds=2)
    assert result.arrays["half"].numpy().tolist() == [4000]


def test_who_waits_is_told_why(monkeypatch, caplog):
    """A client app without the mod never says who it is; here it gets it while the server waits."""
    monkeypatch.setattr(exchange, "SAY_WAITING", 0.05)
    grid = grid_of(quadratic_app(U, mods=()), ACTIVE)

    class Mended(type(grid)):
        def get_nodes(self) -> Any:
            if "did not say who they are" in caplog.text:
                self.app = quadratic_app(U)
            return super().get_nodes()

    grid.__class__ = Mended
    play(CASES["fedpbc"].make(M, round_deadline=0.2), grid, 1)
    nodes = list(grid.contexts)
    line = (
        f"{M} nodes did not say who they are (node {nodes[0]}, node {nodes[1]}, node {nodes[2]} and node {nodes[3]}): "
    )
    assert line + "KeyError: 'config'; does the client app have @app.train(mods=[fedpbc_mod])?" in caplog.text


def test_a_run_that_learnt_nothing_says_so(caplog):
    app = quadratic_app(U, mods=(saying(length=0.0), fedpbc_mod))
    only = np.zeros((2, M), bool)
    only[:, WHO] = True
    play(CASES["scaffold"].make(M), grid_of(app, only), 2)
    assert "no reply counted in 2 rounds" in caplog.text


def test_an_exception_late_in_a_catch_up_keeps_what_was_done():
    down, calls, trip = ACTIVE.copy(), [], [True]
    down[:4, WHO] = False

    def before(t: int, i: int) -> None:
        if i == WHO:
            calls.append(t)
            if t == 3 and trip:
                trip.clear()
                raise RuntimeError("out of memory")

    models = play(CASES["fedpbc"].make(M), grid_of(quadratic_app(U, before=before), ACTIVE, down), ROUNDS)
    active = down.copy()
    active[4, WHO] = False
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, U, active), atol=1e-9, rtol=0)
    assert calls == [0, 1, 2, 3, 3, 4, 5]


DAMAGES = [{"rounds": -1}, {"clients": 3}, {"memory": {}}, {"latest": "model-00"}, {"bases": []}]
DAMAGES += [{"failures": 3}, {"failures": {"skips": 1, "troubles": {}}}, {"configs": {}}]
DAMAGES += [
    {"configs": {"given": {}, "current": {}, "rounds": "[]"} | damage}
    for damage in ({"given": 3}, {"given": {"lr": 3}}, {"current": {"lr": "x"}}, {"rounds": "[3]"}, {"rounds": 3})
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_line(damage, tmp_path):
    play(CASES["scaffold"].make(M, directory=tmp_path), grid_of(quadratic_app(U), ACTIVE), 2)
    state = json.loads((tmp_path / "checkpoint.json").read_text())
    (tmp_path / "checkpoint.json").write_text(sealed(state | damage))
    before = files_of(tmp_path)
    with pytest.raises(ConfigError) as raised:
        play(CASES["scaffold"].make(M, directory=tmp_path), grid_of(quadratic_app(U), ACTIVE), ROUNDS)
    assert "\n" not in str(raised.value)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("name", ["a\nb", "x" * 300, "\ud800"])
def test_a_name_that_no_log_can_hold_is_refused(name, caplog):
    grid = grid_of(quadratic_app(U), ACTIVE)
    next(iter(grid.contexts.values())).node_config["client-id"] = name
    play(CASES["fedpbc"].make(M - 1, num_clients=M), grid, 2)
    assert "a client-id is up to 256 printable bytes" in caplog.text


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (None, "initial_arrays: must be an ArrayRecord, is NoneType"),
        ({"w": np.ones(2)}, "initial_arrays: must be an ArrayRecord, is dict"),
        (ArrayRecord(), "initial_arrays: holds no arrays"),
        (ArrayRecord([np.array([np.nan])]), "initial_arrays: hold a value that is not finite"),
        (ArrayRecord([np.ones(2, complex)]), "must be floats of up to 64 bits"),
        (ArrayRecord([np.array([2**60])]), "initial_arrays: hold a value that is not finite, or huge"),
        (ArrayRecord({"w": Array("float32", (1,), "numpy.ndarray", b"rubbish")}), "cannot be read"),
    ],
)
def test_bad_initial_arrays_are_one_line(initial, message):
    with pytest.raises(ConfigError, match=message):
        FedPBC(**OPTIONS).start(InProcessGrid(constant_app(), "01"), initial, num_rounds=1)


def files_of(folder: Any) -> dict[Any, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["arrays/mine.npy", "participation.jsonl", "arrays/sub/mine.npy"])
def test_files_of_somebody_else_are_left_alone(name, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=r"and no checkpoint.json; choose another"):
        play(CASES["fedpbc"].make(M, directory=tmp_path), grid_of(quadratic_app(U), ACTIVE), 1)
    assert files_of(tmp_path) == {tmp_path / name: b"mine"}


def test_files_beside_ours_are_left_alone(tmp_path):
    (tmp_path / "links.csv").write_text("mine")
    play(CASES["fedpbc"].make(M, directory=tmp_path), grid_of(quadratic_app(U), ACTIVE), 2)
    (tmp_path / "arrays" / "sub").mkdir()
    (tmp_path / "arrays" / "mine.npy").write_text("mine")
    play(CASES["fedpbc"].make(M, directory=tmp_path), grid_of(quadratic_app(U), ACTIVE), ROUNDS)
    assert (tmp_path / "arrays" / "mine.npy").read_text() == "mine"
    assert (tmp_path / "arrays" / "sub").is_dir()
    assert (tmp_path / "links.csv").read_text() == "mine"


def test_one_client_is_enough_where_there_is_only_one():
    strategy = FedAU(round_deadline=3600, num_clients=1, poll_interval=0.01)
    result = strategy.start(InProcessGrid(quadratic_app(U), "0"), record_of(np.zeros(D)), num_rounds=2)
    assert np.linalg.norm(flat(result.arrays)) > 0
    with pytest.raises(ConfigError, match="min_available_nodes = 3: must be at most num_clients = 2"):
        FedAU(round_deadline=5, num_clients=2, min_available_nodes=3)


@pytest.mark.parametrize(
    ("metrics", "kept"),
    [
        ({"loss": np.float32(0.5)}, {"loss": 0.5}),
        ({"loss": 0.5, "name": "x"}, None),
        ({"loss": None}, None),
        ("nonsense", None),
        (MetricRecord({"loss": 0.5}), {"loss": 0.5}),
    ],
)
def test_odd_metrics_stop_nothing(metrics, kept, tmp_path, caplog):
    def run(rounds: int) -> Any:
        strategy = CASES["fedpbc"].make(M, directory=tmp_path, train_metrics_aggr_fn=lambda contents, key: metrics)
        grid, x0 = grid_of(quadratic_app(U), ACTIVE), record_of(np.zeros(D))
        return strategy.start(grid, x0, num_rounds=rounds, evaluate_fn=lambda number, arrays: metrics)

    run(1)
    result = run(2)
    expected_metrics = {} if kept is None else {1: kept, 2: kept}
    assert {number: dict(m) for number, m in result.train_metrics_clientapp.items()} == expected_metrics
    found = {number: dict(m) for number, m in result.evaluate_metrics_serverapp.items() if number}
    assert found == expected_metrics
    assert ("metrics are left out" in caplog.text) == (kept is None)


def measuring(metrics: Any) -> ClientApp:
    """Client i measures ``metrics[i]``, in training and in evaluation."""
    app = ClientApp()

    def reply(message: Message, context: Context, content: dict[str, Any]) -> Message:
        measured = metrics.get(int(context.node_config["client-id"]), {"num-examples": 1, "loss": 1.0})
        return Message(RecordDict(content | {"metrics": MetricRecord(measured)}), reply_to=message)

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        return reply(message, context, {"arrays": message.content["arrays"]})

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply(message, context, {})

    return app


def averages(folder: Any, metrics: Any, rounds: int = 2, **options: Any) -> list[Any]:
    """What metrics.jsonl and evaluation.jsonl have."""
    strategy = CASES["fedpbc"].make(M, directory=folder, fraction_evaluate=1.0, **options)
    strategy.start(grid_of(measuring(metrics), ACTIVE), record_of(np.zeros(D)), rounds)
    trained = [json.loads(line)["train"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [json.loads(line)["clients"] for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    assert [found or None for found in trained] == evaluated
    return evaluated


@pytest.mark.parametrize("weight", [np.inf, -np.inf, np.nan, -1, 1e300, 2**60, [1, 2]])
def test_a_weight_that_is_none_spoils_no_average(weight, tmp_path, caplog):
    """(1 * 2 + 3 * 6) / 4 = 5 over the clients 0 and 2; client 3 has no samples."""
    metrics = {0: {"num-examples": 1, "loss": 2.0}, 1: {"num-examples": weight, "loss": 9.0}}
    metrics |= {2: {"num-examples": 3, "loss": 6.0}, 3: {"num-examples": 0, "loss": 7.0}}
    assert averages(tmp_path, metrics) == [{"loss": 5.0}] * 2
    said = [
        r.getMessage() for r in caplog.records if "left out are the metrics of 1: num-examples is" in r.getMessage()
    ]
    assert len(said) == 1
    assert "not a number > 0 and at most 2^53" in said[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e301, [0.5, np.nan]])
def test_a_number_that_is_none_spoils_no_average(value, tmp_path, caplog):
    good = [1.0, 1.0] if isinstance(value, list) else 1.0
    metrics = {i: {"num-examples": 1, "loss": value if i == 1 else good} for i in range(M)}
    assert averages(tmp_path, metrics) == [{"loss": pytest.approx(good)}] * 2
    assert 'round 1: left out are the metrics of 1: "loss" holds ' in caplog.text


def test_numbers_as_large_as_they_may_be_have_a_finite_mean(tmp_path):
    metrics = {i: {"num-examples": 2**53, "loss": 1e300} for i in range(M)}
    assert averages(tmp_path, metrics) == [{"loss": pytest.approx(1e300)}] * 2


def test_nobody_makes_the_logs_large(tmp_path, caplog):
    """A megabyte of metrics from one client; many different ones from all, each small enough."""
    large = {f"k{i:07d}": 1.0 for i in range(60_000)}
    assert averages(tmp_path / "one", {0: {"num-examples": 1, **large}}) == [{"loss": pytest.approx(1.0)}] * 2
    assert "round 1: left out are the metrics of 0: they take 1" in caplog.text
    many = {i: {"num-examples": 1, **{f"client-{i}-{j}": 1.0 for j in range(2000)}} for i in range(M)}
    assert averages(tmp_path / "all", many) == [None] * 2
    assert "metrics of the clients were not averaged: together they take" in caplog.text
    for folder in (tmp_path / "one", tmp_path / "all"):
        for name in ("metrics.jsonl", "evaluation.jsonl", "participation.jsonl"):
            assert max(map(len, (folder / name).read_text().splitlines())) < 2000


def test_metrics_as_large_as_they_may_be(tmp_path):
    """A line is at most 64 kB of metrics."""
    metrics = {i: {"num-examples": 1, "loss": [1.0] * 12_000} for i in range(M)}
    assert [len(found["loss"]) for found in averages(tmp_path, metrics)] == [12_000] * 2
    assert max(map(len, (tmp_path / "metrics.jsonl").read_text().splitlines())) < 70_000
