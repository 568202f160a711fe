"""The one pass over the replies: the sums and rows of plain NumPy, whatever the blocks, types and threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpbc.flower.methods.common import sweep as sweeps
from fedpbc.flower.methods.common.tables import Table
from fedpbc.flower.methods.fedau import FedAURule
from fedpbc.flower.methods.fedfade import FedFade
from fedpbc.flower.methods.fedstale import FedStale
from fedpbc.flower.methods.fedvarp import FedVARPRule
from fedpbc.flower.methods.mifa import MIFARule
from fedpbc.flower.methods.scaffold import SCAFFOLDRule
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.rule import Round
from fedpbc.flower.wire import threads
from fedpbc.flower.wire.arrays import Layout, largest, limit, sane
from fedpbc.flower.wire.protocol import Answer

M, HEARD, LENGTH = 4, (0, 2, 3), 0.5
SIZES = {"one entry": 1, "less than a block": 7, "a block": 16, "one more": 17, "blocks": 65}


def model(rng: np.random.Generator, d: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Arrays of several types."""
    return {
        "single": (scale * rng.standard_normal((d, 2))).astype(np.float32),
        "double": scale * rng.standard_normal(d),
        "half": rng.standard_normal(d).astype(np.float16),
        "whole": rng.integers(-9, 9, d),
        "switch": rng.random(d) < 0.5,
        "fortran": np.asfortranarray(scale * rng.standard_normal((3, d))),
    }


def replies_of(models: dict[int, dict[str, np.ndarray]]) -> list[Reply]:
    answer = Answer("", 0, "", True, 1, 0, LENGTH)
    return [Reply(SimpleNamespace(index=i, name=str(i)), x, answer, None) for i, x in models.items()]  # type: ignore


def fading(delta: float | str) -> Any:
    """FedFade's rule where the server keeps all controls."""
    return FedFade(round_deadline=1, num_clients=M, controls="server", fading=delta, cutoff=3).make_rule()


def stale(beta: float) -> Any:
    """FedStale's rule with FedAU's weights."""
    return FedStale(round_deadline=1, num_clients=M, beta=beta, cutoff=3, server_learning_rate=0.7).make_rule()


def played(kind: str, rounds: list[tuple[dict[str, Any], dict[int, dict[str, Any]]]]) -> Any:
    """(the rule, the new models): x^t and the replies of each round are given."""
    rule: Any = {"mifa": lambda: MIFARule(LENGTH, False, "server"), "fedvarp": lambda: FedVARPRule(0.7, "server"),
                 "scaffold": lambda: SCAFFOLDRule("server", 0.7), "fedau": lambda: FedAURule(3),
                 "fedstale": lambda: stale(0.6),
                 "fedfade": lambda: fading(0.7), "fedfade learnt": lambda: fading("learnt")}[kind]()  # fmt: skip
    layout = Layout.of(rounds[0][0])
    rule.init(layout, M)
    made = []
    for t, (start, models) in enumerate(rounds):
        step = rule.step(Round(t, layout.flatten(start), True, None), replies_of(models))  # type: ignore[arg-type]
        step.commit()
        made.append(step.model)
    return rule, made


def plainly(kind: str, name: str, rounds: list[tuple[dict[str, Any], dict[int, dict[str, Any]]]]) -> Any:
    """(the new models, the rows) of one array from the formulas, in float64."""
    d = rounds[0][0][name].size
    rows, mean, made = np.zeros((M, d)), np.zeros(d), []
    weight, waiting, count, left = np.ones(M), np.zeros(M), np.zeros(M), np.zeros((M, d))
    for start, models in rounds:
        x = start[name].ravel().astype(float)
        delta = {i: models[i][name].ravel().astype(float) - x for i in models}
        if kind == "mifa":
            for i in delta:
                rows[i] = -delta[i] / LENGTH
            made.append(x - LENGTH * rows.mean(axis=0))
        elif kind == "fedvarp":
            made.append(x + 0.7 * (mean + np.mean([delta[i] - rows[i] for i in delta], axis=0)))
            for i in delta:
                rows[i] = delta[i]
            mean = rows.mean(axis=0)
        elif kind == "fedstale":
            made.append(x + 0.7 * (0.6 * mean + sum(weight[i] * (delta[i] - 0.6 * rows[i]) for i in delta) / M))
            for i in delta:
                rows[i] = delta[i]
            mean = rows.mean(axis=0)
        elif kind == "scaffold":
            made.append(x + 0.7 * np.mean([delta[i] for i in delta], axis=0))
            for i in delta:
                rows[i] = rows[i] - mean - delta[i] / LENGTH
            mean = rows.mean(axis=0)
        elif kind == "fedfade":
            found = {i: left[i] - mean - delta[i] / LENGTH for i in delta}
            made.append(x - LENGTH * (mean + sum(weight[i] * (found[i] - left[i]) for i in delta) / M))
            for i in delta:
                rows[i] = left[i] = found[i]
            left *= 0.7
            mean = left.mean(axis=0)
        else:
            made.append(x + sum(weight[i] * delta[i] for i in delta) / M)
        for i in range(M):
            waiting[i] += 1
            if i in delta or waiting[i] == 3:
                weight[i] = (count[i] * weight[i] + waiting[i]) / (count[i] + 1)
                count[i], waiting[i] = count[i] + 1, 0
    return made, rows


