"""What the checks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpbc.core.programs import Programs
from fedpbc.core.schema import Component, Context, Kind, bind_component
from fedpbc.errors import FedpbcError, first_line
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.run import Run
from fedpbc.runs.runner import run

SIGMAS = 4.5
"""How many standard errors a mean may be off: one check in 150 000 fails by chance."""


class ConformanceError(AssertionError):
    """A component does not keep to the contract."""


def require(condition: Any, message: str) -> None:
    """Raise ConformanceError with the message unless the condition holds."""
    if not bool(condition):
        raise ConformanceError(message)


def component_of(kind: Kind, factory: Any) -> Component[Any]:
    """A component from what a user has: itself, a factory, or a plain function of a context."""
    try:
        return bind_component(kind, factory, kind.noun, Path.cwd())
    except FedpbcError as error:
        raise ConformanceError(f"cannot be made: {error}") from None


def attempt(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result; an error of the component becomes a ConformanceError that says when it was raised."""
    try:
        return function(*arguments)
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(f"{what} fails: {first_line(error)}") from error


def context_of(problem: Any, seed: int = 0, dtype: Any = np.float32, num_rounds: int = 8) -> Context:
    """What a factory is given, on a problem that is built already (or None)."""
    return Context(seed, np.dtype(dtype), num_rounds, (seed,), problem)


def experiment_of(problem: Any, links: Any, algorithm: Any, **changes: Any) -> Experiment:
    """A small experiment."""
    table = {
        "name": "conformance",
        "rounds": 6,
        "local_steps": 2,
        "learning_rate": 0.05,
        "seeds": [0, 1],
        "batch_size": 4,
        "compute": ["all"],
        "problem": problem,
        "links": [links],
        "algorithms": [algorithm],
        **changes,
    }
    return Experiment.from_table(table)


def run_small(experiment: Experiment, num_devices: int = 1) -> Run:
    """Run it, with programs of its own."""
    programs = Programs(jax.devices()[:num_devices])
    return run(experiment, devices=num_devices, programs=programs, side_by_side=False)


def check_devices(experiment: Experiment) -> None:
    """Results have the same bits on one device and on two."""
    if len(jax.devices()) < 2:
        return
    one, two = (run_small(experiment, devices) for devices in (1, 2))
    for key, cell in one.cells.items():
        for name, values in cell.rows.items():
            require(
                np.array_equal(values, two.cells[key].rows[name], equal_nan=True),
                f"{name} differs between one device and two: results must not depend on how many share the work",
            )


def check_finite(what: str, result: Run) -> None:
    """Every metric of every row, and every model, is finite."""
    for key, cell in result.cells.items():
        for name, values in cell.rows.items():
            bad = ~np.isfinite(values)
            require(
                not np.any(bad),
                f"{what}: {name} is not finite after round {cell.rows['round'][np.argmax(bad)]}"
                f" (seed {key.seed}, {key.compute} compute)",
            )


def check_one_program(result: Run, wanted: int) -> None:
    """Seeds share their programs."""
    count = result.manifest["programs_compiled"]
    require(
        count <= wanted,
        f"{count} programs were compiled where {wanted} suffice: seeds must share one. Functions must be module-level"
        " (or the same object each time), numbers and arrays belong into params",
    )
