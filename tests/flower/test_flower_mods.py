"""Flower's own mods around the train function: clipping and noise of fixed size, inside of fedpbc_mod."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from apps import CASES, RATE, STEPS, D, centers, grid_of, trace
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from fedpbc.flower import fedpbc_mod

M, ROUNDS, NORM = 4, 9, 0.4
U = centers(M)
BLACK_BOX = ["fedpbc", "fedavg", "fedau", "mifa", "mifa by client", "fedvarp", "fedvarp by client"]


def vector_app(*mods: Any) -> ClientApp:
    """Quadratics whose model is one vector: Flower's mods leave arrays without dimensions as they are."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        i, t = int(context.node_config["client-id"]), int(message.content["config"]["server-round"]) - 1
        x = message.content["arrays"]["x"].numpy()
        for _ in range(STEPS):
            x = x - RATE(t) * (x - U[i])
        return Message(RecordDict({"arrays": ArrayRecord({"x": Array(x)})}), reply_to=message)

    return app


def run(strategy: Any, app: ClientApp, active: np.ndarray, config: ConfigRecord | None = None) -> np.ndarray:
    """x^0, ..., x^T."""
    seen: list[np.ndarray] = []
    strategy.start(
        grid_of(app, active), ArrayRecord({"x": Array(np.zeros(D))}), num_rounds=len(active), train_config=config,
        evaluate_fn=lambda done, arrays: seen.append(arrays["x"].numpy().copy()),
    )  # fmt: skip
    return np.array(seen)


def clipped(x: np.ndarray, t: int, i: int) -> np.ndarray:
    """The local steps of round t, their sum not longer than NORM."""
    end = x.copy()
    for _ in range(STEPS):
        end = end - RATE(t) * (end - U[i])
    move = end - x
    return x + move * min(1.0, NORM / np.linalg.norm(move))


def fedpbc_of(active: np.ndarray) -> np.ndarray:
    """Algorithm 2 with clipped local steps."""
    server, clients, models = np.zeros(D), [np.zeros(D)] * M, [np.zeros(D)]
    for t, here in enumerate(active):
        clients = [clipped(x, t, i) for i, x in enumerate(clients)]
        if here.any():
            server = np.mean([clients[i] for i in np.flatnonzero(here)], axis=0)
            clients = [server if here[i] else x for i, x in enumerate(clients)]
        models.append(server)
    return np.array(models)


def fedavg_of(active: np.ndarray) -> np.ndarray:
    models = [np.zeros(D)]
    for t, here in enumerate(active):
        heard = [clipped(models[-1], t, i) for i in np.flatnonzero(here)]
        models.append(np.mean(heard, axis=0) if heard else models[-1])
    return np.array(models)


@pytest.mark.parametrize(("case", "oracle"), [("fedpbc", fedpbc_of), ("fedavg", fedavg_of)])
@pytest.mark.parametrize("mod", ["fixed", "local without noise"])
def test_every_round_is_clipped_also_those_that_are_replayed(case, oracle, mod):
    inner = fixedclipping_mod if mod == "fixed" else LocalDpMod(NORM, 0.0, 1.0, 0.1)
    active = trace(ROUNDS, M)
    app = vector_app(fedpbc_mod, message_size_mod, arrays_size_mod, inner)
    models = run(CASES[case].make(M), app, active, ConfigRecord({"clipping_norm": NORM}))
    np.testing.assert_allclose(models, oracle(active), atol=1e-9, rtol=0)
    assert np.abs(fedavg_of(active) - fedpbc_of(active)).max() > 1e-2


@pytest.mark.parametrize("case", BLACK_BOX)
def test_noise_is_of_the_size_asked_for(case, monkeypatch):
    """LocalDpMod adds the same to what the train function returns, under every method that takes it as it is."""
    drawn = []

    def normal(mean: float, deviation: float, shape: Any) -> np.ndarray:
        drawn.append((deviation, shape))
        return np.full(shape, 0.25)

    monkeypatch.setattr(np.random, "normal", normal)
    returned: list[np.ndarray] = []

    def look(message: Message, context: Context, call_next: Any) -> Message:
        before = message.content["arrays"]["x"].numpy()
        reply = call_next(message, context)
        returned.append(reply.content["arrays"]["x"].numpy() - before)
        return reply

    app = vector_app(fedpbc_mod, look, LocalDpMod(1e-9, 0.5, 2.0, 0.01))
    run(CASES[case].make(M), app, np.ones((3, M), bool))
    assert len(returned) == 3 * M
    np.testing.assert_allclose(returned, 0.25, atol=1e-6)
    deviation = 0.5 * np.sqrt(2 * np.log(1.25 / 0.01)) / 2.0
    assert {round(float(each), 12) for each, _ in drawn} == {round(float(deviation), 12)}


def test_flowers_wrapper_sends_the_norm():
    """DifferentialPrivacyClientSideFixedClipping around one of our strategies, under Flower's loop."""
    active = np.ones((3, M), bool)
    wrapped = DifferentialPrivacyClientSideFixedClipping(CASES["fedpbc"].make(M), 0.0, NORM, M)
    models = run(wrapped, vector_app(fedpbc_mod, fixedclipping_mod), active)
    np.testing.assert_allclose(models, fedpbc_of(active), atol=1e-6, rtol=0)


def test_on_the_outside_they_are_refused_by_name(caplog, monkeypatch):
    """They take every message for a model, also the one that asks who the client is; the server says which mod."""
    monkeypatch.setattr("fedpbc.flower.server.exchange.SAY_WAITING", 0.02)
    mod = LocalDpMod(NORM, 0.0, 1.0, 0.1)
    grid = grid_of(vector_app(mod, fedpbc_mod), np.ones((2, M), bool))
    nodes = grid.get_nodes

    def mended() -> Any:
        if "LocalDpMod expects exactly one ArrayRecord" in caplog.text:
            grid.app = vector_app(fedpbc_mod, mod)
        return nodes()

    monkeypatch.setattr(grid, "get_nodes", mended)
    initial = ArrayRecord({"x": Array(np.zeros(D))})
    CASES["fedavg"].make(M, round_deadline=0.2).start(grid, initial, num_rounds=2)
    assert "did not say who they are" in caplog.text
