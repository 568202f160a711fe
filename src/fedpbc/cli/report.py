"""fedpbc report: figures and tables of finished runs and of deployments."""

from __future__ import annotations

from pathlib import Path

import click

from fedpbc.cli.common import FiniteRange, print_table, refuse_both
from fedpbc.errors import ConfigError

SECONDS = FiniteRange(min=0, min_open=True)


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR [DIR ...]", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the figure goes [default: DIR; several: comparison].",
)
@click.option("--metrics", metavar="A,B", help="Metrics to show, without server_ or mean_ before them.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--latex", is_flag=True, help="Print the table as LaTeX (booktabs).")
@click.option("--compare", is_flag=True, help="Confidence intervals; the best and those tied with it are marked.")
@click.option("--target", "targets", multiple=True, metavar="METRIC=X", help="What it took to reach it; as --compare.")
@click.option("--deadline", type=SECONDS, metavar="S", help="For seconds to a target: what every round takes.")
@click.option("--step-seconds", type=SECONDS, metavar="S", help="Or: what a local step takes.")
@click.option("--upload-rate", type=SECONDS, metavar="BIT/S", help="And: at what rate a client sends.")
def report(
    folders: tuple[Path, ...],
    out: Path | None,
    metrics: str | None,
    markdown: bool,
    latex: bool,
    compare: bool,
    targets: tuple[str, ...],
    deadline: float | None,
    step_seconds: float | None,
    upload_rate: float | None,
) -> None:
    """Draw the figure of one run again, compare several runs, or show the folder of a tuning or a Flower strategy."""
    refuse_both(markdown, latex)
    timed = {"--deadline": deadline, "--step-seconds": step_seconds, "--upload-rate": upload_rate}
    given = [name for name, value in timed.items() if value is not None]
    if given and not targets:
        raise ConfigError(f"{given[0]}: needs --target, which a time is measured to")
    if deadline is not None and len(given) > 1:
        raise ConfigError(f"--deadline: is all that a round takes; not together with {given[1]}")
    if len(folders) == 1 and (folders[0] / "participation.jsonl").is_file():
        _report_deployment(folders[0], out or folders[0])
        return
    if len(folders) == 1 and (folders[0] / "tuning.json").is_file():
        _report_tuning(folders[0], out or folders[0])
        return
    from fedpbc.io.whole import make_folder
    from fedpbc.plots.choice import shown_metrics
    from fedpbc.plots.runs import draw
    from fedpbc.plots.style import save
    from fedpbc.runs.directory import read_run

    runs = [read_run(folder) for folder in folders]
    wanted = [name.strip() for name in metrics.split(",")] if metrics is not None else None
    if not shown_metrics(runs, wanted):
        raise ConfigError("these runs have no metric in common")
    compared = None
    if compare or targets:
        from fedpbc.compare.targets import Clock, Comparison, Target
        from fedpbc.plots.comparison import Compared

        clock = Clock(deadline, step_seconds or 0.0, upload_rate) if given else None
        compared = Compared(runs, Comparison(tuple(Target.parse(text, runs) for text in targets), clock))
    out = out or (folders[0] if len(folders) == 1 else Path("comparison"))
    make_folder(out)
    stem = "figure" if len(folders) == 1 else "comparison"
    save(draw(runs, wanted), out, stem)
    print_table(runs, markdown, latex, wanted, compared)
    click.echo(f"{out}: {stem}.png, {stem}.svg", err=markdown or latex)


def _report_tuning(folder: Path, out: Path) -> None:
    from fedpbc.io.whole import make_folder
    from fedpbc.plots.sensitivity import draw_sensitivity
    from fedpbc.plots.style import save
    from fedpbc.tuning.page import result_lines
    from fedpbc.tuning.record import read_record, warnings_of

    figure, lines, warnings = read_record(
        folder,
        lambda record: (
            draw_sensitivity(record),
            list(result_lines(record)),
            [line for method in record["methods"] for line in warnings_of(method)],
        ),
    )
    make_folder(out)
    save(figure, out, "sensitivity")
    click.echo("\n".join(lines))
    for line in warnings:
        click.echo(f"warning: {line}", err=True)
    click.echo(f"{out}: sensitivity.png, sensitivity.svg")


def _report_deployment(folder: Path, out: Path) -> None:
    from fedpbc.io.whole import make_folder
    from fedpbc.plots.deployment import describe_deployment, draw_deployment, read_deployment, warnings_of
    from fedpbc.plots.style import save

    deployment = read_deployment(folder)
    make_folder(out)
    save(draw_deployment(deployment), out, "figure")
    lines = describe_deployment(deployment)
    width = max(len(what) for what, _ in lines)
    for what, much in lines:
        click.echo(f"{what:{width}}  {much}")
    for line in warnings_of(deployment):
        click.echo(f"warning: {line}", err=True)
    click.echo(f"{out}: figure.png, figure.svg")
