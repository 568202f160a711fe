"""One JSON document: an array of events, or of rounds, as JSON lines have them."""

from __future__ import annotations

import json
import re
from typing import Any

from fedpbc.errors import shorten
from fedpbc.io.participation.jsonlines import SHAPE, table_of_entries
from fedpbc.io.participation.reading import BadLog, Format, Progress, Reading, Table, decode
from fedpbc.io.participation.source import Source


def document(source: Source) -> Any:
    """What one JSON file holds. Raises BadLog."""
    text = decode(source, source.read(), 1).lstrip("\ufeff")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; is the file truncated?" if error.pos >= len(text.rstrip()) - 1 else ""
        raise BadLog(source, f"line {error.lineno}: is not JSON ({error.msg}){hint}") from None
    except RecursionError:
        raise BadLog(source, "is not JSON that can be read: nested too deeply") from None


def read_array(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """``[{"round": 3, "client": "a"}, ...]`` or ``[{"round": 3, "clients": ["a", "b"]}, ...]``."""
    entries = document(source)
    if not isinstance(entries, list):
        raise BadLog(
            source,
            f"is one JSON document; a log is JSON lines (.jsonl), an object a line like {SHAPE}, or an array of those",
        )
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise BadLog(source, f"entry {number}: must be like {SHAPE}, is {shorten(entry)}")
    places = ((f"entry {number}", entry) for number, entry in enumerate(entries, start=1))
    return table_of_entries(source, reading, places, "entry")


FORMAT = Format(
    "json", "a JSON array of events or rounds", read_array,
    lambda source: re.match(r"\s*\[\s*[{\]]", source.text) is not None, (".json",),
)  # fmt: skip
