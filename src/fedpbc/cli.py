"""The command line: fedpbc run, links, list, report, audit."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress

from fedpbc import __version__
from fedpbc.errors import ConfigError, FedpbcError

if TYPE_CHECKING:
    from fedpbc.audit import Findings, ParticipationLog
    from fedpbc.experiment.grid import Experiment
    from fedpbc.runs.run import Run


_EXTRAS = {"jax": "simulation", "jaxlib": "simulation", "matplotlib": "simulation", "scipy": "audit"}
"""Package -> the extra that brings it."""


def main() -> None:
    """Entry point: bad input ends with status 2, other failures with 1; one message, no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _cli(standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("error: interrupted; go on with --resume", err=True)
        os._exit(130)  # at once: a compiled round may still be running, and must not outlive the interpreter
    except ConfigError as error:
        _fail(str(error), 2)
    except FedpbcError as error:
        _fail(str(error), 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra = f"pip install -e '.[{_EXTRAS[package]}]'"
        _fail(f"this needs {package}: install fedpbc with its extra, {extra}", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; a run that had started goes on with --resume", 1)
    except MemoryError:
        _fail("out of memory; what was finished is kept", 1)
    except RuntimeError as error:
        if type(error).__name__ != "JaxRuntimeError" and "initialize backend" not in str(error):
            raise
        _fail(f"{str(error).splitlines()[0]}; what was finished is kept", 1)


def _fail(message: str, status: int) -> None:
    click.echo(f"error: {message}", err=True)
    sys.exit(status)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(__version__, prog_name="fedpbc")
def _cli() -> None:
    """Federated learning over links that fail: simulate FedAvg, FedPBC and what comes between."""


@_cli.command()
@click.argument("experiment", metavar="NAME|FILE")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key; VALUE is TOML.")
@click.option("--seeds", metavar="0,1,2", help="Seeds to run instead of the experiment's.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory [default: runs/NAME].")
@click.option("--resume", is_flag=True, help="Go on in DIR after an interruption.")
@click.option("--devices", type=click.IntRange(min=1), metavar="N", help="Devices per run [default: what pays off].")
@click.option("--import", "imports", multiple=True, metavar="FILE.py", help="Run a file that registers components.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--latex", is_flag=True, help="Print the table as LaTeX.")
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
    loaded = _load(experiment, overrides, seeds, imports)
    out = out or Path("runs") / loaded.name
    if str(out) == ".":
        raise ConfigError("--out: must name a folder of its own, not the current one")
    from fedpbc.simulation import run as run_experiment

    result = run_experiment(loaded, out, resume=resume, devices=devices, progress=not quiet)
    _print_table([result], markdown, latex)
    click.echo(f"{out}: {', '.join(name for name in _RUN_FILES if (out / name).exists())}")
    _report_divergence(result)


_RUN_FILES = ("figure.png", "metrics.csv", "summary.json", "manifest.json", "models", "experiment.toml")


def _load(source: str, overrides: tuple[str, ...], seeds: str | None, imports: tuple[str, ...] = ()) -> Experiment:
    from fedpbc.experiment.load import load_experiment
    from fedpbc.experiment.overrides import parse_override

    changes = dict(parse_override(text) for text in overrides)
    if seeds is not None:
        try:
            changes["seeds"] = [int(part) for part in seeds.split(",")]
        except ValueError:
            raise ConfigError(f"--seeds {seeds}: must be integers with commas between, like 0,1,2") from None
    return load_experiment(source, changes, imports)


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


@_cli.command()
@click.argument("experiment", metavar="NAME|FILE")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", required=True, help=".csv, .npy or .parquet.")
@click.option("--links", "wanted", metavar="LABEL", help="Which link setting, by label or position from 0.")
@click.option("--seed", type=int, metavar="N", help="Instead of the experiment's first seed.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key; VALUE is TOML.")
def links(experiment: str, out: Path, wanted: str | None, seed: int | None, overrides: tuple[str, ...]) -> None:
    """Write who is active when, exactly as a run of that seed sees it, without training."""
    loaded = _load(experiment, overrides, None if seed is None else str(seed))
    from fedpbc.audit.numbers import number
    from fedpbc.runs.draws import choose, write_links

    drawn = write_links(loaded, choose(loaded, wanted), loaded.seeds[0], out)
    text = f"{drawn.rounds} rounds, {drawn.clients} clients, mean participation {number(drawn.participation, 4)}"
    click.echo(f"{out}: {text}" + ("; the uplink only, the downlink is not written" if drawn.downlink else ""))


@_cli.command("list")
def list_() -> None:
    """Problems, links, algorithms and experiments, with their options and defaults."""
    from fedpbc.algorithms import ALGORITHMS
    from fedpbc.algorithms.common.server import SERVERS
    from fedpbc.core.schedules import SCHEDULES
    from fedpbc.experiment.keys import settings, state_loss
    from fedpbc.experiment.load import load_experiment, shipped_experiments
    from fedpbc.links import LINKS
    from fedpbc.links.common.probability import PROBABILITIES
    from fedpbc.links.common.variation import VARIATIONS
    from fedpbc.problems import PROBLEMS

    headings = {
        "Problems ([problem])": PROBLEMS,
        "Links ([[links]]; up and down of two_way)": LINKS,
        "Base probabilities (links: prob)": PROBABILITIES,
        "Variation in time (links: varying)": VARIATIONS,
        "Algorithms ([[algorithms]])": ALGORITHMS,
        "Server optimisers (algorithms: server)": SERVERS,
        "Learning rates (learning_rate)": SCHEDULES,
    }
    for heading, kind in headings.items():
        click.secho(heading, bold=True)
        for name, factory in sorted(kind.registry.items()):
            click.echo(f"  {name}({_options(factory)}): {_summary(factory)}")
    click.secho("Experiments (fedpbc run NAME)", bold=True)
    for name, path in shipped_experiments().items():
        experiment = load_experiment(path)
        what = f"{len(experiment.cells())} runs of {experiment.rounds} rounds"
        click.echo(f"  {name}: {what}: {path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
    click.secho("Keys of an experiment", bold=True)
    click.echo(f"  {_options(settings)}")
    click.echo(f"  [state_loss]: {_options(state_loss)}")


def _options(factory: Any) -> str:
    from fedpbc.core.schema import choices_of, options_of

    shown = []
    for name, option in options_of(factory).items():
        default = "none" if option.default is None else option.default
        choices = [choice for choice in choices_of(option.annotation) if choice != default]
        others = f" or {', '.join(choices)}" if choices else ""
        shown.append(name if default is option.empty else f"{name}={default}{others}")
    return ", ".join(shown)


def _summary(factory: Any) -> str:
    return " ".join((factory.__doc__ or "").strip().split("\n\n")[0].split())


@_cli.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR [DIR ...]", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the figure goes [default: DIR; several: comparison].",
)
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Redraw the figure of one run, or compare several; or draw the one of a Flower strategy's directory."""
    if len(folders) == 1 and (folders[0] / "participation.jsonl").is_file():
        _report_deployment(folders[0], out or folders[0])
        return
    from fedpbc.plots.runs import draw, shown_metrics
    from fedpbc.plots.style import save
    from fedpbc.runs.directory import read_run

    runs = [read_run(folder) for folder in folders]
    if not shown_metrics(runs):
        raise ConfigError("these runs have no metric in common")
    out = out or (folders[0] if len(folders) == 1 else Path("comparison"))
    out.mkdir(parents=True, exist_ok=True)
    stem = "figure" if len(folders) == 1 else "comparison"
    save(draw(runs), out, stem)
    _print_table(runs)
    click.echo(f"{out}: {stem}.png, {stem}.svg")


def _report_deployment(folder: Path, out: Path) -> None:
    from fedpbc.plots.deployment import describe_deployment, draw_deployment, read_deployment
    from fedpbc.plots.style import save

    deployment = read_deployment(folder)
    out.mkdir(parents=True, exist_ok=True)
    save(draw_deployment(deployment), out, "figure")
    lines = describe_deployment(deployment)
    width = max(len(what) for what, _ in lines)
    for what, much in lines:
        click.echo(f"{what:{width}}  {much}")
    click.echo(f"{out}: figure.png, figure.svg")


@_cli.command()
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
    _console().print(page_of(findings))
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
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"reading {log.name}".replace("[", r"\["), total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update


def _print_table(runs: Sequence[Run], as_markdown: bool = False, as_latex: bool = False) -> None:
    """The final values; on a narrow terminal without the columns that have no room, which metrics.csv has."""
    from fedpbc.plots.tables import final_table, latex, markdown

    if as_markdown or as_latex:
        click.echo(latex(runs) if as_latex else markdown(runs), nl=False)
        return
    console = _console()
    console.print(final_table(runs, console.width))


def _console() -> Console:
    """Standard output; where it is no terminal, wide enough that no table is folded."""
    return Console() if sys.stdout.isatty() else Console(width=200)


if __name__ == "__main__":
    main()
