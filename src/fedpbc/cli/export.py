"""fedpbc export: a trained model as a file of its own."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The .npz to write.")
@click.option("--model", default="server", metavar="NAME", help="server, mean or server_average [default: server].")
@click.option("--links", metavar="LABEL", help="Of the run with these links.")
@click.option("--algorithm", metavar="LABEL", help="Of this method.")
@click.option("--compute", metavar="WHO", help="Of the run where all, or the active, compute.")
@click.option("--seed", type=int, metavar="N", help="Of this seed.")
def export(
    folder: Path,
    out: Path,
    model: str,
    links: str | None,
    algorithm: str | None,
    compute: str | None,
    seed: int | None,
) -> None:
    """Write a model of a finished run as an .npz, an array for each part of it, named by its place in the tree.

    What is chosen must fit one run of the grid. JAX, NumPy and PyTorch read it: docs/howto/export.md.
    """
    from fedpbc.runs.directory import read_run
    from fedpbc.runs.exported import load_model, named

    chosen = {"links": links, "algorithm": algorithm, "compute": compute, "seed": seed}
    run = read_run(folder)
    run.save_model(out, model, **{key: value for key, value in chosen.items() if value is not None})
    loaded = load_model(out)
    arrays = named(loaded, isinstance(loaded, tuple) and run.has_buffers)
    width = max(map(len, arrays))
    for name, array in arrays.items():
        click.echo(f"{name:{width}}  {array.dtype}{list(array.shape)}")
    click.echo(f"{out}: {sum(array.size for array in arrays.values()):,} numbers")
