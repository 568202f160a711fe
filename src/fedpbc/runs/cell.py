"""One cell of the grid, from its checkpoint if it has one, to its result."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpbc.core.programs import LAYOUT, Simulation
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import Cell
from fedpbc.io.whole import damaged, read_arrays, write_arrays
from fedpbc.runs.directory import pack, unpack
from fedpbc.runs.processes import decided, decided_arrays
from fedpbc.runs.run import CellResult
from fedpbc.runs.workers import Queue

if TYPE_CHECKING:
    from fedpbc.runs.runner import Grid

BLOCK_SECONDS, CHECKPOINT_SECONDS = 0.5, 5.0
"""How long a block of rounds aims to take, and how often a running cell is saved."""


def run_cell(grid: Grid, cell: Cell, device: int, checkpoint: Path | None, queue: Queue) -> CellResult:
    """Run it. Raises Stopped when the others stop, and FedpbcError for a checkpoint that is none."""
    began = time.perf_counter()
    simulation = grid.simulation(cell, device)
    queue.compiled(cell)
    times = {"compile_s": simulation.compile_seconds, "run_s": 0.0, "total_s": 0.0}
    saved = decided_arrays(lambda: read_arrays(checkpoint) if checkpoint and checkpoint.is_file() else None)
    if saved is not None:
        path = checkpoint or Path("checkpoint")
        try:
            simulation.restore(saved)
        except (KeyError, ValueError) as error:
            raise damaged(path, error) from None
        if int(saved.get("layout", 1)) != LAYOUT:
            raise ConfigError(f"{path}: is of another version of fedpbc; go on with that one, or remove the file")
        before = unpack(path, saved)
        parts, times = [before.rows], {name: before.info[name] + times[name] for name in times}
    else:
        parts = [simulation.start()]
    grid.tell_progress(cell.key, 0, simulation.next_round)
    block, saved_at = 16, began
    stop = decided(lambda: grid.tell(cell.key, parts[0]))
    if stop is not None and stop < simulation.next_round:  # other callbacks than before the kill
        parts = _again(simulation, stop)
    while not simulation.done and stop is None:
        queue.go_on()
        first, block_began = simulation.next_round, time.perf_counter()
        start = {name: a.copy() for name, a in simulation.save().items()} if grid.stoppable else None
        parts.append(simulation.advance(block))
        now = time.perf_counter()
        times["run_s"] += now - block_began
        advanced = simulation.next_round - first
        block = max(1, min(4 * block, round(BLOCK_SECONDS * advanced / (now - block_began))))
        block, stop = decided(partial(_decide, grid, cell, block, parts[-1]))
        if stop is not None and start is not None and stop < simulation.next_round:
            simulation.restore(start)  # the same rounds again, as far as was wished: how long a block is, is chance
            parts[-1] = simulation.advance(stop - first)
        grid.tell_progress(cell.key, simulation.next_round - first, 0)
        if checkpoint and now - saved_at > CHECKPOINT_SECONDS and not simulation.done:
            so_far = {**times, "total_s": times["total_s"] + now - began}
            write_arrays(checkpoint, pack(CellResult(_join(parts), {}, so_far)) | simulation.save())
            parts, saved_at = [_join(parts)], now
    cost = simulation.inputs.algorithm.cost
    info = {
        **times,
        "total_s": times["total_s"] + time.perf_counter() - began,
        "ms_per_round": 1e3 * times["run_s"] / max(simulation.next_round, 1),
        "num_devices": simulation.plan.num_devices,
        "first_nonfinite_round": simulation.first_nonfinite,
        "cost": {**dataclasses.asdict(cost), "scalars": list(cost.scalars)},
    }
    models = simulation.models()
    if not simulation.done:
        info["stopped_after"] = simulation.next_round
        del models["server_average"]  # over the second half of all rounds: not complete
        grid.tell_progress(cell.key, simulation.num_rounds - simulation.next_round, 0)
    return CellResult(_join(parts), models, info)


def _decide(grid: Grid, cell: Cell, block: int, rows: dict[str, np.ndarray]) -> tuple[int, int | None]:
    """How long the next block is, which is a matter of time, and the round after which a callback wants to end."""
    return block, grid.tell(cell.key, rows)


def _again(simulation: Simulation, rounds: int) -> list[dict[str, np.ndarray]]:
    """From the start up to a round: its rows."""
    parts = [simulation.start()]
    while simulation.next_round < rounds:
        parts.append(simulation.advance(rounds - simulation.next_round))
    return parts


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
