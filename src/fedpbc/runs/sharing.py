"""How the clients of a round are divided: how many are computed side by side, and between how many devices."""

from __future__ import annotations

from fedpbc.core.lazy import on_cpu
from fedpbc.core.types import Problem
from fedpbc.experiment.grid import Experiment

SIDE_BY_SIDE = 25
"""Clients of a chunk, where a step of one is cheap or the device is no CPU."""
WORK_OF_A_CHUNK = 1e8
"""Operations of one local step of a whole chunk above which, on a CPU, a smaller chunk is faster: what it computes
leaves the caches. A network of two convolutions takes half the time at 1 to 5 clients that it takes at 25."""
WORTH_SHARING = 1e7
"""Operations of a round below which sharing it between devices costs more than it saves."""

LARGE, WORK_OF_A_NUMBER = 2**25, 1000
"""Where all models together have more numbers than this, which a round shared between devices has to move, a client's
steps must take so many operations for each number of its model to be worth it: a CNN's do, those of a wide MLP do not
(100 models of 400 000 numbers, five steps: 450 ms on one device, whose products use every core, 630 shared by two)."""


def chunk_size(experiment: Experiment, problem: Problem) -> int:
    """As the experiment says, else by what a local step of a client takes: the same for all its cells."""
    if experiment.chunk_size is not None:
        return experiment.chunk_size
    if not on_cpu():
        return SIDE_BY_SIDE
    batch = max(experiment.setting(algorithm, "batch_size") for algorithm in experiment.variants)
    step = problem.work * batch / 32
    return int(max(1, min(SIDE_BY_SIDE, round(WORK_OF_A_CHUNK / step))))


def num_devices(experiment: Experiment, problem: Problem, most: int) -> int:
    """As many as have a chunk of clients each, ``most`` at most, when a round is worth sharing, else 1.

    The same for all cells, as the data are divided between devices.
    """
    steps = max(experiment.setting(algorithm, "local_steps") for algorithm in experiment.variants)
    num_chunks = -(-problem.num_clients // chunk_size(experiment, problem))
    numbers = len(problem.init)
    moved = problem.num_clients * numbers > LARGE and problem.work * steps < WORK_OF_A_NUMBER * numbers
    worth = problem.work * problem.num_clients * steps > WORTH_SHARING and not moved
    return min(most, num_chunks) if worth else 1
