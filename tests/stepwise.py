"""The simulator, stopped after every round; and how far it is from an oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import fedpbc
from fedpbc.core.programs import Programs
from fedpbc.runs.runner import Grid

PROGRAMS = Programs(jax.devices()[:1])
"""Shared by all tests of a process, so that every program is compiled once."""


@dataclass
class Simulated:
    """What the simulator did, after every round."""

    rows: dict[str, np.ndarray]
    servers: np.ndarray  # [T + 1, d]
    clients: np.ndarray  # [T + 1, m, d]
    states: list[Any]  # of the algorithm
    final: dict[str, np.ndarray]


def simulate(experiment: fedpbc.Experiment, cell: Any) -> Simulated:
    """One cell of an experiment, stopped after every round to copy all models."""
    with jax.enable_x64(experiment.precision == "float64"):
        simulation = Grid(experiment, devices=1, programs=PROGRAMS).simulation(cell)
        parts, states, models = [simulation.start()], [], []
        while True:
            states.append(jax.tree.map(np.array, simulation.carry.algorithm))
            models.append(jax.tree.map(np.array, simulation.inputs.algorithm.models(simulation.carry.algorithm)))
            if simulation.done:
                break
            parts.append(simulation.advance(1))
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        servers, clients = (np.array([getattr(m, name) for m in models]) for name in ("server", "clients"))
        return Simulated(rows, servers, clients, states, simulation.models())


def deviation(simulated: Simulated, states: list[Any]) -> float:
    """The largest difference of any model at any time, relative to the largest entry; NaN if there is one."""
    servers = np.array([state.server for state in states])
    clients = np.array([state.clients for state in states])
    assert simulated.servers.shape == servers.shape
    assert simulated.clients.shape == clients.shape
    scale = np.abs(clients).max() or 1.0
    return float(np.max([np.abs(simulated.servers - servers).max(), np.abs(simulated.clients - clients).max()]) / scale)


def close(actual: np.ndarray, expected: list[float], rtol: float, scale: float = 0.0) -> None:
    """Equal to rtol, and what is nearly zero to rtol of ``scale``."""
    np.testing.assert_allclose(actual, np.array(expected), rtol=rtol, atol=rtol * scale)


def random_trace(seed: int, rounds: int, clients: int, prob: Any = 0.5) -> np.ndarray:
    """bool[rounds, clients]."""
    return np.random.default_rng(seed).random((rounds, clients)) < prob
