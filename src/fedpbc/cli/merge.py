"""fedpbc merge: combine the parts of a grid into one run directory."""

from __future__ import annotations

from pathlib import Path

import click

from fedpbc.cli.common import print_run, refuse_both


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR [DIR ...]", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The whole run; a new folder."
)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--latex", is_flag=True, help="Print the table as LaTeX (booktabs).")
def merge(folders: tuple[Path, ...], out: Path, markdown: bool, latex: bool) -> None:
    """Put together what "fedpbc run --cells I/N" computed on several machines: all N parts, in any order."""
    refuse_both(markdown, latex)
    from fedpbc.runs.merge import merge as put_together

    print_run(put_together(folders, out=out), out, markdown, latex)
