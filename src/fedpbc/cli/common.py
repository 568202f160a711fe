"""Functions that several commands use: load an experiment, print results."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpbc.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedpbc.experiment.grid import Experiment
    from fedpbc.plots.comparison import Compared
    from fedpbc.runs.run import Run


class FiniteRange(click.FloatRange):
    """A range without "nan", which no comparison refuses, and without "inf"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def require_place(option: str, path: Path) -> None:
    """Raise ConfigError where no file can be written at this path."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{option} {path}: {folder} is no directory")
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder, must be a file")


WIDE = 200
"""Columns where there is no terminal: no table is cut."""


def load(source: str, overrides: tuple[str, ...], seeds: str | None, imports: tuple[str, ...] = ()) -> Experiment:
    """An experiment with the changes of the command line. Raises ConfigError."""
    from fedpbc.experiment.load import load_experiment
    from fedpbc.experiment.overrides import parse_override

    changes = dict(parse_override(text) for text in overrides)
    if seeds is not None:
        try:
            changes["seeds"] = [int(part) for part in seeds.split(",")]
        except ValueError:
            raise ConfigError(f"--seeds {seeds}: must be integers with commas between, like 0,1,2") from None
    return load_experiment(source, changes, imports)


def console() -> Console:
    """A console for standard output. Where that is not a terminal, it is wide enough for every table."""
    from rich.console import Console

    return Console(width=width())


def width() -> int:
    """The width of standard output in columns: the terminal's, else COLUMNS if it is set, else 200."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(20, shutil.get_terminal_size().columns)
    return WIDE


def print_table(
    runs: Sequence[Run],
    as_markdown: bool = False,
    as_latex: bool = False,
    metrics: Sequence[str] | None = None,
    compared: Compared | None = None,
) -> None:
    """Print the final values of runs as a table."""
    from fedpbc.plots.tables import latex, markdown, terminal

    if as_markdown or as_latex:
        click.echo((latex if as_latex else markdown)(runs, metrics, compared), nl=False)
    else:
        click.echo(terminal(runs, width(), metrics, compared), nl=False)


RUN_FILES = ("figure.png", "metrics.csv", "summary.json", "manifest.json", "models", "experiment.toml")


def print_run(run: Run, out: Path, as_markdown: bool, as_latex: bool) -> None:
    """Print the table of a run and the names of its files. Ends with status 1 if a model is not finite."""
    print_table([run], as_markdown, as_latex)
    files = ", ".join(name for name in RUN_FILES if (out / name).exists())
    click.echo(f"{out}: {files}", err=as_markdown or as_latex)  # a table may go into a file by itself
    if not run.diverged:
        return
    for key, round_ in list(run.diverged.items())[:10]:
        where = f"{key.links}, {key.algorithm}, compute {key.compute}, seed {key.seed}"
        click.echo(f"diverged: {where}: first model that is not finite after round {round_}", err=True)
    rest = len(run.diverged) - 10
    more = f"and {rest} more runs, see manifest.json; " if rest > 0 else ""
    click.echo(f"{more}a smaller learning_rate may help", err=True)
    sys.exit(1)


def refuse_both(markdown: bool, latex: bool) -> None:
    """Raise ConfigError if both Markdown and LaTeX are asked for."""
    if markdown and latex:
        raise ConfigError("--markdown and --latex: choose one of them")
