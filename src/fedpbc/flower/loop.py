"""The loop over rounds: ask, wait until the deadline for whoever answers, close, evaluate, go on."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpbc.errors import ConfigError
from fedpbc.flower.ledger import Ledger
from fedpbc.flower.metrics import as_metrics
from fedpbc.flower.options import whole
from fedpbc.flower.protocol import RECORD
from fedpbc.flower.rounds import Rounds

log = logging.getLogger("flwr")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

LOOK_FOR_NODES = 1.0
"""Seconds between two looks for nodes that came online during a round."""
SAY_WAITING = 10.0
"""Seconds between two lines in the log that say whom we wait for."""


def run(
    strategy: Rounds,
    grid: Grid,
    initial: ArrayRecord,
    num_rounds: int,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
    evaluate_fn: EvaluateFn | None,
) -> Result:
    """Rounds 0..num_rounds - 1 of ``strategy``, or those that its checkpoint left to do. Raises ConfigError."""
    num_rounds = whole("num_rounds", num_rounds, 1)
    if strategy.cooldown >= num_rounds:
        raise ConfigError(f"num_rounds = {num_rounds}: must be more than cooldown = {strategy.cooldown}")
    strategy.summary()
    try:
        done = strategy.prepare(initial, num_rounds - strategy.cooldown)
        if done > num_rounds:
            raise ConfigError(f"num_rounds = {num_rounds}: the checkpoint in {strategy.directory} has {done} rounds")
        result, counted = _result_so_far(strategy), 0
        config = strategy.configs.go_on(train_config, done)
        if done:
            rest = ": nothing is left to do" if done == num_rounds else ""
            log.info("going on after round %d of %d%s", done, num_rounds, rest)
        elif evaluate_fn is not None:
            _keep_evaluation(strategy, result, 0, None, evaluate_fn(0, result.arrays.copy()))
        if done < num_rounds:
            gather(strategy, grid)
        with _bar(done, num_rounds) as advance:
            for number in range(done + 1, num_rounds + 1):
                _round(strategy, grid, number, result, config)
                central = evaluate_fn(number, result.arrays.copy()) if evaluate_fn is not None else None
                federated = _evaluate(strategy, grid, number, evaluate_config or ConfigRecord())
                _keep_evaluation(strategy, result, number, federated, central)
                advance(strategy.summary_line)
                counted += strategy.summary_line["active"]
        if done < num_rounds and not counted:
            log.warning("no reply counted in %d rounds: the log says why", num_rounds - done)
        return result
    finally:
        strategy.close()


def gather(strategy: Rounds, grid: Grid) -> None:
    """Wait until ``min_available_nodes`` clients are online and have said who they are."""
    said, wanted = time.monotonic(), strategy.min_available_nodes
    while True:
        deadline = time.monotonic() + strategy.round_deadline
        strategy.ledger = Ledger(strategy.round, deadline)
        waiting: set[str] = set()
        while time.monotonic() < deadline:
            for group in strategy.ask(grid, identify_only=True):
                waiting |= _push(grid, group)
            for message in sorted(_pull(grid, waiting), key=_claimed_name):
                strategy.receive(message)
            met = sum(strategy.roster.at(node) is not None for node in grid.get_node_ids())
            if met >= wanted:
                return
            if time.monotonic() - said > SAY_WAITING:
                said = time.monotonic()
                _say_waiting(strategy, met, wanted)
            time.sleep(strategy.poll_interval)


def _say_waiting(strategy: Rounds, met: int, wanted: int) -> None:
    log.info("waiting for clients: %d of %d are here", met, wanted)
    silent = dict([*strategy.ledger.failed, *strategy.ledger.refused])
    if silent:
        who, why = next(iter(silent.items()))
        question = "does the client app have @app.train(mods=[fedpbc_mod])?"
        log.warning("%d nodes did not say who they are: %s (%s: %s)", len(silent), question, who, why)


def _round(strategy: Rounds, grid: Grid, number: int, result: Result, config: ConfigRecord) -> None:
    messages = strategy.configure_train(number, result.arrays, config, grid)
    _, metrics = strategy.aggregate_train(number, _exchange(strategy, grid, messages))
    result.arrays = strategy.arrays
    if metrics is not None:
        result.train_metrics_clientapp[number] = metrics


def _exchange(strategy: Rounds, grid: Grid, messages: Iterable[Message]) -> list[Message]:
    """The replies of the round: until all who were asked have answered, or the deadline. Newcomers are asked too."""
    replies: list[Message] = []
    waiting, ledger = _push(grid, list(messages)), strategy.ledger
    looked = -float("inf")
    while True:
        introduced = False
        for message in _pull(grid, waiting):
            if strategy.introduces(message):
                strategy.receive(message)
                introduced = True
            else:
                replies.append(message)
        now = time.monotonic()
        if introduced or now - looked > LOOK_FOR_NODES or not waiting:
            looked = now
            for group in strategy.ask(grid):
                waiting |= _push(grid, group)
        if now >= ledger.deadline or (not waiting and any(asked.client for asked in ledger.asked)):
            return replies
        if waiting and not introduced:
            _sleep_until(now + strategy.poll_interval, ledger.deadline)
        elif not waiting:
            _sleep_until(now + LOOK_FOR_NODES, ledger.deadline)


def _evaluate(strategy: Rounds, grid: Grid, number: int, config: ConfigRecord) -> MetricRecord | None:
    """The mean of what the clients measure; those that do not answer before the deadline are left out."""
    waiting = _push(grid, list(strategy.configure_evaluate(number, strategy.arrays, config, grid)))
    if not waiting:
        return None
    deadline, replies = time.monotonic() + strategy.round_deadline, []
    while True:
        replies += _pull(grid, waiting)
        if not waiting or time.monotonic() >= deadline:
            return strategy.aggregate_evaluate(number, replies)
        time.sleep(strategy.poll_interval)


def _claimed_name(message: Message) -> str:
    """So that who is met first, which decides in which row of a table a client is, does not depend on the network."""
    record = message.content.get(RECORD) if message.has_content() else None
    return str(record.get("client-id")) if isinstance(record, ConfigRecord) else ""


def _push(grid: Grid, messages: list[Message]) -> set[str]:
    """Ids of the messages that went out: none for nodes that have just gone."""
    return {message_id for message_id in grid.push_messages(messages) if message_id} if messages else set()


def _pull(grid: Grid, waiting: set[str]) -> list[Message]:
    """What has come; ``waiting`` loses its ids."""
    messages = list(grid.pull_messages(set(waiting))) if waiting else []
    waiting.difference_update(message.metadata.reply_to_message_id for message in messages)
    return messages


def _sleep_until(then: float, at_most: float) -> None:
    time.sleep(max(0.0, min(then, at_most) - time.monotonic()))


def _result_so_far(strategy: Rounds) -> Result:
    """The result of the rounds that the checkpoint has."""
    result = Result(arrays=strategy.arrays)
    for line in strategy.logs.lines("metrics"):
        if line.get("train"):
            result.train_metrics_clientapp[line["round"] + 1] = MetricRecord(line["train"])
    for line in strategy.logs.lines("evaluation"):
        for kind, where in _kinds(result):
            if line.get(kind):
                where[line["round"] + 1] = MetricRecord(line[kind])
    return result


def _kinds(result: Result) -> tuple[tuple[str, dict[int, MetricRecord]], ...]:
    return ("clients", result.evaluate_metrics_clientapp), ("server", result.evaluate_metrics_serverapp)


def _keep_evaluation(
    strategy: Rounds,
    result: Result,
    number: int,
    federated: MetricRecord | None,
    central: MetricRecord | None,
) -> None:
    line: dict[str, Any] = {"round": number - 1}
    for (kind, where), metrics in zip(_kinds(result), (federated, as_metrics(central)), strict=True):
        if metrics is not None:
            where[number], line[kind] = metrics, dict(metrics)
            log.info("round %d: evaluated by the %s: %s", number, kind, line[kind])
    if len(line) > 1:
        strategy.logs.evaluation(line)


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
