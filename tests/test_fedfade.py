"""FedFade: SCAFFOLD and FedAU are its ends, the step is unbiased, and delta is what the gradients were made to do."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from stepwise import random_trace
from test_rivals_memory import cost, run
from test_rivals_oracle import FADING_X, LEARNING, TOLD

import fedpbc
from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.common.server import SERVERS
from fedpbc.algorithms.fedau import Intervals
from fedpbc.algorithms.fedfade import aged, fade, learn, left
from fedpbc.core.schema import Context
from fedpbc.core.types import Link, Round

M, D = 6, 3
BERNOULLI = {"name": "bernoulli", "prob": 0.4}
LINKS: dict[str, dict[str, Any]] = {
    "bernoulli": BERNOULLI,
    "one-way": {"name": "two_way", "up": BERNOULLI, "down": {"name": "bernoulli", "prob": 0.6}},
}


class Played:
    """The method on NumPy arrays, round by round; g_i(t) is given."""

    def __init__(self, m: int, d: int, dtype: Any = np.float64, **options: Any) -> None:
        self.m, self.dtype, self.t = m, np.dtype(dtype), 0
        self.algorithm = ALGORITHMS.registry["fedfade"].function(Context(0, self.dtype, 10), **options)
        self.state = self.algorithm.init(self.algorithm.params, np.zeros(d, dtype), m)

    def round(self, active: Any, gradient: Any, eta: float = 0.1, steps: int = 2, downlink: Any = None) -> Any:
        """One round in which every client's gradient is its row, whatever its model."""
        active = np.asarray(active, bool)
        gradient = np.asarray(gradient, self.dtype)
        rate = self.dtype.type(eta)

        def train(models: Any, shift: Any = None, proximal: Any = None) -> Any:
            return models - steps * rate * (gradient + (0 if shift is None else shift))

        link = Link(active, np.full(self.m, 0.5), downlink)
        computes = np.full(self.m, steps > 0)
        given = Round(np.int32(self.t), link, rate, np.int32(steps), computes, train)
        self.state = self.algorithm.round(self.algorithm.params, self.state, given)
        self.t += 1
        return self.state

    def lose(self, *clients: int) -> None:
        """These lose all they keep."""
        lost = np.isin(np.arange(self.m), clients)
        x0 = np.zeros_like(self.state.server)
        self.state = self.algorithm.forget(self.algorithm.params, self.state, lost, x0, np.int32(self.t))

    @property
    def own(self) -> Any:
        """u_i."""
        return aged(self.state.controls, self.state.log, self.state.since)


def test_two_small_cases_by_hand() -> None:
    """Worked out in tests/test_rivals_oracle.py, where the oracle is held to them too."""
    fixed = Played(2, 1, fading=0.5, cutoff=0)
    for active, x, c in zip(([1, 0], [0, 1], [1, 1], [0, 0]), FADING_X, (-1 / 4, -5 / 8, -3 / 4, -3 / 8), strict=True):
        state = fixed.round(active, [[-1.0], [-2.0]], eta=1, steps=1)
        np.testing.assert_allclose([state.server[0], state.control[0]], [x, c], rtol=1e-14)
    learnt = Played(2, 1, cutoff=0)
    wanted = zip(LEARNING, (4, 7, 8), (-4, -3, -1 / 8), (1, 1, 1 / 8), strict=True)
    for t, (active, x, c, delta) in enumerate(wanted):
        before = learnt.state.log
        state = learnt.round([i in active for i in range(2)], [[g] for g in TOLD[t]], eta=1, steps=1)
        np.testing.assert_allclose([state.server[0], state.control[0]], [x, c], rtol=1e-14)
        np.testing.assert_allclose(np.exp(state.log - before), delta, rtol=1e-14)


# ------------------------------------------------------------------------------------------------------------ its ends


@pytest.mark.first(1)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("controls", "apply", "epochs"),
    [("client", "every_step", False), ("client", "around", True), ("server", "around", False)],
)
def test_without_fading_and_with_the_mean_it_is_scaffold_bit_for_bit(
    link: str, precision: str, controls: str, apply: str, epochs: bool
) -> None:
    options = {"controls": controls, "apply": apply, "epoch_reset": epochs}
    given = {"precision": precision, "state_loss": {"round": 20, "share": 0.3}}
    theirs = run(LINKS[link], {"name": "scaffold", **options}, **given)
    fading = "none" if controls == "client" else 1.0
    ours = run(LINKS[link], {"name": "fedfade", "weights": "mean", "fading": fading, **options}, **given)
    np.testing.assert_array_equal(ours.servers, theirs.servers)
    np.testing.assert_array_equal(ours.clients, theirs.clients)
    for mine, other in zip(ours.states, theirs.states, strict=True):
        np.testing.assert_array_equal(mine.control, other.control)
        np.testing.assert_array_equal(mine.controls, other.controls)
    assert np.abs(theirs.states[-1].control).max() > 1e-3
    assert (theirs.states[-1].server_epoch > 0) == epochs


