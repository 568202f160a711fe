"""What docs/drift-correction.md claims about corrections z_i: where they sum to 0, and what the fixed point is.

On the array functions with NumPy, and on the simulator round by round. Distances are to the minimiser of quadratics
whose clients curve differently; equal curvatures would hide what local steps do to the average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rivals
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwise import Simulated, random_trace, simulate
from test_rivals import ResultOnly

import fedpbc
from fedpbc.algorithms.fedpbc_corrected import correct_full, correct_light

M, D, STEPS, ETA = 6, 4, 4, 0.05
PROB = np.array([0.2, 0.3, 0.5, 0.5, 0.7, 0.9])
FORMS, APPLIES = ("full", "light"), ("every_step", "around")
BOTH = [(form, apply) for form in FORMS for apply in APPLIES]
DECAYING = {"name": "inverse_sqrt", "initial": 0.1, "period": 4}


def corrected(form: str = "full", apply: str = "every_step", **options: Any) -> dict[str, Any]:
    """An entry of [[algorithms]]."""
    return {"name": "fedpbc_corrected", "correction": form, "apply": apply, **options}


def experiment(folder: Any, active: Any, method: dict[str, Any], **changes: Any) -> fedpbc.Experiment:
    """One run on the links ``active``: bool[rounds, m], or a probability."""
    if isinstance(active, np.ndarray):
        np.save(folder / "active.npy", active)
        links, rounds = {"name": "trace", "path": "active.npy"}, len(active)
    else:
        links, rounds = {"name": "bernoulli", "prob": active}, changes.pop("rounds")
    table = {
        "name": "drift",
        "rounds": rounds,
        "local_steps": STEPS,
        "learning_rate": ETA,
        "seeds": [0],
        "precision": "float64",
        "eval_every": rounds,
        "problem": {"name": "quadratic", "num_clients": M, "dim": D, "condition": 5.0},
        "links": [links],
        "algorithms": [method],
        **changes,
    }
    return fedpbc.Experiment.from_table(table, folder)


def stepwise(*args: Any, **changes: Any) -> Simulated:
    """The run, stopped after every round."""
    run = experiment(*args, **changes)
    return simulate(run, run.cells()[0])


def distance(*args: Any, **changes: Any) -> float:
    """||x^T - x*|| of the server."""
    return fedpbc.run(experiment(*args, **changes), devices=1).final("server_distance")


# ------------------------------------------------------------------------------------ the array functions, with NumPy


@st.composite
def rounds(draw: Any) -> dict[str, np.ndarray]:
    """Corrections that sum to 0 before a round, and any round."""
    m, d = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    z = rng.standard_normal((m, d)) * 10 ** rng.uniform(-3, 3)
    length = rng.random(m) * 10 ** rng.uniform(-3, 3) * (rng.random(m) < 0.7)
    return {
        "corrections": z - z.mean(axis=0),
        "base": rng.standard_normal((m, d)),
        "trained": rng.standard_normal((m, d)),
        "length": length,
        "active": rng.random(m) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
    }


def change(form: str, corrections: Any, base: Any, trained: Any, length: Any, active: Any) -> np.ndarray:
    """z after minus z before."""
    if form == "full":
        return correct_full(corrections, base, trained, length, active) - corrections
    mean = trained[active].mean(axis=0) if active.any() else trained[0]
    return correct_light(corrections, mean, trained, length, active) - corrections


def scale(case: dict[str, np.ndarray]) -> float:
    """The largest number that is added in a round."""
    steps = case["length"][case["length"] > 0]
    return 10 / min(steps.min(initial=1.0), 1.0) + np.abs(case["corrections"]).max()


@pytest.mark.parametrize("form", FORMS)
@given(rounds())
def test_a_round_keeps_the_sum_of_the_corrections(form: str, case: dict[str, np.ndarray]) -> None:
    moved = change(form, **case)
    assert np.abs(moved.sum(axis=0)).max() <= 1e-13 * scale(case)
    assert not moved[~case["active"]].any()


@pytest.mark.parametrize("form", FORMS)
@given(rounds())
def test_a_client_that_is_alone_learns_nothing(form: str, case: dict[str, np.ndarray]) -> None:
    case["active"] = np.arange(len(case["active"])) == 0
    assert np.abs(change(form, **case)).max() <= 1e-13 * scale(case)


@given(rounds())
def test_who_took_no_step_has_no_direction(case: dict[str, np.ndarray]) -> None:
    moved = change("full", **case)
    assert not moved[case["length"] == 0].any()
    some = case["active"] & (case["length"] > 0)
    without = change("full", **{**case, "active": some})
    np.testing.assert_array_equal(moved, without)


@pytest.mark.parametrize("form", FORMS)
def test_equal_directions_are_left_alone_and_different_ones_are_not(form: str) -> None:
    """Two clients a step apart in opposite directions: z takes all of the difference away at once."""
    zero, ones = np.zeros((2, 1)), np.ones(2)
    apart = change(form, zero, zero, np.array([[-1.0], [1.0]]), ones / 2, ones > 0)
    np.testing.assert_allclose(apart, [[-2.0], [2.0]])
    assert not change(form, zero, zero, np.array([[3.0], [3.0]]), ones / 2, ones > 0).any()


@pytest.mark.parametrize(("divisor", "limit"), [(None, (0, 1e-6)), (np.mean, (1e6, np.inf))])
def test_the_light_form_divides_by_the_largest_length(divisor: Any, limit: tuple[float, float]) -> None:
    """Nine clients that meet every round, one that joins every eleventh: with the mean of h_i it diverges."""
    m, eta = 10, 0.01
    centers = np.arange(m, dtype=float)[:, None]
    x, z, h = np.zeros((m, 1)), np.zeros((m, 1)), np.zeros(m)
    for t in range(11 * 80):
        x, h = x - eta * (x - centers + z), h + eta
        active = np.arange(m) < (m if t % 11 == 10 else m - 1)
        server = x[active].mean(axis=0)
        z = correct_light(z, server, x, np.full(m, divisor(h[active])) if divisor else h, active)
        x[active], h[active] = server, 0
    assert limit[0] <= np.abs(z - (centers - centers.mean())).max() <= limit[1]


# ---------------------------------------------------------------------------------------------- through the simulator


@pytest.mark.every(2)
@pytest.mark.parametrize("compute", ["all", "active"])
@pytest.mark.parametrize(("form", "apply"), BOTH)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.1, 0.4, 0.8]))
def test_corrections_sum_to_zero_after_every_round(
    tmp_path_factory: Any, form: str, apply: str, compute: str, seed: int, share: float
) -> None:
    """Any A, a decaying rate, a cool-down."""
    active = random_trace(seed, 16, M, share)
    active[5] = True
    folder = tmp_path_factory.mktemp("sum")
    run = stepwise(folder, active, corrected(form, apply), compute=[compute], learning_rate=DECAYING, cooldown_rounds=4)
    z = np.array([state.corrections for state in run.states])
    assert np.abs(z.sum(axis=1)).max() < 1e-12 * np.abs(z).max()
    assert np.abs(z[-1]).max() > 0.1
    for t in range(16):
        if active[t].sum() == 1:
            np.testing.assert_allclose(z[t + 1], z[t], atol=1e-12 * np.abs(z).max())


@pytest.mark.first(1)
@pytest.mark.parametrize("compute", ["all", "active"])
@pytest.mark.parametrize("form", FORMS)
def test_it_converges_to_the_minimiser_at_a_constant_rate(tmp_path: Any, form: str, compute: str) -> None:
    """Unequal p, unknown to the method; FedAvg and FedPBC under the same links do not."""
    settings = {"rounds": 4000, "compute": [compute], "learning_rate": 0.1}
    assert distance(tmp_path, PROB.tolist(), corrected(form), **settings) < 1e-10
    for rival in ("fedavg", "fedpbc"):
        assert distance(tmp_path, PROB.tolist(), {"name": rival}, **settings) > 0.1


@pytest.mark.first(1)
@pytest.mark.parametrize("form", FORMS)
def test_the_fixed_point_has_consensus_and_no_mean_gradient(tmp_path: Any, form: str) -> None:
    """And z_i is then minus the gradient of client i, which only client i can know."""
    active = random_trace(3, 1500, M, PROB)
    run = experiment(tmp_path, active, corrected(form), learning_rate=0.1)
    last = simulate(run, run.cells()[0])
    problem = run.problem.build(run.context(0))
    x = last.clients[-1]
    gradients = problem.params["curvatures"] * (x - problem.params["centers"])
    assert np.abs(x - x[0]).max() < 1e-8
    assert np.abs(gradients.sum(axis=0)).max() < 1e-8
    np.testing.assert_allclose(last.states[-1].corrections, -gradients, atol=1e-7)
    assert np.abs(gradients).max() > 1


@pytest.mark.first(1)
@pytest.mark.parametrize("problem", ["quadratic", "synthetic"])
@pytest.mark.parametrize(("form", "apply"), BOTH)
def test_with_everybody_active_it_is_scaffold(tmp_path: Any, form: str, apply: str, problem: str) -> None:
    """Round by round, and z_i = c - c_i."""
    everybody = np.ones((12, M), bool)
    changes = {"problem": {"name": problem, "num_clients": M}, "minibatch": "step", "learning_rate": DECAYING}
    if problem == "quadratic":
        changes["problem"] |= {"dim": D, "condition": 5.0}
    ours = stepwise(tmp_path, everybody, corrected(form, apply), **changes)
    scaffold = stepwise(tmp_path, everybody, {"name": "scaffold", "apply": apply}, **changes)
    z = np.array([state.corrections for state in ours.states])
    c = np.array([state.control - state.controls for state in scaffold.states])
    assert np.abs(z).max() > 0.1
    np.testing.assert_allclose(z, c, atol=1e-11 * np.abs(z).max())
    np.testing.assert_allclose(ours.servers, scaffold.servers, atol=1e-12 * np.abs(ours.servers).max())


@pytest.mark.every(2)
@pytest.mark.parametrize("compute", ["all", "active"])
@pytest.mark.parametrize("form", FORMS)
def test_lengths_count_computed_steps(tmp_path: Any, form: str, compute: str) -> None:
    """The sum of the etas of i's own steps since i last received a model; the downlink fails by itself."""
    up, down = random_trace(1, 16, M, 0.5), random_trace(2, 16, M, 0.5)
    np.save(tmp_path / "up.npy", up)
    np.save(tmp_path / "down.npy", down)
    sides = {side: {"name": "trace", "path": f"{side}.npy"} for side in ("up", "down")}
    changes = {"links": [{"name": "two_way", **sides}], "learning_rate": DECAYING, "cooldown_rounds": 3}
    run = stepwise(tmp_path, up, corrected(form), compute=[compute], **changes)
    expected, longest = np.zeros(M), 0.0
    for t in range(16):
        if t < 13:
            expected += np.where(up[t] | (compute == "all"), STEPS * 0.1 / np.sqrt(t / 4 + 1), 0)
        expected[up[t] & down[t]] = 0
        np.testing.assert_allclose(run.states[t + 1].length, expected, rtol=1e-12)
        longest = max(longest, expected.max())
    assert longest > STEPS * 0.1


