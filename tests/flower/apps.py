"""Clients, traces and expectations of the Flower tests: quadratics with exact gradients, and what the oracles say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import oracle
import rivals
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpbc import flower
from fedpbc.flower import InProcessGrid, UnreliableClients, drift_correction, fedpbc_mod

STEPS, D = 3, 5
RATE = oracle.inverse_sqrt(0.1, 4)
SHAPES: dict[str, tuple[int, ...]] = {"layer.weight": (2, 2), "layer.bias": ()}
OPTIONS: dict[str, Any] = {
    "round_deadline": 3600, "poll_interval": 0.01, "fraction_evaluate": 0.0, "min_available_nodes": 1,
}  # fmt: skip


class Case(NamedTuple):
    """A strategy and the same method of the oracle."""

    make: Callable[..., UnreliableClients]
    method: rivals.Method


def _case(kind: type, method: rivals.Method, known: bool = True, **fixed: Any) -> Case:
    def make(m: int, **options: Any) -> UnreliableClients:
        clients = {"num_clients": m} if known else {}
        return kind(**{**OPTIONS, "min_available_nodes": m, **clients, **fixed, **options})

    return Case(make, method)


CASES = {
    "fedpbc": _case(flower.FedPBC, rivals.FedPBC(), known=False),
    "fedavg": _case(flower.FedAvg, rivals.FedAvg(), known=False),
    "fedau": _case(flower.FedAU, rivals.FedAU(4), cutoff=4),
    "fedau without cutoff": _case(flower.FedAU, rivals.FedAU(0), cutoff=0),
    "debiased": _case(flower.DebiasedFedAvg, rivals.DebiasedFedAvg()),
    "mifa": _case(flower.MIFA, rivals.MIFA(), learning_rate=RATE),
    "mifa waiting": _case(flower.MIFA, rivals.MIFA(wait=True), learning_rate=RATE, wait=True),
    "fedvarp": _case(flower.FedVARP, rivals.FedVARP(0.6), server_learning_rate=0.6),
    "fedstale": _case(flower.FedStale, rivals.FedStale(0.5, rivals.FedAU(4)), cutoff=4),
    "fedstale, mean": _case(
        flower.FedStale,
        rivals.FedStale(0.8, rivals.FedAvg(), 0.6),
        weights="mean",
        beta=0.8,
        server_learning_rate=0.6,
    ),
    "mifa by client": _case(flower.MIFA, rivals.MIFA(), learning_rate=RATE, memory="client"),
    "mifa by client, waiting": _case(flower.MIFA, rivals.MIFA(True), learning_rate=RATE, wait=True, memory="client"),
    "fedvarp by client": _case(flower.FedVARP, rivals.FedVARP(0.6), server_learning_rate=0.6, memory="client"),
    "scaffold": _case(flower.SCAFFOLD, rivals.Scaffold(0.8, held_by_server=True), server_learning_rate=0.8),
    "scaffold by client": _case(flower.SCAFFOLD, rivals.Scaffold(), controls="client"),
    "fedfade": _case(
        flower.FedFade, rivals.FedFade(cutoff=4, held_by_server=True, latest_length=True), cutoff=4, controls="server"
    ),
    "fedfade by client": _case(flower.FedFade, rivals.FedFade(latest_length=True)),
    "fedfade around": _case(
        flower.FedFade,
        rivals.FedFade(0.8, mean=True, held_by_server=True, around=True),
        apply="around",
        learning_rate=RATE,
        local_steps=STEPS,
        controls="server",
        fading=0.8,
        weights="mean",
    ),
    "fedfade by client, around": _case(
        flower.FedFade,
        rivals.FedFade(around=True, latest_length=True),
        apply="around",
        learning_rate=RATE,
        local_steps=STEPS,
    ),
    "corrected": _case(flower.FedPBCCorrected, rivals.FedPBCCorrected("full")),
    "corrected light": _case(flower.FedPBCCorrected, rivals.FedPBCCorrected("light"), correction="light"),
}

KEPT_BY_CLIENTS = [name for name in CASES if "by client" in name]
"""Strategies whose clients keep what must not get lost."""


def centers(m: int, seed: int = 5) -> np.ndarray:
    """u_i of the quadratics, [m, d]."""
    return np.random.default_rng(seed).normal(3, 2, (m, D))


def record_of(x: np.ndarray) -> ArrayRecord:
    """The vector x as a model of two arrays."""
    return ArrayRecord({"layer.weight": Array(x[:4].reshape(2, 2)), "layer.bias": Array(np.asarray(x[4]))})


def flat(record: ArrayRecord) -> np.ndarray:
    """The other way."""
    return np.concatenate([array.numpy().ravel() for array in record.values()])


def quadratic_app(
    u: np.ndarray,
    *,
    rate: Callable[[int], float] | None = RATE,
    steps: int = STEPS,
    mods: Sequence[Any] = (fedpbc_mod,),
    before: Callable[[int, int], None] = lambda round, client: None,
) -> ClientApp:
    """Client i trains on ||x - u_i||^2 / 2. ``before`` is told (round from 0, client) at the beginning of training.

    rate: None takes ``lr`` of the config.
    """
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["client-id"])
        t = int(message.content["config"]["server-round"]) - 1
        before(t, i)
        correction, x = drift_correction(message), flat(message.content["arrays"])
        eta = float(message.content["config"]["lr"]) if rate is None else rate(t)
        for _ in range(steps):
            g = x - u[i]
            g = correction.gradient([g[:4].reshape(2, 2), g[4]], eta)
            x = x - eta * np.concatenate([np.ravel(part) for part in g])
        metrics = MetricRecord({"num-examples": 10 * (i + 1), "train-loss": float(((x - u[i]) ** 2).sum())})
        return Message(RecordDict({"arrays": record_of(x), "metrics": metrics}), reply_to=message)

    return app


def by(table: np.ndarray) -> Callable[[int, str], bool]:
    """A link that works where the table [rounds, clients] says so."""
    return lambda t, client: bool(table[t, int(client)])


def names(m: int) -> list[str]:
    """Client i is called str(i)."""
    return [str(i) for i in range(m)]


def grid_of(app: ClientApp, up: np.ndarray, down: np.ndarray | None = None, kind: type = InProcessGrid) -> Any:
    """A grid of all clients of the trace."""
    return kind(app, names(up.shape[1]), uplink=by(up), downlink=by(np.ones_like(up) if down is None else down))


def play(
    strategy: UnreliableClients,
    grid: InProcessGrid,
    rounds: int,
    *,
    start: Callable[..., Any] | None = None,
    x0: np.ndarray | None = None,
    after: Callable[[int], None] = lambda rounds_done: None,
    train_config: ConfigRecord | None = None,
) -> np.ndarray:
    """The server models x^0, ..., x^T (from where a checkpoint left off: those that were still to be made)."""
    seen: list[np.ndarray] = []

    def keep(number: int, arrays: ArrayRecord) -> None:
        seen.append(flat(arrays))
        after(number)

    initial = record_of(np.zeros(D) if x0 is None else x0)
    begin = start or type(strategy).start
    result = begin(strategy, grid, initial, num_rounds=rounds, train_config=train_config, evaluate_fn=keep)
    if seen and len(result.arrays):  # Flower's own loop leaves them empty until a round changes the model
        np.testing.assert_array_equal(flat(result.arrays), seen[-1])
    return np.array(seen)


def expected(
    method: rivals.Method, u: np.ndarray, active: np.ndarray, rate: Callable[[int], float] = RATE, **options: Any
) -> np.ndarray:
    """The oracle's server models x^0, ..., x^T; ``active``: A^t."""
    gradient = oracle.Quadratic(u).gradient
    states = rivals.simulate(method, gradient, active, np.zeros(D), steps=STEPS, rate=rate, **options)
    return np.array([state.server for state in states])


def trace(rounds: int, m: int, seed: int = 1) -> np.ndarray:
    """p_i from .1 to .9; a round without anybody, one with everybody, and client 3 is away for half of the time."""
    active = np.random.default_rng(seed).random((rounds, m)) < np.linspace(0.1, 0.9, m)
    active[rounds // 6 : rounds // 6 + rounds // 2, 3] = False
    active[rounds // 3], active[rounds // 3 + 2] = False, True
    active[rounds // 3 + 2, 3] = False
    return active


def sealed(state: dict[str, Any]) -> str:
    """checkpoint.json with another state and the checksum that goes with it."""
    rest = json.dumps({key: value for key, value in state.items() if key != "sha256"})[1:] + "\n"
    return '{"sha256": "' + hashlib.sha256(rest.encode()).hexdigest() + '", ' + rest
