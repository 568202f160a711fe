"""Run an experiment: every cell of the grid, with checkpoints, progress and a run directory."""

from __future__ import annotations

import dataclasses
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpbc import __version__
from fedpbc.engine import Inputs, Plan, Programs, Simulation, StateLoss
from fedpbc.errors import ConfigError, require_memory, suggest
from fedpbc.experiment import Cell, CellKey, Experiment, load_experiment
from fedpbc.files import damaged, read_arrays, write_arrays
from fedpbc.results import CellResult, RunDirectory, final_values, pack, summarise, unpack
from fedpbc.schema import Context
from fedpbc.types import Problem

BLOCK_SECONDS, CHECKPOINT_SECONDS = 0.5, 5.0
"""How long a block of rounds aims to take, and how often the running cell is saved."""
WORTH_SHARING = 1e7
"""Operations of a round below which sharing it between devices costs more than it saves."""

Progress = Callable[[CellKey, int, int], None]
"""``progress(cell, rounds done in this call, rounds restored)``: called after every block."""


@dataclass
class RunResult:
    """The results of an experiment in memory."""

    experiment: Experiment
    cells: dict[CellKey, CellResult] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """As summary.json: final values per cell, mean and sd over seeds per group."""
        finals = [final_values(key, result) for key, result in self.cells.items()]
        return summarise(self.experiment.name, finals)

    def final(self, metric: str, **where: Any) -> float:
        """Mean over seeds of a metric's last value in one group: ``final("server_distance", algorithm="fedpbc")``.

        ``where``: links, algorithm, compute. Raises KeyError when no group or more than one fits.
        """
        all_groups = self.summary["groups"]
        groups = [g for g in all_groups if all(g.get(key) == value for key, value in where.items())]
        if len(groups) != 1:
            names = [{key: g[key] for key in ("links", "algorithm", "compute")} for g in all_groups]
            raise KeyError(f"{where} fits {len(groups)} groups of {names}")
        if metric not in groups[0]["final"]:
            raise KeyError(f"no metric {metric}; there are {', '.join(groups[0]['final'])}")
        return groups[0]["final"][metric]["mean"]

    @property
    def diverged(self) -> dict[CellKey, int]:
        """Cells with a model that is not finite -> the first such round."""
        first = {key: result.info["first_nonfinite_round"] for key, result in self.cells.items()}
        return {key: value for key, value in first.items() if value is not None}


