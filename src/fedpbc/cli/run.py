"""fedpbc run: run an experiment and print its table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpbc.cli.common import load, print_run, refuse_both
from fedpbc.errors import ConfigError

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
@click.option("--import", "imports", multiple=True, metavar="FILE.py", help="Run a file that registers components.")
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
    imports: tuple[str, ...],
    markdown: bool,
    latex: bool,
    quiet: bool,
) -> None:
    """Run an experiment, shipped (by NAME) or your own (a TOML FILE). A file that names Python code runs it."""
    refuse_both(markdown, latex)
    loaded = load(experiment, overrides, seeds, imports)
    if cells is not None:
        loaded = loaded.only(cells, "--cells")
    out = out or _usual_folder(experiment, loaded, resume)
    if str(out) == ".":
        raise ConfigError("--out: must name a folder of its own, not the current one")
    from fedpbc.simulation import run as run_experiment

    result = run_experiment(loaded, out, resume=resume, devices=devices, progress=not quiet)
    print_run(result, out, markdown, latex)


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
