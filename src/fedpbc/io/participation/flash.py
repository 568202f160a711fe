"""The device log of FLASH (Yang et al., WWW 2021): what phones did; ready when idle, on Wi-Fi and charging.

A JSON object of devices (or an array of them): ``{"guid": "...", "messages": "2020-01-06 08:12:45<tab>wifi\\n..."}``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fedpbc.errors import shorten
from fedpbc.io.participation.intervals import Intervals
from fedpbc.io.participation.jsonarray import document
from fedpbc.io.participation.reading import OF_INTERVALS, BadLog, Format, Progress, Reading, Table
from fedpbc.io.participation.source import Source

SETS: dict[str, tuple[str, bool]] = {
    "battery_charged_on": ("charged", True), "battery_charged_off": ("charged", False),
    "wifi": ("wifi", True), "unknown": ("wifi", False), "2g": ("wifi", False), "3g": ("wifi", False),
    "4g": ("wifi", False), "5g": ("wifi", False),
    "screen_lock": ("locked", True), "screen_unlock": ("locked", False),
}  # fmt: skip
"""What a state says of the device."""
SAYS_NOTHING = {"screen_on", "screen_off", "battery_low", "battery_okay", "phone_on"}


def read_flash(source: Source, reading: Reading, progress: Progress | None = None) -> Table:
    """A client is a device; it is up while its screen is locked, it is charging, and on Wi-Fi, as FLASH has it."""
    found = Intervals(reading)
    first, last = float("inf"), float("-inf")
    devices = _devices(source)
    for place, (name, messages) in enumerate(devices):
        begin, end = _add(source, name, messages, found)
        first, last = min(first, begin), max(last, end)
        if progress:
            progress(place + 1, len(devices))
    table = found.table(source, first, last)
    table.notes.append("a device is up while it is locked, charging and on Wi-Fi; its times have no zone")
    return table


def _devices(source: Source) -> list[tuple[str, str]]:
    content = document(source)
    entries = list(content.items()) if isinstance(content, dict) else [(None, each) for each in content]
    devices: dict[str, str] = {}
    for key, entry in entries:
        name = entry.get("guid", key) if isinstance(entry, dict) else None
        if name is None or not isinstance(entry.get("messages"), str):
            raise BadLog(source, "every device must have guid and messages, as in FLASH's user behaviour trace")
        if str(name) in devices:
            raise BadLog(source, f"device {shorten(name)} stands there twice")
        devices[str(name)] = entry["messages"]
    if not devices:
        raise BadLog(source, "holds no devices")
    return list(devices.items())


def _add(source: Source, name: str, messages: str, found: Intervals) -> tuple[float, float]:
    """Add the intervals of one device; (its first time, its last)."""
    state = dict.fromkeys(("charged", "wifi", "locked"), False)
    since: float | None = None
    first, last = float("inf"), float("-inf")
    found.names.encode([name])
    for number, line in enumerate(messages.replace("\\t", "\t").split("\n"), start=1):
        if not line.strip():
            continue
        time, said = _line(source, name, number, line)
        if time < last:
            raise BadLog(source, f"device {shorten(name)}, line {number}: is before the line above it")
        first, last = min(first, time), time
        if said == "phone_off":
            state = dict.fromkeys(state, False)
        elif said in SETS:
            state[SETS[said][0]] = SETS[said][1]
        elif said not in SAYS_NOTHING and not said.endswith("%"):
            raise BadLog(source, f"device {shorten(name)}, line {number}: state {shorten(said)} is not known")
        if all(state.values()) and since is None:
            since = time
        elif since is not None and not all(state.values()):
            found.add(name, since, time)
            since = None
    if since is not None:
        found.add(name, since, last)
    return first, last


def _line(source: Source, name: str, number: int, line: str) -> tuple[float, str]:
    when, tab, said = line.strip().partition("\t")
    try:
        moment = datetime.strptime(when.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        tab = ""
    if not tab:
        problem = f"must be a time like 2020-01-06 08:12:45, a tab and a state, is {shorten(line)}"
        raise BadLog(source, f"device {shorten(name)}, line {number}: {problem}")
    return moment.timestamp(), said.strip().lower()


def _is_flash(source: Source) -> bool:
    text: Any = source.text
    return text.lstrip()[:1] in ("{", "[") and '"messages"' in text and ('"guid"' in text or "battery_" in text)


FORMAT = Format("flash", "FLASH's log of devices", read_flash, _is_flash, (), OF_INTERVALS)
