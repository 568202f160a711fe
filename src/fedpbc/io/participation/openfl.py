"""The log of an OpenFL aggregator: which collaborator's results came in which round."""

from __future__ import annotations

import re

from fedpbc.io.participation.reading import Format, Progress, Reading, Table
from fedpbc.io.participation.serverlog import Results, numbered_lines, says
from fedpbc.io.participation.source import Source

_ROUND = re.compile(r"Starting round (\d{1,9})\b")
_RESULT = re.compile(r"Collaborator (\S+) is sending task results for ([^,\s]+), round (\d{1,9})")
_LATE = re.compile(r"STRAGGLER: Collaborator (\S+) is reporting results after task (\S+)")
_CLIENT = re.compile(r"Sending tasks to collaborator (\S+) for round (\d{1,9})")


def read_openfl(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Stragglers do not count; collaborators that were given tasks and sent no result are there and never active."""
    results, latest = Results(), 0
    for _, text in numbered_lines(source, progress):
        if match := _RESULT.search(text):
            latest = int(match[3])
            results.add(match[2], latest, match[1])
            results.begin(latest)
        elif match := _LATE.search(text):
            results.drop(match[2], latest, match[1])
        elif match := _CLIENT.search(text):
            results.names.encode([match[1]])
            results.begin(int(match[2]))
        elif match := _ROUND.search(text):
            results.begin(int(match[1]))
        else:
            results.other += 1
    return results.table(source, reading)


FORMAT = Format(
    "openfl", "the log of an OpenFL aggregator", read_openfl, says(_RESULT), (), ("active_column", "missing_rounds")
)
