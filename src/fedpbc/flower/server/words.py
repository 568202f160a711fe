"""A round, and what went wrong in it, in words."""

from __future__ import annotations

import re
from typing import Any

from fedpbc.flower.wire.protocol import one_line


def describe(line: dict[str, Any]) -> str:
    """The numbers of a round in words."""
    parts = [f"{line['active']} of {line['known']} clients active"]
    for key, word in (("caught_up", "missed rounds caught up"), ("catching_up", "still catching up"),
                      ("refused", "refused"), ("failed", "without a reply"), ("busy", "at work on an earlier round"),
                      ("late", "late replies")):  # fmt: skip
        count = line[key] if isinstance(line[key], int) else len(line[key])
        if count:
            parts.append(f"{count} {word}")
    return ", ".join([*parts, f"{line['seconds']:.1f} s" + (", closed early" if line["closed_early"] else "")])


_RAISED = re.compile(r"\s*<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>\s*", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z_][\w.]*: ")
_WRAPPER = "ClientAppException"


def first_line(text: str | None) -> str:
    """What went wrong in one line, with the type of the exception.

    Flower says "<class 'KeyError'>:<'x'>"; of a traceback, as its simulation has it, the line with the error counts.
    """
    said, kind = text or "no reason given", ""
    if found := _RAISED.fullmatch(said):
        kind, said = found.groups()
    lines = [line for line in said.splitlines() if line.strip()]
    if "Traceback" in said or _WRAPPER in said:
        raised = [line for line in lines if _NAMED.match(line) and _WRAPPER not in line]
        kind, lines = ("", raised[-1:]) if raised else (kind, lines[-1:])
    return one_line(": ".join(part for part in (kind, " ".join(lines).strip()) if part) or "no reason given")
