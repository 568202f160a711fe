"""The log of an NVIDIA FLARE server: which client's result came in which round."""

from __future__ import annotations

import re

from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading, Table
from fedpbc.io.participation.serverlog import Results, numbered_lines, says
from fedpbc.io.participation.source import Source

_ROUND = re.compile(r"\bRound (\d{1,9}) started")
_RESULT = re.compile(r"got result from client (\S+) for task: name=([^,\s]+)")
_FAILED = re.compile(r"\bpeer_rc=(?!OK\b)\w")
_CLIENT = re.compile(r"assigned task to client (\S+?): name=|Client: New client ([^\s@]+)@")


def read_flare(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """Clients that joined, or were given a task, and never sent a result are there and never active.

    A result whose line says ``peer_rc=`` and another code than OK is a failure: none.
    """
    results, round_ = Results(), None
    for number, text in numbered_lines(source, progress):
        if match := _ROUND.search(text):
            round_ = int(match[1])
            if round_ in results.rounds[:-1]:
                raise BadLog(source, f"line {number}: round {round_} began before already: one run a file")
            results.begin(round_)
        elif match := _RESULT.search(text):
            if round_ is None:
                raise BadLog(source, f"line {number}: a result, and no line 'Round N started.' before it")
            if _FAILED.search(text):
                results.names.encode([match[1]])
            else:
                results.add(match[2], round_, match[1])
        elif match := _CLIENT.search(text):
            results.names.encode([match[1] or match[2]])
        else:
            results.other += 1
    return results.table(source, reading)


FORMAT = Format(
    "flare", "the log of an NVIDIA FLARE server", read_flare, says(_RESULT), (), ("active_column", "missing_rounds")
)