@pytest.mark.release
def test_the_servers_learning_rate_is_scaffolds() -> None:
    theirs = run(BERNOULLI, {"name": "scaffold", "server_learning_rate": 0.7})
    ours = run(BERNOULLI, {"name": "fedfade", "weights": "mean", "fading": "none", "server": 0.7})
    np.testing.assert_array_equal(ours.servers, theirs.servers)


@pytest.mark.first(1)
@pytest.mark.parametrize("weights", ["intervals", "mean"])
def test_controls_that_fade_at_once_make_it_fedau_or_fedavg(weights: str) -> None:
    other = {"name": "fedau", "cutoff": 7} if weights == "intervals" else {"name": "fedavg"}
    theirs = run(BERNOULLI, other)
    ours = run(BERNOULLI, {"name": "fedfade", "fading": 0, "weights": weights, "cutoff": 7})
    np.testing.assert_allclose(ours.servers, theirs.servers, rtol=0, atol=1e-13 * np.abs(theirs.servers).max())


# ---------------------------------------------------------------------------------------------------------- the step


@pytest.mark.parametrize("fading", ["learnt", 0.7])
def test_the_step_is_unbiased_whatever_the_controls_are(fading: Any) -> None:
    """The mean over all 2^m active sets, the empty one included, with w_i = 1/p_i: -eta s times the mean gradient."""
    rng = np.random.default_rng(0)
    prob, gradient = np.array([0.1, 0.3, 0.5, 0.9]), rng.normal(size=(4, D))
    begun = Played(4, D, fading=fading)
    for _ in range(6):  # controls of all ages
        begun.round(rng.random(4) < 0.6, rng.normal(size=(4, D)))
    assert np.abs(begun.own).max() > 0.1
    one = np.ones(4)
    state = begun.state._replace(intervals=Intervals(one, one, 1 / prob), server=np.zeros(D))
    mean = np.zeros(D)
    for active in itertools.product([False, True], repeat=4):
        begun.state = state
        chance = np.prod(np.where(active, prob, 1 - prob))
        mean += chance * begun.round(active, gradient, eta=0.1, steps=3).server
    np.testing.assert_allclose(mean, -0.1 * 3 * gradient.mean(axis=0), rtol=1e-12)
    # and in no single round
    begun.state = state
    assert np.abs(begun.round([True, False, True, False], gradient, steps=3).server - mean).max() > 1e-3


@pytest.mark.parametrize("controls", ["client", "server"])
@pytest.mark.parametrize("fading", ["learnt", 0.7, 0.0, "none"])
def test_c_is_the_mean_of_what_is_left_and_a_lost_control_fades(controls: str, fading: Any) -> None:
    """After a loss c is wrong by u_i / m, and by as much less as everything fades."""
    rng, played = np.random.default_rng(1), Played(M, D, controls=controls, fading=fading)
    decay = np.full((M, 1), 0.9)
    for t in range(60):
        if t == 30:
            wrong = played.own[[1, 4]].sum(axis=0) / M
            at = played.state.log
            played.lose(1, 4)
        down = rng.random(M) < 0.8
        played.round(rng.random(M) < 0.5, rng.normal(1, 0.1, (M, D)) * decay**t, downlink=down)
        gap = played.state.control - played.own.mean(axis=0)
        if t < 30 or controls == "server":
            np.testing.assert_allclose(gap, 0, atol=1e-14)
        else:
            np.testing.assert_allclose(gap, wrong * np.exp(played.state.log - at), rtol=1e-9, atol=1e-14)
    if controls == "client":
        assert (np.abs(wrong).max() > 1e-3) == (fading != 0)
        assert (np.abs(gap).max() < 1e-5) == (fading != "none")


