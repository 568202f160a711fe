"""The answers to the first four questions of an audit's page: a sentence each, then words, tables and pictures."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpbc.audit import figures
from fedpbc.audit.markup import client_id, client_ids, figure, paragraph, ratio_of, table
from fedpbc.audit.numbers import count, cycle_of, in_rounds, in_whole_rounds, left, number, p_value, percent, times
from fedpbc.audit.rules import HARMFUL, HARMLESS
from fedpbc.audit.view import View, value_at

if TYPE_CHECKING:
    from fedpbc.io.participation.log import ParticipationLog

MAX_TABLE = 300
"""Clients of the full table; audit.json has them all."""


def known_rounds(log: ParticipationLog) -> str:
    """``300 rounds``, or ``280 known rounds (20 unknown)``."""
    if not len(log.unknown):
        return count(log.num_rounds, "round")
    return f"{count(log.known_rounds, 'known round')} ({len(log.unknown):,} unknown)"


# Question 1


def uneven_answer(view: View) -> str:
    """Question 1 in a sentence."""
    least, most = float(view.rate.min()), float(view.rate.max())
    never, apart = int(np.sum(view.rate == 0)), len(view.at("participation", "components") or [])
    groups = f" The clients fall into {apart:,} groups that never meet." if apart > 1 else ""
    if view.by_chance:
        span = f"from {percent(least)} to {percent(most)}"
        return f"Even: the differences between clients ({span}) are what chance gives.{groups}"
    gini = view.at("participation", "gini")
    word = "Uneven" if gini is None else "Nearly even" if gini < 0.1 else "Uneven" if gini < 0.3 else "Very uneven"
    rest = f"the rarest in {percent(least)}" if not never else f"{never:,} never did"
    return f"{word}: the busiest client took part in {percent(most)} of the rounds, {rest}.{groups}"


def uneven(view: View) -> str:
    """Question 1 in full."""
    quarter, half, three = np.quantile(view.rate, [0.25, 0.5, 0.75])
    text = f"On average, a client took part in {percent(float(view.rate.mean()))} of the {known_rounds(view.log)}."
    if view.m >= 8:
        text += (
            f" Half of the clients are between {percent(quarter)} and {percent(three)}; the median is {percent(half)}."
        )
    gini = view.at("participation", "gini")
    if gini is not None:
        text += f" The Gini coefficient is {gini:z.2f} (0: all take part equally often, 1: one client does everything)."
    if view.outside is not None:
        expected = 1 - (view.at("participation", "confidence") or 0.95)
        text += (
            f" The intervals of {round(view.outside * view.m):,} of {view.m:,} clients leave out the mean"
            f" rate; chance alone would do that to about {expected:.0%} of them."
        )
    if view.at("participation", "intervals_widened"):
        text += " The intervals are widened, because rounds resemble the rounds before them."
    parts = [paragraph(text), paragraph(_rounds_text(view)), *map(paragraph, _strangers(view))]
    parts.append(figure(figures.heat_map(view.log, view.rate)))
    confidence = view.at("participation", "confidence") or 0.95
    parts.append(figure(figures.rates(view.log, view.rate, view.low, view.high, confidence, float(view.rate.mean()))))
    return "".join(parts)


def _rounds_text(view: View) -> str:
    counts = view.log.known_counts()
    empty, single = int(np.sum(counts == 0)), int(np.sum(counts == 1))
    text = (
        f"A round had {number(counts.mean())} active clients on average, between {counts.min():,} and {counts.max():,}."
    )
    if empty:
        text += f" In {count(empty, 'round')} nobody was active."
    if single:
        text += f" In {count(single, 'round')} only one client was: nothing is averaged then."
    return text


def _strangers(view: View) -> Iterable[str]:
    never = view.at("participation", "never_seen") or []
    if never:
        who = f"<strong>Never seen: {count(len(never), 'client')}</strong>"
        yield f"{who} ({client_ids(never)}). Their data never reaches the server."
    components = view.at("participation", "components") or []
    several = [group for group in components if len(group) > 1] or components
    if len(components) > 1:
        sizes = ", ".join(f"{len(group):,}" for group in sorted(several, key=len, reverse=True)[:6])
        yield (
            f"<strong>The clients fall into {len(components):,} groups that never meet</strong> (of {sizes}"
            f"{' and fewer' if len(components) > 6 else ''} clients): no round has active clients of two of them. A"
            " method that only averages active clients cannot make these groups agree."
        )


# Question 2


def biased_answer(view: View) -> str:
    """Question 2 in a sentence."""
    distance = view.at("bias", "total_variation")
    if distance is None:
        return "The weights could not be computed from this log."
    chance = view.at("bias", "total_variation_by_chance")
    text = f"{percent(distance)} of the weight in FedAvg sits on the wrong clients"
    if chance is not None and distance <= chance:
        return f"Not more than by chance: {text}, and clients that are all alike would give up to {percent(chance)}."
    word = "Hardly" if distance <= HARMLESS else "Somewhat" if distance < HARMFUL else "Strongly"
    return f"{word}: {text}."


def biased(view: View) -> str:
    """Question 2 in full."""
    text = (
        "FedAvg averages the clients it hears from, so that clients heard more often count more: it minimises a"
        " weighted objective, not the plain mean over clients, in which everybody weighs 1/m."
    )
    if view.weight is not None:
        ratio = view.weight * view.m
        text += f" Here the weights go from {times(ratio.min())} to {times(ratio.max())} the fair share."
    theory = view.at("bias", "total_variation_theoretical")
    if theory is not None:
        text += (
            f" At the same rates, rounds independent of each other and clients independent of each other would misplace"
            f" {percent(theory)}."
        )
    to_sizes = view.at("bias", "total_variation_to_sizes")
    if to_sizes is not None:
        text += (
            f" Measured against the clients' sample sizes instead of equal weights, {percent(to_sizes)} is misplaced."
        )
    parts = [paragraph(text)]
    by_group = view.at("bias", "by_group")
    if by_group:
        rows = [
            (
                client_id(group["group"]),
                percent(group["share_of_clients"]),
                percent(group["weight"]),
                times(ratio_of(group["weight"], group["share_of_clients"])),
            )
            for group in by_group
        ]
        parts.append(table("By group", ("group", "of the clients", "of the weight", "weight / fair share"), rows))
    if view.weight is not None:
        parts.append(figure(figures.weights(view.log, view.rate, view.weight, view.theory)))
    for key, title in (("most_over", "Most over-represented"), ("most_under", "Most under-represented")):
        over = [_client_row(view, entry) for entry in view.at("bias", key) or []]
        if over:
            parts.append(table(title, ("client", "weight / fair share", "weight", "rounds with it"), over))
    if view.weight is not None and view.m <= MAX_TABLE:
        parts.append(_everybody(view))
    return "".join(parts)


def _client_row(view: View, entry: dict[str, Any]) -> tuple[str, ...]:
    place = view.number.get(entry["client"])
    rate = "" if place is None else percent(float(view.rate[place]))
    return client_id(entry["client"]), times(entry.get("ratio")), percent(entry.get("weight")), rate


def _everybody(view: View) -> str:
    rows = []
    for i in figures.order_clients(view.rate, view.log.groups)[0]:
        interval = f"{percent(float(view.low[i]))} to {percent(float(view.high[i]))}" if view.intervals else ""
        ratio = None if view.weight is None else float(view.weight[i]) * view.m
        absence = "" if view.absence is None else f"{view.absence[i]:,.0f}"
        group = [] if view.log.groups is None else [client_id(view.log.groups[i])]
        rate = percent(float(view.rate[i]))
        rows.append((client_id(view.log.clients[i]), *group, rate, interval, times(ratio), absence))
    group = [] if view.log.groups is None else ["group"]
    heads = ("client", *group, "rounds with it", "interval", "weight / fair share", "longest absence")
    return f"<details><summary>All {view.m:,} clients</summary>{table('', heads, rows)}</details>"


# Question 3


def stationary_answer(view: View) -> str:
    """Question 3 in a sentence."""
    drift, memory, period = _drifts(view), view.at("stationarity", "autocorrelation", "significant"), _period(view)
    if drift is None and memory is None:
        return "This could not be tested on this log."
    text = {None: "Not tested for drift", True: "Not stationary: rates change over time", False: "No drift found"}[
        drift
    ]
    text += {None: "", True: "; there is memory from round to round", False: "; no memory found"}[memory]
    return text + (f"; it repeats every {cycle_of(period)}." if period else ".")


def stationary(view: View) -> str:
    """Question 3 in full."""
    parts = [paragraph(text) for text in (_drift_text(view), _memory_text(view), _period_text(view)) if text]
    parts.append(figure(figures.activity(view.log, _period(view))))
    histogram = view.at("participation", "absence_histogram") or {}
    edges, numbers = histogram.get("edges") or [], histogram.get("counts") or []
    if len(edges) == len(numbers) + 1 and None not in edges and any(numbers):
        bins = np.asarray(edges, float), np.asarray(numbers)
        parts.append(figure(figures.absences(*bins, view.counted, view.log)))
    if view.absence is not None:
        seen = np.where(view.counted > 0, view.absence, -1)
        longest = int(seen.argmax())
        rounds, whose = count(int(seen[longest]), "round"), client_id(view.log.clients[longest])
        median = np.median(view.absence[view.counted > 0])
        text = f"The longest absence is {rounds}, of {whose}; the median client's longest is {median:,.0f}."
        if censored := view.at("participation", "absence_histogram", "censored"):
            text += (
                f" {censored:,} absences border on unknown rounds: how long they are is not known, and they are not in"
                " the picture; for the longest, their known rounds count."
            )
        parts.append(paragraph(text + (" Clients never seen are left out." if seen.min() < 0 else "")))
    return "".join(parts)


def _drifts(view: View) -> bool | None:
    p, alpha = view.at("stationarity", "drift", "p_value"), view.at("stationarity", "drift", "alpha") or 0.05
    return None if p is None else bool(p < alpha)


def _drift_text(view: View) -> str:
    drift = value_at(view.findings, "stationarity", "drift") or {}
    if _drifts(view) is None:
        return "Whether rates drift was not tested."
    test = f"p {p_value(drift['p_value'])}" + (f", {html.escape(str(drift['method']))}" if drift.get("method") else "")
    if not _drifts(view):
        return f"Nothing says that the clients' rates change over the log ({test})."
    who = drift.get("drifting") or []
    named = f" {count(len(who), 'client')} of {view.m:,} stand out: {client_ids(who)}." if who else ""
    if drift.get("counts_drift"):
        named += " The number of active clients per round drifts."
    return (
        f"The clients' rates change over the log ({test}).{named} What was measured over the whole log need not hold"
        " for the next rounds."
    )


def _memory_text(view: View) -> str:
    memory = view.at("stationarity", "autocorrelation") or {}
    if memory.get("median") is None:
        return ""
    value = memory["median"]
    span = ""
    if memory.get("low") is not None and memory.get("high") is not None:
        span = f" (90% of the clients between {memory['low']:z.2f} and {memory['high']:z.2f})"
    text = f"The median correlation of a client's participation with its next round is {value:z.2f}{span}: "
    if not memory.get("significant"):
        return text + "no more than chance gives."
    if value > 0:
        return (
            text
            + "who took part in a round is more likely to take part in the next, and absences are longer than chance."
        )
    return text + "who took part in a round is less likely to take part in the next, as when a scheduler takes turns."


def _period(view: View) -> float | None:
    period = view.at("stationarity", "period", "rounds")
    return None if period is None else float(period)


def _period_text(view: View) -> str:
    period = view.at("stationarity", "period") or {}
    if period.get("rounds") is None:
        return "No cycle was found in the number of active clients."
    p = f" (p {p_value(period['p_value'])})" if period.get("p_value") is not None else ""
    return (
        f"The number of active clients repeats every {cycle_of(period['rounds'])}{p}. If rounds are minutes or hours,"
        " look for a daily cycle: devices on charge at night, sites that open and close."
    )


# Question 4


def fedpbc_answer(view: View) -> str:
    """Question 4 in a sentence; the distance is not squared."""
    half = view.at("mixing", "distance_half_life_rounds")
    if view.at("mixing", "squared_distance_left_for_good"):
        return "FedPBC weighs all clients equally, but on this log their models would never all agree."
    if half is None:
        return "FedPBC weighs all clients it hears from equally; how fast they would agree could not be measured here."
    cooldown = view.at("mixing", "distance_cooldown_rounds_1e3")
    speed = f"halves in {in_rounds(half)}" + (
        "" if cooldown is None else f", and a thousandth is left after {in_whole_rounds(cooldown)}"
    )
    return f"FedPBC weighs all clients equally; on this log the distance between their models {speed}."


def fedpbc(view: View) -> str:
    """Question 4 in full."""
    mixing = view.at("mixing") or {}
    text = (
        "FedPBC sends the new model at the end of a round, only to the clients it heard from; everybody else goes on"
        " from its own model. So no client counts more because it is heard more often, <strong>if every client computes"
        " in every round, also when it cannot be reached</strong>; if clients compute only when they take part, it is"
        " as biased as FedAvg. The price: the clients' models differ, and agree only as fast as the log brings them"
        " together."
    )
    rows = []
    if mixing.get("distance_left_per_round") is not None:
        rows.append(("distance left after a round, on average", left(mixing["distance_left_per_round"])))
    if mixing.get("squared_distance_left_per_round") is not None:
        rows.append(("squared distance left after a round", left(mixing["squared_distance_left_per_round"])))
    if mixing.get("distance_half_life_rounds") is not None:
        rows.append(("rounds that halve the distance", in_rounds(mixing["distance_half_life_rounds"])))
    if mixing.get("distance_cooldown_rounds_1e3") is not None:
        rounds = in_whole_rounds(mixing["distance_cooldown_rounds_1e3"])
        rows.append(
            (
                "cool-down until a thousandth of the distance is left (a millionth of its square)",
                rounds + (", more than the log has in a row: extrapolated" if mixing.get("extrapolated") else ""),
            )
        )
    if mixing.get("squared_distance_left_for_good"):
        rows.append(("squared distance that stays for good", percent(mixing["squared_distance_left_for_good"])))
    if mixing.get("local_work_ratio") is not None:
        rows.append(("local work, compared with computing only when active", times(mixing["local_work_ratio"])))
    seen = mixing.get("clients_seen")
    if seen is not None and seen < view.m:
        rows.append(("clients that this is about (seen at least once)", f"{seen:,} of {view.m:,}"))
    parts = [paragraph(text)]
    if rows:
        parts.append(table("", ("measured on this log", ""), [(html.escape(what), value) for what, value in rows]))
    else:
        parts.append(paragraph("How fast clients would agree could not be measured on this log."))
    if mixing.get("distance_half_life_rounds") is not None:
        parts.append(
            paragraph(
                "The distance is the root of the mean squared distance of the models from their mean. A cool-down is a"
                " number of rounds at the end without local steps, in which the models only average. A half-life that"
                " is long compared with your training means that the clients' models stay apart."
            )
        )
    return "".join(parts)