# --------------------------------------------------------------------------------------------------- a loss of state


@pytest.mark.release
@pytest.mark.parametrize("compute", ["all", "active"])
@pytest.mark.parametrize("form", FORMS)
def test_a_lost_correction_is_a_lasting_bias_without_epochs(tmp_path: Any, form: str, compute: str) -> None:
    active = random_trace(4, 1600, M, PROB)
    changes = {"learning_rate": 0.1, "compute": [compute], "state_loss": {"round": 300, "share": 0.3}}
    lossy = stepwise(tmp_path, active, corrected(form, epoch_reset=False), **changes)
    sums = np.abs([state.corrections.sum(axis=0) for state in lossy.states]).max(axis=1)
    assert sums[:301].max() < 1e-11
    assert sums[301:].min() > 0.1
    assert lossy.rows["server_distance"][-1] > 0.05

    mended = stepwise(tmp_path, active, corrected(form), **changes)
    epochs = np.array([state.epoch for state in mended.states])
    renewed = (epochs == mended.states[-1].server_epoch).all(axis=1)
    sums = np.abs([state.corrections.sum(axis=0) for state in mended.states]).max(axis=1)
    assert sums[301] > 0.1
    assert 301 < np.argmax(renewed[1:]) + 1 < 400
    assert sums[1:][renewed[1:]].max() < 1e-11
    assert mended.rows["server_distance"][-1] < 1e-8


