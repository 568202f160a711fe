"""Spot availability: ``{"metadata": {"gap_seconds": 195}, "data": [0, 1, ...]}``, a file for each machine (or zone).

In the traces published with "Can't Be Late" (Wu et al., NSDI 2024) 1 is *preempted*; other files call 1 available. So
files of 0 and 1 need ``active_column``: ``data=0`` or ``data=1``. Counts 0..n are of n machines, and 0 is none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpbc.errors import shorten
from fedpbc.io.participation.jsonarray import document
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.reading import BadLog, BadReading, Format, Progress, Reading
from fedpbc.io.participation.source import Source

SHAPE = '{"metadata": {"gap_seconds": 195}, "data": [0, 1, ...]}'


class Machine(NamedTuple):
    """One file."""

    name: str
    gap: float
    counts: np.ndarray


def read_spot(source: Source, reading: Reading, progress: Progress | None = None) -> ParticipationLog:
    """A client is a file of the folder, a round a sample; with ``round_seconds`` every so many samples are one.

    A single file of counts says how many machines are up and not which: counts only.
    """
    paths = sorted(source.path.glob("*.json*")) if source.path.is_dir() else [source.path]
    files = [source] if source.path.is_file() else [Source(path) for path in paths]
    if not files:
        raise BadLog(source, f"holds no .json file; each must be like {SHAPE}")
    machines = []
    for place, file in enumerate(files):
        machines.append(_machine(file))
        if progress:
            progress(place + 1, len(files))
    gaps = sorted({machine.gap for machine in machines})
    if len(gaps) > 1:
        raise BadLog(
            source, f"gap_seconds must be the same in all files, is {gaps[0]:g} in one and {gaps[-1]:g} in another"
        )
    length = min(len(machine.counts) for machine in machines)
    notes = [f"a sample of {gaps[0]:g} s is a round"]
    if longer := sum(len(machine.counts) > length for machine in machines):
        notes.append(f"the shortest file has {length:,} samples: {longer:,} of {len(machines):,} files are cut to that")
    step = _step(reading, gaps[0])
    if step > 1:
        notes[0] = f"every {step:,}th sample of {gaps[0]:g} s is a round"
    counts = np.column_stack([machine.counts[:length:step] for machine in machines])
    names = [machine.name for machine in machines]
    if len(machines) == 1:
        return _one(source, counts[:, 0], notes)
    active = _active(source, counts, reading, notes)
    t, i = np.nonzero(active)
    return ParticipationLog(
        names, len(active), 0, t.astype(np.int32), i.astype(np.int32), source=source.name, format="spot",
        notes=tuple(notes),
    )  # fmt: skip


def _machine(file: Source) -> Machine:
    entry = document(file)
    gap, data = _gap(entry), entry.get("data") if isinstance(entry, dict) else None
    if gap is None or not isinstance(data, list) or not data:
        raise BadLog(file, f"must be like {SHAPE}, with a gap above 0 and samples")
    for place, value in enumerate(data):
        if type(value) not in (int, bool, float) or not 0 <= value < 1e9 or value != int(value):
            raise BadLog(file, f"data[{place}] must be 0, 1 or a count, is {shorten(value)}")
    return Machine(Path(file.path.name.removesuffix(".gz")).stem, gap, np.array(data, np.int64))


def _gap(entry: Any) -> float | None:
    metadata = entry.get("metadata") if isinstance(entry, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    return float(gap) if isinstance(gap, int | float) and 0 < gap < 1e9 else None


def _step(reading: Reading, gap: float) -> int:
    if reading.round_seconds is None:
        return 1
    step = round(reading.round_seconds / gap)
    if step < 1 or abs(reading.round_seconds - step * gap) > 1e-6 * gap:
        problem = f"must be a multiple of gap_seconds, {gap:g}"
        raise BadReading(reading, "round_seconds", f"{reading.round_seconds:g}", problem)
    return step


def _one(source: Source, counts: np.ndarray, notes: list[str]) -> ParticipationLog:
    most = int(counts.max())
    if most < 2:
        raise BadLog(source, "holds a single machine; an audit compares at least two: give the folder of all files")
    if not counts.any():
        raise BadLog(source, "no machine is up at any time")
    notes.append("the log holds counts only: which machines are up is not known, so weights cannot be had from it")
    empty = np.empty(0, np.int32)
    return ParticipationLog(
        [], len(counts), 0, empty, empty, counts_only=counts, counts_clients=most, source=source.name, format="spot",
        notes=tuple(notes),
    )  # fmt: skip


def _active(source: Source, counts: np.ndarray, reading: Reading, notes: list[str]) -> np.ndarray:
    """bool[T, m], as ``active_column`` says: ``data=0``, ``data=1`` or ``data>=4``."""
    most, text = int(counts.max()), reading.active_column
    if text is None and most <= 1:
        zero, one = (reading.spell("active_column", f"data={value}") for value in (0, 1))
        raise BadLog(
            source,
            f"data holds 0 and 1, and files differ in what that means: {one} if 1 is available, {zero} if 1 is "
            "preempted (the traces of Can't Be Late)",
        )
    match = re.fullmatch(r"data *(=|>=) *(\d+)", text or "data>=1")
    if match is None:
        raise BadReading(reading, "active_column", str(text), "must be like data=0, data=1 or data>=4 with these files")
    sign, value = match[1], int(match[2])
    if most > 1:
        notes.append(f"data holds counts of up to {most:,} machines: a client is active where it is {sign} {value}")
    else:
        notes.append(f"a client is active where data is {value}")
    return counts >= value if sign == ">=" else counts == value


def _is_spot(source: Source) -> bool:
    if source.path.is_dir():
        return True
    text = source.text.lstrip()
    return text.startswith("{") and '"gap_seconds"' in text


FORMAT = Format(
    "spot", "spot availability, a JSON file for each machine", read_spot, _is_spot, (),
    ("active_column", "round_seconds"), folder=True,
)  # fmt: skip
