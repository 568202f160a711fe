"""The report on the terminal: five answers on one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fedpbc.audit.comparison import Comparison
from fedpbc.audit.numbers import (
    count,
    cycle_of,
    in_rounds,
    in_whole_rounds,
    left,
    number,
    p_value,
    percent,
    share,
    times,
)
from fedpbc.audit.rules import of_evaluations
from fedpbc.audit.types import Advice, Bias, Findings, Mixing, Participation, Stationarity

LONGEST_ID = 24
SHOWN = 3


def report(findings: Findings, change: Comparison | None = None) -> RenderableType:
    """One page: what was read, the answers to the five questions, the advice, and what changed since an earlier log."""
    log = findings.log
    m = "an unknown number of" if log.num_clients is None else f"{log.num_clients:,}"
    unknown = f" ({log.unknown_rounds:,} of them unknown)" if log.unknown_rounds else ""
    head = f"{_clean(log.source)}: {count(log.num_rounds, 'round')}{unknown}, {m} clients"
    head += f", {log.num_active_pairs:,} participations" + (f" (read as {_clean(log.format)})" if log.format else "")
    remarks = [*log.notes, *(f"skipped: {count:,} {what}" for what, count in log.skipped.items())]
    parts: list[RenderableType] = [Text(head, style="bold"), *(_line(f"note: {_clean(text)}") for text in remarks)]
    answers = {
        "How uneven is participation?": _uneven(findings),
        "How biased is FedAvg on this log?": _biased(findings.bias),
        "Is it stationary, does it have memory?": _steady(findings.stationarity),
        "What would FedPBC do here?": _fedpbc(findings.mixing),
    }
    for place, (question, lines) in enumerate(answers.items(), start=1):
        parts += [Text(f"{place}. {question}", style="bold"), *map(_line, lines)]
    parts += [Text("5. What should I use?", style="bold"), *_advice(findings.advice)]
    if change is not None:
        parts += [Text(f"What changed since {_clean(change.source)}?", style="bold"), *map(_line, _changes(change))]
    return Group(*parts)


def _changes(change: Comparison) -> Iterable[str]:
    before, after = change.total_variation
    low, high = change.total_variation_by_chance
    yield (
        f"Weight on the wrong clients: {before:.1%} -> {after:.1%} (by chance up to {low:.1%} and {high:.1%}); "
        f"mean rate {share(change.mean_rate[0])} -> {share(change.mean_rate[1])}; "
        f"Gini {change.gini[0]:z.2f} -> "
        f"{change.gini[1]:z.2f}; "
        f"rounds with none {percent(change.empty_rounds[0])} -> {percent(change.empty_rounds[1])}."
    )
    if change.clients_gone or change.clients_new:
        yield f"{count(change.clients_gone, 'client')} gone, {change.clients_new:,} new."
    if not change.changed:
        yield f"Of {count(change.tested, 'client')} in both logs none takes part more or less often, beyond chance."
        return
    shown = ", ".join(f"{_short(e.client)} {share(e.before)} -> {share(e.after)}" for e in change.changed[:SHOWN])
    more = f" and {len(change.changed) - SHOWN:,} more" if len(change.changed) > SHOWN else ""
    yield f"Of {count(change.tested, 'client')} in both logs {len(change.changed):,} changed: {shown}{more}."


def _line(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 3), expand=False)


def _clean(text: str) -> str:
    """Control characters out: ids come from a file."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _ids(names: Sequence[str]) -> str:
    shown = [_short(name) for name in names[:SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")


def _short(name: str) -> str:
    name = _clean(name)
    return name if len(name) <= LONGEST_ID else name[: LONGEST_ID - 3] + "..."


def _uneven(findings: Findings) -> Iterable[str]:
    found, log = findings.participation, findings.log
    mean = f"{number(found.mean_active)} clients a round on average"
    yield f"{mean}; {count(found.empty_rounds, 'round')} with none, {found.single_rounds:,} with one."
    if not isinstance(found, Participation):
        yield "Who took part is not in the log: rates, weights and mixing cannot be had from it."
        return
    names = findings.clients
    spread = " to ".join(_rate(found, int(i), names[i]) for i in (found.rate.argmin(), found.rate.argmax()))
    yield f"Rates: {spread}; Gini {found.gini:z.2f}."
    if found.intervals_widened:
        yield "The intervals are widened for memory between rounds (effective sample size)."
    longest = int(found.longest_absence.argmax())
    least = "at least " if log.unknown_rounds else ""
    rounds = f"{least}{found.longest_absence[longest]:,} of {log.known_rounds:,}{' known' if least else ''} rounds"
    yield f"Longest absence: {rounds} ({_short(names[longest])})."
    if found.never_seen:
        yield f"Never seen: {count(len(found.never_seen), 'client')} ({_ids(found.never_seen)})."
    if len(found.components) > 1:
        yield f"{len(found.components):,} groups of clients never meet: no mixing method can join them."


def _rate(found: Participation, i: int, name: str) -> str:
    rate, low, high = (share(float(each[i])) for each in (found.rate, found.rate_low, found.rate_high))
    return f"{rate} [{low}, {high}] ({_short(name)})"


def _biased(found: Bias | None) -> Iterable[str]:
    if found is None:
        yield "Not known: weights need client ids."
        return
    yield (
        f"{found.total_variation:.1%} of its weight is on other clients than equal weights would put it "
        f"(from the rates alone: {found.total_variation_theoretical:.1%}; by chance up to "
        f"{found.total_variation_by_chance:.1%})."
    )
    for title, entries in (("Counts too much", found.most_over), ("Counts too little", found.most_under)):
        if entries:
            yield f"{title}: " + ", ".join(f"{_short(e.client)} {times(e.ratio)}" for e in entries[:SHOWN]) + "."
    groups = found.by_group
    if groups:
        ends = groups if len(groups) <= 2 else (groups[0], groups[-1])
        text = ", ".join(
            f"{_short(g.group)} {percent(g.weight)} for {percent(g.share_of_clients)} of clients" for g in ends
        )
        yield f"By group: {text}."
    yield from filter(None, [of_evaluations(found)])


def _steady(found: Stationarity) -> Iterable[str]:
    drift, memory, period = found.drift, found.autocorrelation, found.period
    if drift.p_value is None:
        yield "Drift: too few rounds to test."
    elif not drift.found:
        yield f"No drift found (p {p_value(drift.p_value)})."
    else:
        clients = f"{len(drift.drifting):,} clients ({_ids(drift.drifting)})"
        yield f"Drifts (p {p_value(drift.p_value)}): {clients if drift.drifting else 'how many take part'}."
    if memory is not None and memory.median is not None:
        verdict = "memory" if memory.significant else "no memory found"
        yield f"Correlation with the round before: median {memory.median:z.2f} over clients: {verdict}."
    if period.rounds is None:
        yield "No period found."
    else:
        yield f"Period: every {cycle_of(period.rounds)} (p {p_value(period.p_value)})."


def _fedpbc(found: Mixing | None) -> Iterable[str]:
    if found is None or found.clients_seen < 2:
        yield "Not known: mixing needs client ids and at least two clients seen."
        return
    squared, once = found.squared_distance_left_per_round, found.distance_left_per_round
    cooldown = found.distance_cooldown_rounds_1e3
    if found.squared_distance_left_for_good:
        yield (
            f"The clients' models never agree: {percent(found.squared_distance_left_for_good)} of the squared "
            "distance between them stays forever."
        )
    elif squared is None or once is None or cooldown is None:
        yield "No two clients were averaged in the rounds that were looked at: how fast models agree is not known."
    else:
        first = [
            f"{what} after {in_rounds(rounds)}"
            for what, rounds in (
                ("halved", found.distance_halved_after), ("down to a tenth", found.distance_tenth_after))
            if rounds is not None
        ]  # fmt: skip
        until = f"a thousandth is left after {in_whole_rounds(cooldown)} of cool-down"
        until += " (more than the log has in a row: extrapolated)" if found.extrapolated else ""
        yield f"On this log the distance between models is {', '.join([*first, until])}."
        half, halved = found.distance_half_life_rounds, found.distance_halved_after
        waits = half is not None and halved is not None and halved < half / 2
        yield (
            f"Over that way a round leaves {left(once)} of the distance on average, {left(squared)} of its square"
            + ("; the first rounds take most, the later ones wait for the rarest clients." if waits else ".")
        )
    yield (f"Local work: {number(found.local_work_ratio)} times FedAvg's, for every client computes in every round.")


def _advice(entries: Sequence[Advice]) -> Iterable[RenderableType]:
    for entry in entries:
        yield Padding(Text(f"* {entry.advice}", style="green"), (0, 0, 0, 3), expand=False)
        evidence = entry.link or entry.evidence
        yield Padding(Text(f"{entry.reason} Evidence: {evidence}."), (0, 0, 0, 5), expand=False)
        yield Text(f"     {_clean(entry.code)}", style="cyan", no_wrap=True, overflow="ignore")  # whole, to be copied
