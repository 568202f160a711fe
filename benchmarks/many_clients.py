"""Many clients: what a process needs in memory, what it takes to build the data, and what a local step costs."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One process."""

    label: str
    experiment: str
    overrides: dict[str, Any] = field(default_factory=dict)
    rounds: int = 5
    """Rounds of one timing."""
    stored: bool = True
    """Its client-steps are compared with the others'."""


def _synthetic(num_clients: int, rounds: int, on_the_fly: bool = False) -> Setting:
    options = {"problem.num_clients": num_clients, "problem.max_rows": 200, "problem.on_the_fly": on_the_fly}
    label = f"synthetic, {num_clients:,}" + (", on the fly" if on_the_fly else "")
    return Setting(label, "synthetic", options, rounds, not on_the_fly)


SETTINGS = [
    _synthetic(1_000, 60),
    _synthetic(10_000, 8),
    _synthetic(100_000, 2),
    _synthetic(1_000, 12, on_the_fly=True),
    _synthetic(100_000, 1, on_the_fly=True),
    Setting(
        "quadratic (d = 10), 1,000,000",
        "counterexample",
        {"precision": "float32", "problem.num_clients": 1_000_000, "problem.dim": 10, "chunk_size": 1000},
        5,
        stored=False,
    ),
]
HEADER = ["problem, clients", "build, s", "CPU, s", "us per client-step", "data, MB", "state, MB", "peak, MB"]
HEADER += ["peak - data - 2 states, MB"]
NOTE = (
    "A client-step is CPU time of one JAX device, summed over threads, without evaluation. "
    "Synthetic with at most 200 samples of a client, training and test together."
)
TIMINGS = 3


def measure(setting: Setting) -> dict[str, float]:
    """Build, run and time one setting: seconds, microseconds and bytes."""
    import jax

    jax.config.update("jax_num_cpu_devices", 1)
    import fedpbc
    from fedpbc.runs.runner import Grid, settings_of

    total = setting.rounds * TIMINGS + 2
    experiment = fedpbc.load_experiment(
        setting.experiment,
        {
            "seeds": [0],
            "algorithms": [{"name": "fedpbc"}],
            "links": [{"name": "bernoulli", "prob": 0.1}],
            "compute": ["all"],
            "local_steps": 10,
            "rounds": total,
            "eval_every": total,
            **setting.overrides,
        },
    )
    with settings_of(experiment):
        grid = Grid(experiment, devices=1)
        wall, began = time.perf_counter(), time.process_time()
        problem = grid.problem(0)
        wall, build = time.perf_counter() - wall, time.process_time() - began
        (cell,) = experiment.cells()
        simulation = grid.simulation(cell)
        simulation.start()
        simulation.advance(1)
        times = []
        for _ in range(TIMINGS):
            began = time.process_time()
            simulation.advance(setting.rounds)
            times.append((time.process_time() - began) / setting.rounds)
        simulation.advance(1)  # the last round, which evaluates
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "build": wall,
        "build_cpu": build,
        "per_step": 1e6 * statistics.median(times) / (problem.num_clients * experiment.local_steps),
        "data": sum(leaf.nbytes for leaf in jax.tree.leaves(problem.params)),
        "state": sum(leaf.nbytes for leaf in jax.tree.leaves(simulation.carry)),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


def rest(found: dict[str, float]) -> float:
    """Megabytes of the peak beside the data and two states."""
    return (found["peak"] - found["data"] - 2 * found["state"]) / 1e6


def row_of(setting: Setting, found: dict[str, float]) -> list[str]:
    """A row of the table."""
    sizes = [f"{found[name] / 1e6:,.0f}" for name in ("data", "state", "peak")]
    times = [f"{found['build']:.1f}", f"{found['build_cpu']:.1f}", f"{found['per_step']:.2f}"]
    return [setting.label, *times, *sizes, f"{rest(found):,.0f}"]


def figures_of(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """What the goals are about, from what was measured of every setting."""
    steps = [found[setting.label]["per_step"] for setting in SETTINGS if setting.stored]
    return {
        "scale.steps": max(steps) / min(steps),
        "scale.build": max(each["build"] for each in found.values()),
        "scale.rest": max(rest(each) for each in found.values()),
        "scale.million": found[SETTINGS[-1].label]["peak"] / 1e9,
    }