# -------------------------------------------------------------------------------------- around a client's own training


@pytest.mark.first(1)
@pytest.mark.parametrize("method", [*(corrected(form) for form in FORMS), {"name": "scaffold"}], ids=str)
def test_around_one_step_is_every_step(tmp_path: Any, method: dict[str, Any]) -> None:
    active = random_trace(6, 30, M, PROB)
    one, many = (
        [stepwise(tmp_path, active, {**method, "apply": a}, local_steps=s).servers for a in APPLIES] for s in (1, STEPS)
    )
    np.testing.assert_allclose(one[0], one[1], rtol=1e-12)
    assert np.abs(many[0] - many[1]).max() > 1e-4


LIMITS = {"rounds": 4000, "local_steps": 10}


def order(tmp_path: Any, method: dict[str, Any], prob: Any) -> float:
    """How the distance grows when eta doubles: 2 to the power of the order of the bias."""
    small, large = (distance(tmp_path, prob, method, learning_rate=eta, **LIMITS) for eta in (0.005, 0.01))
    assert small > 1e-7
    return large / small


@pytest.mark.first(1)
@pytest.mark.parametrize("method", [corrected("full", "around"), corrected("light", "around")], ids=FORMS)
def test_around_leaves_a_bias_of_second_order(tmp_path: Any, method: dict[str, Any]) -> None:
    assert order(tmp_path, method, PROB.tolist()) == pytest.approx(4, abs=0.4)


