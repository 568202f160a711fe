"""Buffers of batch normalisation under every strategy: averaged and never extrapolated, and no part of the method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from apps import CASES, OPTIONS, RATE, STEPS, centers, expected, grid_of, trace
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.errors import ConfigError
from fedpbc.flower import FedAvg, drift_correction, fedpbc_mod

M, ROUNDS = 5, 24
U = centers(M)
ACTIVE = trace(ROUNDS, M)
NAMES = ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked")
START = {
    "bn.running_mean": np.zeros(2, np.float32),
    "bn.running_var": np.ones(2),
    "bn.num_batches_tracked": np.int64(7),
}


def train_buffers(buffers: dict[str, Any], i: int) -> dict[str, Any]:
    """One round of client i, whose variance is small, so that any extrapolation makes one negative."""
    mean, var, count = (buffers[name] for name in NAMES)
    for _ in range(STEPS):
        mean = (0.7 * mean + 0.3 * np.float32([i, -i])).astype(np.float32)
        var, count = 0.3 * var + 0.7 * np.array([1e-3 * (i + 1), 2.0**-i]), count + 1
    return dict(zip(NAMES, (mean, var, count), strict=True))


def app() -> ClientApp:
    """The quadratics of the other tests, with buffers between the weights and the bias."""
    client = ClientApp()

    @client.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        i, t = int(context.node_config["client-id"]), int(message.content["config"]["server-round"]) - 1
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}
        correction = drift_correction(message)
        for _ in range(STEPS):
            slope = [model["layer.weight"] - U[i, :4].reshape(2, 2), model["layer.bias"] - U[i, 4]]
            slope = correction.gradient(slope, RATE(t))
            model["layer.weight"] = model["layer.weight"] - RATE(t) * slope[0]
            model["layer.bias"] = model["layer.bias"] - RATE(t) * slope[1]
        model |= train_buffers(model, i)
        arrays = ArrayRecord({name: Array(np.asarray(x)) for name, x in model.items()})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    return client


def initial() -> ArrayRecord:
    arrays = {"layer.weight": np.zeros((2, 2)), **START, "layer.bias": np.zeros(())}
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def mean(values: list[Any]) -> Any:
    """Of a counter rounded."""
    found = np.mean([np.asarray(v, np.float64) for v in values], axis=0)
    return np.int64(np.rint(found)) if np.asarray(values[0]).dtype == np.int64 else found


def expected_buffers(postponed: bool, waits: bool) -> list[dict[str, Any]]:
    """B^0, ..., B^T: everybody trains from B^t, or where the model is sent after the round from its own.

    ``waits``: nothing moves before everybody was heard once.
    """
    server, clients, known = START, [START] * M, np.zeros(M, bool)
    found = [server]
    for active in ACTIVE:
        clients = [train_buffers(clients[i] if postponed else server, i) for i in range(M)]
        heard, known = [clients[i] for i in np.flatnonzero(active)], known | active
        if heard and (known.all() or not waits):
            server = {name: mean([b[name] for b in heard]) for name in NAMES}
        clients = [server if active[i] else clients[i] for i in range(M)]
        found.append(server)
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CASES)
def test_every_strategy_averages_them_and_is_itself_without_them(name):
    strategy, method = CASES[name].make(M), CASES[name].method
    seen: list[dict[str, np.ndarray]] = []

    def keep(number: int, arrays: ArrayRecord) -> None:
        seen.append({key: array.numpy() for key, array in arrays.items()})

    strategy.start(grid_of(app(), ACTIVE), initial(), num_rounds=ROUNDS, evaluate_fn=keep)
    models = np.array([[*model["layer.weight"].ravel(), model["layer.bias"]] for model in seen])
    np.testing.assert_allclose(models, expected(method, U, ACTIVE), rtol=1e-9, atol=1e-9)
    wanted = expected_buffers(strategy.rule.replays, waits=getattr(method, "wait", False))
    for found, there in zip(seen, wanted, strict=True):
        assert (found["bn.running_var"] > 0).all()
        assert found["bn.num_batches_tracked"].dtype == np.int64
        assert found["bn.num_batches_tracked"] == there["bn.num_batches_tracked"]
        np.testing.assert_allclose(found["bn.running_mean"], there["bn.running_mean"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["bn.running_var"], there["bn.running_var"], rtol=1e-9)


def test_a_resumed_run_knows_which_arrays_they_are(tmp_path):
    case = CASES["mifa"]
    case.make(M, directory=tmp_path).start(grid_of(app(), ACTIVE), initial(), num_rounds=3)
    with pytest.raises(ConfigError, match=r"another federation: buffers was .*, is \['bn.num_batches_tracked'\]"):
        case.make(M, directory=tmp_path, buffers=["none"]).start(grid_of(app(), ACTIVE), initial(), num_rounds=4)


@pytest.mark.parametrize("buffers", ["*running_var", [3], None])
def test_a_list_of_names_is_asked_for(buffers):
    with pytest.raises(ConfigError, match=r"buffers = .*must be a list of names of arrays"):
        FedAvg(**OPTIONS | {"buffers": buffers})


@pytest.mark.release
@pytest.mark.parametrize("name", CASES)
def test_a_network_of_pytorch_with_batch_normalisation(name):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    active = np.vstack([ACTIVE[:5], np.ones((1, M), bool), np.zeros((1, M), bool)])  # all of them, then nobody

    def network() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    client = ClientApp()

    @client.train(mods=[fedpbc_mod])
    def train(message: Message, context: Context) -> Message:
        i, t = int(context.node_config["client-id"]), int(message.content["config"]["server-round"]) - 1
        net, correction = network(), drift_correction(message)
        net.load_state_dict({k: torch.from_numpy(a.numpy().copy()) for k, a in message.content["arrays"].items()})
        rng = np.random.default_rng((t, i))
        x = torch.from_numpy((1e-3 * rng.standard_normal((8, 3))).astype(np.float32))
        for _ in range(STEPS):
            net.zero_grad()
            ((net(x) - i) ** 2).mean().backward()
            correction.add_to_grads(net.named_parameters(), 0.1 * RATE(t))
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * RATE(t) * parameter.grad
        arrays = ArrayRecord({k: Array(v.detach().numpy()) for k, v in net.state_dict().items()})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    arrays = ArrayRecord({k: Array(v.detach().numpy()) for k, v in network().state_dict().items()})
    result = CASES[name].make(M).start(grid_of(client, active), arrays, num_rounds=len(active))
    after = {key: torch.from_numpy(array.numpy().copy()) for key, array in result.arrays.items()}
    assert (after["1.running_var"] > 0).all()
    assert after["1.num_batches_tracked"].dtype == torch.int64
    assert after["1.num_batches_tracked"] >= STEPS
    network().load_state_dict(after)
