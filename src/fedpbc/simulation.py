"""The Python face of the simulator: one call, one result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedpbc.core.outside import refuse_while_importing
from fedpbc.core.schema import Component, Context, Factory
from fedpbc.core.types import Algorithm, LinkProcess, Problem, TimeFunction
from fedpbc.errors import ConfigError, optional
from fedpbc.runs.callbacks import Callback
from fedpbc.runs.run import Run

if TYPE_CHECKING:
    from fedpbc.experiment.grid import Experiment

Written = str | Mapping[str, Any]
"""A registered name, or a table as in TOML."""
ProblemLike = Component[Problem] | Factory[..., Problem] | Callable[[Context], Problem] | Problem | Written
LinksLike = (
    Component[LinkProcess] | Factory[..., LinkProcess] | Callable[[Context], LinkProcess] | LinkProcess | Written
)
AlgorithmLike = Component[Algorithm] | Factory[..., Algorithm] | Callable[[Context], Algorithm] | Algorithm | Written
RateLike = float | Component[TimeFunction]


def simulate(
    problem: ProblemLike,
    *,
    links: LinksLike | Sequence[LinksLike],
    algorithm: AlgorithmLike | Sequence[AlgorithmLike],
    rounds: int,
    local_steps: int,
    learning_rate: RateLike,
    batch_size: int = 32,
    minibatch: Literal["round", "step"] = "round",
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    momentum: float = 0.0,
    seeds: Sequence[int] = (0,),
    compute: Literal["all", "active"] | Sequence[Literal["all", "active"]] = "all",
    cooldown_rounds: int = 0,
    eval_every: int | None = None,
    chunk_size: int | None = None,
    precision: Literal["float32", "float64"] = "float32",
    metrics: Sequence[Literal["server", "mean", "clients"]] = ("server", "mean"),
    state_loss: Mapping[str, Any] | None = None,
    figure: Mapping[str, Any] | None = None,
    name: str = "simulation",
    out: str | Path | None = None,
    resume: bool = False,
    devices: int | None = None,
    cells: str | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run every combination of links, algorithms, ``compute`` and seeds on one problem, all clients as one program.

    problem, links, algorithm: components, as ``fedpbc.problems.quadratic(num_clients=20)``, names, or tables as in
    TOML; links and algorithm one or a list; ``component.using(label=..., learning_rate=...)`` gives one a name of its
    own and settings of its own. rounds: T. local_steps: s. learning_rate: eta, a number or a schedule. batch_size:
    samples of a local step.
    minibatch: "round" draws one for all local steps of a round, as the paper prints it, "step" one for each.
    weight_decay, clip_norm, momentum: of every local step: u = min(1, C/|g|) g + lambda x + what the method adds,
    v = beta v + u, x -= eta v, v = 0 at the start of a round. seeds:
    each draws data, links and samples; all methods of a seed see the same. compute: "all" clients train, or the
    "active". cooldown_rounds: the last rounds, without local steps. eval_every: rounds between rows of metrics
    (default: about 100 rows). chunk_size: clients computed side by side (default: what suits the model). state_loss:
    {"round": t, "share": .1}, clients that lose all they keep. figure: {"metrics": [...], "models": [...],
    "from_round": t, "spread": "sd"}. out: also write a run directory there; resume: go on in it. devices: how many JAX
    devices (CPU cores) are used: cells run side by side, a cell that is alone shares its rounds. metrics: whose are
    taken; without "mean", clients whose steps no method would use are not computed; with "clients" also over the worst
    tenth of them and over the active. cells: "2/8", the second of eight parts of the grid, each for a machine of its
    own (``fedpbc.merge``). progress: show it on stderr. callbacks: fedpbc.Callback objects. Results do not depend on
    cells, devices or progress. Raises ConfigError.
    """
    refuse_while_importing("simulate()")
    optional("jax", "fedpbc.simulate()")
    from fedpbc.experiment.grid import Experiment

    table = {
        "name": name,
        "rounds": rounds,
        "local_steps": local_steps,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "minibatch": minibatch,
        "weight_decay": weight_decay,
        "clip_norm": clip_norm,
        "momentum": momentum,
        "seeds": seeds,
        "compute": [compute] if isinstance(compute, str) else list(compute),
        "cooldown_rounds": cooldown_rounds,
        "eval_every": max(1, _whole(rounds) // 100) if eval_every is None else eval_every,
        "chunk_size": chunk_size,
        "precision": precision,
        "metrics": list(metrics) if not isinstance(metrics, str) else metrics,
        "problem": {"name": problem} if isinstance(problem, str) else problem,
        "links": _listed(links),
        "algorithms": _listed(algorithm),
        "figure": {} if figure is None else figure,
        **({} if state_loss is None else {"state_loss": state_loss}),
    }
    experiment = Experiment.from_table(table)
    return run(experiment, out, resume=resume, devices=devices, cells=cells, progress=progress, callbacks=callbacks)


def run(
    experiment: Experiment | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    devices: int | None = None,
    cells: str | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run an experiment: a checked one, a TOML file, or a shipped one by name; ``fedpbc run`` calls this.

    out, resume, devices, cells, progress, callbacks: as in ``simulate``. Raises ConfigError.
    """
    refuse_while_importing("run()")
    optional("jax", "fedpbc.run()")
    from fedpbc.experiment.load import load_experiment

    if isinstance(experiment, str | Path):
        experiment = load_experiment(experiment)
    if cells is not None:
        experiment = experiment.only(cells)
    if resume and out is None:
        raise ConfigError("resume = true: needs out, the run directory to go on in")
    use_every_core(devices)
    from fedpbc.runs.cache import use_cache
    from fedpbc.runs.progress import shown
    from fedpbc.runs.runner import run as run_cells

    use_cache()
    count = len(experiment.cells())
    with shown(count, count * experiment.rounds, sys.stderr, quiet=not progress) as told:
        return run_cells(experiment, out, resume=resume, devices=devices, progress=told, callbacks=callbacks)


def use_every_core(devices: int | None) -> None:
    """One JAX device per core, so that a round can be shared; only before JAX starts. Raises ConfigError."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if devices is not None and not 1 <= devices <= max(16, 2 * cores):
        raise ConfigError(f"devices = {devices}: must be from 1 to {max(16, 2 * cores)} with {cores} cores")
    if (
        "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
        or getattr(jax.config, "jax_num_cpu_devices", -1) > 0
    ):
        return
    with suppress(RuntimeError):  # JAX has started already
        jax.config.update("jax_num_cpu_devices", devices or cores)


def _listed(given: Any) -> list[Any]:
    """One or many, names as tables."""
    many = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [{"name": one} if isinstance(one, str) else one for one in many]


def _whole(rounds: Any) -> int:
    return int(rounds) if isinstance(rounds, int | np.integer) else 100
