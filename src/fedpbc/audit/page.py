"""The audit as one HTML page: self-contained, without scripts or requests, in words, tables and pictures."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from fedpbc.audit import figures, questions
from fedpbc.audit.comparison import Comparison
from fedpbc.audit.markup import ID_LENGTH, STYLE, client_id, evidence, figure, paragraph, table
from fedpbc.audit.numbers import count, cycle_of, number, percent
from fedpbc.audit.questions import known_rounds
from fedpbc.audit.svg import clean, shorten
from fedpbc.audit.types import Advice, Findings
from fedpbc.audit.view import View
from fedpbc.io.participation.log import ParticipationLog

MOST = 20
"""Clients in the table of changes."""
QUESTIONS = (
    "How uneven is participation?",
    "How biased is FedAvg on this log?",
    "Is it stationary, and does it have memory?",
    "What would FedPBC do here?",
    "What should I use?",
)
NO_RATES = (
    "This log says how many clients took part in each round, not which. Rates and weights of clients cannot be had"
    " from it."
)


def render(findings: Findings, log: ParticipationLog, change: Comparison | None = None) -> str:
    """One HTML document, the same for the same findings and log; ``change``: since an earlier log."""
    view = View.of(findings, log)
    if view is None:
        return _document(findings, log, _counts_only(findings, log), _counts_answers(findings), change)
    bodies = (
        questions.uneven(view),
        questions.biased(view),
        questions.stationary(view),
        questions.fedpbc(view),
        _advice(findings.advice),
    )
    answers = (
        questions.uneven_answer(view),
        questions.biased_answer(view),
        questions.stationary_answer(view),
        questions.fedpbc_answer(view),
        _advice_answer(findings.advice),
    )
    return _document(findings, log, bodies, answers, change)


# Question 5


def _advice_answer(advice: Sequence[Advice]) -> str:
    return html.escape(advice[0].advice) if advice else "No rule applies to this log."


def _advice(advice: Sequence[Advice]) -> str:
    if not advice:
        return paragraph("No rule of this audit applies to this log.")
    cards = []
    for entry in advice:
        card = f"<p><strong>{html.escape(clean(entry.advice))}</strong></p>"
        card += paragraph(html.escape(clean(entry.reason)))
        card += f'<p class="muted">Evidence: {evidence(entry.evidence, entry.link)}</p>'
        card += f"<p><code>{html.escape(clean(entry.code))}</code></p>"
        cards.append(f'<div class="advice">{card}</div>')
    return "".join(cards)


# Logs that hold counts only


def _counts_answers(findings: Findings) -> tuple[str, ...]:
    unknown = "Cannot be said: the log holds counts, not clients."
    drift, period = findings.stationarity.drift, findings.stationarity.period.rounds
    cycle = "no cycle found" if period is None else f"it repeats every {cycle_of(period)}"
    verdict = "drifts" if drift.found else "shows no drift"
    steady = f"The number of active clients {verdict}, {cycle}; the rest needs to know who took part."
    return unknown, unknown, steady, unknown, _advice_answer(findings.advice)


def _counts_only(findings: Findings, log: ParticipationLog) -> tuple[str, ...]:
    counts = log.known_counts()
    rounds = (
        f"A round had {number(counts.mean())} active clients on average, between {counts.min():,} and {counts.max():,}."
    )
    if empty := int(np.sum(counts == 0)):
        rounds += f" In {count(empty, 'round')} nobody was active."
    need = "Log one row per round and active client (<code>round,client</code>) to have this answered."
    picture = figure(figures.activity(log, findings.stationarity.period.rounds))
    return paragraph(need) + paragraph(rounds), "", picture, "", _advice(findings.advice)


# The document


def _document(
    findings: Findings, log: ParticipationLog, bodies: Sequence[str], answers: Sequence[str], change: Comparison | None
) -> str:
    counts = log.counts_only is not None
    source = findings.log.source
    title = "Participation audit" + (f": {shorten(clean(source), ID_LENGTH)}" if source else "")
    facts = [] if log.num_clients is None else [count(log.num_clients, "client")]
    facts.append(known_rounds(log))
    if not counts:
        facts.append(f"{len(log.rounds):,} times a client took part")
    if findings.log.format:
        facts.append(f"format {html.escape(clean(findings.log.format))}")
    warning = f'<p class="answer warn">{NO_RATES}</p>' if counts else ""
    short = "".join(
        f'<li><a href="#q{i}">{i}. {question}</a>{answer}</li>'
        for i, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True), 1)
    )
    sections = "".join(
        f'<section><h2 id="q{i}">{i}. {question}</h2>'
        + (f'<p class="answer">{answer}</p>' if i < len(QUESTIONS) else "")
        + f"{body}</section>"
        for i, (question, answer, body) in enumerate(zip(QUESTIONS, answers, bodies, strict=True), 1)
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{html.escape(title)}</h1><p class="muted">{" · ".join(facts)}</p>{warning}</header>\n'
        f'<main><ol class="short">{short}</ol>\n{sections}\n{_changes(change)}{_reading(log)}</main>\n'
        "</body>\n</html>\n"
    )


def _changes(change: Comparison | None) -> str:
    """What changed since an earlier log."""
    if change is None:
        return ""
    rows = [
        ("weight on the wrong clients", *map(percent, change.total_variation)),
        ("which chance may give", *map(percent, change.total_variation_by_chance)),
        ("mean rate", *map(percent, change.mean_rate)),
        ("rounds without a client", *map(percent, change.empty_rounds)),
        ("Gini coefficient of the rates", *(number(each, 2) for each in change.gini)),
        ("correlation with the round before", *(f"{each:z.2f}" for each in change.autocorrelation)),
    ]
    heading = f"What changed since {html.escape(shorten(clean(change.source), ID_LENGTH))}?"
    parts = [table("", ("", "before", "now"), rows)]
    if change.changed:
        listed = [(client_id(each.client), percent(each.before), percent(each.after)) for each in change.changed[:MOST]]
        parts.append(
            paragraph(
                f"{count(len(change.changed), 'client')} of {change.tested:,} in both logs changed, beyond chance."
            )
        )
        parts.append(table("Clients whose rate changed", ("client", "before", "now"), listed))
    else:
        parts.append(paragraph(f"None of {count(change.tested, 'client')} in both logs changed, beyond chance."))
    return f"<section><h2>{heading}</h2>{''.join(parts)}</section>"


def _reading(log: ParticipationLog) -> str:
    """What was assumed and skipped while the log was read."""
    parts = (
        ["<ul>" + "".join(f"<li>{html.escape(clean(note))}</li>" for note in log.notes) + "</ul>"] if log.notes else []
    )
    if log.skipped:
        rows = [(html.escape(clean(what)), f"{lines:,}") for what, lines in log.skipped.items()]
        parts.append(table("", ("skipped", "how many"), rows))
    return f"<section><h2>How the log was read</h2>{''.join(parts)}</section>" if parts else ""
