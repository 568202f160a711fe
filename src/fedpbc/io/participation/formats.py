"""The table of formats, and the reading of a file of any of them."""

from __future__ import annotations

from pathlib import Path

from fedpbc.errors import suggest
from fedpbc.io.participation import console, csvfile, jsonlines, npy, parquet
from fedpbc.io.participation.assemble import assemble
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading

FORMATS: tuple[Format, ...] = (
    csvfile.FORMAT,
    parquet.FORMAT,
    npy.FORMAT,
    jsonlines.FORMAT,
    console.FORMAT,
)


def read_participation(
    path: Path, reading: Reading | None = None, progress: Progress | None = None
) -> ParticipationLog:
    """Who took part when, from a file; the format follows from the ending (docs/audit.md describes them).

    Raises BadLog, naming the line and what is allowed, and BadReading for an option that is not.
    """
    reading = reading or Reading()
    reading.check()
    if not path.is_file():
        raise BadLog(path, "no such file")
    format = _format_of(path)
    for option in reading.given():
        if option not in format.options:
            raise BadLog(path, f"{reading.spell(option)} cannot be used: it is {format.what}")
    found = format.read(path, reading, progress)
    return found if isinstance(found, ParticipationLog) else assemble(path, format.name, found)


def _format_of(path: Path) -> Format:
    ending = path.suffix.lower()
    known = [format for format in FORMATS if ending in format.endings]
    if not known:
        if ending == ".json":
            raise BadLog(path, jsonlines.describe_json(path))
        endings = [ending for format in FORMATS for ending in format.endings]
        raise BadLog(path, f"must end in one of {', '.join(endings)}{suggest(path.suffix, endings)}")
    if path.stat().st_size == 0:
        raise BadLog(path, "the file is empty")
    return next((format for format in known if format.recognises(path)), known[0])
