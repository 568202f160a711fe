"""fedpbc run: run an experiment and print its table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpbc.cli.common import load, print_run, refuse_both
from fedpbc.errors import ConfigError, optional

if TYPE_CHECKING:
    from fedpbc.experiment.grid import Experiment


@click.command()
@click.argument("experiment", metavar="NAME|FILE")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key; VALUE is TOML.")
@click.option("--seeds", metavar="0,1,2", help="Seeds to run instead of the experiment's.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Run directory [default: runs/NAME; of --cells 2/8: runs/NAME.parts/2-of-8].",
)
@click.option("--resume", is_flag=True, help="Go on in DIR after an interruption.")
@click.option("--cells", metavar="I/N", help="Only part I of N of the grid; fedpbc merge puts the parts together.")
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="Cores (or accelerators) to use [default: all]."
)
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N", help="This is one of N processes that share a run."
)
@click.option(
    "--process",
    type=click.IntRange(min=0),
    envvar=["FEDPBC_PROCESS", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"],
    metavar="I",
    help="Which, from 0; process 0 writes [default: what Slurm or MPI say].",
)
@click.option("--coordinator", envvar="FEDPBC_COORDINATOR", metavar="HOST:PORT", help="Where process 0 is reached.")
@click.option("--import", "imports", multiple=True, metavar="FILE.py", help="Run a file that registers components.")
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be run and about how long it takes, and end.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--latex", is_flag=True, help="Print the table as LaTeX (booktabs).")
@click.option("--quiet", is_flag=True, help="No progress.")
def run(
    experiment: str,
    overrides: tuple[str, ...],
    seeds: str | None,
    out: Path | None,
    resume: bool,
    cells: str | None,
    devices: int | None,
    processes: int | None,
    process: int | None,
    coordinator: str | None,
    imports: tuple[str, ...],
    only_plan: bool,
    markdown: bool,
    latex: bool,
    quiet: bool,
) -> None:
    """Run an experiment, shipped (by NAME) or your own (a TOML FILE). A file that names Python code runs it."""
    refuse_both(markdown, latex)
    loaded = load(experiment, overrides, seeds, imports)
    if cells is not None:
        loaded = loaded.only(cells, "--cells")
    if only_plan:
        _tell_plan(loaded, devices)
        return
    out = out or _usual_folder(experiment, loaded, resume)
    if str(out) == ".":
        raise ConfigError("--out: must name a folder of its own, not the current one")
    from fedpbc.simulation import run as run_experiment

    if processes is not None:
        _join(processes, process, coordinator, devices)
    elif coordinator is not None and "FEDPBC_COORDINATOR" not in os.environ:
        raise ConfigError(f"--coordinator {coordinator}: needs --processes, how many share the run")
    result = run_experiment(loaded, out, resume=resume, devices=devices, progress=not quiet)
    if processes is not None and process != 0:
        return
    print_run(result, out, markdown, latex)


def _tell_plan(experiment: Experiment, devices: int | None) -> None:
    """The grid in numbers, and about how long it takes."""
    optional("jax", "fedpbc run --plan")
    from fedpbc.runs.cache import use_cache
    from fedpbc.runs.estimate import estimate
    from fedpbc.simulation import use_every_core

    use_every_core(devices)
    use_cache()
    e = experiment
    parts: dict[str, list[Any]] = {
        "link settings": e.links, "methods": e.algorithms, "who computes": e.compute, "seeds": e.seeds
    }  # fmt: skip
    grid = ", ".join(f"{name} {len(values)}" for name, values in parts.items())
    click.echo(f"{e.name}: {len(e.cells()):,} runs of {e.rounds:,} rounds ({grid})")
    click.echo(estimate(e, devices).line)


def _join(processes: int, process: int | None, coordinator: str | None, devices: int | None) -> None:
    """Become one of the processes of a run. Raises ConfigError."""
    if process is None or coordinator is None:
        missing = "--process, which of them this is" if process is None else "--coordinator HOST:PORT, of process 0"
        raise ConfigError(f"--processes {processes}: needs {missing}")
    optional("jax", "fedpbc run")
    from fedpbc.runs.processes import join
    from fedpbc.simulation import use_every_core

    use_every_core(devices)
    join(coordinator, processes, process)


def _usual_folder(source: str, experiment: Experiment, resume: bool) -> Path:
    """Where a run goes that nobody says a folder for.

    experiment.toml of a run directory: with ``resume`` there; else to the first free of runs/NAME, runs/NAME-2, ...
    """
    folder = Path("runs") / experiment.name
    if experiment.part is not None:
        return folder.with_name(f"{folder.name}.parts") / f"{experiment.part.index}-of-{experiment.part.count}"
    file = Path(source)
    own = file.parent
    if file.name != "experiment.toml" or (not (own / "manifest.json").is_file() and not (own / "cells").is_dir()):
        return folder
    if resume:
        return own
    i, free = 1, folder
    while free.exists():
        i, free = i + 1, folder.with_name(f"{folder.name}-{i + 1}")
    return free
