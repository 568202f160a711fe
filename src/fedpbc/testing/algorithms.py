"""What every method must keep to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.schema import Component
from fedpbc.core.types import Algorithm, Array, Link, Round
from fedpbc.links import bernoulli
from fedpbc.problems import quadratic
from fedpbc.testing.common import (
    attempt,
    check_devices,
    check_finite,
    check_one_program,
    component_of,
    context_of,
    experiment_of,
    require,
    run_small,
)

CLIENTS, DIM = 5, 3
MASKS = np.array([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 1, 1]], bool)
"""A^t of the rounds that are stepped through: client 1 is away at first, and one round is empty."""


def check_algorithm(
    algorithm: Any, *, full_participation: Any = None, oracle: bool = False, numbered: bool = False
) -> None:
    """Check a method: a component, a factory, or a function of a context that gives an Algorithm.

    It runs finite under unreliable links, a loss of state and both kinds of ``compute``, in one program for all seeds;
    a NaN of an absent client cannot reach the server; permuting the clients permutes the result; nobody ever active
    leaves the server at x^0; a client that lost its state starts from x^0; link probabilities are not read (``oracle``:
    they may be); bits do not depend on devices. ``full_participation``: with p = 1 it must equal this method.
    ``numbered``: clients may be told apart by their number, as to settle ties. Raises ConformanceError.
    """
    component = component_of(ALGORITHMS, algorithm)
    _check_runs(component)
    built = _built(component)
    _check_structure(built)
    _check_absent_nan(built)
    if not numbered:
        _check_permutation(built)
    _check_never_active(built)
    _check_forget(built)
    if not oracle:
        _check_probabilities(built)
    if full_participation is not None:
        _check_full_participation(component, component_of(ALGORITHMS, full_participation))
    check_devices(_experiment(component))


def _experiment(component: Component[Algorithm], **changes: Any) -> Any:
    problem = quadratic(num_clients=CLIENTS, dim=DIM)
    return experiment_of(problem, bernoulli(prob=0.5), component, chunk_size=2, **changes)


def _check_runs(component: Component[Algorithm]) -> None:
    loss = {"round": 3, "share": 0.3}
    experiment = _experiment(component, compute=["all", "active"], state_loss=loss)
    result = attempt("running it", run_small, experiment)
    check_finite("running it", result)
    check_one_program(result, 2)


def _built(component: Component[Algorithm]) -> Algorithm:
    problem = quadratic(num_clients=CLIENTS, dim=DIM).build(context_of(None))
    built = attempt("building it", component.build, context_of(problem))
    require(isinstance(built, Algorithm), f"gives a {type(built).__name__}, must give an Algorithm")
    return jax.tree.map(jnp.asarray, built)


class Stepper:
    """A method stepped round by round, with a training function that is known."""

    def __init__(self, algorithm: Algorithm, order: Any = None) -> None:
        self.algorithm = algorithm
        self.order = np.arange(CLIENTS) if order is None else np.asarray(order)
        self.state = jax.tree.map(jnp.asarray, algorithm.init(algorithm.params, jnp.ones(DIM), CLIENTS))
        self.t = 0

    def round(self, active: np.ndarray, prob: Any = None, nan: Array | None = None) -> None:
        """One round; ``nan`` bool[m]: these clients' training gives NaN."""
        rng = np.random.default_rng(self.t)
        pull = jnp.asarray(rng.standard_normal((CLIENTS, DIM))[self.order], jnp.float32)
        poisoned = jnp.zeros(CLIENTS, bool) if nan is None else jnp.asarray(nan)[self.order]

        def train(
            models: Array,
            shift: Array | None = None,
            proximal: Array | None = None,
            last_gradient: bool = False,
        ) -> Array:
            step = 0.1 * (pull - models) - (0 if shift is None else 0.1 * shift)
            return jnp.where(poisoned[:, None], jnp.nan, models - pull if last_gradient else models + step)

        probs = jnp.linspace(0.2, 1, CLIENTS) if prob is None else prob
        link = Link(jnp.asarray(active)[self.order], probs[self.order])
        everybody = jnp.ones(CLIENTS, bool)
        round_ = Round(jnp.int32(self.t), link, jnp.float32(0.1), jnp.int32(2), everybody, train)
        self.state = attempt(f"round {self.t}", lambda: self.algorithm.round(self.algorithm.params, self.state, round_))
        self.t += 1

    @property
    def server(self) -> np.ndarray:
        """x^t."""
        return np.asarray(self.algorithm.models(self.state).server)

    @property
    def clients(self) -> np.ndarray:
        """x_i^t, [m, d]."""
        return np.asarray(self.algorithm.models(self.state).clients)


