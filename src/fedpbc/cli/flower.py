"""fedpbc flower: federations on real machines, as their operators run them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpbc.cli.common import FiniteRange, require_place
from fedpbc.errors import ConfigError, FedpbcError

if TYPE_CHECKING:
    from fedpbc.operation.watch import Watch


@click.group()
def flower() -> None:
    """Operate federations on real machines (docs/deployment.md)."""


@flower.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show it once and end; status 3 when an alert is raised.")
@click.option("--every", type=float, default=5.0, show_default=True, metavar="S", help="Seconds between two looks.")
@click.option("--html", "out", type=click.Path(path_type=Path), metavar="FILE", help="The same as a page, rewritten.")
@click.option(
    "--prometheus",
    "metrics",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Numbers for node_exporter (.prom).",
)
@click.option("--silent-rounds", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="FED101.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="FED102.")
@click.option("--bias", type=FiniteRange(0, 1), default=0.14, show_default=True, metavar="TV", help="FED103.")
@click.option("--stalled", type=FiniteRange(0), default=3600.0, show_default=True, metavar="S", help="FED104.")
def watch(
    directory: Path, once: bool, every: float, out: Path | None, metrics: Path | None, silent_rounds: int,
    repeats: int, bias: float, stalled: float,
) -> None:  # fmt: skip
    """Show a federation live.

    Who is heard, who lags and by how much, how fast it goes, what needs somebody: from the DIRECTORY of a strategy.
    """
    from fedpbc.operation.alerts import Limits
    from fedpbc.operation.watch import Watch

    if not 0.1 <= every <= 3600:
        raise ConfigError(f"--every {every:g}: must be from 0.1 to 3600 seconds")
    for option, path in (("--html", out), ("--prometheus", metrics)):
        if path is not None:
            require_place(option, path)
    seen = Watch(directory, Limits(silent_rounds, repeats, bias, stalled), out, metrics, every)
    if once:
        _once(seen)
    else:
        _live(seen)


@flower.command()
@click.argument("app", type=click.Path(path_type=Path))
@click.argument("superlink", required=False)
@click.option(
    "--directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Of the strategy: each run is given it, and goes on from its checkpoint.",
)
@click.option("--directory-key", default="directory", show_default=True, metavar="KEY", help="What the app calls it.")
@click.option("--run-config", "-c", multiple=True, metavar="'K=V ...'", help="As of flwr run; several add up.")
@click.option(
    "--every",
    type=FiniteRange(0.1, 3600),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks.",
)
@click.option(
    "--silent",
    type=FiniteRange(1),
    default=1800.0,
    show_default=True,
    metavar="S",
    help="A run that closes no round for so long is silent.",
)
@click.option("--stop-silent", is_flag=True, help="Stop a silent run and submit it again.")
@click.option(
    "--give-up", type=click.IntRange(0), default=10, show_default=True, metavar="N",
    help="End after so many failures in a row without a round in between; 0: never.",
)  # fmt: skip
def run(
    app: Path, superlink: str | None, directory: Path, directory_key: str, run_config: tuple[str, ...], every: float,
    silent: float, stop_silent: bool, give_up: int,
) -> None:  # fmt: skip
    """Keep the run of an app going.

    Submits APP at SUPERLINK, again when it failed, and waits for a SuperLink that is away.
    """
    from fedpbc.io.lock import Lock
    from fedpbc.io.whole import make_folder
    from fedpbc.operation.flwr import Command
    from fedpbc.operation.supervisor import Patience, Supervisor

    _require_key(app, directory_key)
    path = str(directory.absolute())
    if "'" in path or not path.isprintable():
        raise ConfigError(f"--directory {directory}: must be printable, without an apostrophe")
    make_folder(directory)
    lock = Lock(directory / ".supervisor.lock", f"--directory {directory}: another supervisor is at work there")
    flwr = Command(str(app), superlink, [*run_config, f"{directory_key}='{path}'"])
    supervisor = Supervisor(flwr, directory, Patience(every, silent, stop_silent, give_up), click.echo)
    try:
        supervisor.run()
    except KeyboardInterrupt:
        raise FedpbcError("the supervisor ends, the run does not: the same command goes on with it") from None
    finally:
        lock.release()


@flower.command()
@click.argument("app", type=click.Path(path_type=Path))
def new(app: Path) -> None:
    """Write a new Flower app.

    Into the folder APP: NumPy, a strategy by name, every option in its run config.
    """
    from fedpbc.operation.new import new_app

    for path in new_app(app):
        click.echo(path)
    click.echo(f"yours to change: task.py; then: cd {app} && flwr run . --stream")


def _require_key(app: Path, key: str) -> None:
    """Raise ConfigError unless APP is an app whose run config has this key."""
    import tomllib

    path = app / "pyproject.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    config: Any = found
    for name in ("tool", "flwr", "app", "config"):
        config = config.get(name) if isinstance(config, dict) else None
    if not isinstance(config, dict) or key not in config:
        what = "its server app must hand it to the strategy, or no run can go on from the one before"
        raise ConfigError(
            f"{path}: has no {key} under [tool.flwr.app.config]: {what} (--directory-key for another name)"
        )


def _once(seen: Watch) -> None:
    import sys

    from fedpbc.cli.common import console
    from fedpbc.operation.views import terminal

    seen.look()
    console().print(terminal(seen.standing, seen.raised()))
    if seen.alerts.raised:
        sys.exit(3)


def _live(seen: Watch) -> None:
    """Until Ctrl-C: a table where a person looks; else lines: a round, an alert."""
    import sys
    from contextlib import suppress

    with suppress(KeyboardInterrupt):
        if sys.stdout.isatty():
            _table(seen)
        else:
            _lines(seen)


def _table(seen: Watch) -> None:
    from rich.console import Console
    from rich.live import Live

    from fedpbc.operation.views import terminal

    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            for line in seen.look():
                live.console.print(line, markup=False, highlight=False)
            live.update(terminal(seen.standing, seen.raised()), refresh=True)
            time.sleep(seen.every)


def _lines(seen: Watch) -> None:
    from fedpbc.operation.views import headline

    rounds = -1
    while True:
        for line in seen.look():
            click.echo(line)
        if seen.standing.rounds != rounds:
            rounds = seen.standing.rounds
            click.echo(headline(seen.standing))
        time.sleep(seen.every)
