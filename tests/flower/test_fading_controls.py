"""FedFade on real machines: what clients keep, what is lost, what is told; around a client that knows of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import rivals
from apps import CASES, RATE, STEPS, D, centers, expected, flat, grid_of, names, play, quadratic_app, record_of, trace
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from test_client import committed, control
from test_limits import saying

from fedpbc.errors import ConfigError
from fedpbc.flower import FedFade, fedpbc_mod
from fedpbc.flower.wire.protocol import AROUND, CONTROL_VARIATE, CORRECTION, FADING

M = 5
U = centers(M)
BY_CLIENT = ["fedfade by client", "fedfade by client, around"]


@pytest.mark.parametrize("case", BY_CLIENT)
@pytest.mark.parametrize("rounds", [19, 20])
def test_lost_replies_do_not_spoil_the_controls(case: str, rounds: int) -> None:
    """c_i is that of the last reply that counted, and c the mean of what is left of them."""
    up, down = trace(20, M, seed=2), trace(20, M, seed=6)
    strategy, grid = CASES[case].make(M), grid_of(quadratic_app(U), up, down)
    play(strategy, grid, rounds)
    links, gradient = (up & down)[:rounds], oracle.Quadratic(U).gradient
    last = rivals.simulate(CASES[case].method, gradient, links, np.zeros(D), steps=STEPS, rate=RATE)[-1]
    kept, numbers = committed(strategy, grid), strategy.rule.numbers
    for i, name in enumerate(names(M)):
        np.testing.assert_allclose(kept[name], last.extra["c_i"][i], atol=1e-9)
    own = [kept[name] * np.exp(numbers.log - numbers.since[i]) for i, name in enumerate(names(M))]
    np.testing.assert_allclose(control(strategy), np.mean(own, axis=0), atol=1e-12)
    assert np.abs(control(strategy)).max() > 1e-3
    assert numbers.log < -0.1


@pytest.mark.parametrize("announced", [True, False], ids=["", "the reply after the loss gets lost"])
@pytest.mark.parametrize("case", BY_CLIENT)
def test_a_client_that_lost_its_control_is_a_newcomer(case: str, announced: bool) -> None:
    """Nobody else starts anew; the models are the simulator's."""
    rounds = 30
    up = trace(rounds, M, seed=8)
    up[9, 1], up[12, 1], up[13:16, 1] = True, announced, True
    grid = grid_of(quadratic_app(U), up)
    strategy, nodes = CASES[case].make(M), list(grid.contexts)

    def lose(done: int) -> None:
        if done == 12:
            grid.disconnect(nodes[1])
            grid.connect("1")

    models = play(strategy, grid, rounds, after=lose)
    wanted = expected(CASES[case].method, U, up, lost={12: {1}})
    np.testing.assert_allclose(models, wanted, atol=1e-9, rtol=0)
    assert np.abs(wanted - expected(CASES[case].method, U, up)).max() > 1e-3
    assert strategy.rule.epochs.epoch == 0


@pytest.mark.parametrize("told", [(float("nan"), 1.0), (1.0, float("inf")), (1e300, 1e-300), (1.0, -1.0), (0.0, 0.0)])
def test_numbers_that_tell_nothing_are_no_sample(told: tuple[float, float]) -> None:
    """The same models as from a client that tells of no c_i."""
    up = trace(20, M, seed=2)

    def played(product: float, square: float) -> np.ndarray:
        app = quadratic_app(U, mods=(saying(product=product, square=square), fedpbc_mod))
        return play(CASES["fedfade by client"].make(M), grid_of(app, up), 20)

    models = played(*told)
    np.testing.assert_array_equal(models, played(0.0, 0.0))
    assert np.isfinite(models).all()
    assert np.abs(models - expected(CASES["fedfade by client"].method, U, up)).max() > 1e-6


@pytest.mark.parametrize("case", ["fedfade around", "fedfade by client, around"])
def test_around_a_client_that_knows_of_nothing(case: str) -> None:
    """Plain SGD, no hook; the train function finds nothing of the method in its message."""
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        assert not {AROUND, CONTROL_VARIATE, CORRECTION, FADING} & set(message.content)
        i, x = int(context.node_config["client-id"]), flat(message.content["arrays"])
        for _ in range(STEPS):
            x = x - RATE(int(message.content["config"]["server-round"]) - 1) * (x - U[i])
        return Message(RecordDict({"arrays": record_of(x)}), reply_to=message)

    up = trace(20, M, seed=2)
    models = play(CASES[case].make(M), grid_of(app, up), 20)
    np.testing.assert_allclose(models, expected(CASES[case].method, U, up), atol=1e-9, rtol=0)


def test_a_client_sends_one_model_and_is_sent_two() -> None:
    """Counted on the wire against FedAvg, in models of D numbers; the server holds x and c."""
    dim, up, sizes = 4000, np.ones((3, M), bool), []
    app = ClientApp()

    @app.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        x = message.content["arrays"]["w"].numpy()
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(x + 1)})}), reply_to=message)

    for case in ("fedfade by client, around", "fedavg"):
        strategy = CASES[case].make(M)
        strategy.start(grid_of(app, up), ArrayRecord({"w": Array(np.zeros(dim))}), num_rounds=3)
        sizes.append((strategy.federation.ledger.bytes_up, strategy.federation.ledger.bytes_down))
        if case != "fedavg":
            tables = {kind: len(table.state()) for kind, table in strategy.rule.tables.items()}
            assert tables == {"control": 1, "row": 0}
    (ours_up, ours_down), (plain_up, plain_down) = sizes
    model = M * 8 * dim
    assert round((ours_up - plain_up) / model, 1) == 0
    assert round((ours_down - plain_down) / model, 1) == 1


def test_one_program_of_scaffolds() -> None:
    """Without fading and with the mean it is SCAFFOLD, here too."""
    up = trace(20, M, seed=2)
    for controls in ("client", "server"):
        ours = CASES["fedfade by client"].make(M, controls=controls, fading="none", weights="mean")
        theirs = CASES["scaffold by client"].make(M, controls=controls)
        models = [play(strategy, grid_of(quadratic_app(U), up), 20) for strategy in (ours, theirs)]
        np.testing.assert_allclose(*models, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fading": 2}, r"fading = 2: must be a number in \[0, 1\]"),
        ({"fading": "learned"}, 'fading = "learned": must be a number in'),
        ({"fading": True}, "fading = [Tt]rue: must be"),
        ({"controls": "cloud"}, 'controls = "cloud": must be'),
        ({"weights": "p"}, 'weights = "p": must be'),
        ({"cutoff": -1}, "cutoff = -1: must be"),
        ({"apply": "around"}, 'learning_rate = .*: must be given with apply = "around"'),
        ({"apply": "around", "learning_rate": 0.1}, 'local_steps = .*: must be given with apply = "around"'),
        ({"apply": "around", "learning_rate": 0.1, "local_steps": 0}, "local_steps = 0: must be an integer >= 1"),
        ({"apply": "around", "learning_rate": -1, "local_steps": 3}, "learning_rate = -1: must be a number > 0"),
        ({"num_clients": None}, "num_clients = .*: must be given"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FedFade(**{"round_deadline": 1, "num_clients": M, **options})
