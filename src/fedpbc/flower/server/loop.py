"""The loop over rounds: ask, wait until the deadline for whoever answers, close, evaluate, go on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpbc.errors import ConfigError
from fedpbc.flower.server.evaluation import EvaluateFn, Evaluation
from fedpbc.flower.server.exchange import exchange, gather
from fedpbc.flower.server.federation import Federation

log = logging.getLogger("flwr")


def run(
    strategy: Strategy,
    federation: Federation,
    grid: Grid,
    num_rounds: int,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
    evaluate_fn: EvaluateFn | None,
) -> Result:
    """Rounds 0..num_rounds - 1, or those that the checkpoint left to do. Raises FedpbcError.

    ``strategy``: what Flower calls, and an app may have changed: configure_train and the like.
    """
    done, federation.target = federation.done, num_rounds
    if done > num_rounds:
        directory = federation.options.directory
        raise ConfigError(f"num_rounds = {num_rounds}: the checkpoint in {directory} has {done} rounds")
    config = federation.configs.go_on(train_config, done)
    if done:
        rest = ": nothing is left to do" if done == num_rounds else ""
        log.info("going on after round %d of %d%s", done, num_rounds, rest)
    evaluation = Evaluation(strategy, federation, grid, evaluate_config or ConfigRecord(), evaluate_fn)
    evaluation.make_up_by_server(done)
    if done < num_rounds:
        gather(federation, grid)
    evaluation.make_up_by_clients(done, last=done == num_rounds)
    counted = 0
    with _bar(done, num_rounds) as advance:
        for number in range(done + 1, num_rounds + 1):
            _round(strategy, federation, grid, number, evaluation.result, config)
            evaluation.of_round(number)
            advance(federation.summary_line)
            counted += federation.summary_line["active"]
    federation.logs.sync()
    if done < num_rounds and not counted:
        why = federation.reasons.summary() or "no client was online"
        log.warning("no reply counted in %d rounds: %s", num_rounds - done, why)
    return evaluation.result


def _round(
    strategy: Strategy, federation: Federation, grid: Grid, number: int, result: Result, config: ConfigRecord
) -> None:
    messages = strategy.configure_train(number, result.arrays, config, grid)
    _, metrics = strategy.aggregate_train(number, exchange(federation, grid, messages))
    result.arrays = federation.arrays
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
