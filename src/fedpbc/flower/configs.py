"""The configs of the rounds: what the server keeps of them, and how they travel to clients that replay rounds."""

from __future__ import annotations

import hashlib
import json
import logging
from base64 import b64decode, b64encode
from bisect import bisect_right
from typing import Any, cast

from flwr.app import ConfigRecord, Message

from fedpbc.errors import ConfigError, shorten
from fedpbc.flower.protocol import CONFIGS, RECORD, SERVER_ROUND

log = logging.getLogger("flwr")

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


class Configs:
    """The server's: of every round that a client may replay, and what the next round begins with.

    A strategy may change the config in ``configure_train``, in place from round to round as Flower's tutorial does. A
    client that replays round r is sent what held in round r, so that it computes what it would have computed then.
    """

    def __init__(self) -> None:
        self.schedule = Schedule([])
        self.given: Plain | None = None
        """``train_config`` as the app gave it; None: Flower's own loop ran, which does not say."""
        self._passed: ConfigRecord | None = None
        """The object that every round is given, and ``configure_train`` may change."""
        self._current = Plain()
        self._sent: dict[int, ConfigRecord] = {}

    def go_on(self, train_config: ConfigRecord | None, done: int) -> ConfigRecord:
        """What the rounds from ``done`` on begin with: ``train_config``, and changes that earlier rounds made to it.

        Another ``train_config`` than before holds for the rounds to come, which is logged. Raises ConfigError where it
        is not clear what that would be: for a value that the rounds have changed too.
        """
        if not (train_config is None or isinstance(train_config, ConfigRecord)):
            raise ConfigError(f"train_config: must be a ConfigRecord, is {type(train_config).__name__}")
        config = ConfigRecord() if train_config is None else train_config.copy()
        given, before = encode(config), self.given
        if done:
            for key in {**self._current, **(before or {}), **given}:
                self._carry_over(config, key, given.get(key), (before or self._current).get(key), done)
        self.given, self._passed = given, config
        return config

    def _carry_over(self, config: ConfigRecord, key: str, new: str | None, old: str | None, done: int) -> None:
        """One key of ``config`` that is given as ``new``, was given as ``old``, and was changed by rounds or not."""
        now = self._current.get(key)
        if new == old:
            if now is None:
                config.pop(key, None)
            else:
                config[key] = decode(now)
            return
        change = f"train_config: {shorten(key)} was {_shown(old)}, is {_shown(new)}"
        if self.given is None or now != old:
            why = "which earlier rounds have changed" if self.given is not None else "as it was after Flower's own loop"
            what = f"begin with the same, or in another directory ({_shown(now)} after round {done}, {why})"
            raise ConfigError(f"{change}: {what}")
        log.warning("%s, from round %d on; replayed rounds keep theirs", change, done + 1)

    def open(self, t: int, config: ConfigRecord) -> None:
        """Round t has this config."""
        self.schedule.note(t, encode(config))
        self._sent.clear()
        if self.given is None:
            self._passed = config

    def since(self, version: int, t: int) -> ConfigRecord:
        """What is sent beside round t's own to a client that replays from ``version``: nothing when all are equal."""
        if version not in self._sent:
            part = self.schedule.between(version, t + 1)
            self._sent[version] = ConfigRecord({} if part.is_constant() else {CONFIGS: part.text()})
        return self._sent[version]

    def retain(self, first: int) -> None:
        """Nobody will replay rounds before ``first``."""
        last = self.schedule.changes[-1][0] if self.schedule.changes else 0
        if self.schedule.changes:
            self.schedule = self.schedule.between(min(first, last), last + 1)

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        if self._passed is not None:
            self._current = encode(self._passed)
        return {"given": self.given, "current": self._current, "rounds": self.schedule.text()}

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.given = None if state["given"] is None else checked(state["given"])
        self._current = checked(state["current"])
        self.schedule, self._passed = Schedule.read(state["rounds"]), None


def _shown(text: str | None) -> str:
    return "not there" if text is None else shorten(decode(text))
