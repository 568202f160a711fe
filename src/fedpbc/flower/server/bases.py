"""The models that clients go on from, kept as they are sent, for as long as a client needs them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from flwr.app import ArrayRecord

from fedpbc.flower.server.checkpoint import Checkpoint
from fedpbc.flower.wire.arrays import Model, models_of, to_record


class Bases:
    """Serialised server models by name; every client with the same base is sent the same object.

    With ``spill``, all but the latest are only on disk, and read when they are sent.
    """

    def __init__(self, checkpoint: Checkpoint | None, spill: bool) -> None:
        self.checkpoint, self.spill = checkpoint, spill
        self.latest = ""
        self._records: dict[str, ArrayRecord | None] = {}
        """None: on disk only."""

    def add(self, record: ArrayRecord) -> str:
        """Keep a new server model; the name it has from now on, which no other model ever gets."""
        self.latest = f"model-{secrets.token_hex(8)}"
        self._records[self.latest] = record
        return self.latest

    def get(self, name: str) -> ArrayRecord:
        """What is sent to a client that goes on from this model."""
        record = self._records[name]
        return self._load(name) if record is None else record

    def retain(self, names: Iterable[str]) -> None:
        """Drop every model but these and the latest; spill them if asked to."""
        keep = {*names, self.latest}
        for name in self._records.keys() - keep:
            del self._records[name]
        if self.spill and self.checkpoint is not None:
            for name in self._records.keys() - {self.latest}:
                self.checkpoint.write(name, self.model(name))
                self._records[name] = None

    def model(self, name: str) -> Model:
        """The arrays of a model that is kept."""
        return models_of(self.get(name))

    def names(self) -> list[str]:
        """All that are kept."""
        return list(self._records)

    def in_memory(self) -> int:
        """How many of them are in memory."""
        return sum(record is not None for record in self._records.values())

    def restore(self, names: Iterable[str], latest: str) -> None:
        """From a checkpoint. Raises FedpbcError when a model is damaged."""
        self.latest = latest
        self._records = dict.fromkeys(names)
        for name in self._records:
            record = self._load(name)
            self._records[name] = None if self.spill and name != latest else record

    def _load(self, name: str) -> ArrayRecord:
        assert self.checkpoint is not None
        return to_record(self.checkpoint.read(name))
