"""fedpbc audit: what a participation log says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpbc.cli.common import console
from fedpbc.errors import ConfigError

if TYPE_CHECKING:
    from fedpbc.audit import Findings, ParticipationLog


@click.command()
@click.argument("log", metavar="LOG", type=click.Path(path_type=Path))
@click.option("--clients", type=int, metavar="N", help="How many clients there are, if some never appear.")
@click.option("--sizes", type=click.Path(path_type=Path), metavar="FILE", help="CSV client,size.")
@click.option("--groups", type=click.Path(path_type=Path), metavar="FILE", help="CSV client,group.")
@click.option(
    "--active-column",
    metavar="COLUMN[=VALUE,VALUE]",
    help="The column that says who took part, and the values that say so; none: every row did [default: active].",
)
@click.option("--round-seconds", type=float, metavar="N", help="The column round holds times; a round is so long.")
@click.option(
    "--missing-rounds",
    type=click.Choice(["empty", "unknown"]),
    help="Rounds that are not there had no client, or were not logged [default: refused].",
)
@click.option("--drop-duplicates", is_flag=True, help="A round and client that stand there twice count once.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where files go [default: audit-LOG].")
def audit(log: Path, out: Path | None, **options: Any) -> None:
    """Audit who took part when: how uneven, how biased, what to use. LOG is CSV, Parquet, .npy, JSON lines or .log."""
    from fedpbc.audit import audit as examine
    from fedpbc.audit import read_log
    from fedpbc.audit.terminal import report as page_of

    out = out or Path(f"audit-{log.stem}")
    _require_own(out)
    with _bytes_read(log) as progress:
        participation = read_log(log, **options, progress=progress)
    findings = examine(participation)
    html, missing = _audit_page(findings, participation)
    _write_audit(out, findings, html)
    console().print(page_of(findings))
    click.echo(f"{out}: audit.json" + (", audit.html" if html is not None else f" (no audit.html: needs {missing})"))


_AUDIT_FILES = {"audit.json", "audit.html"}


def _require_own(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier audit."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file, must be a folder")
    other = sorted(path.name for path in out.iterdir() if path.name not in _AUDIT_FILES) if out.is_dir() else []
    if other:
        raise ConfigError(f"--out {out}: holds {other[0]}; must be new, empty, or hold only an earlier audit")


def _audit_page(findings: Findings, log: ParticipationLog) -> tuple[str | None, str]:
    """The HTML page, or None and the package that is missing for its pictures."""
    try:
        from fedpbc.audit.page import render

        return render(findings, log), ""
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return None, "matplotlib"


def _write_audit(out: Path, findings: Findings, html: str | None) -> None:
    import json

    from fedpbc.io.whole import write_text

    text = json.dumps(findings.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "audit.json", text + "\n")
    if html is None:
        (out / "audit.html").unlink(missing_ok=True)
    else:
        write_text(out / "audit.html", html)


@contextmanager
def _bytes_read(log: Path) -> Iterator[Callable[[int, int], None]]:
    """A bar over the file on a terminal's standard error; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"reading {log.name}".replace("[", r"\["), total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
