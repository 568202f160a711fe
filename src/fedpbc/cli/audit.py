"""fedpbc audit: what a participation log says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpbc.cli.common import console
from fedpbc.cli.reading import WithFormats, reading_options
from fedpbc.errors import ConfigError

if TYPE_CHECKING:
    from fedpbc.audit import Findings, ParticipationLog
    from fedpbc.audit.comparison import Comparison

ABOVE = 3
"""The exit status where ``--fail-above`` is exceeded; 2 is bad input, 1 any other failure."""


@click.command(cls=WithFormats)
@click.argument("log", metavar="LOG", type=click.Path(path_type=Path))
@reading_options
@click.option(
    "--before", type=click.Path(path_type=Path), metavar="LOG", help="An earlier log, read alike: what changed since?"
)
@click.option(
    "--fail-above", "limit", metavar="tv=X",
    help=f"End with status {ABOVE} if FedAvg's total variation from equal weights is above X, and above chance.",
)  # fmt: skip
@click.option("--json", "json_to", metavar="-", help="Write audit.json to standard output, and nothing else.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where files go [default: audit-LOG].")
def audit(
    log: Path, out: Path | None, before: Path | None, limit: str | None, json_to: str | None, **options: Any
) -> None:
    """Audit who took part when: how uneven, how biased, what to use.

    LOG is a file, a folder of files, one a machine, or - for standard input.
    """
    from fedpbc.audit import audit as examine
    from fedpbc.audit import read_log
    from fedpbc.audit.comparison import compare
    from fedpbc.audit.terminal import report as page_of

    above = None if limit is None else _limit(limit)
    if json_to not in (None, "-"):
        raise ConfigError(f"--json {json_to}: must be -, standard output; --out says where files go")
    if json_to and out:
        raise ConfigError("--json - and --out: choose one of them")
    out = out or Path(f"audit-{_stem(log)}")
    if not json_to:
        _require_own(out)
    with _bytes_read(log) as progress:
        participation = read_log(log, **options, progress=progress)
        earlier = None if before is None else read_log(before, **options, progress=progress)
    findings = examine(participation)
    change = None if earlier is None else compare(earlier, examine(earlier), participation, findings)
    if json_to:
        click.echo(_as_json(findings, change), nl=False)
    else:
        html, missing = _audit_page(findings, participation, change)
        _write_audit(out, _as_json(findings, change), html)
        console().print(page_of(findings, change), crop=False)
        files = "audit.json" + (", audit.html" if html is not None else f" (no audit.html: needs {missing})")
        click.echo(f"{out}: {files}")
    if above is not None:
        _judge(findings, above)


_AUDIT_FILES = {"audit.json", "audit.html"}


def _stem(log: Path) -> str:
    return "stdin" if str(log) == "-" else Path(log.name.removesuffix(".gz")).stem or "log"


def _limit(text: str) -> float:
    """X of ``tv=X``. Raises ConfigError."""
    match = re.fullmatch(r"tv=(\d*\.?\d+)", text.replace(" ", ""))
    if match is None or not 0 <= float(match[1]) <= 1:
        raise ConfigError(f"--fail-above {text}: must be tv=X, a total variation from 0 to 1")
    return float(match[1])


def _judge(findings: Findings, above: float) -> None:
    """Say and end with ABOVE where FedAvg's weights are too far from equal ones, beyond what chance gives."""
    if findings.bias is None:
        raise ConfigError("--fail-above: the log holds counts only, so weights cannot be had from it")
    found, chance = findings.bias.total_variation, findings.bias.total_variation_by_chance
    if found > above and found > chance:
        click.echo(f"total variation {found:.3f} is above {above:g}", err=True)
        sys.exit(ABOVE)
    why = f" (but not above what chance gives, {chance:.3f})" if found > above else ""
    click.echo(f"total variation {found:.3f} is {'' if found > above else 'not '}above {above:g}{why}", err=True)


def _as_json(findings: Findings, change: Comparison | None) -> str:
    from fedpbc.audit.types import to_json

    content = findings.to_dict() | ({} if change is None else {"change": to_json(change)})
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _require_own(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier audit."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file, must be a folder")
    other = sorted(path.name for path in out.iterdir() if path.name not in _AUDIT_FILES) if out.is_dir() else []
    if other:
        raise ConfigError(f"--out {out}: holds {other[0]}; must be new, empty, or hold only an earlier audit")


def _audit_page(findings: Findings, log: ParticipationLog, change: Comparison | None) -> tuple[str | None, str]:
    """The HTML page, or None and the package that is missing for its pictures."""
    try:
        from fedpbc.audit.page import render

        return render(findings, log, change), ""
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return None, "matplotlib"


def _write_audit(out: Path, text: str, html: str | None) -> None:
    from fedpbc.io.whole import make_folder, write_text

    make_folder(out)
    write_text(out / "audit.json", text)
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