def rounds_of(d: int, scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(d)
    who = [HEARD, (1, 2), (3,), (0, 1, 2, 3)]
    return [(model(rng, d, scale), {i: model(rng, d, scale) for i in heard}) for heard in who]


@pytest.mark.parametrize("kind", ["mifa", "fedvarp", "fedstale", "scaffold", "fedau", "fedfade"])
@pytest.mark.parametrize("size", SIZES)
def test_models_and_rows_are_those_of_the_formulas(kind, size, monkeypatch):
    monkeypatch.setattr(sweeps, "BLOCK_BYTES", 64)  # 16 columns of float32, 8 of float64
    rounds = rounds_of(SIZES[size])
    rule, made = played(kind, rounds)
    for name in rounds[0][0]:
        models, rows = plainly(kind, name, rounds)
        tolerance = 1e-12 if name in ("double", "fortran", "whole", "switch") else 2e-5
        for found, wanted in zip(made, models, strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=tolerance, atol=tolerance)
        if kind != "fedau":
            found = rule.tables["row"].rows[name]
            np.testing.assert_allclose(found, rows, rtol=tolerance, atol=tolerance)
            assert (np.abs(found) <= rule.tables["row"].bound()[list(rounds[0][0]).index(name)]).all()


@pytest.mark.parametrize("kind", ["mifa", "fedvarp", "fedstale", "scaffold", "fedau", "fedfade"])
def test_the_bits_do_not_depend_on_blocks_threads_or_bounds(kind, monkeypatch):
    rounds = rounds_of(40)
    rule, made = played(kind, rounds)
    monkeypatch.setattr(sweeps, "BLOCK_BYTES", 64)
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(threads, "cores", lambda: 3)
    others = [played(kind, rounds)]
    monkeypatch.setattr(Layout, "limits", np.zeros(6))  # nothing is certain: two passes
    others.append(played(kind, rounds))
    for other, models in others:
        for found, wanted in zip(models, made, strict=True):
            assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
        if kind != "fedau":
            for table, mine in ((other.tables[k].rows, rule.tables[k].rows) for k in rule.tables):
                assert all(table[name].tobytes() == mine[name].tobytes() for name in mine)


@pytest.mark.parametrize("kind", ["mifa", "fedvarp", "fedstale", "scaffold", "fedfade", "fedfade learnt"])
@pytest.mark.parametrize("scale", [1.0, 1e28])
def test_memory_is_untouched_before_the_commit(kind, scale, monkeypatch):
    """Bit for bit; also where the bounds say nothing, and where the second of three replies holds NaN."""
    monkeypatch.setattr(sweeps, "BLOCK_BYTES", 64)
    rounds = rounds_of(40, scale)
    rule, _ = played(kind, rounds)
    before = {k: {name: rows.tobytes() for name, rows in rule.tables[k].rows.items()} for k in rule.tables}
    names, small = rule.tables.state(), repr(rule.save()[0])
    start, models = rounds[0]
    models[2]["single"][30] = np.nan
    now: Any = Round(9, rule.layout.flatten(start), True, None)  # type: ignore[arg-type]
    step = rule.step(now, replies_of(models))
    assert not sane(step.model)
    after = {k: {name: rows.tobytes() for name, rows in rule.tables[k].rows.items()} for k in rule.tables}
    assert after == before
    assert rule.tables.state() == names
    assert repr(rule.save()[0]) == small


def forgetting(d: int) -> tuple[list[Any], float, float]:
    """(rounds whose gradients are less alike the longer a client was away, log of all deltas, sum of the log r).

    r = <g_i, c_i> / |c_i|^2 of whole models, delta from the straight line through the samples so far.
    """
    rng = np.random.default_rng(3)
    first = model(rng, d)
    cut = np.cumsum([x.size for x in first.values()])[:-1]

    def whole(x: dict[str, Any]) -> np.ndarray:
        return np.concatenate([array.ravel().astype(float) for array in x.values()])

    def parted(flat: np.ndarray, start: dict[str, Any]) -> dict[str, np.ndarray]:
        parts = dict(zip(first, np.split(flat, cut), strict=True))
        return {n: parts[n].reshape(x.shape).astype(x.dtype) if x.dtype.kind == "f" else x for n, x in start.items()}

    size = whole(first).size
    wanted, left, own = rng.standard_normal((M, size)), np.zeros((M, size)), np.zeros((M, size))
    last, mean, rounds, log, samples = [-1] * M, np.zeros(size), [], 0.0, []
    for t, who in enumerate([(0, 1, 2, 3), (0, 1), (0, 2), (0, 1, 3), (2,), (), (0, 1, 2, 3)]):
        start, models, slope = model(rng, d, 0.1), {}, 0.0
        for i in who:
            g = 0.9**t * wanted[i] + 0.1 * rng.standard_normal(size)
            models[i] = parted(whole(start) - LENGTH * (g + mean - left[i]), start)
            g = left[i] - mean - (whole(models[i]) - whole(start)) / LENGTH  # what arrives is rounded
            if last[i] >= 0:
                samples.append((t, t - last[i], np.log(g @ own[i] / (own[i] @ own[i]))))
            left[i], own[i], last[i] = g, g, t
        if len({age for _, age, _ in samples}) > 1:
            when, age, log_r = np.array(samples).T
            slope = float(np.polyfit(age, log_r, 1, w=0.98 ** ((t - when) / 2))[0])
        assert -1 < slope <= 0
        log += 3 * slope
        left *= np.exp(3 * slope)
        mean = left.mean(axis=0)
        rounds.append((start, models))
    assert len(samples) == 12
    assert all(np.log(0.02) < log_r < 0 for _, _, log_r in samples)
    return rounds, log, sum(0.98 ** (6 - t) * log_r for t, _, log_r in samples)


def test_what_is_left_is_learnt_from_all_arrays_and_blocks(monkeypatch):
    monkeypatch.setattr(sweeps, "BLOCK_BYTES", 64)
    rounds, log, total = forgetting(65)
    numbers = played("fedfade learnt", rounds)[0].numbers
    assert log < -0.1
    np.testing.assert_allclose([numbers.log, numbers.sums[3]], [log, total], rtol=1e-5)


def test_what_is_learnt_does_not_depend_on_threads_or_bounds(monkeypatch):
    monkeypatch.setattr(sweeps, "BLOCK_BYTES", 64)
    rounds, log, _ = forgetting(400)
    numbers = [played("fedfade learnt", rounds)[0].numbers]
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(threads, "cores", lambda: 3)
    numbers.append(played("fedfade learnt", rounds)[0].numbers)
    monkeypatch.setattr(Layout, "limits", np.zeros(6))
    numbers.append(played("fedfade learnt", rounds)[0].numbers)
    monkeypatch.setattr(sweeps, "share", lambda work, blocks, entries: list(map(work, reversed(blocks))))
    numbers.append(played("fedfade learnt", rounds)[0].numbers)
    assert log < -0.1
    assert len({(n.log, n.sums.tobytes()) for n in numbers}) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
def test_the_bound_holds_and_knows_what_is_not_finite(dtype):
    rng = np.random.default_rng(0)
    for size in (1, 65_536, 65_537, 200_000):
        values = (100 * rng.standard_normal(size)).astype(dtype)
        assert np.abs(values.astype(float)).max() <= largest(values) < 1e5
    if np.dtype(dtype).kind == "f":
        for bad in (np.nan, np.inf, -np.inf):
            values[-1] = bad
            assert largest(values) == np.inf
    assert largest(np.zeros(0, dtype)) <= 1e-17


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_too_large_is_found_exactly(dtype):
    """Where squares overflow."""
    edge = dtype(limit(np.dtype(dtype)))
    for value in (edge, np.nextafter(edge, dtype(np.inf))):
        assert sane({"w": np.array([0, -value], dtype)}) == (float(value) <= limit(np.dtype(dtype)))


def test_a_bound_is_measured_where_nobody_told_it():
    table = Table(Layout.of({"w": np.zeros(3)}), 2, "row")
    assert table.bound().tolist() == [0.0]
    table.rows["w"][1] = [1.0, -5.0, 2.0]
    table.wrote(0, np.array([False, True]))
    assert 5.0 <= table.bound()[0] < 6.0
