"""Draw A^t of one link setting without training, exactly as a run of that seed sees it, and write it to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from fedpbc.core.contract import check_links
from fedpbc.core.engine import draw_links, has_downlink
from fedpbc.core.schema import Component
from fedpbc.errors import ConfigError, optional, shorten
from fedpbc.experiment.grid import Experiment
from fedpbc.io.whole import replacing

BLOCK_CELLS = 1 << 20
"""Pairs of round and client that are in memory at once."""


@dataclass(frozen=True)
class Drawn:
    """What ``write_links`` wrote."""

    rounds: int
    clients: int
    participation: float
    """The mean of A^t over rounds and clients."""
    downlink: bool
    """The process has a downlink of its own, which is not in the file."""


def choose(experiment: Experiment, wanted: str | None) -> Component:
    """The link setting with this label, or at this position from 0; without either the only one. Raises ConfigError."""
    labels = [link.label for link in experiment.links]
    listing = "; ".join(f"{i}: {label}" for i, label in enumerate(labels))
    if wanted is None:
        if len(labels) > 1:
            raise ConfigError(f"--links: must choose one of {len(labels)} settings by label or position; {listing}")
        return experiment.links[0]
    if wanted in labels:
        return experiment.links[labels.index(wanted)]
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 10 and int(wanted) < len(labels):
        return experiment.links[int(wanted)]
    raise ConfigError(f"--links {shorten(wanted)}: must be a label or a position; {listing}")


def write_links(experiment: Experiment, links: Component, seed: int, out: Path) -> Drawn:
    """Write A^t of one link setting to ``out``, whole or not at all.

    .csv with the columns round,client,active; .npy dense bool (rounds, clients); .parquet with the columns of the
    .csv. ``seed`` should be one of the experiment's. Raises ConfigError.
    """
    if out.suffix not in _WRITERS:
        raise ConfigError(f"--out {out}: must end in one of {', '.join(_WRITERS)}")
    try:
        fits = out.parent.is_dir() and not out.is_dir()
    except OSError as error:
        raise _unwritable(out, error) from None
    if not fits:
        raise ConfigError(f"--out {out}: must be a file in a folder that exists")
    precision, generator = jax.enable_x64(experiment.precision == "float64"), jax.threefry_partitionable(True)
    with precision, generator, np.errstate(all="ignore"):
        problem = experiment.problem.build(experiment.context(seed))
        process = links.build(experiment.context(seed, problem))
        if links.from_outside:
            check_links(links.key, process, problem.num_clients)
        shape = experiment.rounds, problem.num_clients
        total = 0

        def counted() -> Iterator[np.ndarray]:
            nonlocal total
            for block in draw_links(process, seed, *shape, max(1, BLOCK_CELLS // shape[1])):
                total += int(block.sum())
                yield block

        try:
            with replacing(out) as temporary:
                _WRITERS[out.suffix](temporary, shape, counted())
        except OSError as error:
            raise _unwritable(out, error) from None
        return Drawn(*shape, total / (shape[0] * shape[1]), has_downlink(process))


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--out {shorten(str(out))}: cannot be written: {error.strerror}")


def _write_csv(path: Path, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("round,client,active\n")
        for rounds, clients, active in _columns(blocks):
            np.savetxt(file, np.column_stack([rounds, clients, active]), fmt="%d", delimiter=",")


def _write_npy(path: Path, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
    with open(path, "wb") as file:
        header = {"descr": "|b1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).tobytes())


def _write_parquet(path: Path, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
    pa, pq = (optional(module, f"{path.name}: Parquet") for module in ("pyarrow", "pyarrow.parquet"))
    schema = pa.schema([("round", pa.int64()), ("client", pa.int64()), ("active", pa.bool_())])
    with pq.ParquetWriter(path, schema) as writer:
        for rounds, clients, active in _columns(blocks):
            writer.write_table(pa.table([rounds, clients, active], schema=schema))


_WRITERS: dict[str, Callable[[Path, tuple[int, int], Iterable[np.ndarray]], None]] = {
    ".csv": _write_csv,
    ".npy": _write_npy,
    ".parquet": _write_parquet,
}


def _columns(blocks: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(round, client, active) of each block, one row per pair."""
    first = 0
    for block in blocks:
        rounds, clients = np.indices(block.shape)
        yield (rounds + first).ravel(), clients.ravel(), block.ravel()
        first += len(block)
