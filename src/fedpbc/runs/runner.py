"""Run an experiment: every cell of the grid, with checkpoints, progress, callbacks and a run directory."""

from __future__ import annotations

import dataclasses
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpbc import __version__
from fedpbc.core import contract
from fedpbc.core.engine import Inputs, Plan, Programs, Simulation, StateLoss
from fedpbc.core.memory import require_memory
from fedpbc.core.schema import Context
from fedpbc.core.types import Measure, Problem
from fedpbc.errors import ConfigError, FedpbcError, first_line, shorten, suggest
from fedpbc.experiment.grid import Cell, CellKey, Experiment
from fedpbc.io.whole import damaged, read_arrays, write_arrays
from fedpbc.runs.callbacks import Callback
from fedpbc.runs.directory import RunDirectory, draw_figure, pack, read_run, unpack
from fedpbc.runs.run import COUNTS, CellResult, Run
from fedpbc.runs.stamps import changed_since, stamps_of
from fedpbc.runs.structure import structure_of

BLOCK_SECONDS, CHECKPOINT_SECONDS = 0.5, 5.0
"""How long a block of rounds aims to take, and how often the running cell is saved."""
WORTH_SHARING = 1e7
"""Operations of a round below which sharing it between devices costs more than it saves."""

Progress = Callable[[CellKey, int, int], None]
"""``progress(cell, rounds done in this call, rounds restored)``: before a cell is compiled, and after every block."""


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    devices: int | None = None,
    progress: Progress | None = None,
    programs: Programs | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run every cell of an experiment and return the results; see ``fedpbc.simulate``, which calls this.

    ``programs``: pass one ``fedpbc.core.engine.Programs(jax.devices())`` to several calls to share what they compile.
    Raises ConfigError.
    """
    if not isinstance(callbacks, Sequence) or not all(isinstance(callback, Callback) for callback in callbacks):
        raise ConfigError(f"callbacks = {shorten(callbacks)}: must be a list of fedpbc.Callback objects")
    with settings_of(experiment):
        grid = Grid(experiment, devices, progress, programs, callbacks)
        grid.check()
        if out is None:
            return grid.run(None)
        directory = RunDirectory.open(Path(out), experiment, resume)
        try:
            return grid.run(directory)
        finally:
            directory.close()


def settings_of(experiment: Experiment) -> ExitStack:
    """JAX and NumPy as a run of this experiment needs them, whatever the environment says.

    "highest": float32 means float32 on accelerators too, which would else multiply matrices in a shorter format. A seed
    gives the same draws. Values that overflow are no warning: they are found, dated and reported as divergence.
    """
    stack = ExitStack()
    stack.enter_context(jax.enable_x64(experiment.precision == "float64"))
    stack.enter_context(jax.threefry_partitionable(True))
    stack.enter_context(jax.default_matmul_precision("highest"))
    stack.enter_context(np.errstate(all="ignore"))
    return stack


class Grid:
    """The cells of one experiment and what they share: problems, programs, devices."""

    def __init__(
        self,
        experiment: Experiment,
        devices: int | None = None,
        progress: Progress | None = None,
        programs: Programs | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.experiment, self.devices, self.progress, self.callbacks = experiment, devices, progress, callbacks
        self.programs = programs or Programs(jax.devices())
        if devices is not None and not 1 <= devices <= len(self.programs.devices):
            raise ConfigError(f"devices = {devices}: must be from 1 to {len(self.programs.devices)}, as JAX sees here")
        self._problems: dict[int, Problem] = {}
        self.stamps = stamps_of(experiment)
        self._checked = False

    def problem(self, seed: int) -> Problem:
        """The problem of a seed, its data on the devices; only the latest is kept, and no copy on the host."""
        if seed not in self._problems:
            changed = changed_since(self.stamps, self.experiment)
            if changed:
                raise ConfigError(f"written to while the run went on: {'; '.join(changed[:5])}; run it again")
            self._problems.clear()
            problem = self.experiment.problem.build(self.experiment.context(seed))
            if self.experiment.problem.from_outside and not self._checked:
                contract.check_problem("problem", problem, self.experiment.dtype)
            params = self.programs.put(problem.params, self.num_devices(problem, self.experiment.local_steps))
            self._problems[seed] = dataclasses.replace(problem, params=params)
        return self._problems[seed]

    def check(self) -> None:
        """Build everything once, so that a mistake shows before a run directory exists."""
        e, seed = self.experiment, self.experiment.seeds[0]
        problem = self.problem(seed)
        context = e.context(seed, problem)
        for size in {e.setting(algorithm, "batch_size") for algorithm in e.algorithms}:
            batch = jax.eval_shape(lambda p, k, n=size: problem.sample(p, 0, k, n), problem.params, jax.random.key(0))
            num_bytes = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(batch)) * min(
                e.chunk_size, problem.num_clients
            )
            require_memory("batch_size", size, 3 * num_bytes, f"minibatches of {e.chunk_size} clients")
        self._check_figure(problem)
        for links in e.links:
            process = links.build(context)
            if links.from_outside:
                contract.check_links(links.key, process, problem.num_clients)
        for algorithm in e.algorithms:
            method = algorithm.build(context)
            if algorithm.from_outside:
                lost = e.state_loss is not None
                contract.check_algorithm(algorithm.key, method, problem.init, problem.num_clients, forgets=lost)
        for rate in (e.learning_rate, *(e.setting(algorithm, "learning_rate") for algorithm in e.algorithms)):
            schedule = rate.build(context)
            if rate.from_outside:
                contract.check_schedule(rate.key, schedule)
        self._checked = True
        for callback in self.callbacks:
            callback.on_start(self._columns())

    def _check_figure(self, problem: Problem) -> None:
        """The figure may only ask for what the problem measures."""
        x = jax.ShapeDtypeStruct((2, len(problem.init)), problem.init.dtype)
        measured = jax.eval_shape(lambda p, x: p.metrics(p.params, x, p.block_sums(p.params, x, 0)), problem, x)
        if not measured:
            raise ConfigError("problem: measures nothing; metrics must give at least one")
        for metric in self.experiment.figure["metrics"] or []:
            if metric not in measured:
                known = ", ".join(measured)
                raise ConfigError(
                    f'figure.metrics: "{metric}" is not measured{suggest(metric, measured)}; allowed: {known}'
                )
        self._measures = {name: problem.measures.get(name, Measure(name.replace("_", " "))) for name in measured}

    def _columns(self) -> list[str]:
        """What rows consist of."""
        measured = [f"{model}_{name}" for name in self._measures for model in ("server", "mean")]
        return [*COUNTS[:1], *measured, "consensus_distance", *COUNTS[1:]]

    def run(self, directory: RunDirectory | None) -> Run:
        """Every cell that is not finished yet, and what a run leaves behind."""
        if directory and directory.complete:
            run = dataclasses.replace(read_run(directory.path), experiment=self.experiment, tree=self._tree())
            directory.tidy(run)
            return run
        cells, finished = self.experiment.cells(), {}
        for seed in self.experiment.seeds:
            for cell in (cell for cell in cells if cell.seed == seed):
                finished[cell.key] = self._finish_cell(cell, directory)
        results = {cell.key: finished[cell.key] for cell in cells}
        path = directory.path if directory else None
        infos = [{**key._asdict(), **result.info} for key, result in results.items()]
        manifest = self.manifest()
        run = Run(
            self.experiment.table(), results, self._measures, {**manifest, "cells": infos}, path, self.experiment,
            stamps=self.stamps, tree=self._tree(),
        )  # fmt: skip
        if directory:
            directory.finish(manifest, self._measures)
            draw_figure(run, directory.path)
        return run

    def _tree(self) -> Any:
        problem = next(iter(self._problems.values()), None)
        return problem.tree if problem is not None else None

    def _structure(self) -> Any:
        problem = next(iter(self._problems.values()))
        return structure_of(problem.tree, len(problem.init))

    def _finish_cell(self, cell: Cell, directory: RunDirectory | None) -> CellResult:
        done = directory.load(cell) if directory else None
        if done is None:
            if self.progress:
                self.progress(cell.key, 0, 0)
            done = self._run_cell(cell, directory)
            if directory:
                directory.save(cell, done)
        elif self.progress:
            self.progress(cell.key, 0, self.experiment.rounds)
        for callback in self.callbacks:
            callback.on_cell_end(cell.key, done)
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
        stop = self._tell(cell.key, parts[0])
        if stop is not None and stop < simulation.next_round:  # other callbacks than before the kill
            simulation, parts = self._again(cell, stop)
        while not simulation.done and stop is None:
            first, block_began = simulation.next_round, time.perf_counter()
            start = {name: a.copy() for name, a in simulation.save().items()} if self.callbacks else None
            parts.append(simulation.advance(block))
            now = time.perf_counter()
            times["run_s"] += now - block_began
            advanced = simulation.next_round - first
            block = max(1, min(4 * block, round(BLOCK_SECONDS * advanced / (now - block_began))))
            stop = self._tell(cell.key, parts[-1])
            if stop is not None and start is not None and stop < simulation.next_round:
                simulation.restore(start)  # the same rounds again, as far as was wished: how long a block is, is chance
                parts[-1] = simulation.advance(stop - first)
            if self.progress:
                self.progress(cell.key, simulation.next_round - first, 0)
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
            if self.progress:
                self.progress(cell.key, self.experiment.rounds - simulation.next_round, 0)
        return CellResult(_join(parts), models, info)

    def _again(self, cell: Cell, rounds: int) -> tuple[Simulation, list[dict[str, np.ndarray]]]:
        """A cell from its start up to a round, and its rows."""
        simulation = self.simulation(cell)
        parts = [simulation.first_rows]
        while simulation.next_round < rounds:
            parts.append(simulation.advance(rounds - simulation.next_round))
        return simulation, parts

    def _tell(self, key: CellKey, rows: dict[str, np.ndarray]) -> int | None:
        """Show new rows to the callbacks, one at a time: the round after which one wants the cell to end, or None."""
        for i, t in enumerate(rows["round"].tolist() if self.callbacks else ()):
            row = {name: values[i : i + 1] for name, values in rows.items()}
            wishes = [callback.on_rows(key, row) for callback in self.callbacks]  # everybody is told
            if any(wishes):
                return int(t)
        return None

    def simulation(self, cell: Cell) -> Simulation:
        """The start of one run of the grid."""
        e = self.experiment
        problem = self.problem(cell.seed)
        context = e.context(cell.seed, problem)
        devices = self.num_devices(problem, cell.local_steps)
        plan = Plan(cell.compute, cell.local_steps, cell.batch_size, e.minibatch, e.chunk_size, devices)
        inputs = Inputs(
            problem=problem,
            links=cell.links.build(context),
            algorithm=cell.algorithm.build(context),
            schedule=cell.learning_rate.build(context),
            seed=np.uint32(cell.seed),
            num_rounds=np.int32(e.rounds),
            training_rounds=np.int32(e.rounds - e.cooldown_rounds),
            eval_every=np.int32(e.eval_every),
            loss=self._loss(context),
        )
        try:
            return Simulation(self.programs, plan, inputs)
        except Exception as error:  # the last resort: ``check`` should have found it
            parts = (e.problem, cell.links, cell.algorithm, cell.learning_rate)
            outside = [f"{part.key} ({part.name})" for part in parts if part.from_outside]
            if not outside or isinstance(error, FedpbcError | MemoryError | jax.errors.JaxRuntimeError):
                raise
            raise ConfigError(f"{', '.join(outside)}: cannot be compiled: {first_line(error)}") from error

    def _loss(self, context: Context) -> StateLoss | None:
        """Who loses its state when; the same clients for every method of a seed."""
        settings, m = self.experiment.state_loss, context.problem.num_clients
        if settings is None:
            return None
        lost = np.zeros(m, bool)
        count = max(1, round(settings["share"] * m))
        lost[context.rng("state loss").permutation(m)[:count]] = True
        return StateLoss(np.int32(settings["round"]), lost)

    def num_devices(self, problem: Problem, local_steps: int) -> int:
        """As asked, or as many as have a chunk of clients each, when a round is worth sharing."""
        if self.devices is not None:
            return self.devices
        work = problem.work * problem.num_clients * local_steps
        num_chunks = -(-problem.num_clients // self.experiment.chunk_size)
        return min(len(self.programs.devices), num_chunks) if work > WORTH_SHARING else 1

    def manifest(self) -> dict[str, Any]:
        """What the results were made with."""
        device = self.programs.devices[0]
        sources = {key: file for key, file in self.experiment.files().items() if hasattr(file, "qualname")}
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
            "model": self._structure(),
            "outside_code": {key: f"{s.module}:{s.qualname} #{s.digest()}" for key, s in sources.items()},
        }


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _commit() -> str | None:
    """The commit of the source tree this runs from, or None when it is installed elsewhere."""
    here = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in here.parents[:4]):
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
