"""fedpbc run: an experiment, and its table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpbc.cli.common import load, print_table, refuse_both
from fedpbc.errors import ConfigError

if TYPE_CHECKING:
    from fedpbc.runs.run import Run

_RUN_FILES = ("figure.png", "metrics.csv", "summary.json", "manifest.json", "models", "experiment.toml")


@click.command()
@click.argument("experiment", metavar="NAME|FILE")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key; VALUE is TOML.")
@click.option("--seeds", metavar="0,1,2", help="Seeds to run instead of the experiment's.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory [default: runs/NAME].")
@click.option("--resume", is_flag=True, help="Go on in DIR after an interruption.")
@click.option("--devices", type=click.IntRange(min=1), metavar="N", help="Devices per run [default: what pays off].")
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
    devices: int | None,
    imports: tuple[str, ...],
    markdown: bool,
    latex: bool,
    quiet: bool,
) -> None:
    """Run an experiment, shipped (by NAME) or your own (a TOML FILE). A file that names Python code runs it."""
    refuse_both(markdown, latex)
    loaded = load(experiment, overrides, seeds, imports)
    out = out or Path("runs") / loaded.name
    if str(out) == ".":
        raise ConfigError("--out: must name a folder of its own, not the current one")
    from fedpbc.simulation import run as run_experiment

    result = run_experiment(loaded, out, resume=resume, devices=devices, progress=not quiet)
    print_table([result], markdown, latex)
    files = ", ".join(name for name in _RUN_FILES if (out / name).exists())
    click.echo(f"{out}: {files}", err=markdown or latex)  # a table may go into a file by itself
    _report_divergence(result)


def _report_divergence(result: Run) -> None:
    if not result.diverged:
        return
    for key, round_ in list(result.diverged.items())[:10]:
        where = f"{key.links}, {key.algorithm}, compute {key.compute}, seed {key.seed}"
        click.echo(f"diverged: {where}: first model that is not finite after round {round_}", err=True)
    rest = len(result.diverged) - 10
    more = f"and {rest} more runs, see manifest.json; " if rest > 0 else ""
    click.echo(f"{more}a smaller learning_rate may help", err=True)
    sys.exit(1)
