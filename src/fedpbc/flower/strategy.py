"""The strategies' common base: their options, and where the rounds are run from."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpbc.errors import ConfigError
from fedpbc.flower.evaluation import EvaluateFn
from fedpbc.flower.exchange import gather
from fedpbc.flower.loop import run
from fedpbc.flower.rounds import Rounds


class UnreliableClients(Rounds):
    """Base of the strategies: every client is asked every round, and A^t are those heard before the deadline.

    round_deadline: seconds until a round closes; the time-to-live of its messages, so nobody works through old ones.
    num_clients: m. Needed where the rule divides by m or keeps something per client; else it is not.
    directory: checkpoint, participation.jsonl and metrics.jsonl; a new server goes on from there. None: nothing kept.
    cooldown: the last so many rounds are without local steps, so that mixing brings the models together.
    poll_interval: seconds between two looks for replies, 0.1 to 0.5 in a deployment.
    min_available_nodes: clients to wait for at the start, and only there.
    pin_names: with SuperNode authentication, a client-id belongs to the key of the SuperNode that used it first.
    (Without authentication every restart has another key, and any client can call itself anything.)
    same_name: of two nodes that are online under one name, the "first" is the client until it has gone, or the
    "latest"; the log names both. A client that was started again as another node waits until its old one has gone.
    spill: keep models that clients go on from, but the latest, on disk only; needs ``directory``.
    failure_limit: a client that failed so many times in a row in the same way is named in an error line of the log.
    options: fraction_evaluate, min_evaluate_nodes, weighted_by_key (for metrics alone: models are never weighted by
    it), arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn, as in Flower's FedAvg.
    Raises ConfigError for values that are not allowed, fraction_train below 1 among them.
    """

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run rounds 1..num_rounds, or those that a checkpoint in ``directory`` left to do; see ``fedpbc.flower.loop``.

        As Flower's own, which works too (``Strategy.start(strategy, grid, ...)``, without resuming and cool-down),
        but a round closes at its deadline whatever ``timeout`` says, and clients that appear during a round are asked.
        ``train_config`` is copied; ``configure_train`` may change it from round to round, also across a restart.
        Raises ConfigError when the checkpoint belongs to other settings or another model, or to a ``train_config``
        with another value where rounds have changed that value, or is not what was written, and FedpbcError when the
        directory cannot be written to any more.
        """
        self.own_loop = True
        return run(self, grid, initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all clients that are online; nodes we have not met are asked who they are.

        Under Flower's own loop the first round waits here for ``min_available_nodes`` clients.
        """
        if server_round == 1 and not self.own_loop:
            self._begin_stock(arrays, grid)
        return super().configure_train(server_round, arrays, config, grid)

    def _begin_stock(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Under Flower's own loop nothing was prepared."""
        if self.cooldown:
            raise ConfigError(f"cooldown = {self.cooldown}: needs the start() of this strategy")
        if self.prepare(arrays) > 0:
            raise ConfigError(f"directory = {self.directory}: holds a checkpoint, go on with start() of this strategy")
        gather(self, grid)
