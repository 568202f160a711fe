"""What every link process must keep to."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedpbc.algorithms import fedpbc as fedpbc_method
from fedpbc.core.engine import draw_links
from fedpbc.core.schema import Component
from fedpbc.core.types import LinkProcess
from fedpbc.links import LINKS
from fedpbc.problems import quadratic
from fedpbc.testing.common import (
    SIGMAS,
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

CLIENTS, ROUNDS, SEEDS = 8, 6, 300


def check_links(
    links: Any, *, num_clients: int = CLIENTS, num_rounds: int = ROUNDS, random: bool = True, marginal: bool = True
) -> None:
    """Check a link process: a component, a factory, or a function of a context that gives a LinkProcess.

    A^t is bool[m] and p^t lies in [0, 1]; the same seed gives the same links, in float32 and float64 and however rounds
    are cut into blocks; other seeds give others (``random``; False for recorded traces); participation is the mean
    reported probability (``marginal``), over seeds, to within 4.5 standard errors; it runs in one program for all
    seeds, with the same bits on several devices. Raises ConformanceError.
    """
    component = component_of(LINKS, links)
    _check_draws(component, num_clients, num_rounds, random)
    if marginal:
        _check_marginal(component, num_clients, num_rounds, random)
    experiment = experiment_of(
        quadratic(num_clients=num_clients, dim=3), component, fedpbc_method(), rounds=num_rounds, chunk_size=4
    )
    result = attempt("running it", run_small, experiment)
    check_finite("running it", result)
    check_one_program(result, 1)
    check_devices(experiment)


def _built(component: Component[LinkProcess], m: int, rounds: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    problem = quadratic(num_clients=m, dim=1).build(context_of(None, dtype=dtype))
    built = attempt("building it", component.build, context_of(problem, seed, dtype, rounds))
    require(isinstance(built, LinkProcess), f"gives a {type(built).__name__}, must give a LinkProcess")
    return built


def _draw(process: LinkProcess, seed: int, rounds: int, m: int, block: int) -> np.ndarray:
    drawn: np.ndarray = np.concatenate(list(draw_links(process, seed, rounds, m, block)))
    return drawn


def _check_draws(component: Component[LinkProcess], m: int, rounds: int, random: bool) -> None:
    process = _built(component, m, rounds)
    active = attempt("drawing", _draw, process, 0, rounds, m, rounds)
    require(active.shape == (rounds, m), f"A^t has shape {active.shape[1:]}, must be [m] = ({m},)")
    state = process.init(process.params, jax.random.key(0))
    _, link = attempt("step", lambda: process.step(process.params, jax.random.key(1), state, np.int32(0)))
    require(link.active.dtype == bool, f"active is {link.active.dtype}, must be bool")
    require(np.shape(link.prob) == (m,), f"prob has shape {np.shape(link.prob)}, must be [m] = ({m},)")
    require(link.prob.dtype == np.float32, f"prob is {link.prob.dtype} in a float32 run, must be of its precision")
    prob = np.asarray(link.prob)
    require(np.all((prob >= 0) & (prob <= 1)), f"prob lies outside [0, 1]: {prob.min():g} to {prob.max():g}")
    again = _draw(_built(component, m, rounds), 0, rounds, m, rounds)
    require(np.array_equal(active, again), "the same seed gives other links: draw from the keys and from context.rng")
    cut = _draw(process, 0, rounds, m, max(1, rounds - 2))
    require(np.array_equal(active, cut), "links depend on how rounds are cut into blocks: keep all memory in the state")
    with jax.enable_x64(True):
        double = _draw(_built(component, m, rounds, dtype=np.float64), 0, rounds, m, rounds)
    require(
        np.array_equal(active, double), "float32 and float64 runs see other links: compare integers, or draw in float32"
    )
    if random:
        others = [_draw(_built(component, m, rounds, seed), seed, rounds, m, rounds) for seed in range(1, 12)]
        require(any(not np.array_equal(active, other) for other in others), "every seed gives the same links")


def _check_marginal(component: Component[LinkProcess], m: int, rounds: int, random: bool) -> None:
    """Over seeds, which are independent; what is reported may itself be random, as places of clients."""

    @jax.jit
    def shares(process: LinkProcess, seed: Any) -> Any:
        key = jax.random.key(seed)

        def step(state: Any, t: Any) -> Any:
            state, link = process.step(process.params, jax.random.fold_in(key, t), state, t)
            return state, (link.active.mean(), link.prob.mean())

        _, means = jax.lax.scan(step, process.init(process.params, key), np.arange(rounds, dtype=np.int32))
        return jax.tree.map(lambda a: a.mean(), means)

    differences = []
    for seed in range(SEEDS if random else 1):
        process = _built(component, m, rounds, seed if seed < 40 else seed % 40)
        active, prob = shares(process, seed)
        differences.append(float(active) - float(prob))
    error = SIGMAS * np.std(differences) / np.sqrt(len(differences)) if random else 0.0
    require(
        abs(np.mean(differences)) <= max(error, 1e-6),
        f"clients are active {np.mean(differences):+.3g} more often than prob says, over {len(differences)} seeds:"
        " prob must be the probability of being active, not given the past",
    )
