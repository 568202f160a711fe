"""The loop over rounds: ask, wait until the deadline for whoever answers, close, evaluate, go on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpbc.errors import ConfigError
from fedpbc.flower.evaluation import EvaluateFn, Evaluation
from fedpbc.flower.exchange import exchange, gather
from fedpbc.flower.options import whole
from fedpbc.flower.rounds import Rounds

log = logging.getLogger("flwr")


def run(
    strategy: Rounds,
    grid: Grid,
    initial: ArrayRecord,
    num_rounds: int,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
    evaluate_fn: EvaluateFn | None,
) -> Result:
    """Rounds 0..num_rounds - 1 of ``strategy``, or those that its checkpoint left to do. Raises FedpbcError."""
    num_rounds = whole("num_rounds", num_rounds, 1)
    if strategy.cooldown >= num_rounds:
        raise ConfigError(f"num_rounds = {num_rounds}: must be more than cooldown = {strategy.cooldown}")
    strategy.summary()
    try:
        done = strategy.prepare(initial, num_rounds - strategy.cooldown)
        if done > num_rounds:
            raise ConfigError(f"num_rounds = {num_rounds}: the checkpoint in {strategy.directory} has {done} rounds")
        config = strategy.configs.go_on(train_config, done)
        if done:
            rest = ": nothing is left to do" if done == num_rounds else ""
            log.info("going on after round %d of %d%s", done, num_rounds, rest)
        evaluation, counted = Evaluation(strategy, grid, evaluate_config or ConfigRecord(), evaluate_fn), 0
        evaluation.make_up_by_server(done)
        if done < num_rounds:
            gather(strategy, grid)
        evaluation.make_up_by_clients(done, last=done == num_rounds)
        with _bar(done, num_rounds) as advance:
            for number in range(done + 1, num_rounds + 1):
                _round(strategy, grid, number, evaluation.result, config)
                evaluation.of_round(number)
                advance(strategy.summary_line)
                counted += strategy.summary_line["active"]
        strategy.logs.sync()
        if done < num_rounds and not counted:
            why = strategy.reasons.summary() or "no client was online"
            log.warning("no reply counted in %d rounds: %s", num_rounds - done, why)
        return evaluation.result
    finally:
        strategy.close()


def _round(strategy: Rounds, grid: Grid, number: int, result: Result, config: ConfigRecord) -> None:
    messages = strategy.configure_train(number, result.arrays, config, grid)
    _, metrics = strategy.aggregate_train(number, exchange(strategy, grid, messages))
    result.arrays = strategy.arrays
    if metrics is not None:
        result.train_metrics_clientapp[number] = metrics


@contextmanager
def _bar(done: int, total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar over the rounds where a person is watching; else the log says the same."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("rounds", total=total, completed=done)
        yield lambda line: progress.update(task, advance=1, description=f"{line['active']} of {line['known']} active")
