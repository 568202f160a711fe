"""Train functions that cannot be replayed are noticed in a rehearsal."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from apps import CASES, D, by, centers, expected, names, play, trace
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.flower import InProcessGrid, fedpbc_mod, replay_check

M, ROUNDS = 3, 5
U = centers(M)


def noisy_app(draw: Any, mods: Any = (fedpbc_mod, replay_check)) -> ClientApp:
    """Adds ``draw(context, round, client)`` to the model."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        (array,) = message.content["arrays"].values()
        t, i = int(message.content["config"]["server-round"]) - 1, int(context.node_config["client-id"])
        return Message(
            RecordDict({"arrays": ArrayRecord({"x": Array(array.numpy() + draw(context, t, i))})}), reply_to=message
        )

    return app


def run(app: ClientApp, folder: Any, case: str = "fedpbc") -> tuple[np.ndarray, list[dict[str, Any]]]:
    strategy = CASES[case].make(M, directory=folder)
    result = strategy.start(InProcessGrid(app, names(M)), ArrayRecord({"x": Array(np.zeros(2))}), num_rounds=ROUNDS)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return result.arrays["x"].numpy(), lines


def seeded(context: Context, t: int, i: int) -> np.ndarray:
    return np.random.default_rng([i, t]).normal(size=2)


def counting(context: Context, t: int, i: int) -> float:
    """What it keeps in its context is put back before the second call."""
    before = context.state.get("count")
    count = int(before["n"]) + 1 if isinstance(before, ConfigRecord) else 1
    context.state["count"] = ConfigRecord({"n": count})
    return float(count)


CALLS: list[int] = []


def remembering(context: Context, t: int, i: int) -> float:
    CALLS.append(i)
    return float(len(CALLS))


@pytest.mark.parametrize(
    ("draw", "good"),
    [
        (seeded, True),
        (lambda *_: 0.0, True),
        (counting, True),
        (remembering, False),
        (lambda *_: np.random.default_rng().normal(size=2), False),
    ],
)
def test_what_cannot_be_replayed_is_a_failure(draw, good, tmp_path):
    model, lines = run(noisy_app(draw), tmp_path)
    assert [line["active"] for line in lines] == [M if good else 0] * ROUNDS
    if good and draw is seeded:
        mean = sum(np.mean([seeded(None, t, i) for i in range(M)], axis=0) for t in range(ROUNDS))
        np.testing.assert_allclose(model, mean, atol=1e-12)
    if good and draw is counting:
        np.testing.assert_allclose(model, sum(range(1, ROUNDS + 1)))
    reasons = {entry["reason"] for line in lines for entry in line["failed"]}
    assert all(reason.startswith("NotRepeatable: two calls of the train function with") for reason in reasons)
    assert all('array "x" by ' in reason and "seed what it draws" in reason for reason in reasons)
    assert bool(reasons) is not good


def test_replayed_rounds_are_checked_too_and_nothing_else_changes():
    """Under links that fail, the models are those without the check."""
    from apps import quadratic_app

    active = trace(12, M + 1)
    u = centers(M + 1)
    calls: list[tuple[int, int]] = []
    app = quadratic_app(u, mods=(fedpbc_mod, replay_check), before=lambda t, i: calls.append((t, i)))
    grid = InProcessGrid(app, names(M + 1), downlink=by(active))
    models = play(CASES["fedpbc"].make(M + 1), grid, 12)
    np.testing.assert_allclose(models, expected(CASES["fedpbc"].method, u, active), atol=1e-9, rtol=0)
    assert calls[::2] == calls[1::2]
    assert models.shape == (13, D)
