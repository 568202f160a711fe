"""fedpbc report: figures and tables of finished runs and of deployments."""

from __future__ import annotations

from pathlib import Path

import click

from fedpbc.cli.common import print_table, refuse_both
from fedpbc.errors import ConfigError


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
def report(folders: tuple[Path, ...], out: Path | None, metrics: str | None, markdown: bool, latex: bool) -> None:
    """Draw the figure of one run again, compare several runs, or draw the directory of a Flower strategy."""
    refuse_both(markdown, latex)
    if len(folders) == 1 and (folders[0] / "participation.jsonl").is_file():
        _report_deployment(folders[0], out or folders[0])
        return
    from fedpbc.plots.choice import shown_metrics
    from fedpbc.plots.runs import draw
    from fedpbc.plots.style import save
    from fedpbc.runs.directory import read_run

    runs = [read_run(folder) for folder in folders]
    wanted = [name.strip() for name in metrics.split(",")] if metrics is not None else None
    if not shown_metrics(runs, wanted):
        raise ConfigError("these runs have no metric in common")
    out = out or (folders[0] if len(folders) == 1 else Path("comparison"))
    out.mkdir(parents=True, exist_ok=True)
    stem = "figure" if len(folders) == 1 else "comparison"
    save(draw(runs, wanted), out, stem)
    print_table(runs, markdown, latex, wanted)
    click.echo(f"{out}: {stem}.png, {stem}.svg", err=markdown or latex)


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
