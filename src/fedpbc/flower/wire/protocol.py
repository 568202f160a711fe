"""What server and client say to each other beside the model: one ConfigRecord each way, and the names of the records.

The server asks with an ``Order``, the client replies with an ``Answer``. Rounds count from 0 as in the paper; the
``server-round`` that the train function reads counts from 1 as everywhere in Flower.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Self, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

RECORD = "fedpbc"
"""The ConfigRecord of an order or an answer."""
CORRECTION = "fedpbc.shift"
"""The ArrayRecord of the correction, which is added to the local gradients; the name is older than the word."""
CONTROL_VARIATE = "fedpbc.control"
"""The ArrayRecord of the server's control variate c, for clients that keep their own c_i."""
FADING = "fedpbc.fading"
"""The ArrayRecord of FedFade's numbers: ``left``, what is left of the client's own c_i; where ``length`` = eta s > 0,
the correction goes around the train function, ``before`` of it in front."""
AROUND = "fedpbc.around"
"""The ArrayRecord of a correction that goes around the train function."""
UPDATE_SCALE = "fedpbc.scale"
"""The ArrayRecord of one number that asks for differences: what Delta_i is divided by before it is kept."""
CONFIGS = "configs"
"""Beside an order: the configs of the rounds to replay, where not all have that of the order's round."""
SKIP = "skip"
"""Beside an order: rounds without local steps, because they failed too often."""
BUFFERS = "buffers"
"""Beside an order of a method that keeps something: names of the arrays that it does not work on."""
SERVER_ROUND = "server-round"
"""Key of the config that Flower's strategies send."""

IDENTIFY, TRAIN = "identify", "train"
LONGEST = 10_000
"""Characters of an order or an answer, at most."""
SHORTEST, LONGEST_WAY = 1e-8, 1e6
"""Between these must be what the learning rates of a round's local steps sum to."""
FOREVER = 2**62
"""More rounds than there are."""


@dataclass(frozen=True)
class _Spoken:
    """A dataclass of plain values that travels in a ConfigRecord, as one line of JSON."""

    def record(self) -> ConfigRecord:
        """As it is sent."""
        return ConfigRecord({type(self).__name__.lower(): json.dumps(vars(self))})

    @classmethod
    def of(cls, message: Message) -> Self | None:
        """What ``message`` holds, or None: nothing of the kind, or something else by that name."""
        record = message.content.get(RECORD)
        text = record.get(cls.__name__.lower()) if isinstance(record, ConfigRecord) else None
        if not isinstance(text, str) or len(text) > LONGEST:
            return None
        spoken: Self | None = _read(cast(Any, cls), text)
        return spoken


@lru_cache(maxsize=256)
def _read(kind: Callable[..., _Spoken], text: str) -> Any:
    """What ``text`` says, or None: it is not of that kind. The grid inside a process and the client read it in turn."""
    try:
        spoken = kind(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    return spoken if all(_plain(getattr(spoken, name), type) for name, type in _types(kind)) else None


@lru_cache
def _types(kind: Any) -> list[tuple[str, object]]:
    return [(field.name, field.type) for field in fields(kind)]


def _plain(value: object, kind: object) -> bool:
    """Whether a value has its type, and an integer fits into 64 bits (-1: none)."""
    return type(value).__name__ == kind and (type(value) is not int or -1 <= value < 2**63)


@dataclass(frozen=True)
class Order(_Spoken):
    """What a client is asked to do."""

    kind: str
    """``identify``: say who you are; ``train``."""
    client: str = ""
    """Whom the server takes it for."""
    round: int = 0
    """t."""
    first: int = 0
    """The rounds to train are first, ..., t, from the model that comes with it; a client that began with an earlier one
    and needs more than one deadline for its catch-up goes on with what it has."""
    base: str = ""
    """Names that model: progress kept under another name is worthless."""
    train_rounds: int = FOREVER
    """No local steps from this round on (consensus cool-down)."""
    budget: float = 0.0
    """Seconds after which no further missed round is begun; the rest is done when asked again. The whole deadline: a
    client that will be late anyway gains most by going on, as what it did is kept."""
    arrays_key: str = "arrays"
    config_key: str = "config"
    keep_progress: bool = False
    """Keep the result until the next order: a reply that got lost is not computed twice."""
    accepted: int = -1
    """The latest round whose reply the server counted from this client in this epoch; -1: none."""
    epoch: int = 0
    """What clients keep of other epochs is void."""


@dataclass(frozen=True)
class Answer(_Spoken):
    """What a client did."""

    client: str
    round: int
    base: str
    finished: bool
    """All rounds are done; else no model comes along, and the rest is done when asked again: the deadline was near, or
    a round failed."""
    trained: int
    """Rounds trained for this answer."""
    waiting: int
    """Rounds that are still to do."""
    length: float = 0.0
    """Sum of the learning rates of the local steps from the base on, as told to ``drift_correction``."""
    failed: int = -1
    """The round whose local steps failed; -1: none."""
    error: str = ""
    """The exception's type and what it said."""
    lost: bool = False
    """What the client kept for the method is gone, or is not what the server believes."""
    product: float = 0.0
    """<g_i, c_i> of FedFade, where the client has c_i."""
    square: float = 0.0
    """|c_i|^2; 0 where it has none."""

    def asked_by(self, order: Order) -> bool:
        """Whether it is the answer to this order: by its client, for its round, from its base."""
        return (self.client, self.round, self.base) == (order.client, order.round, order.base)


def bundle(records: Mapping[str, Any]) -> RecordDict:
    """A RecordDict of what is known to be records.

    Flower asks every key and value for its type, which for small models takes longer than all else that is done for a
    message.
    """
    made = RecordDict()
    made.__dict__["_data"] = dict(records)
    return made


def only_arrays(message: Message) -> tuple[str, ArrayRecord] | None:
    """(key, record) of the one ArrayRecord of ``message``; None when there is not exactly one."""
    records = [(key, record) for key, record in message.content.items() if isinstance(record, ArrayRecord)]
    return records[0] if len(records) == 1 else None


def one_line(text: str) -> str:
    """All that is said in one printable line of at most 300 characters."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split())[:300])
    return line if len(line) <= 300 else f"{line[:297]}..."
