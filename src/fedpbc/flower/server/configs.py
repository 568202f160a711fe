"""The configs of the rounds: what the server keeps of them, for clients that replay rounds and for its own restart."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import ConfigRecord

from fedpbc.errors import ConfigError, shorten
from fedpbc.flower.wire.protocol import CONFIGS
from fedpbc.flower.wire.schedule import Plain, Schedule, checked, decode, encode

log = logging.getLogger("flwr")


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
