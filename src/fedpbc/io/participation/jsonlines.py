"""JSON lines: a line for every round, or one for every client of a round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpbc.errors import shorten, suggest
from fedpbc.io.participation.columns import LONGEST_WATCHED, OUTCOMES, Columns
from fedpbc.io.participation.reading import BadLog, Format, Names, Progress, Reading, Rows, Table, decode

SHAPE = '{"round": 3, "clients": ["a", "b"]}'
BLOCK_LINES = 1 << 16
EARLY = "clients that were not waited for count as absent there, so that rates say who is fast"
"""Of rounds that our server marks as closed early (``min_replies``)."""
DRAWN = "the others count as absent there, so that rates say who was asked and heard"
"""Of rounds in which it asked a share of the clients (``fraction_train``)."""
JSON_LOOKED_AT = 1 << 16
"""Characters of a .json file that are looked at to say what it is."""


def read_jsonl(path: Path, reading: Reading, progress: Progress | None = None) -> Table:
    """One line a round, {"round": 3, "clients": ["a", "b"]} ("active" may stand for "clients"), rounds in any order; or
    one line a client, {"round": 3, "client": "a", "status": "ok"}, whose other keys are as the columns of a CSV file.
    """  # fmt: skip
    number, first = _first_entry(path)
    if _is_event(first):
        columns = Columns(path, list(first), reading)
        columns.what = "is a log of events, with a line for every client and not for every round; "
        table = Table(
            iter(()), Names(), reading, columns, lists_inactive=columns.active is not None, first_line=1,
            notes=["a line is a client of a round"],
        )  # fmt: skip
        table.pieces = _events(path, table, progress)
        return table
    if reading.active_column not in (None, "none"):
        raise BadLog(
            path,
            f"line {number}: {reading.spell('active_column')} needs a line for every client; here a line is a round "
            "with its clients",
        )
    columns = Columns(path, [], reading)
    columns.lines_are_rounds = True
    table = Table(iter(()), Names(), reading, columns)
    table.pieces = _rounds(path, table, progress)
    return table


def _is_event(entry: dict[str, Any]) -> bool:
    return not isinstance(entry.get("client", []), list)


def describe_json(path: Path) -> str:
    """What a .json file is, and how to make a log of it."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(JSON_LOOKED_AT)
    begin = text.lstrip("\ufeff").lstrip()
    if begin.startswith("["):
        return (
            "is one JSON document, a list; JSON lines are needed, an entry a line like "
            f"{SHAPE}: jq -c '.[]' {path.name} > {path.stem}.jsonl"
        )
    if '"finish_time"' in text and '"inactive"' in text:
        return (
            "looks like FedScale's availability trace: intervals, not rounds. The links called fedscale read it, and "
            "fedpbc links EXPERIMENT --out log.csv writes the rounds"
        )
    return f"is one JSON document; a log is JSON lines (.jsonl), an object a line like {SHAPE}"


def _first_entry(path: Path) -> tuple[int, dict[str, Any]]:
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            text = decode(path, raw, number).lstrip("\ufeff")
            if text.strip():
                return number, _entry(path, number, text)
    raise BadLog(path, "holds no rows")