@pytest.mark.parametrize("epochs", [False, True])
def test_where_controls_do_not_fade_a_lost_one_is_mended_by_an_epoch_alone(epochs: bool) -> None:
    """Two clients always there, curvatures 1 and 3 about 0 and 4, x* = 3; client 1 loses its c_1 in round 200.

    By hand, delta = 1: c_0 = 3 and c_1 = -3 were right, so c = 0, and after the loss c = (c_0 + c_1) / 2 + b with
    b = -3/2 for ever. With g_i = c_i the step is (g_0 + g_1) / 2 + b, 0 at (4 x - 12) / 2 = 3/2: x = 15/4.
    """
    curvature, center = np.array([[1.0], [3.0]]), np.array([[0.0], [4.0]])
    played = Played(2, 1, epoch_reset=epochs)
    for t in range(400):
        if t == 200:
            np.testing.assert_allclose(played.state.server, [3.0], atol=1e-9)
            played.lose(1)
        played.round([True, True], curvature * (played.state.server - center), eta=0.1, steps=1)
    np.testing.assert_allclose(played.state.server, [3.0 if epochs else 15 / 4], atol=1e-9)
    assert played.state.log == 0
    assert played.state.server_epoch == epochs


# -------------------------------------------------------------------------------------------------------------- delta


@pytest.mark.parametrize(("rho", "wanted"), [(1.0, 0.0), (0.97, 3 * np.log(0.97)), (1.1, 0.0), (-0.5, None)])
def test_gradients_that_die_away_by_rho_a_round_make_delta_the_cube_of_rho(rho: float, wanted: float | None) -> None:
    """r = rho^a exactly. Gradients that grow or stay: delta = 1. That turn round: r = .02 or 1, never NaN."""
    rng, played = np.random.default_rng(2), Played(M, D)
    first = rng.normal(size=(M, D))
    for t in range(40):
        before = played.state.log
        played.round(rng.random(M) < np.linspace(0.2, 0.9, M), rho**t * first)
        found = played.state.log - before
        if wanted is not None and t > 10:
            np.testing.assert_allclose(found, wanted, atol=1e-10)
        assert -3 <= found <= 0


def test_a_part_that_is_noise_at_any_age_does_not_make_controls_fade() -> None:
    """log r = log kappa + slope a: at kappa = .5 and slope 0, delta = 1; slopes below -1 count as -1."""
    age, yes = np.array([1, 2, 5, 9]), np.array([True] * 4)
    assert fade(learn(np.zeros(5), age, np.full(4, np.log(0.5)), yes)) == pytest.approx(0, abs=1e-14)
    assert fade(learn(np.zeros(5), age, -2.0 * age, yes)) == pytest.approx(-3)
    assert fade(learn(np.zeros(5), age, np.log(0.5) - 0.01 * age, yes)) == pytest.approx(-0.03)
    assert fade(learn(np.zeros(5), age, np.log(0.5) + 0.01 * age, yes)) == 0


def test_the_share_that_is_left_is_from_a_fiftieth_to_all() -> None:
    """r = <g, c> / |c|^2 of one client: a gradient that grew counts as one that stayed; what is old is forgotten."""
    log_r, measured = left(np.array([8.0, 3.0, 0.08, -7.0]), np.array([4.0, 4.0, 4.0, 4.0]), np.array([True] * 4))
    np.testing.assert_allclose(np.exp(log_r), [1, 0.75, 0.02, 0.02], rtol=1e-14)
    assert measured.all()
    nobody = learn(np.arange(5.0), np.array([3]), np.array([-1.0]), np.array([False]))
    np.testing.assert_allclose(nobody, 0.98 * np.arange(5), rtol=1e-14)


@pytest.mark.parametrize("period", [1, 7])
def test_ages_that_are_all_equal_show_no_slope(period: int) -> None:
    """In float32 too, where what is left of two equal numbers is noise: everybody always, or in turns of 7 rounds."""
    rng, played = np.random.default_rng(3), Played(14, D, np.float32)
    for t in range(400):
        played.round(np.arange(14) % period == t % period, rng.normal(1, 1, (14, D)))
    assert played.state.sums[0] > 50
    assert played.state.log == 0


