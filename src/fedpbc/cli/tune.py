"""fedpbc tune: choose the settings of every method, on seeds that are not reported."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from fedpbc.cli.common import load
from fedpbc.errors import ConfigError


@click.command()
@click.argument("experiment", metavar="NAME|FILE")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key; VALUE is TOML.")
@click.option("--seeds", metavar="0,1,2", help="Seeds to report instead of the experiment's; tuning uses others.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder [default: runs/NAME.tuning].")
@click.option("--resume", is_flag=True, help="Go on in DIR after an interruption, or with --extend.")
@click.option("--extend", is_flag=True, help="Go beyond the grid where the best step size is at its edge.")
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be tried and about how long it takes, and end.")
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="Cores (or accelerators) to use [default: all]."
)
@click.option("--import", "imports", multiple=True, metavar="FILE.py", help="Run a file that registers components.")
@click.option("--quiet", is_flag=True, help="No progress.")
def tune(
    experiment: str,
    overrides: tuple[str, ...],
    seeds: str | None,
    out: Path | None,
    resume: bool,
    extend: bool,
    only_plan: bool,
    devices: int | None,
    imports: tuple[str, ...],
    quiet: bool,
) -> None:
    """Choose the settings of every method of an experiment: a stated grid, an equal budget, seeds of their own.

    Writes tuned.toml, which "fedpbc run" takes as it is, and every value that was measured. The table [tune] of the
    file, and docs/howto/tune.md, say how.
    """
    loaded = load(experiment, overrides, seeds, imports)
    from fedpbc.tuning.page import plan_lines, result_lines
    from fedpbc.tuning.plan import plan_of

    plan = plan_of(loaded)
    for line in plan_lines(plan, grids=only_plan):
        click.echo(line, err=not only_plan)
    out = out or Path("runs") / f"{loaded.name}.tuning"
    if str(out) == ".":
        raise ConfigError("--out: must name a folder of its own, not the current one")
    from fedpbc.tuning.tune import time_of
    from fedpbc.tuning.tune import tune as search

    if only_plan or not (quiet or resume):
        click.echo(time_of(plan, devices).line, err=not only_plan)
    if only_plan:
        return
    found = search(loaded, out, resume=resume, extend=extend, devices=devices, progress=not quiet)
    for line in result_lines(found.record):
        click.echo(line)
    for line in found.warnings:
        click.echo(f"warning: {line}", err=True)
    click.echo(f"{out}: tuned.toml, tuning.json, tuning.csv, sensitivity.png")
    usual = Path("runs") / loaded.name
    elsewhere = f" --out {shlex.quote(f'{usual}.tuned')}" if usual.exists() else ""  # it was run before it was tuned
    click.echo(f"next: fedpbc run {shlex.quote(str(out / 'tuned.toml'))}{elsewhere}")
