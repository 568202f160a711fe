"""FedPBC on real machines (the paper's Algorithm 2), with the bases held by the server."""

from __future__ import annotations

from typing import Any, Literal

from fedpbc.core.aggregation import running_mean
from fedpbc.flower.arrays import Model
from fedpbc.flower.failures import Trouble
from fedpbc.flower.ledger import Reply
from fedpbc.flower.options import one_of, whole
from fedpbc.flower.protocol import Order
from fedpbc.flower.roster import Client
from fedpbc.flower.strategy import UnreliableClients


class FedPBC(UnreliableClients):
    """FedPBC: x^(t+1) = mean over A^t of x_i, sent to A^t alone (arXiv 2404.10091, Algorithm 2).

    Nothing is sent at the end of a round. The server remembers for each client the last model it helped to form,
    x^(v_i), and sends that with the next order; the client replays rounds v_i, ..., t from it. That is Algorithm 2
    exactly, because what a client does while nobody hears it depends on x^(v_i), its own data and its own samples
    alone. A client keeps nothing it cannot lose, and a lost message costs time only. Differs from the paper where
    local training depends on anything else than (model, round, client): see ``fedpbc_mod`` for what is required.

    The mean is uniform: weights by num-examples would make the mixing matrix not doubly stochastic.

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
    The other parameters are those of ``UnreliableClients``. Memory beside the replies: two models and the distinct
    models that clients still go on from, x^0 among them until all ``num_clients`` are known. Raises ConfigError.
    """

    method = "fedpbc"
    keeps_base = True

    def __init__(
        self,
        *,
        round_deadline: float,
        max_catchup: int = 0,
        newcomers: Literal["start", "now"] = "start",
        on_failure: Literal["keep", "skip", "latest"] = "keep",
        **options: Any,
    ) -> None:
        super().__init__(round_deadline=round_deadline, **options)
        self.max_catchup = whole("max_catchup", max_catchup)
        self.newcomers = one_of("newcomers", newcomers, ("start", "now"))
        self.on_failure = one_of("on_failure", on_failure, ("keep", "skip", "latest"))
        self.from_start = newcomers == "start"

    def settings(self) -> dict[str, Any]:
        """Beside the common ones: max_catchup and newcomers."""
        return super().settings() | {"max_catchup": self.max_catchup, "newcomers": self.newcomers}

    def welcome(self, client: Client) -> None:
        """A client that was never met goes on from x^0, or from x^t if newcomers do."""
        super().welcome(client)
        if not self.from_start:
            client.version, client.base = self.done, self.bases.latest

    def order(self, client: Client, **fields: Any) -> Order:
        """Rounds v_i, ..., t, or the latest max_catchup of them."""
        if self.max_catchup:
            fields["first"] = max(client.version, self.round + 1 - self.max_catchup)
        return super().order(client, **fields)

    def give_up(self, client: Client, trouble: Trouble) -> str:
        """Nothing, or the client leaves out the local steps of that round, or all of its rounds since v_i."""
        if self.on_failure == "latest":
            self.failures.heard(client.name)
            self.failures.leave_out(client.name, client.version, self.round)
            client.version, client.base = self.round + 1, self.bases.latest
            return 'it goes on from the latest model, without the rounds it missed (on_failure = "latest")'
        if self.on_failure == "skip" and trouble.round >= 0:
            self.failures.skip(client.name, trouble.round)
            return 'from now on it takes no local steps in that round (on_failure = "skip")'
        ways = '"latest"' if trouble.round < 0 else '"skip" or "latest"'
        return f"it is not heard before that is mended, or on_failure is {ways}"

    def rule(self, t: int, replies: list[Reply]) -> Model | None:
        """x^(t+1) = (1/|A^t|) sum over A^t of x_i; an empty A^t leaves x^t."""
        if not replies:
            return None
        return mean_of_replies(self, replies)


def mean_of_replies(strategy: UnreliableClients, replies: list[Reply]) -> Model:
    """The mean of the replies, array by array, flattened, added in place."""
    flat = [strategy.layout.flatten(reply.arrays) for reply in replies]
    return {name: running_mean((model[name] for model in flat), x) for name, x in strategy.flat.items()}
