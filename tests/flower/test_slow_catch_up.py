"""``max_catchup`` where k rounds of training take longer than a deadline: late, but not locked out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import rivals
from apps import CASES, RATE, STEPS, D, centers, expected, flat, grid_of, play, quadratic_app, record_of, trace
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict

from fedpbc.flower import InProcessGrid, client
from fedpbc.flower.protocol import RECORD, TRAIN, Answer, Order

M, ROUNDS, WHO, K = 4, 22, 2, 5
U = centers(M)
DEADLINE = 60.0


class Clock:
    """Every call of the train function of client ``WHO`` takes so many seconds of a clock that nobody waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds, self.rounds = 0.0, seconds, list[int]()
        monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: self.now))

    def __call__(self, t: int, i: int) -> None:
        if i == WHO:
            self.now += self.seconds
            self.rounds.append(t)


class Punctual(InProcessGrid):
    """A reply that took longer than the deadline is lost, as a SuperLink does it."""

    clock: Clock

    def _answer(self, message: Message) -> Message:
        began = self.clock.now
        reply = super()._answer(message)
        late = self.clock.now - began > DEADLINE
        return Message(Error(3, "Message Unavailable"), reply_to=message) if late else reply


def replayed(heard: dict[int, list[int]], active: np.ndarray) -> np.ndarray:
    """x^0, ..., x^T where client WHO, heard in round t, comes with the rounds heard[t] trained from its base."""
    servers, base = [np.zeros(D)], {i: np.zeros(D) for i in range(M)}
    for t in range(len(active)):
        models = []
        for i in np.flatnonzero(active[t]):
            x = base[i]
            for r in heard[t] if i == WHO else [t]:
                for _ in range(STEPS):
                    x = x - RATE(r) * (x - U[i])
            models.append(x)
        servers.append(np.mean(models, axis=0))
        for i in np.flatnonzero(active[t]):
            base[i] = servers[-1]
    return np.array(servers)


SLOW = {
    "it catches up in three orders": ([range(1, 7)], None, None, 9, [3, 4, 5, 6, 7, 8, 9]),
    "the reply of the third is lost": ([range(1, 7)], None, 9, 10, [3, 4, 5, 6, 7, 8, 9, 10]),
    "it loses what it has after one": ([range(1, 7)], 8, None, 10, [4, 5, 6, 7, 8, 9, 10]),
    "it is away again after one": ([range(1, 7), range(8, 13)], None, None, 15, [3, 4, 5, 9, 10, 11, 12, 13, 14, 15]),
}
"""(when no order reaches it, before which round it loses its context, in which its reply is lost, when it is heard
again, and with what).

Worked out by hand: 25 s a round and a deadline of 60 s are three rounds an order, the third of which comes too late,
and the order of round 7 asks for the latest five: 3, ..., 7. Then 6, 7, 8 (late again), then 9.
"""


@pytest.mark.parametrize("case", SLOW)
def test_who_needs_longer_than_the_deadline_is_heard_again(case, monkeypatch):
    away, loses, unheard, back, rounds = SLOW[case]
    up, down = np.ones((ROUNDS, M), bool), np.ones((ROUNDS, M), bool)
    if unheard is not None:
        up[unheard, WHO] = False
    for gone in away:
        down[list(gone), WHO] = False
    clock = Clock(monkeypatch, 25.0)
    grid = grid_of(quadratic_app(U, before=clock), up, down, kind=Punctual)
    grid.clock, node = clock, list(grid.contexts)[WHO]

    def lose(done: int) -> None:
        if done == loses:
            grid.disconnect(node)
            grid.connect(str(WHO))

    strategy = CASES["fedpbc"].make(M, max_catchup=K, round_deadline=DEADLINE)
    models = play(strategy, grid, ROUNDS, after=lose)
    active = np.ones_like(down)
    active[1:back, WHO] = False
    heard = {0: [0], back: rounds} | {t: [t] for t in range(back + 1, ROUNDS)}
    np.testing.assert_allclose(models, replayed(heard, active), atol=1e-9, rtol=0)
    if loses is None:  # nothing is computed twice
        assert clock.rounds == [0, *rounds, *range(back + 1, ROUNDS)]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_quick_clients_replay_the_latest_rounds_as_the_simulator_does(k, monkeypatch):
    """Also where replies are lost, so that they have progress from an earlier start."""
    clock = Clock(monkeypatch, 0.4 * DEADLINE / k)
    up, down = trace(ROUNDS, M, seed=2), trace(ROUNDS, M, seed=6)
    grid = grid_of(quadratic_app(U, before=clock), up, down, kind=Punctual)
    grid.clock = clock
    models = play(CASES["fedpbc"].make(M, max_catchup=k, round_deadline=DEADLINE), grid, ROUNDS)
    np.testing.assert_allclose(models, expected(rivals.FedPBCCatchUp(k), U, up & down), atol=1e-9, rtol=0)
    assert np.abs(models - expected(rivals.FedPBC(), U, up & down)).max() > 1e-3


def order(
    grid: InProcessGrid, first: int, round: int, budget: float, base: str = "a"
) -> tuple[bool, list[float] | None]:
    """(finished, model) of the only client's answer."""
    asked = Order(TRAIN, "0", round=round, first=first, base=base, budget=budget, keep_progress=True)
    config = ConfigRecord({"server-round": round + 1})
    content = RecordDict({"arrays": record_of(np.zeros(D)), "config": config, RECORD: asked.record()})
    (reply,) = grid.send_and_receive([Message(content, next(iter(grid.contexts)), MessageType.TRAIN)])
    answer = Answer.of(reply)
    assert answer is not None
    return answer.finished, flat(reply.content["arrays"]).tolist() if answer.finished else None


@pytest.mark.parametrize(
    ("budget", "base", "begun"),
    [(0.0, "a", [0]), (1e9, "a", []), (0.0, "b", [])],
    ids=["slow", "quick", "another base"],
)
def test_progress_from_an_earlier_start_is_for_who_is_slow(budget, base, begun):
    """One round done from 0 on; then asked for 1, 2, 3."""
    calls: list[int] = []
    grid = InProcessGrid(quadratic_app(U, before=lambda t, i: calls.append(t)), ["0"])
    order(grid, 0, 0 if budget else 2, budget)
    calls.clear()
    finished, model = order(grid, 1, 3, 1e9, base)
    x = np.zeros(D)
    for t in [*begun, 1, 2, 3]:
        for _ in range(STEPS):
            x = x - RATE(t) * (x - U[0])
    assert finished
    assert calls == [1, 2, 3]
    np.testing.assert_allclose(model, x)