def test_what_tells_nothing_is_no_sample() -> None:
    """Newcomers, who lost its c_i, c_i = 0, numbers too large to square, rounds without steps, who was not reached."""
    ones, everybody = np.ones((2, 1)), [True, True]
    played = Played(2, 1, np.float32)

    def samples(*given: Any, **options: Any) -> float:
        before = played.state.sums
        with np.errstate(over="ignore", invalid="ignore"):
            return float(played.round(*given, **options).sums[0] - np.float32(0.98) * before[0])

    assert samples(everybody, 0 * ones) == 0  # newcomers; their c_i are 0
    assert samples(everybody, ones) == 0  # c_i = 0
    assert samples(everybody, ones) == 2
    played.lose(0)
    assert samples(everybody, ones) == pytest.approx(1)
    assert samples(everybody, ones, downlink=np.array([False, True])) == pytest.approx(1)
    assert samples([False, False], ones) == pytest.approx(0, abs=1e-6)
    held = played.state
    assert played.round(everybody, ones, steps=0).sums is held.sums or (played.state.sums == held.sums).all()
    np.testing.assert_array_equal(played.state.control, held.control)
    np.testing.assert_array_equal(played.state.log, held.log)
    assert samples(everybody, 1e30 * ones) == pytest.approx(2)
    assert samples(everybody, 1e30 * ones) == pytest.approx(0, abs=1e-5)  # |c_i|^2 is infinite
    assert np.isfinite(played.state.sums).all()
    nothing, told = left(np.array([np.nan, 1.0]), np.array([1.0, np.inf]), np.array(everybody))
    assert not told[0]
    assert np.isfinite(nothing).all()


def test_an_empty_round_moves_along_c_and_ages_it() -> None:
    for weights in ("intervals", "mean"):
        played = Played(2, 1, fading=0.5, weights=weights)
        before = played.round([True, True], [[1.0], [3.0]])
        after = played.round([False, False], [[9.0], [9.0]])
        moved = -0.1 * 2 * before.control if weights == "intervals" else 0
        np.testing.assert_allclose(after.server - before.server, moved, rtol=1e-12)
        np.testing.assert_allclose(after.control, before.control / 2)


# -------------------------------------------------------------------------------------------------- options and costs


@pytest.mark.parametrize(
    ("fading", "message"),
    [
        (1.5, r'fading = 1.5: must be a finite number in \[0, 1\] or "learnt" or "none"'),
        (-0.1, "fading = -0.1: must be"),
        (True, "fading = true: must be"),
        (float("nan"), "fading = nan: must be"),
        ("learned", r'fading = "learned": must be .* \(did you mean "learnt"\?\)'),
    ],
)
def test_what_fading_may_be(fading: Any, message: str) -> None:
    with pytest.raises(fedpbc.ConfigError, match=message):
        run(BERNOULLI, {"name": "fedfade", "fading": fading})


def test_a_list_of_fadings_is_a_sweep() -> None:
    table = {"name": "s", "rounds": 2, "local_steps": 1, "learning_rate": 0.1, "seeds": [0], "compute": ["active"]}
    problem = {"name": "quadratic", "num_clients": 3, "dim": 2}
    swept = {"name": "fedfade", "fading": ["learnt", 0.5, "none"]}
    experiment = fedpbc.Experiment.from_table(
        {**table, "problem": problem, "links": [BERNOULLI], "algorithms": [swept]}
    )
    assert len(experiment.cells()) == 3


SCALARS = {"learnt": (2, 2), 0.9: (0, 1), 0: (0, 1), "none": (0, 0), 1.0: (0, 0)}
"""fading -> up (log r, the age) and down (the log, the round; of a number the log alone)."""


@pytest.mark.parametrize("fading", SCALARS)
def test_what_travels_beside_the_models(fading: Any) -> None:
    """Models are counted in tests/test_rivals_memory.py; a server with the c_i knows all by itself."""
    assert cost({"name": "fedfade", "fading": fading}).scalars == SCALARS[fading]
    assert cost({"name": "fedfade", "fading": fading, "controls": "server", "epoch_reset": True}).scalars == (0, 0)
    up, down = SCALARS[fading]
    assert cost({"name": "fedfade", "fading": fading, "epoch_reset": True}).scalars == (up + 1, down + 1)
    context = Context(0, np.dtype(np.float64), 10)
    momentum = SERVERS.registry["momentum"].function(context)
    assert ALGORITHMS.registry["fedfade"].function(context, fading=fading, server=momentum).cost.server == 3


def test_a_log_of_thousands_of_rounds_is_exact_enough() -> None:
    """float32, 3000 rounds, delta = .9: what is left of the controls is still that of float64."""
    links = random_trace(4, 3000, M, 0.3)
    played = [Played(M, 1, dtype, fading=0.9) for dtype in (np.float32, np.float64)]
    for active in links:
        rough, exact = (each.round(active, np.ones((M, 1))) for each in played)
    assert exact.log < -300
    found, wanted = (np.exp(state.log - state.since) for state in (rough, exact))
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    assert wanted.min() < 0.7
