"""Links: what they draw, tested against formulae; and files replayed exactly."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from link_helpers import context, run_links

from fedpbc.errors import BadOption
from fedpbc.io.participation import read_trace
from fedpbc.links.bernoulli import bernoulli, draw
from fedpbc.links.common.probability import by_label, by_trait, spread, two_groups, vector, zipf
from fedpbc.links.trace import trace
from fedpbc.problems.synthetic import synthetic


def test_bernoulli_has_its_marginals_and_no_memory_and_no_correlation():
    p, rounds = np.array([0.02, 0.3, 0.5, 0.9]), 20_000
    active, prob = run_links(bernoulli.function(context(4), prob=vector.function(context(4), values=p)), rounds)
    np.testing.assert_allclose(prob, np.tile(p, (rounds, 1)), rtol=1e-6)
    error = np.sqrt(p * (1 - p) / rounds)
    assert np.all(np.abs(active.mean(axis=0) - p) < 4.5 * error)
    centred = active - p
    lag = np.mean(centred[1:] * centred[:-1], axis=0) / (p * (1 - p))
    assert np.all(np.abs(lag) < 4.5 / np.sqrt(rounds))
    across = np.corrcoef(active.T)[np.triu_indices(4, 1)]
    assert np.all(np.abs(across) < 4.5 / np.sqrt(rounds))


def test_probability_zero_is_never_and_one_always():
    active, _ = run_links(bernoulli.function(context(2), prob=np.array([0.0, 1.0])), 5000)
    assert not active[:, 0].any()
    assert active[:, 1].all()


@pytest.mark.parametrize("p", [1e-6, 1e-4, 1 - 1e-6])
def test_extreme_probabilities_are_exact_to_32_bits(p):
    n = 4_000_000
    hits = int(jnp.sum(draw(jax.random.key(1), jnp.full(n, p, jnp.float32)), dtype=jnp.int32))
    assert abs(hits - n * np.float64(np.float32(p))) < 4.5 * np.sqrt(n * p * (1 - p)) + 1


def test_links_are_the_same_in_both_precisions():
    p = np.linspace(0.05, 0.95, 50)
    single = draw(jax.random.key(3), jnp.asarray(p, jnp.float32))
    with jax.enable_x64(True):
        double = draw(jax.random.key(3), jnp.asarray(p, jnp.float64))
    np.testing.assert_array_equal(single, double)


def test_two_groups_splits_in_half():
    np.testing.assert_array_equal(two_groups.function(context(5), p0=0.1, p1=0.9), [0.1, 0.1, 0.9, 0.9, 0.9])


def test_zipf_follows_the_paper():
    prob = zipf.function(context(150, rounds=400))
    assert prob.shape == (400, 150)
    weights = np.arange(1, 151) ** -3.0
    expected = weights / weights.sum()
    error = np.sqrt(expected[:2] * (1 - expected[:2]) / 20_000)
    assert np.all(np.abs(prob[:, :2].mean(axis=0) - [expected[0], 0.104]) < [5 * error[0], 0.002])
    assert np.abs(prob[:, 0].std() / error[0] - 1) < 0.2
    assert np.all(prob[:, 2:] == 0.1)
    assert expected[0] == pytest.approx(0.832, abs=5e-4)


def test_zipf_of_a_longer_run_starts_the_same():
    short, long = zipf.function(context(10, rounds=5)), zipf.function(context(10, rounds=9))
    np.testing.assert_array_equal(short, long[:5])
    assert not np.array_equal(short, zipf.function(context(10, rounds=5, seed=1)))


def test_zipf_without_clipping_sums_to_one():
    prob = zipf.function(context(20, rounds=3), minimum=0.0, exponent=1.5)
    np.testing.assert_allclose(prob.sum(axis=1), 1)


def test_by_trait_gives_the_lower_half_the_low_probability():
    ctx = context(6)
    traits = np.array([5.0, 1, 3, 2, 9, 0])
    ctx = dataclasses.replace(ctx, problem=dataclasses.replace(ctx.problem, client_traits={"mean_label": traits}))
    np.testing.assert_array_equal(by_trait.function(ctx, low=0.1, high=0.9), [0.9, 0.1, 0.9, 0.1, 0.9, 0.1])
    with pytest.raises(BadOption, match="unknown trait; allowed: mean_label"):
        by_trait.function(ctx, trait="height")


def test_spread_is_evenly_spaced_in_the_order_of_a_trait_or_of_the_seed():
    ctx = context(4)
    traits = {"size": np.array([3, 9, 1, 5])}
    ctx = dataclasses.replace(ctx, problem=dataclasses.replace(ctx.problem, client_traits=traits))
    np.testing.assert_allclose(spread.function(ctx, low=0.2, high=0.8, trait="size"), [0.4, 0.8, 0.2, 0.6])
    with pytest.raises(BadOption, match="unknown trait; allowed: size"):
        spread.function(ctx, low=0.2, high=0.8, trait="height")
    drawn = [spread.function(context(50, seed=seed), low=0.2, high=0.8) for seed in (0, 0, 1)]
    np.testing.assert_allclose(np.sort(drawn[0]), np.linspace(0.2, 0.8, 50))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.any(drawn[0] != drawn[2])
    assert np.any(np.argsort(drawn[0]) != np.argsort(spread.function(context(50), low=0.5, high=0.9)))


def test_by_trait_takes_only_traits_with_one_number_per_client():
    ctx = labelled(context(5))
    with pytest.raises(
        BadOption, match=r"label_distribution.*: is no number per client; allowed: num_samples, mean_label"
    ):
        by_trait.function(ctx, trait="label_distribution")


def labelled(ctx):
    return dataclasses.replace(ctx, problem=synthetic.function(ctx, num_clients=ctx.problem.num_clients))


def test_the_label_distribution_is_counted_from_the_training_samples():
    problem = labelled(context(5)).problem
    labels, sizes = problem.params["train"]["data"][1], problem.params["sizes"]
    starts = np.cumsum([0, *sizes])
    for i, row in enumerate(problem.client_traits["label_distribution"]):
        mine = labels[starts[i] : starts[i + 1]]
        np.testing.assert_allclose(row, [np.mean(mine == c) for c in range(10)])


def test_by_label_is_the_label_distribution_times_class_weights():
    ctx = labelled(context(40))
    labels = ctx.problem.client_traits["label_distribution"]
    for options in ({}, {"weights": "uniform"}, {"weights": "dirichlet"}):
        prob = by_label.function(ctx, minimum=0.0, **options)
        weights, residual = np.linalg.lstsq(labels, prob)[:2]
        assert residual < 1e-20
        assert np.all((weights > 0) & (weights < 1))
        if options.get("weights") == "uniform":
            assert np.all(weights[5:] <= 0.5)
            assert weights[:5].max() > 0.5
        else:
            assert weights.sum() == pytest.approx(1)
        np.testing.assert_array_equal(by_label.function(ctx, minimum=0.3, **options), np.maximum(prob, 0.3))
        assert not np.array_equal(prob, by_label.function(dataclasses.replace(ctx, seed=1), minimum=0.0, **options))
    assert by_label.function(ctx).max() > 0.5
    assert by_label.function(ctx).min() == 0.02
    assert np.ptp(by_label.function(ctx, sigma=0.0)) < 1e-12


def test_by_label_needs_labels():
    with pytest.raises(BadOption, match='name = "by_label": needs samples with labels'):
        by_label.function(context(3))


@pytest.fixture
def recorded() -> np.ndarray:
    return np.random.default_rng(0).random((7, 3)) < 0.5


def test_trace_npy_is_replayed_exactly_and_cut_to_the_run(tmp_path, recorded):
    np.save(tmp_path / "trace.npy", recorded)
    process = trace.function(context(3, rounds=5), path=tmp_path / "trace.npy")
    active, prob = run_links(process, 5)
    np.testing.assert_array_equal(active, recorded[:5])
    np.testing.assert_allclose(prob, np.tile(recorded[:5].mean(axis=0), (5, 1)), rtol=1e-6)


@pytest.mark.parametrize("first", [(0, 0), (4, 1)])
def test_trace_csv_may_be_shuffled_and_start_anywhere(tmp_path, recorded, first):
    rows = [f"{first[0] + t},{first[1] + i},{int(recorded[t, i])}" for t in range(7) for i in range(3)]
    np.random.default_rng(1).shuffle(rows)
    path = tmp_path / "trace.csv"
    path.write_text("round,client,active\n" + "\n".join(rows) + "\n\n")
    np.testing.assert_array_equal(read_trace("path", path), recorded)


def test_trace_csv_takes_columns_in_any_order_and_booleans(tmp_path):
    path = tmp_path / "trace.csv"
    for yes, no in (("true", "False"), ("YES", "no"), ("1.0", "0.0"), ("1", "0")):
        path.write_text(f"client,active,round\n0,{yes},0\n1,{no},0\n")
        np.testing.assert_array_equal(read_trace("path", path), [[True, False]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round,client,active\n0,0,1\n0,1,1\n1,0,1\n", "round 1 has no row for client 1"),
        ("round,client,active\n1,a,1\n1,b,1\n2,b,1\n", "round 2 has no row for client a"),
        ("round,client,active\n0,0,1\n0,1,1\n2,0,1\n2,1,0\n", 'round 1 is missing .*missing_rounds = "empty" if'),
        ("round,client,active\n0,0,1\n0,2,1\n", "client 1 is missing"),
        ("round,client\n0,0\n0,2\n", "client 1 is missing"),
        ("round,client,active\n1772323200,0,1\n1772323500,0,1\n", "are these times in seconds. round_seconds = 300"),
        ("round,client,status\n0,0,ok\n0,1,lost\n", 'column status is not used.* active_column = "status=ok"'),
        ("round,client,active,status\n0,0,1,ok\n0,1,1,lost\n", 'active_column = "status=ok" reads it so'),
        ("round,client,active\n0,0,1\n0,0,1\n", 'round 0, client "0" stands there twice'),
        ("round,client,active\n0,0,1\n0,1,0\n0,1,0\n1,0,1\n1,1,1\n", "line 4: round 0.*drop_duplicates = true"),
        ("round,client,active\n0,0,2\n", 'line 2: active must be 0, 1, true, .*is "2"'),
        ("round,client,active\n0,0\n", "line 2: must have 3 cells"),
        ("round,client,active\nx,0,1\n", "line 2: round must be an integer"),
        ("0,0,1\n", "line 1: column round is missing"),
        ("round,client,active\n", "holds no rows"),
    ],
)
def test_bad_traces_are_refused_with_their_place(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadOption, match=rf'^path = ".*trace\.csv": .*{message}') as caught:
        read_trace("path", path)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("log.csv", "round,client,active,when\n0,0,1,x\n0,1,0,x\n1,0,0,x\n1,1,1,x\n", {}),
        ("log.csv", "round,client,active\n0,a,1\n0,b,0\n1,a,0\n1,b,1\n", {}),
        ("log.csv", "round,client\n7,0\n8,1\n", {}),
        ("log.csv", "round,client,status\n0,0,ok\n0,1,lost\n1,0,lost\n1,1,ok\n", {"active_column": "status=ok"}),
        ("log.csv", "round,client,active\n60,0,1\n60,1,0\n185,0,0\n185,1,yes\n", {"round_seconds": 100.0}),
        ("log.csv", "round,client,active\n0,0,1\n0,1,0\n0,1,0\n1,0,0\n1,1,1\n", {"drop_duplicates": True}),
        ("log.jsonl", '{"round": 0, "clients": [0]}\n{"round": 1, "clients": [1]}\n', {}),
    ],
)
def test_a_trace_may_be_any_log_that_the_audit_reads(tmp_path, name, text, options):
    (tmp_path / name).write_text(text)
    process = trace.function(context(2, rounds=2), path=tmp_path / name, **options)
    np.testing.assert_array_equal(run_links(process, 2)[0], [[True, False], [False, True]])


def test_rounds_without_a_row_may_be_empty_and_clients_may_never_come(tmp_path):
    (tmp_path / "log.csv").write_text("round,client\n0,0\n2,3\n")
    process = trace.function(context(4, rounds=3), path=tmp_path / "log.csv", missing_rounds="empty")
    expected = np.zeros((3, 4), bool)
    expected[0, 0] = expected[2, 3] = True
    np.testing.assert_array_equal(run_links(process, 3)[0], expected)
    with pytest.raises(BadOption, match="client 1 is missing"):  # of 5 clients the last may not be there by mistake
        trace.function(context(5, rounds=3), path=tmp_path / "log.csv", missing_rounds="empty")
    (tmp_path / "log.csv").write_text("round,client\n0,1\n2,4\n")
    process = trace.function(context(4, rounds=3), path=tmp_path / "log.csv", missing_rounds="empty")
    np.testing.assert_array_equal(run_links(process, 3)[0], expected)
    (tmp_path / "log.csv").write_text("round,client\n0,0\n2,4\n")
    with pytest.raises(BadOption, match="client 1 is missing"):  # 0 to 4 are five
        trace.function(context(4, rounds=3), path=tmp_path / "log.csv", missing_rounds="empty")
    rows = [f"{t},{i},{int(expected[t, i])}" for t in (0, 2) for i in range(4)]
    (tmp_path / "log.csv").write_text("round,client,active\n" + "\n".join(rows))
    process = trace.function(context(4, rounds=3), path=tmp_path / "log.csv", missing_rounds="empty")
    np.testing.assert_array_equal(run_links(process, 3)[0], expected)
    (tmp_path / "log.csv").write_text("round,client,active\n" + "\n".join(rows[:6] + rows[7:]))
    with pytest.raises(BadOption, match="round 2 has no row for client 2"):
        trace.function(context(4, rounds=3), path=tmp_path / "log.csv", missing_rounds="empty")


def test_what_a_trace_cannot_use_is_refused(tmp_path):
    (tmp_path / "server.log").write_text("aggregate_fit: received 3 results and 2 failures\n")
    with pytest.raises(BadOption, match="counts only"):
        trace.function(context(3), path=tmp_path / "server.log")
    (tmp_path / "log.bin").write_bytes(b"x")
    with pytest.raises(BadOption, match=r"is in none of the formats that are read: npy"):
        trace.function(context(3), path=tmp_path / "log.bin")
    (tmp_path / "log.csv").write_text("round,client,status\n0,0,ok\n0,1,lost\n")
    with pytest.raises(BadOption, match=r'active_column = "status=": must name at least one value'):
        trace.function(context(2, rounds=1), path=tmp_path / "log.csv", active_column="status=")
    np.save(tmp_path / "log.npy", np.eye(2))
    with pytest.raises(BadOption, match=r"path = .*: round_seconds cannot be used: it is a table"):
        trace.function(context(2, rounds=1), path=tmp_path / "log.npy", round_seconds=1.0)


def test_a_trace_must_fit_the_run(tmp_path, recorded):
    np.save(tmp_path / "trace.npy", recorded)
    with pytest.raises(BadOption, match="has 7 rounds, the run needs 8"):
        trace.function(context(3, rounds=8), path=tmp_path / "trace.npy")
    with pytest.raises(BadOption, match="has 3 clients, the problem has 4"):
        trace.function(context(4, rounds=5), path=tmp_path / "trace.npy")
    np.save(tmp_path / "bad.npy", recorded + 1.0)
    with pytest.raises(BadOption, match="row 0, column 1: must be 0 or 1"):
        read_trace("path", tmp_path / "bad.npy")