def run(
    experiment: Experiment | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    devices: int | None = None,
    progress: Progress | None = None,
    programs: Programs | None = None,
) -> RunResult:
    """Run every cell of an experiment (or of the named or filed one) and return the results.

    ``out``: also write a run directory there; ``resume``: go on in it. ``devices``: share every round between
    that many JAX devices; by default as many as pay off. Results do not depend on it. ``programs``: pass one
    ``fedpbc.engine.Programs(jax.devices())`` to several calls to share what they compile. Raises ConfigError.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    # "highest": float32 means float32 on accelerators too, which would else multiply matrices in a shorter format.
    # Values that overflow are no warning: they are found, dated and reported as divergence.
    precision = jax.enable_x64(experiment.precision == "float64")
    generator = jax.threefry_partitionable(True)  # whatever the environment says, a seed gives the same draws
    with precision, generator, jax.default_matmul_precision("highest"), np.errstate(all="ignore"):
        grid = _Grid(experiment, devices, progress, programs)
        grid.check()
        if out is None:
            return grid.run(None)
        directory = RunDirectory.open(Path(out), experiment, resume)
        try:
            return grid.run(directory)
        finally:
            directory.close()


class _Grid:
    """The cells of one experiment and what they share: problems, programs, devices."""

    def __init__(
        self,
        experiment: Experiment,
        devices: int | None = None,
        progress: Progress | None = None,
        programs: Programs | None = None,
    ) -> None:
        self.experiment, self.devices, self.progress = experiment, devices, progress
        self.programs = programs or Programs(jax.devices())
        if devices is not None and not 1 <= devices <= len(self.programs.devices):
            raise ConfigError(f"devices = {devices}: must be from 1 to {len(self.programs.devices)}, as JAX sees here")
        self._problems: dict[int, Problem] = {}

    def problem(self, seed: int) -> Problem:
        """The problem of a seed, its data on the devices; only the latest is kept, and no copy on the host."""
        if seed not in self._problems:
            self._problems.clear()
            problem = self.experiment.problem.build(self.experiment.context(seed))
            params = self.programs.put(problem.params, self.num_devices(problem))
            self._problems[seed] = dataclasses.replace(problem, params=params)
        return self._problems[seed]

    def check(self) -> None:
        """Build everything once, so that a mistake shows before a run directory exists."""
        e, seed = self.experiment, self.experiment.seeds[0]
        problem = self.problem(seed)
        context = e.context(seed, problem)
        batch = jax.eval_shape(lambda p, k: problem.sample(p, 0, k, e.batch_size), problem.params, jax.random.key(0))
        num_bytes = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(batch)) * min(
            e.chunk_size, problem.num_clients
        )
        require_memory("batch_size", e.batch_size, 3 * num_bytes, f"minibatches of {e.chunk_size} clients")
        self._check_figure(problem)
        for component in (*e.links, *e.algorithms, e.learning_rate):
            component.build(context)

    def _check_figure(self, problem: Problem) -> None:
        """The figure may only ask for what the problem measures."""
        x = jax.ShapeDtypeStruct((2, len(problem.init)), problem.init.dtype)
        measured = jax.eval_shape(lambda p, x: p.metrics(p.params, x, p.block_sums(p.params, x, 0)), problem, x)
        for metric in self.experiment.figure["metrics"] or []:
            if metric not in measured:
                known = ", ".join(measured)
                raise ConfigError(
                    f'figure.metrics: "{metric}" is not measured{suggest(metric, measured)}; allowed: {known}'
                )

    def run(self, directory: RunDirectory | None) -> RunResult:
        path = directory.path if directory else None
        if directory and directory.complete:
            return RunResult(self.experiment, directory.read_back(), path=path)
        cells, finished = self.experiment.cells(), {}
        for seed in self.experiment.seeds:
            for cell in (cell for cell in cells if cell.seed == seed):
                finished[cell.key] = self._finish_cell(cell, directory)
        results = RunResult(self.experiment, {cell.key: finished[cell.key] for cell in cells}, self.manifest(), path)
        if directory:
            directory.finish(results.manifest, _draw)
        return results

    def _finish_cell(self, cell: Cell, directory: RunDirectory | None) -> CellResult:
        done = directory.load(cell) if directory else None
        if done is None:
            done = self._run_cell(cell, directory)
            if directory:
                directory.save(cell, done)
        elif self.progress:
            self.progress(cell.key, 0, self.experiment.rounds)
        return done

    def _run_cell(self, cell: Cell, directory: RunDirectory | None) -> CellResult:
        """One run, from its checkpoint if it has one."""
        began = time.perf_counter()
        simulation = self.simulation(cell)
        times = {"compile_s": simulation.compile_seconds, "run_s": 0.0, "total_s": 0.0}
        parts = [simulation.first_rows]
        checkpoint = directory.checkpoint_path(cell) if directory else None
        if checkpoint and checkpoint.is_file():
            saved = read_arrays(checkpoint)
            try:
                simulation.restore(saved)
            except (KeyError, ValueError) as error:
                raise damaged(checkpoint, error) from None
            before = unpack(checkpoint, saved)
            parts, times = [before.rows], {name: before.info[name] + times[name] for name in times}
        if self.progress:
            self.progress(cell.key, 0, simulation.next_round)
        block, saved_at = 16, began
        while not simulation.done:
            first, block_began = simulation.next_round, time.perf_counter()
            parts.append(simulation.advance(block))
            now = time.perf_counter()
            times["run_s"] += now - block_began
            advanced = simulation.next_round - first
            block = max(1, min(4 * block, round(BLOCK_SECONDS * advanced / (now - block_began))))
            if self.progress:
                self.progress(cell.key, advanced, 0)
            if checkpoint and now - saved_at > CHECKPOINT_SECONDS and not simulation.done:
                so_far = {**times, "total_s": times["total_s"] + now - began}
                write_arrays(checkpoint, pack(CellResult(_join(parts), {}, so_far)) | simulation.save())
                parts, saved_at = [_join(parts)], now
        info = {
            **times,
            "total_s": times["total_s"] + time.perf_counter() - began,
            "ms_per_round": 1e3 * times["run_s"] / self.experiment.rounds,
            "num_devices": simulation.plan.num_devices,
            "first_nonfinite_round": simulation.first_nonfinite,
            "cost": dataclasses.asdict(simulation.inputs.algorithm.cost),
        }
        return CellResult(_join(parts), simulation.models(), info)

    def simulation(self, cell: Cell) -> Simulation:
        """The start of one run of the grid."""
        e = self.experiment
        problem = self.problem(cell.seed)
        context = e.context(cell.seed, problem)
        plan = Plan(cell.compute, e.local_steps, e.batch_size, e.minibatch, e.chunk_size, self.num_devices(problem))
        inputs = Inputs(
            problem=problem,
            links=cell.links.build(context),
            algorithm=cell.algorithm.build(context),
            schedule=e.learning_rate.build(context),
            seed=np.uint32(cell.seed),
            num_rounds=np.int32(e.rounds),
            training_rounds=np.int32(e.rounds - e.cooldown_rounds),
            eval_every=np.int32(e.eval_every),
            loss=self._loss(context),
        )
        return Simulation(self.programs, plan, inputs)

    def _loss(self, context: Context) -> StateLoss | None:
        """Who loses its state when; the same clients for every method of a seed."""
        settings, m = self.experiment.state_loss, context.problem.num_clients
        if settings is None:
            return None
        lost = np.zeros(m, bool)
        count = max(1, round(settings["share"] * m))
        lost[context.rng("state loss").permutation(m)[:count]] = True
        return StateLoss(np.int32(settings["round"]), lost)

    def num_devices(self, problem: Problem) -> int:
        """As asked, or as many as have a chunk of clients each, when a round is worth sharing."""
        if self.devices is not None:
            return self.devices
        work = problem.work * problem.num_clients * self.experiment.local_steps
        num_chunks = -(-problem.num_clients // self.experiment.chunk_size)
        return min(len(self.programs.devices), num_chunks) if work > WORTH_SHARING else 1

    def manifest(self) -> dict[str, Any]:
        """What the results were made with."""
        device = self.programs.devices[0]
        return {
            "fedpbc": __version__,
            "commit": _commit(),
            "python": platform.python_version(),
            "jax": jax.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "device": f"{device.platform}: {device.device_kind}",
            "devices": len(self.programs.devices),
            "peak_memory_mb": _peak_memory_mb(device),
            "programs_compiled": self.programs.num_compiled,
        }


def _draw(path: Path) -> None:
    from fedpbc.report.figures import draw_run

    draw_run(path)


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _commit() -> str | None:
    """The commit of the source tree this runs from, or None when it is installed elsewhere."""
    here = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in here.parents[:3]):
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _peak_memory_mb(device: Any) -> dict[str, float]:
    """Of this process on the host, and of the accelerator where it says so."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"host": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)}
    statistics = device.memory_stats() if device.platform != "cpu" else None
    if statistics:
        peak["device"] = round(statistics["peak_bytes_in_use"] / 1e6, 1)
    return peak
