"""A config that changes while clients lag: replayed rounds are computed with theirs, also after kills and resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rivals
from apps import CASES, OPTIONS, STEPS, centers, expected, flat, grid_of, play, quadratic_app, trace
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy import Strategy
from test_resume import Fragile, Killed

from fedpbc.errors import ConfigError
from fedpbc.flower import FedAvg, FedPBC, FedPBCCorrected, InProcessGrid, UnreliableClients, fedpbc_mod
from fedpbc.flower.server.configs import Configs
from fedpbc.flower.wire.protocol import CONFIGS, RECORD
from fedpbc.flower.wire.schedule import Schedule, encode

M, ROUNDS = 5, 24
U = centers(M)
UP, DOWN = trace(ROUNDS, M), trace(ROUNDS, M, seed=6)
UP[-1] = DOWN[-1] = True
LR = 0.1


def halving(t: int) -> float:
    """The learning rate of round t where every fourth round of Flower's begins with half of it."""
    return LR * 0.5 ** ((t + 1) // 4)


class InPlace:
    """As Flower's tutorial does it: what the config was is gone."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round % 4 == 0:
            config["lr"] *= 0.5  # type: ignore[operator]
        return super().configure_train(server_round, arrays, config, grid)  # type: ignore[misc]


class Anew:
    """A new config for every round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config = ConfigRecord({**config, "lr": halving(server_round - 1)})
        return super().configure_train(server_round, arrays, config, grid)  # type: ignore[misc]


KINDS: dict[str, tuple[type[UnreliableClients], rivals.Method, dict[str, Any]]] = {
    "fedpbc": (FedPBC, rivals.FedPBC(), {}),
    "max_catchup": (FedPBC, rivals.FedPBCCatchUp(4), {"max_catchup": 4}),
    "corrected": (FedPBCCorrected, rivals.FedPBCCorrected("full"), {}),
    "fedavg": (FedAvg, rivals.FedAvg(), {}),
}


def make(kind: str, how: type, **options: Any) -> UnreliableClients:
    base, _, fixed = KINDS[kind]
    decaying = type("Decaying", (how, base), {})
    return decaying(**{**OPTIONS, "min_available_nodes": M, "num_clients": M, **fixed, **options})


def app(**options: Any) -> ClientApp:
    return quadratic_app(U, rate=None, **options)


def lr(value: float = LR) -> ConfigRecord:
    return ConfigRecord({"lr": value})


def heard(folder: Path) -> np.ndarray:
    found = [json.loads(line)["clients"] for line in (folder / "participation.jsonl").read_text().splitlines()]
    return np.array([[str(i) in row for i in range(M)] for row in found])


def check(strategy: UnreliableClients, oracle: np.ndarray) -> None:
    np.testing.assert_allclose(flat(strategy.arrays), oracle[-1], atol=1e-9, rtol=0)


@pytest.mark.parametrize("start", [None, Strategy.start], ids=["our loop", "Flower's loop"])
@pytest.mark.parametrize("how", [InPlace, Anew])
@pytest.mark.parametrize("kind", KINDS)
def test_a_config_that_changes_from_round_to_round(kind, how, start):
    config = lr()
    grid = grid_of(app(), UP, DOWN)
    models = play(make(kind, how), grid, ROUNDS, start=start, train_config=config)
    oracle = expected(KINDS[kind][1], U, UP & DOWN, halving)
    np.testing.assert_allclose(models, oracle, atol=1e-9, rtol=0)
    if kind != "fedavg":
        assert np.abs(oracle - expected(KINDS[kind][1], U, UP & DOWN, lambda t: LR)).max() > 0.1
    assert start is not None or config == lr()  # Flower changes the object that the app gave, we do not


@pytest.mark.every(2)
@pytest.mark.parametrize("how", [InPlace, Anew])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed(kind, how, tmp_path):
    """At several calls of the grid, and again seven calls later."""
    cut = 0
    for k in range(3, 90, 11):
        folder = tmp_path / str(k)
        for calls in (k, 7, 10**9):
            grid = grid_of(app(), UP, DOWN, kind=Fragile)
            grid.calls_left = calls
            strategy = make(kind, how, directory=folder)
            try:
                play(strategy, grid, ROUNDS, train_config=lr())
            except Killed:
                cut += 1
        check(strategy, expected(KINDS[kind][1], U, heard(folder), halving))
    assert cut >= 14


@pytest.mark.parametrize("kind", ["fedpbc", "max_catchup"])
def test_clients_that_live_on_are_ahead_with_another_config(kind, tmp_path, caplog):
    """They did a round that the server forgot, and are asked for it again, now with another learning rate."""
    for k in range(20, 59, 3):  # at every kind of call
        folder = tmp_path / str(k)
        grid = grid_of(app(), UP, DOWN, kind=Fragile)
        grid.calls_left = k
        plain = CASES["fedpbc"].make(M, directory=folder, **KINDS[kind][2])
        with pytest.raises(Killed):
            play(plain, grid, ROUNDS, train_config=lr())
        done = json.loads((folder / "checkpoint.json").read_text())["rounds"]
        grid.calls_left = 10**9
        strategy = CASES["fedpbc"].make(M, directory=folder, **KINDS[kind][2])
        play(strategy, grid, ROUNDS, train_config=lr(0.01))
        changed = [r.message for r in caplog.records if "train_config" in r.message]
        assert changed == [
            f'train_config: "lr" was 0.1, is 0.01, from round {done + 1} on; replayed rounds keep theirs'
        ]
        caplog.clear()
        check(strategy, expected(KINDS[kind][1], U, heard(folder), lambda t, done=done: LR if t < done else 0.01))


def folder_after(tmp_path: Path, how: type | None, rounds: int = 9, **config: Any) -> Callable[..., UnreliableClients]:
    """Some rounds, and how to go on from there with another config."""

    def begin(rounds: int = ROUNDS, start: Any = None, **config: Any) -> UnreliableClients:
        strategy = (
            CASES["fedpbc"].make(M, directory=tmp_path) if how is None else make("fedpbc", how, directory=tmp_path)
        )
        play(strategy, grid_of(app(), UP, DOWN), rounds, start=start, train_config=ConfigRecord({"lr": LR, **config}))
        return strategy

    begin(rounds, **config)
    return begin


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_value_that_the_rounds_change_cannot_be_given_anew(tmp_path):
    """What would it be from here on, the new one or as much less of it? Every other value may change."""
    begin = folder_after(tmp_path, InPlace)
    before = files_of(tmp_path)
    with pytest.raises(ConfigError) as raised:
        begin(lr=0.3)
    assert str(raised.value) == (
        'train_config: "lr" was 0.1, is 0.3: begin with the same, or in another directory '
        "(0.025 after round 9, which earlier rounds have changed)"
    )
    assert files_of(tmp_path) == before
    strategy = begin(epochs=2)
    check(strategy, expected(rivals.FedPBC(), U, UP & DOWN, halving))


@pytest.mark.parametrize("start", [None, Strategy.start])
def test_the_same_config_and_an_unchanged_one_pass(start, tmp_path, caplog):
    strategy = CASES["fedpbc"].make(M, directory=tmp_path)
    play(strategy, grid_of(app(), UP, DOWN), 9, start=start, train_config=lr())
    strategy.close()
    strategy = CASES["fedpbc"].make(M, directory=tmp_path)
    play(strategy, grid_of(app(), UP, DOWN), ROUNDS, train_config=lr())
    check(strategy, expected(rivals.FedPBC(), U, UP & DOWN, lambda t: LR))
    assert "train_config" not in caplog.text


def test_after_flowers_own_loop_the_config_must_be_given_as_it_is(tmp_path):
    """Its train_config is not known: another value may be one that the rounds have changed."""
    first = make("fedpbc", InPlace, directory=tmp_path)
    play(first, grid_of(app(), UP, DOWN), 9, start=Strategy.start, train_config=lr())
    first.close()
    with pytest.raises(ConfigError, match=r'"lr" was 0\.025, is 0\.1: begin with the same, .*as it was after Flower'):
        play(make("fedpbc", InPlace, directory=tmp_path), grid_of(app(), UP, DOWN), ROUNDS, train_config=lr())
    strategy = make("fedpbc", InPlace, directory=tmp_path)
    play(strategy, grid_of(app(), UP, DOWN), ROUNDS, train_config=lr(0.025))
    check(strategy, expected(rivals.FedPBC(), U, UP & DOWN, halving))


@pytest.mark.parametrize("config", [{"lr": 0.1}, "lr", 3])
def test_a_config_that_is_none(config):
    with pytest.raises(ConfigError, match=f"train_config: must be a ConfigRecord, is {type(config).__name__}"):
        play(CASES["fedpbc"].make(M), grid_of(app(), UP), 1, train_config=config)


class Sent:
    """What client ``who`` is sent beside the model, round by round."""

    def __init__(self, who: str = "3") -> None:
        self.records: dict[int, dict[str, Any]] = {}
        self.who = who

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        if "config" in message.content and context.node_config["client-id"] == self.who:
            self.records[int(message.content["config"]["server-round"]) - 1] = dict(message.content[RECORD])  # type: ignore
        return call_next(message, context)


def test_messages_are_small_where_all_configs_are_equal(tmp_path):
    """Not a byte more than without; else a few bytes for each round in which it changed."""
    sent = Sent()
    up = np.ones((ROUNDS, M), bool)
    up[2:, 3] = False
    config = ConfigRecord({"lr": LR, "note": "x" * 1000})
    play(CASES["fedpbc"].make(M), grid_of(app(mods=(sent, fedpbc_mod)), up), ROUNDS, train_config=config)
    assert all(record.keys() == {"order"} for record in sent.records.values())
    play(make("fedpbc", InPlace), grid_of(app(mods=(sent, fedpbc_mod)), up), ROUNDS, train_config=config)
    sizes = [len(sent.records[t].get(CONFIGS, "")) for t in range(ROUNDS)]
    assert sizes[:3] == [0, 0, 0]  # nothing had changed
    assert 1000 < sizes[3] < 1100  # the first change is in round 3
    assert 0 < sizes[23] - sizes[3] < 5 * 40  # five more
    assert len(set(sizes[3:7])) == 1


def test_the_server_forgets_what_nobody_needs(tmp_path):
    up = np.ones((ROUNDS, M), bool)
    up[5:20, 3] = False
    strategy, kept = make("fedpbc", InPlace, directory=tmp_path), []

    def look(done: int) -> None:
        kept.append([t for t, _ in strategy.federation.configs.schedule.changes])

    play(strategy, grid_of(app(), up), ROUNDS, train_config=lr(), after=look)
    assert kept[5] == [3]  # everybody goes on from round 5
    assert kept[20] == [5, 7, 11, 15, 19]  # client 3 goes on from round 5
    assert kept[21] == [19]
    assert json.loads((tmp_path / "checkpoint.json").read_text())["configs"]["current"] == {"lr": str(halving(23))}


def test_who_was_never_met_begins_with_the_first_config():
    grid = InProcessGrid(app(), [str(i) for i in range(M - 1)])

    def come(done: int) -> None:
        if done == 10:
            grid.connect(str(M - 1))

    strategy = make("fedpbc", InPlace, min_available_nodes=M - 1)
    models = play(strategy, grid, 14, after=come, train_config=lr())
    active = np.ones((14, M), bool)
    active[:10, M - 1] = False
    np.testing.assert_allclose(models, expected(rivals.FedPBC(), U, active, halving), atol=1e-9, rtol=0)


VALUES: list[Any] = [
    1, 1.0, True, "1", "", b"1", b"", b"\xff\x00", [1, 2], [1.0], [True], ["a", ""], [b"a", b""], [], 0.0, -0.0, 5e-324,
    float("inf"), 2**62, -(2**63), 0.1 + 0.2, "\u00fc\n\"", "null",
]  # fmt: skip


def test_values_of_every_type_come_back_as_they_were():
    """A config that has one value in each round; also after the checkpoint's JSON."""
    told: dict[int, Any] = {}
    client = ClientApp()

    @client.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        told[int(config["server-round"])] = (type(config.get("x")), config.get("x"), config["kept"])  # type: ignore
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    class Each(FedPBC):
        def configure_train(self, server_round, arrays, config, grid):
            config["x"] = VALUES[server_round - 1] if server_round <= len(VALUES) else 0
            if server_round == len(VALUES) + 1:
                del config["x"]
            return super().configure_train(server_round, arrays, config, grid)

    last = len(VALUES) + 1
    grid = InProcessGrid(client, ["0"], downlink=lambda t, c: t == last - 1)
    play(Each(**OPTIONS), grid, last, train_config=ConfigRecord({"kept": 7}))
    assert told[last] == (type(None), None, 7)
    for number, value in enumerate(VALUES, start=1):
        kind, found, kept = told[number]
        assert (kind, repr(found), kept) == (type(value), repr(value), 7)
    for value in VALUES:
        config = ConfigRecord({"a": value, "server-round": 3})
        plain = encode(config)
        assert plain.keys() == {"a"}
        assert Schedule.read(Schedule([(4, plain)]).text()).at(9) == plain


def test_a_schedule_is_the_list_of_its_rounds():
    """Against a plain list, on random configs: what is cut, sent, forgotten and named."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        rounds = [{k: str(rng.integers(2)) for k in "abc" if rng.random() < 0.7} for _ in range(12)]
        rounds = [rounds[t - int(rng.integers(3)) * (t > 2)] for t in range(12)]
        schedule = Schedule([])
        for t, config in enumerate(rounds):
            schedule.note(t, config)
        first, end = sorted(rng.integers(0, 12, 2).tolist())
        part = Schedule.read(schedule.between(first, end + 1).text())
        assert [part.at(t) for t in range(first, end + 1)] == rounds[first : end + 1]
        assert part.is_constant() == all(config == rounds[first] for config in rounds[first : end + 1])
        other = Schedule([])
        for t in range(first, 12):
            other.note(t, rounds[t] if t <= end else {"a": "9"})
        assert other.digest(first, end + 1) == schedule.digest(first, end + 1)
        other.note(end, {"a": "9"})
        assert other.digest(first, end + 1) != schedule.digest(first, end + 1)
        book = Configs()
        book.schedule = schedule
        book.retain(first)
        assert [book.schedule.at(t) for t in range(first, 12)] == rounds[first:]


def test_what_a_clients_own_mods_put_into_the_config_stays():
    """A mod before ours that adds a key to the config."""
    seen: list[tuple[float, str]] = []

    def adds(message: Message, context: Context, call_next: Any) -> Message:
        if "config" in message.content:
            message.content["config"]["device"] = "gpu"  # type: ignore
        return call_next(message, context)

    def looks(message: Message, context: Context, call_next: Any) -> Message:
        config = message.content["config"]
        seen.append((float(config["lr"]), str(config["device"])))  # type: ignore
        return call_next(message, context)

    grid = InProcessGrid(app(mods=(adds, fedpbc_mod, looks)), ["0"], downlink=lambda t, c: t == 8)
    strategy = make("fedpbc", InPlace, min_available_nodes=1)
    play(strategy, grid, 9, train_config=lr())
    assert seen == [(halving(t), "gpu") for t in range(9)]


def test_the_learning_rates_differ_enough():
    """Otherwise the tests above would say nothing."""
    assert STEPS * LR > 0.1
    assert halving(ROUNDS - 1) < LR / 50
