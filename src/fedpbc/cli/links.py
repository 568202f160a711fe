"""fedpbc links: write to a file which clients are active in which round."""

from __future__ import annotations

from pathlib import Path

import click

from fedpbc.cli.common import load


@click.command()
@click.argument("experiment", metavar="NAME|FILE")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", required=True, help=".csv, .npy or .parquet.")
@click.option("--links", "wanted", metavar="LABEL", help="Which link setting, by label or position from 0.")
@click.option("--seed", type=int, metavar="N", help="Instead of the experiment's first seed.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key; VALUE is TOML.")
def links(experiment: str, out: Path, wanted: str | None, seed: int | None, overrides: tuple[str, ...]) -> None:
    """Write who is active when, exactly as a run of that seed sees it, without training."""
    loaded = load(experiment, overrides, None if seed is None else str(seed))
    from fedpbc.audit.numbers import number
    from fedpbc.runs.draws import choose, write_links

    drawn = write_links(loaded, choose(loaded, wanted), loaded.seeds[0], out)
    text = f"{drawn.rounds} rounds, {drawn.clients} clients, mean participation {number(drawn.participation, 4)}"
    click.echo(f"{out}: {text}" + ("; the uplink only, the downlink is not written" if drawn.downlink else ""))
