"""Overrides of the command line: ``key=value`` with dotted keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpbc.core.schema import LocatedStr
from fedpbc.errors import ConfigError, shorten


def parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` of the command line, the value being TOML. Paths in it start from the current folder."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {shorten(text)}: must be key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        raise ConfigError(
            f"--set {shorten(text)}: the value is not TOML (strings need quotes: --set '{key.strip()}=\"...\"')"
        ) from None
    if set(parsed) != {"value"}:
        raise ConfigError(f"--set {shorten(text)}: must be one value")
    return key.strip(), _locate_strings(parsed["value"], Path.cwd())


def _locate_strings(value: Any, base: Path) -> Any:
    if isinstance(value, str):
        return LocatedStr(value, base)
    if isinstance(value, list):
        return [_locate_strings(item, base) for item in value]
    if isinstance(value, dict):
        return {key: _locate_strings(item, base) for key, item in value.items()}
    return value


def _parts(dotted: str) -> list[str]:
    """``links[0].prob`` or ``links.0.prob`` -> ["links", "0", "prob"]."""
    return [part for part in re.split(r"[.\[\]]+", dotted) if part]


def set_key(table: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``problem.num_clients`` or ``links.0.prob`` (``links[0].prob``) in place. Raises ConfigError."""
    parts = _parts(dotted)
    if not parts:
        raise ConfigError(f"{shorten(dotted)}: is not a key")
    place: Any = table
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(place, list):
            if not part.isdecimal() or len(part) > 9 or int(part) >= len(place):
                raise ConfigError(f"{dotted}: {part[:12]} must be a position from 0 to {len(place) - 1}")
            index: Any = int(part)
        elif isinstance(place, dict):
            index = part
            if not last and index not in place:
                place[index] = {}
        else:
            raise ConfigError(f"{dotted}: {'.'.join(parts[:depth])} = {shorten(place)} is not a table or list")
        if last:
            place[index] = value
        else:
            place = place[index]


def drop_stale_label(table: dict[str, Any], key: str, overrides: Mapping[str, Any]) -> None:
    """A label written for other settings must not stand for the overridden ones: one is made anew."""
    parts = _parts(key)
    if len(parts) < 3 or parts[0] not in ("links", "algorithms") or parts[2] == "label":
        return
    entries = table[parts[0]]
    here = isinstance(entries, list) and parts[1].isdecimal() and int(parts[1]) < len(entries)
    entry = entries[int(parts[1])] if here else None
    if isinstance(entry, dict) and not any(_parts(other) == [*parts[:2], "label"] for other in overrides):
        entry.pop("label", None)
