"""Merge the parts of a grid, computed on several machines, into one run."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpbc.errors import ConfigError, shorten
from fedpbc.experiment.grid import CellKey
from fedpbc.experiment.part import Part
from fedpbc.io.lock import Lock
from fedpbc.io.whole import replacing, write_text
from fedpbc.runs.directory import draw_figure, part_of, read_run
from fedpbc.runs.inputs import content_as_written, difference
from fedpbc.runs.metrics import write_metrics
from fedpbc.runs.partition import FILE, draw_partition
from fedpbc.runs.run import CellResult, Models, Run, final_values, summarise

BITS_DEPEND_ON = ("fedpbc", "commit", "jax", "numpy", "device")
"""Keys of manifest.json: parts that differ in one may differ in the last bits from a run on one machine."""


@dataclass(frozen=True)
class _Piece:
    """The run directory of one part."""

    path: Path
    part: Part
    run: Run
    content: dict[str, Any]
    """The experiment, with hashes instead of the names of files."""


def merge(parts: Sequence[str | Path], *, out: str | Path) -> Run:
    """Merge the run directories of all parts of a grid into ``out``, as if one run had computed everything.

    ``parts``: directories that ``fedpbc run --cells I/N`` or ``fedpbc.run(..., cells="I/N")`` wrote, in any order; they
    stay as they are. metrics.csv, summary.json and models/ have the bytes of one whole run. ``out`` is there when all
    of it is, or not at all. Raises ConfigError: parts of other experiments or splits, unfinished, missing or given
    twice.
    """
    if isinstance(parts, str | Path) or not parts:
        raise ConfigError(f"parts = {shorten(parts)}: must be a list of run directories")
    out = Path(out)
    _refuse_taken(out)
    pieces = _complete([Path(path) for path in parts])
    results = _results(pieces)
    _warn_of_versions(pieces)
    return _write(pieces, results, out)


def _refuse_taken(out: Path) -> None:
    try:
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out}: is a file, the output needs a folder")
        if out.is_dir() and any(out.iterdir()):
            raise ConfigError(f"{out}: is not empty; choose another --out")
    except OSError as error:
        raise ConfigError(f"{shorten(str(out))}: cannot be used: {error.strerror}") from None
    if out.name in ("", ".."):
        raise ConfigError(f"{shorten(str(out))}: must name a folder of its own, not the current one or one above")


def _complete(paths: list[Path]) -> list[_Piece]:
    """All parts, in order. Raises ConfigError."""
    found: dict[Part, Path] = {}
    for path in paths:
        part = _part(path)
        first = next(iter(found), part)
        if part.count != first.count:
            raise ConfigError(f"{path}: is part {part}, but {found[first]} is part {first}: not of one split")
        if part in found:
            raise ConfigError(f"part {part} is there twice: {found[part]} and {path}")
        found[part] = path
    count = next(iter(found)).count
    missing = [str(part) for part in (Part(i, count) for i in range(1, count + 1)) if part not in found]
    if missing:
        which = f"part {missing[0]} is" if len(missing) == 1 else f"parts {', '.join(missing[:20])} are"
        more = f" and {len(missing) - 20} more" if len(missing) > 20 else ""
        raise ConfigError(f"{which} missing{more}; compute with fedpbc run ... --cells {missing[0]}")
    pieces = [_read(found[part], part) for part in sorted(found)]
    for piece in pieces[1:]:
        changed = difference(pieces[0].content, piece.content)
        if changed:
            raise ConfigError(
                f"{piece.path}: is part of another experiment than {pieces[0].path}: {'; '.join(changed[:5])}"
            )
    return pieces


def _part(path: Path) -> Part:
    """Which part a finished run directory holds. Raises ConfigError."""
    if not path.is_dir():
        raise ConfigError(f"{path}: no such run directory")
    part = part_of(path)
    if part is None:
        raise ConfigError(f"{path}: is not part of a grid; parts are computed with fedpbc run ... --cells I/N")
    if not (path / "manifest.json").is_file():
        raise ConfigError(f"{path}: part {part} is not finished; go on with --cells {part} --resume")
    return part


def _read(path: Path, part: Part) -> _Piece:
    run = read_run(path)
    if run.manifest.get("part") != str(part):
        raise ConfigError(f"{path}: is damaged: its manifest is not that of part {part}")
    stored = tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8"))
    code = {key: str(text).rpartition("#")[2] for key, text in run.manifest.get("outside_code", {}).items()}
    return _Piece(path, part, run, {**content_as_written(stored, path), "code": code})


def _results(pieces: list[_Piece]) -> dict[CellKey, CellResult]:
    """Every cell of the grid, in the order of metrics.csv."""
    table = pieces[0].run.table
    keys = [
        CellKey(links["label"], algorithm["label"], compute, seed)
        for links in table["links"]
        for algorithm in table["algorithms"]
        for compute in table["compute"]
        for seed in table["seeds"]
    ]
    found: dict[CellKey, CellResult] = {}
    for piece in pieces:
        own = [keys[i] for i in piece.part.positions([key.seed for key in keys])]
        if list(piece.run.cells) != own:
            raise ConfigError(f"{piece.path}: is damaged: its runs are not those of part {piece.part}")
        found |= piece.run.cells
    return {key: found[key] for key in keys}


def _warn_of_versions(pieces: list[_Piece]) -> None:
    for name in BITS_DEPEND_ON:
        values = Counter(str(piece.run.manifest.get(name)) for piece in pieces)
        if len(values) > 1:
            text = f"the parts were computed with different {name} ({', '.join(sorted(values))}): they may differ in "
            warnings.warn(text + "the last bits from one run of the whole grid", stacklevel=3)


def _write(pieces: list[_Piece], results: Mapping[CellKey, CellResult], out: Path) -> Run:
    """Everything beside ``out``, which is then there at once."""
    beside = out.with_name(f".{out.name}.merging")
    try:
        beside.mkdir(parents=True, exist_ok=True)
        lock = Lock(beside / ".lock", f"{out}: another merge is writing there")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from None
    try:
        for left in beside.iterdir():  # by a merge that was killed
            if left.name != ".lock":
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        run = _fill(pieces, results, beside)
        run.path = out
        draw_figure(run, beside, out)
        draw_partition(beside, out)
        os.replace(beside, out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    finally:
        lock.release()
    return read_run(out)


def _fill(pieces: list[_Piece], results: Mapping[CellKey, CellResult], folder: Path) -> Run:
    """The files of a run but the figure; manifest.json comes last."""
    first = pieces[0]
    if (first.path / "inputs").is_dir():
        (folder / "inputs").mkdir()
        for file in sorted((first.path / "inputs").iterdir()):
            _copy(file, folder / "inputs" / file.name)
    _copy(first.path / "experiment.toml", folder / "experiment.toml")
    if (first.path / FILE).is_file():
        _copy(first.path / FILE, folder / FILE)
    (folder / "models").mkdir()
    infos: list[dict[str, Any]] = []
    for key, result in results.items():
        assert isinstance(result.models, Models)
        name = f"models/{result.models.path.name}"
        _copy(result.models.path, folder / name)
        infos.append({**key._asdict(), "models": name, **result.info})
    with replacing(folder / "metrics.csv") as temporary:
        write_metrics(temporary, results.items())
    finals = [final_values(key, result) for key, result in results.items()]
    summary = summarise(first.run.name, finals, first.run.measures)
    write_text(folder / "summary.json", json.dumps(summary, indent=1))
    manifest = {k: v for k, v in first.run.manifest.items() if k not in ("part", "cells")}
    apart = ("cells", "model", "outside_code")
    merged = [{k: v for k, v in piece.run.manifest.items() if k not in apart} for piece in pieces]
    whole = {**manifest, "merged_from": merged, "cells": infos}
    write_text(folder / "manifest.json", json.dumps(whole, indent=1))
    return Run(first.run.table, dict(results), first.run.measures, whole, folder)


def _copy(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
