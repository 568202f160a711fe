"""The configs of rounds, as they travel to clients that replay them: what held in which round."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from typing import Any, cast

from flwr.app import ConfigRecord, Message

from fedpbc.flower.wire.protocol import CONFIGS, RECORD, SERVER_ROUND

Plain = dict[str, str]
"""A config, without server-round; the values as JSON, whose texts are equal where type and value are, NaN too."""


def encode(config: ConfigRecord) -> Plain:
    """A config as it is compared and stored."""
    return {key: json.dumps(value, default=_bytes) for key, value in config.items() if key != SERVER_ROUND}


def checked(config: Any) -> Plain:
    """A config as it was stored. Raises ValueError, TypeError or AttributeError for what is none."""
    for text in config.values():
        decode(text)
    return dict(config)


def decode(text: str) -> Any:
    """One value of a config, exactly as it was."""
    return json.loads(text, object_hook=lambda found: b64decode(found["base64"]))


def _bytes(value: Any) -> dict[str, str]:
    return {"base64": b64encode(value).decode("ascii")}


class Schedule:
    """Which config holds from which round on, the rounds ascending, no two neighbours equal."""

    def __init__(self, changes: list[tuple[int, Plain]]) -> None:
        self.changes = changes

    def at(self, round: int) -> Plain:
        """The config of a round; of one before the first change: the first."""
        return self.changes[max(0, bisect_right(self.changes, round, key=lambda change: change[0]) - 1)][1]

    def note(self, round: int, config: Plain) -> None:
        """From ``round`` on it is this one; what was said of later rounds is void."""
        self.changes = [change for change in self.changes if change[0] < round]
        if not self.changes or self.changes[-1][1] != config:
            self.changes.append((round, config))

    def between(self, first: int, end: int) -> Schedule:
        """The part for rounds first, ..., end - 1."""
        within = [change for change in self.changes if first < change[0] < end]
        return Schedule([(first, self.at(first)), *within] if first < end else [])

    def is_constant(self) -> bool:
        """Whether all its rounds have one config."""
        return len(self.changes) <= 1

    def text(self) -> str:
        """JSON: [round, what is other than before] for each change, null for a key that is gone."""
        lines, before = [], Plain()
        for round, config in self.changes:
            changed: dict[str, str | None] = {key: None for key in before if key not in config}
            changed |= {key: text for key, text in config.items() if before.get(key) != text}
            lines.append([round, changed])
            before = config
        return json.dumps(lines, sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Schedule:
        """The other way. Raises ValueError, TypeError or AttributeError for what is none."""
        changes, config = [], Plain()
        for round, changed in json.loads(text):
            config = checked({key: value for key, value in {**config, **changed}.items() if value is not None})
            changes.append((int(round), config))
        return cls(changes)

    @classmethod
    def of(cls, message: Message, config_key: str) -> Schedule:
        """What came with an order: nothing beside the config of its round where all rounds have the same."""
        text = cast(ConfigRecord, message.content[RECORD]).get(CONFIGS)
        if isinstance(text, str):
            return cls.read(text)
        config = message.content.get(config_key)
        return cls([(0, encode(config) if isinstance(config, ConfigRecord) else {})])

    def apply(self, config: ConfigRecord, now: int, round: int) -> None:
        """Make the ``config`` that came for round ``now`` that of ``round``; what a client's own mods put in stays."""
        there, then = self.at(now), self.at(round)
        for key in there.keys() - then.keys():
            config.pop(key, None)
        for key, text in then.items():
            if there.get(key) != text:
                config[key] = decode(text)

    def digest(self, first: int, end: int) -> str:
        """Names the configs of rounds first, ..., end - 1."""
        return hashlib.sha256(self.between(first, end).text().encode()).hexdigest()[:16]