def test_scaffold_around_a_black_box_has_the_same_bias(tmp_path: Any) -> None:
    """Its fixed point is the same, whatever the links."""
    ours, theirs = (
        distance(tmp_path, PROB.tolist(), method, learning_rate=0.01, **LIMITS)
        for method in (corrected("light", "around"), {"name": "scaffold", "apply": "around"})
    )
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_fedavg_with_everybody_has_a_bias_of_first_order(tmp_path: Any) -> None:
    assert order(tmp_path, {"name": "fedavg"}, 1.0) == pytest.approx(2, abs=0.2)


def test_around_is_exact_where_all_clients_curve_alike(tmp_path: Any) -> None:
    """Linear gradients are not enough: it takes one curvature."""
    alike = {"name": "quadratic", "num_clients": M, "dim": D}
    method = corrected("light", "around")
    assert distance(tmp_path, PROB.tolist(), method, problem=alike, learning_rate=0.01, **LIMITS) < 1e-10


def test_correcting_the_result_alone_leaves_fedavgs_drift() -> None:
    """In plain NumPy, by the independent implementation; with the shift before training it is far smaller."""
    rng = np.random.default_rng(0)
    centers, curvatures = rng.normal(3, 2, (M, 2)), 5 ** -rng.random((M, 2))
    best = (curvatures * centers).sum(axis=0) / curvatures.sum(axis=0)

    def error(method: rivals.Method, eta: float) -> float:
        def gradient(i: int, x: np.ndarray, xi: object) -> np.ndarray:
            return curvatures[i] * (x - centers[i])

        states = rivals.simulate(method, gradient, np.ones((400, M)), np.zeros(2), steps=5, rate=lambda t: eta)
        return float(np.linalg.norm(states[-1].server - best))

    eta = 0.02
    result_only, around = (error(kind("light", "around"), eta) for kind in (ResultOnly, rivals.FedPBCCorrected))
    assert result_only / error(rivals.FedAvg(), eta) == pytest.approx(1, abs=0.1)
    assert result_only / error(ResultOnly("light", "around"), eta / 2) == pytest.approx(2, abs=0.2)
    assert around < result_only / 10
