"""What a method is to the server: a rule that makes x^(t+1) out of the replies of round t, and what it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from flwr.app import ArrayRecord

from fedpbc.flower.server.bases import Bases
from fedpbc.flower.server.checkpoint import Pieces
from fedpbc.flower.server.failures import Failures, Trouble
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.roster import Client
from fedpbc.flower.wire.arrays import Layout, Model, largest

Read = Callable[[str], Model]
"""A piece of the checkpoint by its name. Raises FedpbcError when it is damaged."""


SCALE_THE_LOSS = "multiply the loss in the train function by n_i / mean of n instead (docs/deployment.md)"
"""What gives the same objective under every method."""


@dataclass(frozen=True)
class Round:
    """Round t, as a rule sees it."""

    t: int
    model: Model
    """x^t, flattened."""
    trains: bool
    """Has local steps; else it is of the cool-down."""
    bases: Bases

    @cached_property
    def largest(self) -> np.ndarray:
        """A bound of |x^t|, of every array."""
        return np.array([largest(array) for array in self.model.values()])


def nothing() -> None:
    """Nothing to remember."""


class Step(NamedTuple):
    """What a rule makes of the replies of a round."""

    model: Model | None
    """x^(t+1), flattened; None: it stays x^t. Where it is certain to be finite, the commit may fill it in."""
    commit: Callable[[], None] = nothing
    """Remember what later rounds need of these replies. Called once, if x^(t+1) is finite and the round counts."""


class Rule(ABC):
    """A method on the server. ``init`` begins, ``step`` makes a round, ``save`` and ``load`` outlive a kill.

    The other members have a default, that of a method whose clients are sent x^t and nothing else.
    """

    replays: ClassVar[bool] = False
    """A client goes on from its base, the last model it helped to form, and replays the rounds since; else it is sent
    x^t and trains one round."""
    from_start: bool = True
    """Where clients replay: one that was never met goes on from x^0, else from the latest model."""
    remembers: ClassVar[bool] = False
    """The rule keeps what clients sent, so that all of it is looked through for NaN before, not the model after."""

    unweighted: str = "its rule does not look at reply.weight"
    """Why ``client_weights = "samples"`` is refused; "": it is not."""

    layout: Layout
    """Names, shapes and types of the model."""
    num_clients: int
    """m; 0 where it is not known."""

    def init(self, layout: Layout, num_clients: int | None) -> None:
        """Nothing is known of any client yet."""
        self.layout, self.num_clients = layout, num_clients or 0

    @abstractmethod
    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) from the replies of round t, in the order of names.

        Changes nothing before the commit: it is called again with fewer replies when the model is not finite. Not
        called in a cool-down, unless clients replay.
        """

    def save(self) -> tuple[dict[str, Any], Pieces]:
        """(what is small: plain values; what is large: pieces, never changed under the same name)."""
        return {}, {}

    def load(self, memory: dict[str, Any], read: Read) -> None:  # noqa: B027
        """After ``init``: take up again what was saved."""

    def settings(self) -> dict[str, Any]:
        """What must be the same when a checkpoint is taken up again; plain values."""
        return {}

    def order(self, round: Round, client: Client) -> dict[str, Any]:
        """Fields of this client's order that are other than usual."""
        return {}

    def extras(self, round: Round, client: Client) -> dict[str, ArrayRecord]:
        """What this client is sent beside the model, in a round that may change a model."""
        return {}

    def check(self, round: Round, reply: Reply) -> None:  # noqa: B027
        """Raise Refused for a reply the rule cannot use."""

    def give_up(self, round: Round, client: Client, trouble: Trouble, failures: Failures) -> str:
        """What is done about a client that failed ``failure_limit`` times in the same way, in words; here nothing."""
        return "it is asked again in every round"
