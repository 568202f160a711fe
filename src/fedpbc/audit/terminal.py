"""The report on the terminal: five answers on one page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fedpbc.audit.rules import Findings

LONGEST_ID = 24
SHOWN = 3


def report(findings: Findings) -> RenderableType:
    """One page: what was read, the answers to the five questions, the advice."""
    log = findings["log"]
    m = "an unknown number of" if log["num_clients"] is None else f"{log['num_clients']:,}"
    head = f"{_clean(log['source'])}: {log['num_rounds']:,} rounds, {m} clients"
    head += f", {log['num_active_pairs']:,} participations"
    remarks = [*log["notes"], *(f"skipped: {count:,} {what}" for what, count in log["skipped"].items())]
    parts: list[RenderableType] = [Text(head, style="bold"), *(_line(f"note: {_clean(text)}") for text in remarks)]
    answers = {
        "How uneven is participation?": _uneven(findings),
        "How biased is FedAvg on this log?": _biased(findings),
        "Is it stationary, does it have memory?": _steady(findings["stationarity"]),
        "What would FedPBC do here?": _fedpbc(findings["mixing"]),
    }
    for number, (question, lines) in enumerate(answers.items(), start=1):
        parts += [Text(f"{number}. {question}", style="bold"), *map(_line, lines)]
    return Group(*parts, Text("5. What should I use?", style="bold"), *_advice(findings["advice"]))


def _line(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 3), expand=False)


def _clean(text: str) -> str:
    """Control characters out: ids come from a file."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _ids(names: list[str]) -> str:
    shown = [_short(name) for name in names[:SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")


def _short(name: str) -> str:
    name = _clean(name)
    return name if len(name) <= LONGEST_ID else name[: LONGEST_ID - 3] + "..."


def _uneven(findings: Findings) -> Iterable[str]:
    found, total = findings["participation"], findings["log"]["num_rounds"]
    mean = f"{found['mean_active']:.3g} clients a round on average"
    yield f"{mean}; {found['empty_rounds']:,} rounds with none, {found['single_rounds']:,} with one."
    if "rate" not in found:
        yield "Who took part is not in the log: rates, weights and mixing cannot be had from it."
        return
    rates, names = found["rate"], findings["clients"]
    low, high = (pick(range(len(rates)), key=rates.__getitem__) for pick in (min, max))
    spread = " to ".join(_rate(found, i, names[i]) for i in (low, high))
    yield f"Rates: {spread}; Gini {found['gini']:.2f}."
    if found["intervals_widened"]:
        yield "The intervals are widened for memory between rounds (effective sample size)."
    longest = max(range(len(rates)), key=found["longest_absence"].__getitem__)
    yield f"Longest absence: {found['longest_absence'][longest]:,} of {total:,} rounds ({_short(names[longest])})."
    if found["never_seen"]:
        yield f"Never seen: {len(found['never_seen']):,} clients ({_ids(found['never_seen'])})."
    if len(found["components"]) > 1:
        yield f"{len(found['components']):,} groups of clients never meet: no mixing method can join them."


def _rate(found: dict[str, Any], i: int, name: str) -> str:
    return f"{found['rate'][i]:.3f} [{found['rate_low'][i]:.3f}, {found['rate_high'][i]:.3f}] ({_short(name)})"


def _biased(findings: Findings) -> Iterable[str]:
    found = findings["bias"]
    if found is None:
        yield "Not known: weights need client ids."
        return
    yield (
        f"{found['total_variation']:.1%} of its weight is on other clients than equal weights would put it "
        f"(from the rates alone: {found['total_variation_theoretical']:.1%}; by chance up to "
        f"{found['total_variation_by_chance']:.1%})."
    )
    for title, entries in (("Counts too much", found["most_over"]), ("Counts too little", found["most_under"])):
        if entries:
            yield f"{title}: " + ", ".join(f"{_short(e['client'])} x{e['ratio']:.2g}" for e in entries[:SHOWN]) + "."
    groups = found["by_group"] or []
    if groups:
        ends = groups if len(groups) <= 2 else [groups[0], groups[-1]]
        text = ", ".join(
            f"{_short(g['group'])} {g['weight']:.0%} for {g['share_of_clients']:.0%} of clients" for g in ends
        )
        yield f"By group: {text}."


def _steady(found: dict[str, Any]) -> Iterable[str]:
    drift, memory, period = found["drift"], found["autocorrelation"], found["period"]
    if drift["p_value"] is None:
        yield "Drift: too few rounds to test."
    elif drift["p_value"] >= drift["alpha"]:
        yield f"No drift found (p = {drift['p_value']:.2g})."
    else:
        who = (
            f"{len(drift['drifting']):,} clients ({_ids(drift['drifting'])})"
            if drift["drifting"]
            else "how many take part"
        )
        yield f"Drifts (p = {drift['p_value']:.2g}): {who}."
    if memory is not None and memory["median"] is not None:
        verdict = "memory" if memory["significant"] else "no memory found"
        yield f"Correlation with the round before: median {memory['median']:.2f} over clients: {verdict}."
    if period["rounds"] is None:
        yield "No period found."
    else:
        yield f"Period: every {period['rounds']:.4g} rounds (p = {period['p_value']:.2g})."


def _fedpbc(found: dict[str, Any] | None) -> Iterable[str]:
    if found is None or found["contraction"] is None:
        yield "Not known: mixing needs client ids and at least two clients seen."
        return
    half, cooldown = found["half_life_rounds"], found["cooldown_rounds_1e3"]
    if half is None:
        yield "The clients' models never agree: a part of the distance between them stays forever."
    else:
        yield (
            f"A round leaves {found['contraction']:.4g} of the squared distance between models: halved in {half:,.3g} "
            f"rounds, a thousandth after {cooldown:,.0f} cool-down rounds."
        )
    yield f"Local work: {found['local_work_ratio']:,.3g} times FedAvg's, for every client computes in every round."


def _advice(entries: list[dict[str, str]]) -> Iterable[RenderableType]:
    for entry in entries:
        yield Padding(Text(f"* {entry['advice']}", style="green"), (0, 0, 0, 3), expand=False)
        yield Padding(Text(f"{entry['reason']} Evidence: {entry['evidence']}."), (0, 0, 0, 5), expand=False)
