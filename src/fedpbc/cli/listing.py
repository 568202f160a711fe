"""fedpbc list: every component and experiment."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fedpbc.core.schema import Kind


@click.command("list")
@click.option("--import", "imports", multiple=True, metavar="FILE.py", help="Run a file that registers components.")
def list_(imports: tuple[str, ...]) -> None:
    """Show all problems, data, models, links, algorithms and experiments, with their options and defaults."""
    from fedpbc.core.outside import import_file
    from fedpbc.core.registry import load_installed
    from fedpbc.experiment.keys import figure, settings, state_loss
    from fedpbc.experiment.load import load_experiment, shipped_experiments

    load_installed()
    for file in imports:
        import_file(Path(file), "--import")
    for heading, kind in _kinds().items():
        click.secho(heading, bold=True)
        for name, factory in sorted(kind.registry.items()):
            source = f" (from {factory.source})" if factory.source is not None else ""
            _item(f"{name}({_options(factory)}): {_summary(factory)}{source}")
    click.secho("Experiments (fedpbc run NAME)", bold=True)
    for name, path in shipped_experiments().items():
        experiment = load_experiment(path)
        what = f"{len(experiment.cells())} runs of {experiment.rounds} rounds"
        _item(f"{name}: {what}: {path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
    click.secho("Keys of an experiment", bold=True)
    _item(_options(settings))
    _item(f"[figure]: {_options(figure)}")
    _item(f"[state_loss]: {_options(state_loss)}")


def _kinds() -> dict[str, Kind]:
    """Heading -> registry."""
    from fedpbc.algorithms import ALGORITHMS
    from fedpbc.algorithms.common.server import SERVERS
    from fedpbc.core.schedules import SCHEDULES
    from fedpbc.data import DATA
    from fedpbc.data.partition import PARTITIONS
    from fedpbc.links import LINKS
    from fedpbc.links.common.probability import PROBABILITIES
    from fedpbc.links.common.variation import VARIATIONS
    from fedpbc.models import MODELS
    from fedpbc.problems import PROBLEMS

    return {
        "Problems ([problem])": PROBLEMS,
        "Data (problem: data)": DATA,
        "Partitions (data: partition)": PARTITIONS,
        "Models (problem: model)": MODELS,
        "Links ([[links]]; up and down of two_way)": LINKS,
        "Base probabilities (links: prob)": PROBABILITIES,
        "Variation in time (links: varying)": VARIATIONS,
        "Algorithms ([[algorithms]])": ALGORITHMS,
        "Server optimisers (algorithms: server)": SERVERS,
        "Learning rates (learning_rate)": SCHEDULES,
    }


def _item(text: str) -> None:
    """One entry: folded at words on a terminal, one line elsewhere, where other programs read."""
    if not sys.stdout.isatty():
        click.echo(f"  {text}")
        return
    columns = max(20, shutil.get_terminal_size().columns)
    click.echo(
        textwrap.fill(
            text, columns, initial_indent="  ", subsequent_indent="      ", break_long_words=False,
            break_on_hyphens=False,
        )
    )  # fmt: skip


def _options(factory: Any) -> str:
    from fedpbc.core.schema import choices_of, options_of

    shown = []
    for name, option in options_of(factory).items():
        default = "none" if option.default is None else option.default
        choices = [choice for choice in choices_of(option.annotation) if choice != default]
        if default is option.empty:
            shown.append(f"{name} ({' or '.join(choices)})" if choices else name)
        else:
            shown.append(f"{name}=" + " or ".join([f"{default} (default)" if choices else str(default), *choices]))
    return ", ".join(shown)


def _summary(factory: Any) -> str:
    return " ".join((factory.__doc__ or "").strip().split("\n\n")[0].split())