def _check_structure(algorithm: Algorithm) -> None:
    stepper = Stepper(algorithm)
    before = jax.tree.map(lambda a: (a.shape, a.dtype), stepper.state)
    models = algorithm.models(stepper.state)
    require(models.server.shape == (DIM,), f"models: server has shape {models.server.shape}, must be [d] = ({DIM},)")
    shape = models.clients.shape
    require(shape == (CLIENTS, DIM), f"models: clients has shape {shape}, must be [m, d] = ({CLIENTS}, {DIM})")
    for active in MASKS:
        stepper.round(active)
    after = jax.tree.map(lambda a: (a.shape, a.dtype), stepper.state)
    require(before == after, f"a round changes the structure of the state: {before} became {after}")


def _check_absent_nan(algorithm: Algorithm) -> None:
    clean, poisoned = Stepper(algorithm), Stepper(algorithm)
    away = np.array([False, True, False, False, False])
    for active in MASKS[:2]:
        clean.round(active)
        poisoned.round(active, nan=away)
    require(
        np.array_equal(clean.server, poisoned.server),
        "a NaN of a client that is not active reaches the server: select with where, never multiply with a mask"
        " (0 * NaN is NaN)",
    )


def _check_permutation(algorithm: Algorithm) -> None:
    order = np.array([3, 0, 4, 1, 2])
    plain, permuted = Stepper(algorithm), Stepper(algorithm, order)
    for active in MASKS:
        plain.round(active)
        permuted.round(active)
    near = np.allclose(plain.server, permuted.server, rtol=1e-4, atol=1e-5)
    near &= np.allclose(plain.clients[order], permuted.clients, rtol=1e-4, atol=1e-5)
    require(near, "another order of the clients gives another result: a method must not depend on a client's number")


def _check_never_active(algorithm: Algorithm) -> None:
    stepper = Stepper(algorithm)
    for _ in range(3):
        stepper.round(np.zeros(CLIENTS, bool))
    require(np.all(np.isfinite(stepper.server)), "a round in which nobody is active makes the server NaN")
    require(
        np.allclose(stepper.server, 1.0),
        "rounds in which nobody was ever active move the server away from x^0",
    )


def _check_forget(algorithm: Algorithm) -> None:
    stepper = Stepper(algorithm)
    for active in MASKS[:3]:
        stepper.round(active)
    lost = jnp.arange(CLIENTS) == 2
    x0 = jnp.full(DIM, 7.0)
    after = attempt("forget", lambda: algorithm.forget(algorithm.params, stepper.state, lost, x0, jnp.int32(stepper.t)))
    models = algorithm.models(after)
    require(np.allclose(models.clients[2], 7.0), "forget: a client that lost all it keeps must go on from x^0")
    others = np.array([0, 1, 3, 4])
    unchanged = np.array_equal(models.clients[others], stepper.clients[others])
    require(unchanged, "forget: changes clients that lost nothing")
    require(np.array_equal(models.server, stepper.server), "forget: changes the server, which cannot know of the loss")


def _check_probabilities(algorithm: Algorithm) -> None:
    known, hidden = Stepper(algorithm), Stepper(algorithm)
    for active in MASKS:
        known.round(active)
        hidden.round(active, prob=jnp.full(CLIENTS, jnp.nan))
    require(
        np.array_equal(known.server, hidden.server),
        "reads link.prob, which nobody knows; if it is meant to be an oracle, say oracle=True",
    )


def _check_full_participation(component: Component[Algorithm], other: Component[Algorithm]) -> None:
    servers = []
    for method in (component, other):
        problem = quadratic(num_clients=CLIENTS, dim=DIM, condition=10)  # equal curvatures hide corrections
        experiment = experiment_of(problem, bernoulli(prob=1.0), method, seeds=[0], precision="float64")
        (cell,) = run_small(experiment).cells.values()
        servers.append(cell.models["server"])
    ours, theirs = servers
    gap = np.abs(ours - theirs).max()
    near = np.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    require(near, f"with everybody active it is not {other.name}: the servers differ by {gap:.2g}")
