"""JSON: a line (or an entry of one array) for every round, or one for every client of a round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from typing import Any

import numpy as np

from fedpbc.errors import shorten
from fedpbc.io.participation.columns import OUTCOMES, Columns, by_the_user
from fedpbc.io.participation.reading import BadLog, Format, Names, Progress, Reading, Rows, Table, decode
from fedpbc.io.participation.records import Ids, table_of_records
from fedpbc.io.participation.source import Source

SHAPE = '{"round": 3, "clients": ["a", "b"]}'
EARLY = "clients that were not waited for count as absent there, so that rates say who is fast"
"""Of rounds that our server marks as closed early (``min_replies``)."""
DRAWN = "the others count as absent there, so that rates say who was asked and heard"
"""Of rounds in which it asked a share of the clients (``fraction_train``)."""
Entries = Iterator[tuple[str, dict[str, Any]]]
"""Entries, each with its place in words."""


def read_jsonl(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """One line a round, {"round": 3, "clients": ["a", "b"]} ("active" may stand for "clients"), rounds in any order; or
    one line a client, {"round": 3, "client": "a", "status": "ok"}, whose other keys are as the columns of a CSV file.
    """  # fmt: skip
    blank: list[int] = []
    table = table_of_entries(source, reading, _lines(source, blank, progress), "line")
    table.blank_lines = blank
    return table


def table_of_entries(source: Source, reading: Reading, entries: Entries, one: str) -> Table:
    """Rounds or events, as the first entry says; ``one``: what an entry is called."""
    try:
        place, first = next(entries)
    except StopIteration:
        raise BadLog(source, "holds no rows") from None
    entries = chain([(place, first)], entries)
    names = _list_key(source, first, reading)
    if names is None:
        an = "an" if one == "entry" else "a"
        what = f"is a log of events, with {an} {one} for every client and not for every round; "
        table = table_of_records(source, list(first), entries, reading, what)
        table.first_line = 1 if one == "line" else None
        table.notes.append(f"{an} {one} is a client of a round")
        return table
    if reading.active_column not in (None, "none"):
        raise BadLog(
            source,
            f"{place}: {reading.spell('active_column')} needs a line for every client; here a line is a round "
            "with its clients",
        )
    if reading.group:
        raise BadLog(source, f"{place}: {reading.spell('group')} needs a line for every client")
    columns = Columns(source, [], replace(reading, columns=None))
    columns.lines_are_rounds = True
    table = Table(iter(()), Names(), reading, columns)
    table.pieces = _rounds(source, table, entries, names)
    return table


def _list_key(source: Source, first: dict[str, Any], reading: Reading) -> tuple[str, str | None] | None:
    """(key of the round, key of its clients, None: clients or active), where an entry is a round; else None."""
    roles = by_the_user(source, list(first), reading)
    clients = first.get(roles["client"]) if "client" in roles else first.get("clients", first.get("active"))
    if roles:
        return (roles.get("round", "round"), roles.get("client")) if isinstance(clients, list) else None
    return ("round", None) if isinstance(first.get("client", []), list) else None


def _lines(source: Source, blank: list[int], progress: Progress | None) -> Entries:
    """(place, entry) of every line that is not blank."""
    total = source.size
    with source.open() as file:
        for number, raw in enumerate(file, start=1):
            text = decode(source, raw, number).lstrip("\ufeff")
            if not text.strip():
                blank.append(number)
                continue
            if progress and number % 1024 == 0:
                progress(source.position(file), total)
            yield f"line {number}", _entry(source, number, text)


def _entry(source: Source, number: int, text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = getattr(error, "msg", type(error).__name__)
        hint = "" if text.endswith("\n") else "; is the file truncated?"
        raise BadLog(source, f"line {number}: is not JSON ({problem}), must be like {SHAPE}{hint}") from None
    if not isinstance(entry, dict):
        raise BadLog(source, f"line {number}: must be like {SHAPE}, is {shorten(text.strip())}")
    return entry


def _rounds(source: Source, table: Table, entries: Entries, keys: tuple[str, str | None]) -> Iterator[Rows]:
    seen: dict[int, str] = {}
    listed: list[int] = []
    table.listed_rounds = listed
    ids = Ids(source)
    early = drawn = 0
    for place, entry in entries:
        early, drawn = early + _taken(entry, "closed", "early"), drawn + _taken(entry, "chosen", None)
        round_, key = _round_of(source, place, entry, keys, table.reading)
        if round_ in seen and not table.reading.drop_duplicates:
            raise BadLog(source, f"{place}: round {round_} stands in {seen[round_]} already")
        seen.setdefault(round_, place)
        listed.append(round_)
        names = ids.check(place, entry[key])
        if not table.reading.drop_duplicates and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadLog(source, f"{place}: client {shorten(twice)} stands there twice")
        _watch_keys(table.columns, entry, {keys[0], key})
        codes = table.names.encode(names)
        yield Rows(np.full(len(codes), round_, np.int64), codes, np.ones(len(codes), bool))
    if early:
        table.notes.append(f"{early:,} of {len(seen):,} rounds closed early: {EARLY}")
    if drawn:
        table.notes.append(f"in {drawn:,} of {len(seen):,} rounds only some clients were asked: {DRAWN}")


def _taken(entry: dict[str, Any], key: str, value: str | None) -> bool:
    """Whether our own server left this mark in a line, which is then taken out; None: a number."""
    found = entry.get(key)
    if found == value if value is not None else type(found) is int:
        del entry[key]
        return True
    return False


def _watch_keys(columns: Columns, entry: dict[str, Any], used: set[str]) -> None:
    """Other keys of a round: lists, and those named like an outcome, may be about single clients."""
    for key in entry:
        if key not in used:
            columns.add_unused(key)
            if not isinstance(entry[key], list | dict) and not OUTCOMES.search(key.lower()):
                columns.harmless.add(key)


def _called(missing: str, entry: dict[str, Any], reading: Reading) -> str:
    """Which key is meant, and how to say so."""
    role = "client" if missing == "clients" else "round"
    lists = [name for name in entry if role == "client" and isinstance(entry[name], list)]
    likely = [*lists, *get_close_matches(role, entry, n=1), "NAME"][0]
    return f"; {reading.spell('columns', f'{role}={likely}')} says what it is called"


def _round_of(
    source: Source, place: str, entry: dict[str, Any], keys: tuple[str, str | None], reading: Reading
) -> tuple[int, str]:
    """(the round, the key of its clients)."""
    round_key, key = keys
    key = key or ("clients" if "clients" in entry else "active")
    if round_key not in entry or key not in entry:
        missing = (keys[1] or "clients") if round_key in entry else round_key
        event = not isinstance(entry.get("client", []), list)
        hint = "" if event else _called(missing, entry, reading)
        one = "; the lines before are of rounds, this one is of a client" if event else ""
        raise BadLog(source, f"{place}: key {missing} is missing{hint}: must be like {SHAPE}{one}")
    round_, members = entry[round_key], entry[key]
    if not isinstance(members, list):
        raise BadLog(source, f"{place}: clients must be a list of client ids, is {shorten(members)}")
    if isinstance(round_, bool) or not isinstance(round_, int) or not 0 <= round_ < 4 * 10**18:
        raise BadLog(source, f"{place}: round must be an integer >= 0, is {shorten(round_)}")
    return round_, key


FORMAT = Format(
    "jsonl", "JSON lines", read_jsonl,
    lambda source: source.text.lstrip().startswith("{") and '"' in source.lines(1)[0] and _is_whole(source.lines(1)[0]),
    (".jsonl", ".ndjson"),
)  # fmt: skip


def _is_whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
