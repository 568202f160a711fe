"""The table of formats, and the reading of a file of any of them: which it is, its content says."""

from __future__ import annotations

from pathlib import Path

from fedpbc.errors import suggest
from fedpbc.io.participation import (
    avt,
    console,
    csvfile,
    feather,
    fedscale,
    flare,
    flash,
    fta,
    jsonarray,
    jsonlines,
    npy,
    openfl,
    parquet,
    spot,
    sqlite,
    xlsx,
)
from fedpbc.io.participation.assemble import assemble
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading
from fedpbc.io.participation.source import DAMAGED, Source

FORMATS: tuple[Format, ...] = (
    npy.FORMAT,
    parquet.FORMAT,
    feather.FORMAT,
    sqlite.FORMAT,
    xlsx.FORMAT,
    spot.FORMAT,
    flash.FORMAT,
    fedscale.FORMAT,
    jsonlines.FORMAT,
    jsonarray.FORMAT,
    fta.FORMAT,
    avt.EVENTS,
    avt.FORMAT,
    csvfile.FORMAT,
    console.FORMAT,
    flare.FORMAT,
    openfl.FORMAT,
)
"""In the order in which they are asked whether a file is theirs."""


def read_participation(
    path: Path, reading: Reading | None = None, progress: Progress | None = None
) -> ParticipationLog:
    """Who took part when, from a file, a folder, or standard input (``-``), in any of FORMATS, gzip or not.

    Raises BadLog, naming the line and what is allowed, and BadReading for an option that is not.
    """
    reading = reading or Reading()
    reading.check()
    if str(path) != "-" and not path.exists():
        raise BadLog(path, "no such file")
    source = Source(path)
    try:
        format = format_of(source)
        for option in reading.given():
            if option not in format.options:
                raise BadLog(source, f"{reading.spell(option)} cannot be used: it is {format.what}")
        found = format.read(source, reading, progress)
        return found if isinstance(found, ParticipationLog) else assemble(source, format.name, found)
    except DAMAGED as error:
        raise BadLog(source, f"is gzip that is cut off or damaged ({str(error) or type(error).__name__})") from None
    finally:
        source.close()


def format_of(source: Source) -> Format:
    """The format that the content is in; where none says so, the one of that ending. Raises BadLog."""
    if source.path.is_dir():
        return next(format for format in FORMATS if format.folder)
    if not source.head:
        raise BadLog(source, "the file is empty")
    found = next((format for format in FORMATS if format.recognises(source)), None)
    found = found or next((format for format in FORMATS if source.suffix in format.endings), None)
    found = found or (csvfile.FORMAT if csvfile.is_table(source) else None)
    if found is None:
        endings = [ending for format in FORMATS for ending in format.endings]
        names = ", ".join(format.name for format in FORMATS)
        raise BadLog(source, f"is in none of the formats that are read: {names}{suggest(source.suffix, endings)}")
    return found
