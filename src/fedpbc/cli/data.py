"""fedpbc data: what a file or folder of data holds, and how it would be dealt out."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import click

from fedpbc.cli.common import require_place, width
from fedpbc.errors import ConfigError, shorten, unknown_name


@click.command()
@click.argument("file", metavar="FILE|FOLDER|NAME")
@click.option("--format", "kind", metavar="NAME", help="The loader, where its content does not tell.")
@click.option(
    "--set",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="An option of the loader; VALUE is TOML: --set 'label=\"outcome\"'.",
)
@click.option("--partition", metavar="TOML", help="Deal the samples out: '{name=\"iid\", num_clients=20}'.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the partition.")
@click.option("--out", type=click.Path(path_type=Path), metavar="PICTURE", help="Who has what: .png, .svg or .pdf.")
def data(
    file: str, kind: str | None, options: tuple[str, ...], partition: str | None, seed: int, out: Path | None
) -> None:
    """Show what data there are in a file or folder of any known format, and the line that uses them.

    Data that come with packages go by their names: digits, wine, breast_cancer, diabetes, mnist_5k.
    """
    from fedpbc.data.describe import dealt_facts, facts_of, inline, problem_for, suggestion

    if out is not None and out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {out}: must end in .png, .svg or .pdf")
    if out is not None:
        require_place("--out", out)
    given = _options(options)
    chosen = _partition(partition) if partition is not None else None
    loaded = _loaded(file, kind, given)
    pool, facts = facts_of(loaded)
    _print(facts)
    if out is not None and chosen is None and pool.client is None:
        raise ConfigError(f"--out {out}: needs --partition, as the samples name no client")
    if chosen is not None or (pool.client is not None and out is not None):
        dataset = _dealt(loaded, chosen, seed)
        _print(dealt_facts(dataset), f"Dealt out, seed {seed}" if chosen is not None else "Dealt out")
        if out is not None:
            _draw(dataset, seed, out, "as the data say" if chosen is None else inline(chosen))
    used = chosen or suggestion(pool)
    path = {} if not loaded.options.get("path") else {"path": file}
    table = {"name": loaded.name, **path, **given, **({"partition": used} if used else {})}
    click.echo("\nTo use them, in an experiment file:\n")
    click.echo(f'[problem]\nname = "{problem_for(pool)}"\ndata = {inline(table)}')


def _loaded(file: str, kind: str | None, options: dict[str, Any]) -> Any:
    from fedpbc.data import DATA
    from fedpbc.data.recognise import load

    if kind is None:
        return load(file, **options)
    if kind not in DATA.registry:
        raise unknown_name("loader", kind, DATA.registry)
    return DATA.registry[kind](Path(file), **options)


def _options(given: tuple[str, ...]) -> dict[str, Any]:
    from fedpbc.experiment.overrides import parse_override

    return {key: str(value) if isinstance(value, str) else value for key, value in map(parse_override, given)}


def _partition(text: str) -> dict[str, Any]:
    import tomllib

    from fedpbc.core.schema import bind_component
    from fedpbc.data import PARTITIONS

    try:
        found = tomllib.loads(f"partition = {text}")["partition"]
    except tomllib.TOMLDecodeError as error:
        point = "; numbers have a digit before the point, 0.1" if re.search(r"=\s*-?\.\d", text) else ""
        if text.lstrip().startswith("{"):
            raise ConfigError(f"--partition {shorten(text)}: is not TOML: {error}{point}") from None
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f'--partition {shorten(text)}: must be a table, like {{name="iid", num_clients=20}}')
    bind_component(PARTITIONS, found, "--partition", Path.cwd())
    return found


def _dealt(loaded: Any, partition: dict[str, Any] | None, seed: int) -> Any:
    import dataclasses

    import numpy as np

    from fedpbc.core.schema import Context, bind_component
    from fedpbc.data import PARTITIONS

    if partition is not None:
        how = bind_component(PARTITIONS, partition, "partition", Path.cwd())
        loaded = dataclasses.replace(loaded, options={**loaded.options, "partition": how})
    return loaded.build(Context(seed, np.dtype(np.float32), 1, (seed,)))


def _draw(dataset: Any, seed: int, out: Path, how: str) -> None:
    from fedpbc.errors import optional
    from fedpbc.runs.partition import held_in, save_picture

    optional("matplotlib", "a picture")
    save_picture(held_in(dataset, seed), out, f"Training samples, {how}")
    click.echo(f"\n{out}: who has what")


def _print(facts: dict[str, str], heading: str = "") -> None:
    """Two columns, folded at words."""
    if heading:
        click.echo()
        click.secho(heading, bold=True)
    columns = min(width(), 110)
    side = max(map(len, facts)) + 2
    for name, text in facts.items():
        lines = textwrap.wrap(text, columns - side, break_long_words=False, break_on_hyphens=False) or [""]
        click.echo(click.style(name.ljust(side), bold=True) + lines[0])
        for line in lines[1:]:
            click.echo(" " * side + line)
