"""FedPBC on real machines (the paper's Algorithm 2), with the bases held by the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedpbc.flower.methods.common.updates import mean_of_replies
from fedpbc.flower.server.checks import one_of, whole
from fedpbc.flower.server.failures import Failures, Trouble
from fedpbc.flower.server.ledger import Reply
from fedpbc.flower.server.roster import Client
from fedpbc.flower.server.rule import SCALE_THE_LOSS, Round, Rule, Step
from fedpbc.flower.strategy import UnreliableClients

Newcomers = Literal["start", "now"]
OnFailure = Literal["keep", "skip", "latest"]


@dataclass(kw_only=True, eq=False)
class FedPBC(UnreliableClients):
    """FedPBC: x^(t+1) = mean over A^t of x_i, sent to A^t alone (arXiv 2404.10091, Algorithm 2).

    Nothing is sent at the end of a round. The server remembers for each client the last model it helped to form,
    x^(v_i), and sends that with the next order; the client replays rounds v_i, ..., t from it. That is Algorithm 2
    exactly, because what a client does while nobody hears it depends on x^(v_i), its own data and its own samples
    alone. A client keeps nothing it cannot lose, and a lost message costs time only. Differs from the paper where
    local training depends on anything else than (model, round, client): see ``fedpbc_mod`` for what is required.

    The mean is uniform: weights by num-examples would make the mixing matrix not doubly stochastic.

    Memory beside the replies: two models and the distinct models that clients still go on from, x^0 among them until
    all ``num_clients`` are known. Raises ConfigError.

    max_catchup: k replays only the latest k missed rounds, from x^(v_i) as before; 0: all of them, as in the paper.
        The mean of all models then depends on the links (docs/catch-up.md shows the price, and what a client does
        that needs longer than its deadline for k rounds).
    on_failure: when the local steps of a round failed ``failure_limit`` times in a row by the same exception type, or
        by a model that is not finite. "keep": the client is asked again, and not heard before it is mended. "skip":
        until it is heard it takes no local steps in that round, x_i stays what it was: as a round of the cool-down,
        for this client alone, so that the mixing matrix stays doubly stochastic. "latest": it goes on from x^(t+1),
        and all rounds since v_i are left out, as if it were new; the mean of all models is then another. May be
        changed when a checkpoint is taken up again.
    newcomers: where a client that was never heard goes on from. "start": x^0, as in the paper, where everybody is
        there from round 0; "now": the latest model, for federations that grow.
    """

    method: ClassVar[str] = "fedpbc"
    max_catchup: int = 0
    newcomers: Newcomers = "start"
    on_failure: OnFailure = "keep"

    def make_rule(self) -> Rule:
        """The rule; raises ConfigError."""
        return FedPBCRule(self.max_catchup, self.newcomers, self.on_failure)


class FedPBCRule(Rule):
    """The mean of the replies; each client goes on from the last model it helped to form."""

    replays = True
    unweighted = (
        "the mixing matrix would not be doubly stochastic, and the mean of all models would move with the links; "
        f"{SCALE_THE_LOSS}"
    )

    def __init__(self, max_catchup: int, newcomers: Newcomers, on_failure: OnFailure) -> None:
        """Raises ConfigError."""
        self.max_catchup = whole("max_catchup", max_catchup)
        self.newcomers = one_of("newcomers", newcomers, ("start", "now"))
        self.on_failure = one_of("on_failure", on_failure, ("keep", "skip", "latest"))
        self.from_start = newcomers == "start"

    def settings(self) -> dict[str, Any]:
        """max_catchup and newcomers."""
        return {"max_catchup": self.max_catchup, "newcomers": self.newcomers}

    def step(self, round: Round, replies: list[Reply]) -> Step:
        """x^(t+1) = (1/|A^t|) sum over A^t of x_i; an empty A^t leaves x^t."""
        return Step(mean_of_replies(self.layout, round.model, replies) if replies else None)

    def order(self, round: Round, client: Client) -> dict[str, Any]:
        """Rounds v_i, ..., t, or the latest max_catchup of them."""
        return {"first": max(client.version, round.t + 1 - self.max_catchup)} if self.max_catchup else {}

    def give_up(self, round: Round, client: Client, trouble: Trouble, failures: Failures) -> str:
        """Nothing, or the client leaves out the local steps of that round, or all of its rounds since v_i."""
        if self.on_failure == "latest":
            failures.heard(client.name)
            failures.leave_out(client.name, client.version, round.t)
            client.version, client.base = round.t + 1, round.bases.latest
            return 'it goes on from the latest model, without the rounds it missed (on_failure = "latest")'
        if self.on_failure == "skip" and trouble.round >= 0:
            failures.skip(client.name, trouble.round)
            return 'from now on it takes no local steps in that round (on_failure = "skip")'
        ways = '"latest"' if trouble.round < 0 else '"skip" or "latest"'
        return f"it is not heard before that is mended, or on_failure is {ways}"
