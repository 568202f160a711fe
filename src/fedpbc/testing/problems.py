"""What every problem must keep to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpbc.algorithms import fedpbc as fedpbc_method
from fedpbc.core.local import gradient_at, measured
from fedpbc.core.types import Problem
from fedpbc.links import bernoulli
from fedpbc.problems import PROBLEMS
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


def check_problem(problem: Any, *, draws: int = 400, learning_rate: float = 0.01) -> None:
    """Check a problem: a component, a factory, or a function of a context that gives a Problem.

    Metrics are one finite number per model and do not depend on which models are evaluated together; where it measures
    train_loss, the mean over clients of its gradients is the gradient of that loss, against finite differences over
    ``draws`` minibatches of each client (not with buffers: another loss is evaluated than is trained); it runs finite
    at ``learning_rate`` in one program for all seeds, with the same bits on several devices. Raises ConformanceError.
    """
    component = component_of(PROBLEMS, problem)
    with jax.enable_x64(True):
        built = attempt("building it", component.build, context_of(None, dtype=np.float64))
        require(isinstance(built, Problem), f"gives a {type(built).__name__}, must give a Problem")
        built = jax.tree.map(jnp.asarray, built)
        _check_metrics(built)
        _check_gradient(built, draws)
    experiment = experiment_of(
        component, bernoulli(prob=0.5), fedpbc_method(), rounds=4, learning_rate=learning_rate, chunk_size=2
    )
    result = attempt("running it", run_small, experiment)
    check_finite("running it", result)
    check_one_program(result, 1)
    check_devices(experiment)


def _values(problem: Problem, models: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in _measured(problem, models).items()}


_measured = jax.jit(measured)


def _check_metrics(problem: Problem) -> None:
    x0 = np.asarray(problem.init)
    require(x0.ndim == 1 and len(x0) > 0, f"init has shape {x0.shape}, must be a vector [d]")
    require(x0.dtype == np.float64, f"init is {x0.dtype} in a float64 run, must be of its precision")
    near = x0 + 0.01 * np.random.default_rng(0).standard_normal(x0.shape)
    values = attempt("evaluating two models", _values, problem, jnp.stack([x0, near]))
    require(values, "measures nothing")
    alone = [_values(problem, jnp.stack([x, x])) for x in (x0, near)]  # a difference to the best of them would be 0
    for name, value in values.items():
        require(value.shape == (2,), f"metric {name} has shape {value.shape} for two models, must be [2]")
        require(np.all(np.isfinite(value)), f"metric {name} is not finite at x^0 or near it")
        same = all(np.allclose(value[i], alone[i][name], rtol=1e-9, atol=1e-12) for i in (0, 1))
        require(same, f"metric {name} of a model depends on what else is evaluated")


def _check_gradient(problem: Problem, draws: int) -> None:
    x: Any = jnp.asarray(problem.init) + 0.1 * np.random.default_rng(1).standard_normal(len(problem.init))

    def first() -> Any:
        batch = problem.sample(problem.params, 0, jax.random.key(0), 2)
        return gradient_at(problem, batch, x, problem.buffers)[0]

    shape = jax.eval_shape(first).shape
    require(shape == x.shape, f"gradient has shape {shape}, must be [d] = {x.shape}")
    if problem.buffers is not None:
        return
    direction: Any = np.random.default_rng(2).standard_normal(len(x))
    direction = jnp.asarray(direction / np.linalg.norm(direction))
    step = 1e-5
    values = _values(problem, jnp.stack([x - step * direction, x + step * direction]))
    if "train_loss" not in values:
        return
    slope = float(values["train_loss"][1] - values["train_loss"][0]) / (2 * step)

    @jax.jit
    def slopes(problem: Problem, client: Any, x: Any) -> Any:
        """Of the gradients of so many minibatches of one client along the direction."""

        def one(key: Any) -> Any:
            return problem.gradient(problem.sample(problem.params, client, key, 8), x) @ direction

        keys = jax.random.split(jax.random.fold_in(jax.random.key(3), client), draws)
        return jax.lax.map(one, keys, batch_size=50)

    found = np.array([np.asarray(slopes(problem, jnp.int32(i), x)) for i in range(problem.num_clients)])
    error = np.sqrt(np.sum(found.var(axis=1)) / draws) / problem.num_clients
    require(
        abs(found.mean() - slope) <= SIGMAS * error + 1e-6 * max(1.0, abs(slope)),
        f"the gradient is not that of train_loss: along a direction the clients' mean is {found.mean():.6g},"
        f" finite differences give {slope:.6g} (standard error {error:.2g})",
    )
