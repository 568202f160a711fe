"""The one pass over the replies: the sums and rows of plain NumPy, whatever the blocks, types and threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpbc.flower.methods.common import sweep as sweeps
from fedpbc.flower.methods.common.tables import Table
from fedpbc.flower.methods.fedau import FedAURule
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


def played(kind: str, rounds: list[tuple[dict[str, Any], dict[int, dict[str, Any]]]]) -> Any:
    """(the rule, the new models): x^t and the replies of each round are given."""
    rule: Any = {"mifa": lambda: MIFARule(LENGTH, False, "server"), "fedvarp": lambda: FedVARPRule(0.7, "server"),
                 "scaffold": lambda: SCAFFOLDRule("server", 0.7), "fedau": lambda: FedAURule(3)}[kind]()  # fmt: skip
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
    weight, waiting, count = np.ones(M), np.zeros(M), np.zeros(M)
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
        elif kind == "scaffold":
            made.append(x + 0.7 * np.mean([delta[i] for i in delta], axis=0))
            for i in delta:
                rows[i] = rows[i] - mean - delta[i] / LENGTH
            mean = rows.mean(axis=0)
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


@pytest.mark.parametrize("kind", ["mifa", "fedvarp", "scaffold", "fedau"])
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


@pytest.mark.parametrize("kind", ["mifa", "fedvarp", "scaffold", "fedau"])
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


@pytest.mark.parametrize("kind", ["mifa", "fedvarp", "scaffold"])
@pytest.mark.parametrize("scale", [1.0, 1e28])
def test_memory_is_untouched_before_the_commit(kind, scale, monkeypatch):
    """Bit for bit; also where the bounds say nothing, and where the second of three replies holds NaN."""
    monkeypatch.setattr(sweeps, "BLOCK_BYTES", 64)
    rounds = rounds_of(40, scale)
    rule, _ = played(kind, rounds)
    before = {k: {name: rows.tobytes() for name, rows in rule.tables[k].rows.items()} for k in rule.tables}
    names = rule.tables.state()
    start, models = rounds[0]
    models[2]["single"][30] = np.nan
    now: Any = Round(9, rule.layout.flatten(start), True, None)  # type: ignore[arg-type]
    step = rule.step(now, replies_of(models))
    assert not sane(step.model)
    after = {k: {name: rows.tobytes() for name, rows in rule.tables[k].rows.items()} for k in rule.tables}
    assert after == before
    assert rule.tables.state() == names


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
