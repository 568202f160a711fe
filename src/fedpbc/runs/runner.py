"""Run an experiment: every cell of the grid, with checkpoints, progress, callbacks and a run directory."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpbc.core import contract
from fedpbc.core.engine import Inputs, Plan, StateLoss
from fedpbc.core.local import first_buffers, first_clients, sum_blocks
from fedpbc.core.local import measured as metrics_of
from fedpbc.core.measures import by_client
from fedpbc.core.memory import require_memory, total_memory
from fedpbc.core.programs import Programs, Simulation
from fedpbc.core.schema import Context
from fedpbc.core.types import Measure, Problem
from fedpbc.errors import ConfigError, FedpbcError, first_line, shorten, suggest
from fedpbc.experiment.grid import Cell, CellKey, Experiment
from fedpbc.runs import processes, sharing
from fedpbc.runs.callbacks import Callback
from fedpbc.runs.cell import run_cell
from fedpbc.runs.directory import RunDirectory, draw_figure, pack, read_run, unpack
from fedpbc.runs.inputs import content_of
from fedpbc.runs.partition import draw_partition, held_by, write_partition
from fedpbc.runs.provenance import made_with
from fedpbc.runs.run import COUNTS, CellResult, Run
from fedpbc.runs.stamps import changed_since, stamps_of
from fedpbc.runs.structure import structure_of, structure_of_leaves
from fedpbc.runs.workers import Queue, by_program, work

MOST_MEMORY, MODELS_OF_A_CELL = 0.5, 6
"""Cells run side by side within this share of the memory; a cell is taken to need so many times its client models,
whatever its method: ``memory.STATES`` is the least that any needs, for what is refused."""

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
    side_by_side: bool = True,
) -> Run:
    """Run every cell of an experiment and return the results; see ``fedpbc.simulate``, which calls this.

    ``programs``: pass one ``fedpbc.core.programs.Programs(jax.devices())`` to several calls to share what they compile.
    ``side_by_side``: False runs one cell after another, its rounds shared between the devices. Raises ConfigError.
    """
    if not isinstance(callbacks, Sequence) or not all(isinstance(callback, Callback) for callback in callbacks):
        raise ConfigError(f"callbacks = {shorten(callbacks)}: must be a list of fedpbc.Callback objects")
    with settings_of(experiment), processes.together():
        processes.same_everywhere(lambda: content_of(experiment))
        grid = Grid(experiment, devices, progress, programs, callbacks, side_by_side)
        grid.check()
        if out is None:
            return grid.run(None)
        opened: list[RunDirectory] = []  # in process 0, where there are several

        def complete() -> bool:
            opened.append(RunDirectory.open(Path(out), experiment, resume))
            return opened[0].complete

        try:
            return grid.read(*opened) if processes.decided(complete) else grid.run(*opened)
        finally:
            for directory in opened:
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
        side_by_side: bool = True,
    ) -> None:
        self.experiment, self.devices, self.progress, self.callbacks = experiment, devices, progress, callbacks
        self.programs = programs or Programs(jax.devices())
        self.stoppable = processes.decided(lambda: bool(callbacks))
        if processes.many():
            if devices not in (None, jax.local_device_count()):
                raise ConfigError(f"devices = {devices}: each of these processes has {jax.local_device_count()}")
            self.devices = devices = len(self.programs.devices)  # a round is shared by all
            if not processes.is_first():
                self.progress, self.callbacks = None, ()
        if devices is not None and not 1 <= devices <= len(self.programs.devices):
            raise ConfigError(f"devices = {devices}: must be from 1 to {len(self.programs.devices)}, as JAX sees here")
        self.num_workers = 1
        alone = processes.many() or not all(callback.side_by_side for callback in callbacks)
        self._side_by_side = side_by_side and not alone
        self._drawn: dict[int, Problem] = {}
        self._problems: dict[tuple[int, int], Problem] = {}
        self._building, self._telling = threading.RLock(), threading.RLock()
        self.stamps = stamps_of(experiment)
        self._checked = False

    def drawn(self, seed: int) -> Problem:
        """The problem of a seed, its data not on a device yet."""
        with self._building:
            if seed not in self._drawn:
                changed = changed_since(self.stamps, self.experiment)
                if changed:
                    raise ConfigError(f"written to while the run went on: {'; '.join(changed[:5])}; run it again")
                problem = self.experiment.problem.build(self.experiment.context(seed))
                if self.experiment.problem.from_outside and not self._checked:
                    contract.check_problem("problem", problem, self.experiment.dtype)
                self._drawn[seed] = problem
            return self._drawn[seed]

    def problem(self, seed: int, device: int = 0) -> Problem:
        """The problem of a seed, its data on the devices of a worker; where these are CPUs, no other copy is kept."""
        with self._building:
            if (seed, device) not in self._problems:
                problem = self.drawn(seed)
                plan, params, owned = self._plan(problem, device), problem.params, None
                if plan.num_devices > 1 and problem.shard is not None:
                    first = first_clients(problem.num_clients, plan.chunk_size, plan.num_devices)
                    params, owned = problem.shard(params, first)
                params, owned = self.programs.put((params, owned), plan)
                self._problems[seed, device] = dataclasses.replace(problem, params=params, owned=owned, shard=None)
                if self._on_cpus or jax.process_count() > 1:
                    self._drawn[seed] = self._problems[seed, device]
            return self._problems[seed, device]

    def _keep(self, seeds: set[int]) -> None:
        """Forget the data of other seeds, but for one: results tell of its structure."""
        with self._building:
            kept = seeds or {next(reversed(self._drawn))}
            self._drawn = {seed: problem for seed, problem in self._drawn.items() if seed in kept}
            self._problems = {key: problem for key, problem in self._problems.items() if key[0] in kept}

    @property
    def _on_cpus(self) -> bool:
        return bool(self.programs.devices[0].platform == "cpu")

    def check(self) -> None:
        """Build everything once, so that a mistake shows before a run directory exists."""
        e, seed = self.experiment, self.experiment.cells()[0].seed
        problem = self.drawn(seed)
        context = e.context(seed, problem)
        together = min(sharing.chunk_size(e, problem), problem.num_clients)
        for size in {e.setting(algorithm, "batch_size") for algorithm in e.variants}:
            batch = jax.eval_shape(lambda p, k, n=size: problem.sample(p, 0, k, n), problem.params, jax.random.key(0))
            num_bytes = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(batch)) * together
            require_memory("batch_size", size, 3 * num_bytes, f"minibatches of {together} clients")
        self._check_figure(problem)
        for links in e.links:
            process = links.build(context)
            if links.from_outside:
                contract.check_links(links.key, process, problem.num_clients)
        for algorithm in e.variants:
            method = algorithm.build(context)
            if algorithm.from_outside:
                lost = e.state_loss is not None
                contract.check_algorithm(algorithm.key, method, problem.init, problem.num_clients, forgets=lost)
        for rate in (e.learning_rate, *(e.setting(algorithm, "learning_rate") for algorithm in e.variants)):
            schedule = rate.build(context)
            if rate.from_outside:
                contract.check_schedule(rate.key, schedule)
        self._checked = True
        processes.decided(self._tell_start)

    def _tell_start(self) -> None:
        for callback in self.callbacks:
            callback.on_start(self.columns())

    def _check_figure(self, problem: Problem) -> None:
        """The figure may only ask for what the problem measures."""
        x = jax.ShapeDtypeStruct((2, len(problem.init)), problem.init.dtype)
        measured = jax.eval_shape(metrics_of, problem, x)
        described = dict(problem.measures)
        if "clients" in self.experiment.metrics:
            named = self._by_client(problem, x)
            measured, described = [*measured, *named], described | {n: by_client(n, described) for n in named}
        if not measured:
            raise ConfigError("problem: measures nothing; metrics must give at least one")
        for metric in self.experiment.figure["metrics"] or []:
            if metric not in measured:
                known = ", ".join(measured)
                raise ConfigError(
                    f'figure.metrics: "{metric}" is not measured{suggest(metric, measured)}; allowed: {known}'
                )
        self.measures = {name: described.get(name, Measure(name.replace("_", " "))) for name in measured}

    def _by_client(self, problem: Problem, x: Any) -> list[str]:
        """The metrics by client. Raises ConfigError where the problem has none."""
        of = problem.by_client
        if of is None:
            raise ConfigError('metrics: "clients" is not measured by this problem')
        active = jax.ShapeDtypeStruct((problem.num_clients,), bool)

        def values(problem: Problem, x: Any, active: Any) -> Any:
            alone = dataclasses.replace(problem, block_sums=of.sums)
            return of.finish(problem.params, sum_blocks(alone, x, 1, first_buffers(problem, x)), active)

        return list(jax.eval_shape(values, problem, x, active))

    def columns(self) -> list[str]:
        """The columns of rows, beside the round."""
        models = self.experiment.metrics
        measured = [f"{model}_{name}" for name in self.measures for model in ("server", "mean") if model in models]
        distance = ["consensus_distance"] if "mean" in models else []
        return [*COUNTS[:1], *measured, *distance, *COUNTS[1:]]

    def read(self, directory: RunDirectory | None = None) -> Run:
        """A run that is complete: from its directory, or from the process that has it."""
        found = None
        if directory:
            found = dataclasses.replace(
                read_run(directory.path), experiment=self.experiment, tree=self._tree(), buffers=self._buffers()
            )
            directory.tidy(found)
        results = {}
        for cell in self.experiment.cells() if processes.many() else ():
            arrays = processes.decided_arrays(partial(pack, found.cells[cell.key]) if found else lambda: None)
            results[cell.key] = unpack(Path(), arrays or {})
        return found or self._run(results)

    def run(self, directory: RunDirectory | None = None) -> Run:
        """Every cell that is not finished yet, and what a run leaves behind."""
        cells = self.experiment.cells()
        held = held_by(self.drawn(cells[0].seed), cells[0].seed)
        if directory:
            write_partition(directory.path, held)
        finished = self.run_cells(cells, directory)
        results = {cell.key: finished[cell.key] for cell in cells}
        infos = [{**key._asdict(), **result.info} for key, result in results.items()]
        manifest = self.manifest()
        run = self._run(results, {**manifest, "cells": infos}, directory.path if directory else None)
        run.held = held

        def left_behind() -> None:
            if directory:
                directory.finish(manifest, self.measures, results)
                draw_figure(run, directory.path)
                draw_partition(directory.path)

        processes.decided(left_behind)
        return run

    def _run(self, results: Any, manifest: Any = None, path: Path | None = None) -> Run:
        return Run(
            self.experiment.table(), results, self.measures, manifest or {}, path, self.experiment,
            stamps=self.stamps, tree=self._tree(), buffers=self._buffers(),
        )  # fmt: skip

    def _tree(self) -> Any:
        return next(iter(self._drawn.values())).tree  # check() draws one

    def _buffers(self) -> Any:
        tree = self._buffers_tree()
        return None if tree is None else tree.unflatten

    def _buffers_tree(self) -> Any:
        buffers = next(iter(self._drawn.values())).buffers
        return None if buffers is None else jax.tree.structure(buffers)

    def _structure(self) -> Any:
        problem = next(iter(self._drawn.values()))
        return structure_of(problem.tree, len(problem.init))

    def run_cells(self, cells: Sequence[Cell], directory: RunDirectory | None) -> dict[CellKey, CellResult]:
        """Cells that are finished are read, the others are run side by side, and kept in the directory."""
        results: dict[CellKey, CellResult] = {}
        left = []
        for seed in self.experiment.seeds:
            for cell in (cell for cell in cells if cell.seed == seed):
                stored = processes.decided_arrays(partial(directory.stored, cell) if directory else lambda: None)
                if stored is None:
                    left.append(cell)
                    continue
                results[cell.key] = unpack(directory.path_of(cell) if directory else Path(), stored)
                self.tell_progress(cell.key, 0, self.experiment.rounds)
                processes.decided(partial(self._tell_end, cell, results[cell.key]))
        self.num_workers, seeds_at_once = self.room(left)
        if seeds_at_once >= len(self.experiment.seeds):
            left = by_program(left, _program)
        queue = Queue(left, _program, seeds_at_once)

        def loop(worker: int) -> None:
            with settings_of(self.experiment):  # JAX keeps its settings by thread
                while (cell := queue.take()) is not None:
                    self.tell_progress(cell.key, 0, 0)
                    checkpoint = directory.checkpoint_path(cell) if directory else None
                    result = run_cell(self, cell, self._device(worker), checkpoint, queue)
                    processes.decided(partial(self._tell_end, cell, result, directory))
                    with self._telling:
                        results[cell.key] = result
                    self._keep(queue.finished(cell))

        work(queue, self.num_workers, loop)
        return results

    def _tell_end(self, cell: Cell, result: CellResult, directory: RunDirectory | None = None) -> None:
        """A cell is over: kept, where there is a directory, and the callbacks are told."""
        if directory:
            directory.save(cell, result)
        with self._telling:
            for callback in self.callbacks:
                callback.on_cell_end(cell.key, result)

    def room(self, cells: Sequence[Cell]) -> tuple[int, int]:
        """How many cells run side by side, and how many seeds have their data in memory at once."""
        most = min(self.devices or len(self.programs.devices), len(cells)) if self._side_by_side else 1
        if most <= 1:
            return 1, 1
        problem = next(iter(self._drawn.values()))
        data = sum(a.nbytes for a in jax.tree.leaves(problem.params))
        state = MODELS_OF_A_CELL * problem.num_clients * problem.init.nbytes
        room = MOST_MEMORY * total_memory()
        workers = int(max(1, min(most, (room - data) // max(state, 1))))
        seeds = len(self.experiment.seeds)
        if 2 * seeds * data + workers * state < room:
            return workers, seeds
        return workers, 2 if 3 * data + workers * state < room else 1  # the next one is drawn on the host and copied

    def _device(self, worker: int) -> int:
        """Cells side by side share one CPU device, whose programs run at the same time; accelerators have one each."""
        return 0 if self._on_cpus else worker

    def tell(self, key: CellKey, rows: dict[str, np.ndarray]) -> int | None:
        """Show new rows to the callbacks, one at a time: the round after which one wants the cell to end, or None."""
        with self._telling:
            for i, t in enumerate(rows["round"].tolist() if self.callbacks else ()):
                row = {name: values[i : i + 1] for name, values in rows.items()}
                wishes = [callback.on_rows(key, row) for callback in self.callbacks]  # everybody is told
                if any(wishes):
                    return int(t)
            return None

    def tell_progress(self, key: CellKey, advanced: int, restored: int) -> None:
        """Rounds of a cell that are done."""
        if self.progress:
            with self._telling:
                self.progress(key, advanced, restored)

    def simulation(self, cell: Cell, device: int = 0) -> Simulation:
        """The start of one run of the grid."""
        e = self.experiment
        problem = self.problem(cell.seed, device)
        context = e.context(cell.seed, problem)
        plan = dataclasses.replace(
            self._plan(problem, device),
            compute=cell.compute, local_steps=cell.local_steps, batch_size=cell.batch_size,
        )  # fmt: skip
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

    def _plan(self, problem: Problem, device: int) -> Plan:
        """A plan on the devices that a cell uses."""
        e = self.experiment
        shared = self._num_devices(problem) if self.num_workers == 1 else 1
        return Plan(
            e.compute[0], e.local_steps, e.batch_size, e.minibatch, sharing.chunk_size(e, problem), shared, device,
            with_clients="clients" in e.metrics, with_mean="mean" in e.metrics, descent=e.descent,
        )  # fmt: skip

    def _num_devices(self, problem: Problem) -> int:
        """As asked, or what suits the problem."""
        if self.devices is not None:
            return self.devices
        return sharing.num_devices(self.experiment, problem, len(self.programs.devices))

    def manifest(self) -> dict[str, Any]:
        """What the results were made with."""
        tuned = self.experiment.tuned
        return {
            **made_with(self.programs.devices[0], self.experiment),
            "devices": len(self.programs.devices),
            **({"processes": jax.process_count()} if processes.many() else {}),
            "cells_side_by_side": self.num_workers,
            "chunk_size": sharing.chunk_size(self.experiment, next(iter(self._drawn.values()))),
            "programs_compiled": self.programs.num_compiled,
            "model": self._structure(),
            **({"tuned_on": tuned["seeds"], "reported_on": self.experiment.seeds} if tuned else {}),
            **({} if self._buffers_tree() is None else {"buffers": structure_of_leaves(self._buffers_tree())}),
        }


def _program(cell: Cell) -> Any:
    """Cells that agree in this will likely share a compiled program."""
    return cell.links.name, cell.algorithm.name, cell.compute, cell.local_steps, cell.batch_size
