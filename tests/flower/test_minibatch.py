"""A float32 model trained on minibatches that depend on (seed, round, client) alone, against float64."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import rivals
from apps import CASES, grid_of, trace
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpbc.flower import drift_correction, fedpbc_mod
from fedpbc.flower.server.bases import Bases

M, D, N, BATCH, STEPS, ROUNDS, SEED, ETA = 8, 5, 40, 8, 2, 30, 3, 0.1
rng = np.random.default_rng(11)
FEATURES = rng.uniform(-1, 1, (M, N, D)).astype(np.float32)
LABELS = np.einsum("mnd,md->mn", FEATURES, rng.normal(1, 1, (M, D))).astype(np.float32)
UP, DOWN = trace(ROUNDS, M, seed=4), trace(ROUNDS, M, seed=5)


def rows(t: int, i: int, k: int = 0) -> np.ndarray:
    """The minibatch of client i in round t: the same for all local steps."""
    return np.random.default_rng((SEED, t, i)).integers(N, size=BATCH)


def gradient(i: int, x: np.ndarray, sample: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    a, y = FEATURES[i, sample].astype(dtype), LABELS[i, sample].astype(dtype)
    return a.T @ (a @ x - y) / dtype(BATCH)


app = ClientApp()


@app.train(mods=[fedpbc_mod])
def train(message: Message, context: Context) -> Message:
    i, t = int(context.node_config["client-id"]), int(message.content["config"]["server-round"]) - 1
    correction = drift_correction(message)
    x = message.content["arrays"]["x"].numpy()
    assert x.dtype == np.float32
    for _ in range(STEPS):
        g = correction.gradient(gradient(i, x, rows(t, i), np.float32), ETA)
        x = x - np.float32(ETA) * g
    return Message(RecordDict({"arrays": ArrayRecord({"x": Array(x)})}), reply_to=message)


def played(case: str) -> np.ndarray:
    seen = []
    strategy, grid = CASES[case].make(M), grid_of(app, UP, DOWN)
    initial = ArrayRecord({"x": Array(np.zeros(D, np.float32))})
    strategy.start(grid, initial, ROUNDS, evaluate_fn=lambda number, arrays: seen.append(arrays["x"].numpy()))
    assert all(x.dtype == np.float32 for x in seen)
    return np.array(seen)


def reference() -> tuple[np.ndarray, float]:
    """(server models of FedPBC in float64, the largest entry of any model)."""
    states = rivals.simulate(
        rivals.FedPBC(), gradient, UP & DOWN, np.zeros(D), steps=STEPS, rate=oracle.constant(ETA), sample=rows
    )
    return np.array([state.server for state in states]), max(np.abs(state.clients).max() for state in states)


def bound(scale: float) -> float:
    """What rounding can do to FedPBC here, in the worst case.

    u = 2^-24. A local step x - eta a^T (a x - y) / b has entries |a| <= 1 and |y| <= L1 norm of the true x <= d
    ``scale`` like |a x|: dot products of lengths d and b, the differences and the product by eta round to at most
    (d + b + 5) u eta 2 d scale, and the last subtraction to u scale. Such an error is not amplified: the eigenvalues of
    I - eta a^T a / b are in [0, 1] because eta ||a||^2 / b <= eta d < 1, and means of models do not amplify either but
    add (m + 1) u scale. In the Euclidean norm that is sqrt(d) times as much at most, and there are ROUNDS (STEPS steps
    and a mean) of them: what client i does between its rounds is a chain of the same length.
    """
    u = 2.0**-24
    step = ((D + BATCH + 5) * ETA * 2 * D + 1) * u * scale
    return ROUNDS * (STEPS * step + (M + 1) * u * scale) * D**0.5


def test_fedpbc_in_float32():
    models, scale = reference()
    assert ETA * D < 1
    assert np.abs(LABELS).max() < D * scale
    gap = np.linalg.norm(played("fedpbc") - models, axis=1).max()
    assert 0 < gap < bound(scale)


def test_the_bound_notices_a_mistake(monkeypatch):
    models, scale = reference()
    get = Bases.get
    monkeypatch.setattr(Bases, "get", lambda self, name: get(self, self.latest))
    assert np.linalg.norm(played("fedpbc") - models, axis=1).max() > 10 * bound(scale)


@pytest.mark.parametrize("case", ["fedavg", "fedvarp", "fedau", "scaffold", "scaffold by client", "fedfade by client"])
def test_the_others_in_float32(case):
    states = rivals.simulate(
        CASES[case].method, gradient, UP & DOWN, np.zeros(D), steps=STEPS, rate=oracle.constant(ETA), sample=rows
    )
    models = np.array([state.server for state in states])
    np.testing.assert_allclose(played(case), models, atol=1e-4 * np.abs(models).max())
