"""The one strategy: its options, Flower's interface, and a method's rule."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpbc.errors import ConfigError
from fedpbc.flower.server.asking import ask, open_round
from fedpbc.flower.server.checks import whole
from fedpbc.flower.server.closing import close_round
from fedpbc.flower.server.evaluation import EvaluateFn
from fedpbc.flower.server.exchange import gather
from fedpbc.flower.server.federation import Federation
from fedpbc.flower.server.loop import run
from fedpbc.flower.server.measures import ask_to_evaluate, measured
from fedpbc.flower.server.options import Options
from fedpbc.flower.server.rule import Rule
from fedpbc.flower.wire.protocol import FOREVER

log = logging.getLogger("flwr")


@dataclass(kw_only=True, eq=False)
class UnreliableClients(Options, Strategy):
    """The strategy: every client, or a share, is asked every round, and A^t are those heard before it closes.

    A method is a subclass with its ``method`` (the name in logs, checkpoints and ``STRATEGIES``), its own options as
    dataclass fields, and ``make_rule``. Raises ConfigError for options that are not allowed.
    """

    method: ClassVar[str]
    rule: Rule = field(init=False, repr=False)
    federation: Federation = field(init=False, repr=False)
    """The server's state, from ``prepare`` on."""

    def __post_init__(self) -> None:
        """Raises ConfigError for options that are not allowed."""
        super().__post_init__()
        self.rule = self.make_rule()
        if self.client_weights == "samples" and self.rule.unweighted:
            raise ConfigError(
                f'client_weights = "samples": must be "uniform" for {self.method}: {self.rule.unweighted}'
            )
        self.own_loop = False
        """Our own loop runs the rounds, not Flower's."""

    @abstractmethod
    def make_rule(self) -> Rule:
        """The method's rule. Raises ConfigError for options of the method that are not allowed."""

    @property
    def arrays(self) -> ArrayRecord:
        """x^t as it is sent."""
        return self.federation.arrays

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
        """Run rounds 1..num_rounds, or those that a checkpoint in ``directory`` left to do.

        As Flower's own, which works too (``Strategy.start(strategy, grid, ...)``, without resuming and cool-down),
        but a round closes at its deadline whatever ``timeout`` says, and clients that appear during a round are asked.
        ``train_config`` is copied; ``configure_train`` may change it from round to round, also across a restart.
        Raises ConfigError when the checkpoint belongs to other settings or another model, or to a ``train_config``
        with another value where rounds have changed that value, or is not what was written, and FedpbcError when the
        directory cannot be written to any more.
        """
        num_rounds = whole("num_rounds", num_rounds, 1)
        if self.cooldown >= num_rounds:
            raise ConfigError(f"num_rounds = {num_rounds}: must be more than cooldown = {self.cooldown}")
        self.summary()
        self.own_loop = True
        try:
            federation = self.prepare(initial_arrays, num_rounds - self.cooldown)
            return run(self, federation, grid, num_rounds, train_config, evaluate_config, evaluate_fn)
        finally:
            self.close()

    def prepare(self, initial: ArrayRecord, train_rounds: int = FOREVER) -> Federation:
        """Begin with x^0, or go on from the checkpoint. Raises ConfigError."""
        self._let_go()
        self.federation = Federation(self, self.method, self.rule, initial, train_rounds)
        return self.federation

    def close(self) -> None:
        """Let another server write to ``directory``."""
        self._let_go()
        self.own_loop = False

    def _let_go(self) -> None:
        if hasattr(self, "federation"):
            self.federation.close()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all clients that are online; nodes we have not met are asked who they are.

        Under Flower's own loop the first round waits here for ``min_available_nodes`` clients.
        """
        if server_round == 1 and not self.own_loop:
            self._begin_stock(arrays, grid)
        open_round(self.federation, server_round - 1, config)
        groups = ask(self.federation, grid)
        if self.own_loop and self.spill:  # the others follow one by one, so that one spilled model at a time is read
            return next(groups, [])
        return [message for group in groups for message in group]

    def _begin_stock(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Under Flower's own loop nothing was prepared."""
        if self.cooldown:
            raise ConfigError(f"cooldown = {self.cooldown}: needs the start() of this strategy")
        if self.min_replies is not None:
            raise ConfigError(f"min_replies = {self.min_replies}: needs the start() of this strategy")
        if self.prepare(arrays).done > 0:
            raise ConfigError(f"directory = {self.directory}: holds a checkpoint, go on with start() of this strategy")
        gather(self.federation, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round: x^(t+1) from the replies that count, then checkpoint and logs.

        (None, metrics) when the model stays as it is.
        """
        return close_round(self.federation, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The latest model to ``fraction_evaluate`` of the clients heard in this round, at least min_evaluate_nodes.

        Only those that were just heard: evaluation does not wait for clients that are away.
        """
        return ask_to_evaluate(self.federation, server_round, arrays, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean of the metrics, weighted by ``weighted_by_key``."""
        return measured(self.federation, server_round, replies)

    def summary(self) -> None:
        """Say in the log what will be done."""
        part = self.fraction_train
        asked = "every client is" if part == 1 else f"a share of {part:g} of the clients is"
        k = self.min_replies
        early = "" if k is None else f" or {k} replies" if isinstance(k, int) else f" or replies of a share of {k:g}"
        log.info("\t├──> Rounds close after %g s%s; %s asked every round", self.round_deadline, early, asked)
        log.info("\t├──> Wait for %d clients at the start", self.clients_at_start)
        log.info("\t└──> %s", f"Kept in {self.directory}" if self.directory else "Nothing is kept: no directory given")