def _lines(path: Path, table: Table, progress: Progress | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, entry) of every line that is not blank."""
    total, done = path.stat().st_size, 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            done += len(raw)
            text = decode(path, raw, number).lstrip("\ufeff")
            if not text.strip():
                table.blank_lines.append(number)
                continue
            if progress and number % 1024 == 0:
                progress(done, total)
            yield number, _entry(path, number, text)


def _entry(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = getattr(error, "msg", type(error).__name__)
        hint = "" if text.endswith("\n") else "; is the file truncated?"
        raise BadLog(path, f"line {number}: is not JSON ({problem}), must be like {SHAPE}{hint}") from None
    if not isinstance(entry, dict):
        raise BadLog(path, f"line {number}: must be like {SHAPE}, is {shorten(text.strip())}")
    return entry


def _rounds(path: Path, table: Table, progress: Progress | None) -> Iterator[Rows]:
    seen: dict[int, int] = {}
    kinds: dict[type, int] = {}
    early = drawn = 0
    for number, entry in _lines(path, table, progress):
        early, drawn = early + _taken(entry, "closed", "early"), drawn + _taken(entry, "chosen", None)
        round_, members = _json_round(path, number, entry)
        again = round_ in seen
        if again and not table.reading.drop_duplicates:
            raise BadLog(path, f"line {number}: round {round_} stands in line {seen[round_]} already")
        seen.setdefault(round_, number)
        table.listed_rounds.append(round_)
        names = _json_clients(path, number, members, kinds)
        if not table.reading.drop_duplicates and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadLog(path, f"line {number}: client {shorten(twice)} stands there twice")
        _watch_keys(table.columns, entry, "clients" if "clients" in entry else "active")
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


def _watch_keys(columns: Columns, entry: dict[str, Any], used: str) -> None:
    """Other keys of a round: lists, and those named like an outcome, may be about single clients."""
    for key in entry:
        if key not in ("round", used):
            columns.add_unused(key)
            if not isinstance(entry[key], list | dict) and not OUTCOMES.search(key.lower()):
                columns.harmless.add(key)


def _json_round(path: Path, number: int, entry: dict[str, Any]) -> tuple[int, list[Any]]:
    members = entry.get("clients", entry.get("active"))
    if "round" not in entry or not {"clients", "active"} & set(entry):
        missing = "clients" if "round" in entry else "round"
        lists = (
            [key for key in entry if key != "client" and isinstance(entry[key], list)] if missing == "clients" else []
        )
        hint = (
            f"; is it {shorten(lists[0])}? Then call that clients" if lists
            else "" if _is_event(entry) else suggest(missing, entry)
        )  # fmt: skip
        one = "; the lines before are of rounds, this one is of a client" if _is_event(entry) else ""
        raise BadLog(path, f"line {number}: key {missing} is missing{hint}: must be like {SHAPE}{one}")
    if not isinstance(members, list):
        raise BadLog(path, f"line {number}: clients must be a list of client ids, is {shorten(members)}")
    return _number(path, number, entry["round"]), members


def _number(path: Path, number: int, round_: Any) -> int:
    if isinstance(round_, bool) or not isinstance(round_, int) or not 0 <= round_ < 4 * 10**18:
        raise BadLog(path, f"line {number}: round must be an integer >= 0, is {shorten(round_)}")
    return round_


def _events(path: Path, table: Table, progress: Progress | None) -> Iterator[Rows]:
    columns = table.columns
    kinds: dict[type, int] = {}
    rounds: list[int] = []
    names: list[str] = []
    active: list[bool] = []
    for number, entry in _lines(path, table, progress):
        for key in ("round", "client", columns.active):
            if key is not None and key not in entry:
                raise BadLog(path, f"line {number}: key {key} is missing: every line is a client of a round")
        rounds.append(_number(path, number, entry["round"]))
        names += _json_clients(path, number, [entry["client"]], kinds)
        active.append(_took_part(path, number, entry, columns))
        columns.rows += 1
        if not columns.decided:
            for key in entry.keys() - {"round", "client"}:
                columns.add_unused(key)
                columns.watch(key, [_text_of(entry[key])[:LONGEST_WATCHED]])
        if len(rounds) == BLOCK_LINES:
            yield Rows(np.array(rounds, np.int64), table.names.encode(names), np.array(active, bool))
            rounds, names, active = [], [], []
    yield Rows(np.array(rounds, np.int64), table.names.encode(names), np.array(active, bool))


def _took_part(path: Path, number: int, entry: dict[str, Any], columns: Columns) -> bool:
    if columns.active is None:
        return True
    found = columns.is_active(_text_of(entry[columns.active]))
    if found is None:
        raise BadLog(path, f"line {number}: {columns.not_boolean()}, is {shorten(entry[columns.active])}")
    return found


def _text_of(value: Any) -> str:
    """A value as text, as it would stand in a CSV file; null is empty."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _encodable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write
        return False
    return True


def _json_clients(path: Path, number: int, members: list[Any], kinds: dict[type, int]) -> list[str]:
    """Ids of one round as strings; one type, str or int, in the whole file (``kinds``: type -> its first line)."""
    for member in members:
        if type(member) not in (str, int) or member == "":
            raise BadLog(path, f"line {number}: a client id must be a string or an integer, is {shorten(member)}")
        kinds.setdefault(type(member), number)
    if len(kinds) > 1:
        line = " and ".join(f"{kind.__name__} from line {first}" for kind, first in kinds.items())
        raise BadLog(
            path, f"line {number}: client ids must be all strings or all integers, are of mixed types ({line})"
        )
    names = [str(member) for member in members]
    for name in names:
        if "\0" in name or len(name.encode("utf-8", "replace")) > 256 or not _encodable(name):
            raise BadLog(
                path,
                f"line {number}: a client id must be UTF-8 of up to 256 bytes without NUL, is {shorten(ascii(name))}",
            )
    return names


FORMAT = Format("jsonl", (".jsonl", ".ndjson"), read_jsonl)
