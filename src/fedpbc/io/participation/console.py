"""The console of a Flower server: counts only."""

from __future__ import annotations

import re

import numpy as np

from fedpbc.io.participation.assemble import meaning_of_missing, refusal
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading, decode
from fedpbc.io.participation.serverlog import says
from fedpbc.io.participation.source import Source

_ROUND = re.compile(r"\[ROUND (\d+)(?:/\d+)?\]", re.IGNORECASE)
_SAMPLED = re.compile(r"configure_(?:fit|train): .*?sampled \d+ \w+ \(out of (\d+)\)", re.IGNORECASE)
_RECEIVED = re.compile(
    r"(?:aggregate_(?:fit|train):|fit_round \d+) received (\d+) results and (\d+) failures", re.IGNORECASE
)
_TOO_LONG = re.compile(r"(?:ROUND |Received |received |out of )\d{10}")


def read_flower(path: Source, reading: Reading, progress: Progress | None = None) -> ParticipationLog:
    """The console log of a Flower server: how many clients answered in each round, and nothing else.

    A round that began without a line of results (every client failed, or none was sampled) counts as empty and is
    noted; one of which nothing stands there is missing.
    """
    results: dict[int, int] = {}
    begun: set[int] = set()
    round_, failures, known, other = None, 0, 0, 0
    with path.open() as file:
        for number, raw in enumerate(file, start=1):
            text = decode(path, raw, number)
            if _TOO_LONG.search(text):
                raise BadLog(path, f"line {number}: holds a number of more than nine digits")
            if match := _ROUND.search(text):
                round_ = int(match[1])
                begun.add(round_)
            elif match := _SAMPLED.search(text):
                known = max(known, int(match[1]))
            elif match := _RECEIVED.search(text):
                key = round_ if round_ is not None else len(results) + 1
                if key in results:
                    raise BadLog(path, f"line {number}: round {key} has results already: one server run a file")
                results[key] = int(match[1])
                failures += int(match[2])
            else:
                other += 1
    return _flower_log(path, reading, results, begun, failures, known, other)


def _flower_log(
    path: Source, reading: Reading, results: dict[int, int], begun: set[int], failures: int, known: int, other: int
) -> ParticipationLog:
    if not results:
        raise BadLog(
            path,
            "holds no line like 'aggregate_train: Received 8 results and 2 failures' (Flower), 'got result from client "
            "site-1 for task: name=train' (NVIDIA FLARE) or 'Collaborator a is sending task results for train, round 0'"
            " (OpenFL); a .log or .txt file must be the console log of one of these servers",
        )
    if not any(results.values()):
        raise BadLog(path, f"no client is active in any of {len(results):,} rounds; at least one must be")
    there = np.array(sorted({*results, *begun}))
    begin, end = int(there[0]), int(there[-1])
    if end - begin >= len(results) + 1_000_000:
        raise BadLog(path, f"rounds go from {begin} to {end}, but only {len(results):,} have results")
    counts = np.zeros(end - begin + 1, np.int64)
    counts[np.array(list(results)) - begin] = list(results.values())
    notes = ["the log holds counts only: who took part is not known, so weights cannot be had from it"]
    if failures:
        notes.append(f"{failures:,} failures are reported; they count as not active")
    if len(there) > len(results):
        notes.append(f"{len(there) - len(results):,} rounds began and have no line of results; they count as empty")
    missing = np.setdiff1d(np.arange(begin, end + 1), there)
    if len(missing) and reading.missing_rounds is None:
        raise BadLog(path, refusal(missing, len(counts), reading))
    if len(missing):
        notes.append(meaning_of_missing(len(missing), str(reading.missing_rounds)))
    hidden = (missing - begin if reading.missing_rounds == "unknown" else missing[:0]).astype(np.int32)
    empty = np.empty(0, np.int32)
    return ParticipationLog(
        [], len(counts), begin, empty, empty, counts_only=counts, counts_clients=known or None,
        skipped={"lines of a console log that are no results": other} if other else {},
        source=path.name, format="flower", notes=tuple(notes), unknown=hidden,
    )  # fmt: skip


FORMAT = Format(
    "flower", "the console of a Flower server", read_flower, says(_RECEIVED), (".log", ".txt"), ("missing_rounds",)
)
