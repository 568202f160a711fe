"""A round ends: the new model from the replies that count, what is remembered, checkpoint and logs."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from flwr.app import ArrayRecord, Message, MetricRecord

from fedpbc.flower.server.federation import Federation
from fedpbc.flower.server.ledger import Reply, mean_of
from fedpbc.flower.server.metrics import LeftOut, average_metrics
from fedpbc.flower.server.receiving import NOT_FINITE, accept, receive, refuse, weigh
from fedpbc.flower.server.rule import Step
from fedpbc.flower.server.words import describe
from fedpbc.flower.wire.arrays import Model, sane

log = logging.getLogger("flwr")


def close_round(federation: Federation, messages: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """x^(t+1) from the replies that count, then checkpoint and logs.

    (None, metrics) when the model stays as it is.
    """
    for message in messages:
        receive(federation, message)
    accept(federation)
    weigh(federation)
    federation.ledger.close()
    (new, commit), heard = _form(federation)
    commit()
    bases, t = federation.bases, federation.round
    if new is not None:
        bases.add(federation.layout.record(new))
        federation.model = federation.layout.flatten(bases.model(bases.latest))
    for reply in heard:
        reply.client.version, reply.client.base = t + 1, bases.latest
    _note_failures(federation, heard)
    federation.roster.forget(t, federation.options.forget_unnamed)
    bases.retain(_needed(federation))
    federation.configs.retain(_oldest(federation))
    federation.heard = [reply.client.name for reply in heard]
    named = [(reply.client.name, reply.content) for reply in heard]
    options = federation.options
    metrics, left_out = average_metrics(named, options.train_metrics_aggr_fn, options.weighted_by_key)
    _say_why(federation, left_out)
    _write(federation, metrics)
    federation.done = t + 1
    federation.save()
    return None if new is None else federation.arrays, metrics


def _form(federation: Federation) -> tuple[Step, list[Reply]]:
    """(the step, the replies it is made of): NaN is looked for in the result first, then for who sent it."""
    ledger, now = federation.ledger, federation.now()
    while True:
        replies = sorted(ledger.replies.values(), key=lambda reply: reply.client.name)
        if not federation.learns():
            return Step(None), replies
        step = _with_buffers(federation, federation.rule.step(now, replies), replies)
        if step.model is None or _holds(federation, step.model):
            return step, replies
        bad = [reply for reply in replies if not sane(reply.arrays)]
        for reply in bad or replies:
            del ledger.replies[reply.client.name]
            refuse(federation, reply.client.name, NOT_FINITE if bad else "the new model would not be finite")
        if not replies:
            log.warning("round %d: the new model would not be finite; it stays as it was", now.t + 1)
            return step._replace(model=None), []


def _with_buffers(federation: Federation, step: Step, replies: list[Reply]) -> Step:
    """The new model with its buffers, which are the mean of those that were sent; without replies as they were."""
    layout = federation.layout
    if step.model is None or not layout.buffers:
        return step
    start = {name: federation.model[name] for name in layout.buffers}
    mean = mean_of([reply.buffers for reply in replies], layout.averaged, start)
    return step._replace(model={name: {**step.model, **mean}[name] for name in layout.shapes})


def _holds(federation: Federation, new: Model) -> bool:
    """Whether the numbers of a new model can be computed with, also in the types that it is sent in."""
    layout = federation.layout
    return sane(new) and (not layout.narrows or sane(layout.restore(new)))


def _needed(federation: Federation) -> set[str]:
    """The models that somebody goes on from; x^0 as long as a client may come that was never met."""
    if not federation.rule.replays:
        return set()
    bases = {client.base for client in federation.roster.clients.values()}
    return bases if _all_are_known(federation) else bases | {federation.first_base}


def _oldest(federation: Federation) -> int:
    """The first round that somebody may still replay."""
    if not federation.rule.replays:
        return federation.round + 1
    versions = [client.version for client in federation.roster.clients.values()]
    return min(versions if _all_are_known(federation) else [0, *versions], default=federation.round + 1)


def _all_are_known(federation: Federation) -> bool:
    """Whether nobody will come any more that goes on from x^0."""
    return federation.roster.is_full() or not federation.rule.from_start


def _note_failures(federation: Federation, heard: list[Reply]) -> None:
    """Count the failures of this round; who failed too often in the same way is named, and given up on if asked."""
    failures, ledger = federation.failures, federation.ledger
    failures.left_out = {}
    for reply in heard:
        failures.heard(reply.client.name)
    for name, failure in ledger.failures.items():
        trouble = None if name in ledger.replies else failures.note(name, failure)
        if trouble is not None:
            client = federation.roster.clients[name]
            log.error(trouble.describe(name, federation.rule.give_up(federation.now(), client, trouble, failures)))


def _say_why(federation: Federation, left_out: LeftOut) -> None:
    """Why replies of this round, or their metrics, do not count; refused ones were said when they came."""
    reasons, ledger, number = federation.reasons, federation.ledger, federation.round + 1
    reasons.say(number, "no model from", ledger.failed)
    reasons.say(number, "left out are the metrics of", left_out)
    reasons.count(ledger.refused)
    waiting = "was still catching up when the round closed"
    reasons.count((name, waiting) for name in ledger.unfinished)


def _write(federation: Federation, metrics: MetricRecord | None) -> None:
    """One line for the log, one each for the journals."""
    more = {"left_out": federation.failures.left_out, "bases": len(federation.bases.names()), "of": federation.target}
    line = federation.summary_line = federation.ledger.summary(len(federation.roster)) | more
    log.info("round %d: %s", federation.round + 1, describe(line))
    chosen = {} if federation.ledger.chosen is None else {"chosen": len(federation.ledger.chosen)}
    federation.logs.round(line, federation.heard, metrics, chosen)
