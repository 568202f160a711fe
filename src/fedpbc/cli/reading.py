"""The options that say how a log is read, and the table of formats under ``fedpbc audit --help``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option("--clients", type=int, metavar="N", help="How many clients there are, if some never appear."),
    click.option("--sizes", type=click.Path(path_type=Path), metavar="FILE", help="CSV client,size."),
    click.option("--groups", type=click.Path(path_type=Path), metavar="FILE", help="CSV client,group."),
    click.option("--group", metavar="COLUMN", help="The log's own column that says a client's group."),
    click.option(
        "--columns",
        metavar="ROLE=NAME,ROLE=NAME",
        help="What columns are called, or their numbers from 1; roles: round, time, client, active, start, end.",
    ),
    click.option(
        "--active-column",
        metavar="COLUMN[=VALUE,VALUE]",
        help="The column that says who took part, and the values that say so; none: every row did [default: active].",
    ),
    click.option("--round-seconds", type=float, metavar="N", help="Times instead of rounds; a round is so long."),
    click.option("--round-start", metavar="TIME", help="When one of the rounds begins [default: midnight UTC]."),
    click.option(
        "--round-gap",
        metavar="auto|SECONDS",
        help="Times instead of rounds; a pause of more than so many seconds begins one; auto: told from the times.",
    ),
    click.option(
        "--active-when",
        type=click.Choice(["start", "throughout"]),
        help="Of intervals: up when the round begins, or throughout it [default: start].",
    ),
    click.option(
        "--missing-rounds",
        type=click.Choice(["empty", "unknown"]),
        help="Rounds that are not there had no client, or were not logged [default: refused].",
    ),
    click.option("--drop-duplicates", is_flag=True, help="A round and client that stand there twice count once."),
    click.option("--table", metavar="NAME", help="The table of a database, or the sheet of a workbook."),
    click.option("--query", metavar="SQL", help="A SELECT whose answer is the log."),
)  # fmt: skip


def reading_options(command: F) -> F:
    """Add OPTIONS to a command, in this order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


class WithFormats(click.Command):
    """A command whose help ends with the table of formats."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table."""
        from fedpbc.io.participation import FORMATS

        with formatter.section("Formats, told from the content (docs/howto/log.md has a recipe for each)"):
            formatter.write_dl([(format.name, format.what) for format in FORMATS])
