"""The answers to the first four questions of an audit's page: a sentence each, then words, tables and pictures."""

from __future__ import annotations

import html
from collections.abc import Iterable

import numpy as np

from fedpbc.audit import figures, heat
from fedpbc.audit.markup import client_id, client_ids, figure, paragraph, table
from fedpbc.audit.numbers import count, cycle_of, in_rounds, in_whole_rounds, left, number, p_value, percent, times
from fedpbc.audit.rules import HARMFUL, HARMLESS, of_evaluations
from fedpbc.audit.types import Autocorrelation, ClientWeight
from fedpbc.audit.view import View
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
    never, apart = len(view.participation.never_seen), len(view.participation.components)
    groups = f" The clients fall into {apart:,} groups that never meet." if apart > 1 else ""
    if view.by_chance:
        span = f"from {percent(least)} to {percent(most)}"
        return f"Even: the differences between clients ({span}) are what chance gives.{groups}"
    gini = view.participation.gini
    word = "Nearly even" if gini < 0.1 else "Uneven" if gini < 0.3 else "Very uneven"
    rest = f"the rarest in {percent(least)}" if not never else f"{never:,} never did"
    return f"{word}: the busiest client took part in {percent(most)} of the rounds, {rest}.{groups}"


def uneven(view: View) -> str:
    """Question 1 in full."""
    found = view.participation
    quarter, half, three = np.quantile(view.rate, [0.25, 0.5, 0.75])
    text = f"On average, a client took part in {percent(float(view.rate.mean()))} of the {known_rounds(view.log)}."
    if view.m >= 8:
        text += (
            f" Half of the clients are between {percent(quarter)} and {percent(three)}; the median is {percent(half)}."
        )
    text += (
        f" The Gini coefficient is {found.gini:z.2f} (0: all take part equally often, 1: one client does everything)."
        f" The intervals of {round(view.outside * view.m):,} of {view.m:,} clients leave out the mean"
        f" rate; chance alone would do that to about {1 - found.confidence:.0%} of them."
    )
    if found.intervals_widened:
        text += " The intervals are widened, because rounds resemble the rounds before them."
    parts = [paragraph(text), paragraph(_rounds_text(view)), *map(paragraph, _strangers(view))]
    parts.append(figure(heat.heat_map(view.log, view.rate)))
    low, high, mean = found.rate_low, found.rate_high, float(view.rate.mean())
    parts.append(figure(figures.rates(view.log, view.rate, low, high, found.confidence, mean)))
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
    never, components = view.participation.never_seen, view.participation.components
    if never:
        who = f"<strong>Never seen: {count(len(never), 'client')}</strong>"
        yield f"{who} ({client_ids(never)}). Their data never reaches the server."
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
    distance, chance = view.bias.total_variation, view.bias.total_variation_by_chance
    text = f"{percent(distance)} of the weight in FedAvg sits on the wrong clients"
    if distance <= chance:
        return f"Not more than by chance: {text}, and clients that are all alike would give up to {percent(chance)}."
    word = "Hardly" if distance <= HARMLESS else "Somewhat" if distance < HARMFUL else "Strongly"
    return f"{word}: {text}."


def biased(view: View) -> str:
    """Question 2 in full."""
    found = view.bias
    ratio = found.realised_weight * view.m
    text = (
        "FedAvg averages the clients it hears from, so that clients heard more often count more: it minimises a"
        " weighted objective, not the plain mean over clients, in which everybody weighs 1/m."
        f" Here the weights go from {times(ratio.min())} to {times(ratio.max())} the fair share."
        " At the same rates, rounds independent of each other and clients independent of each other would misplace"
        f" {percent(found.total_variation_theoretical)}."
    )
    if found.total_variation_to_sizes is not None:
        text += (
            " Measured against the clients' sample sizes instead of equal weights,"
            f" {percent(found.total_variation_to_sizes)} is misplaced."
        )
    parts = [paragraph(each) for each in (text, of_evaluations(found)) if each]
    if found.by_group:
        rows = [
            (client_id(each.group), percent(each.share_of_clients), percent(each.weight), times(each.ratio))
            for each in found.by_group
        ]
        parts.append(table("By group", ("group", "of the clients", "of the weight", "weight / fair share"), rows))
    parts.append(figure(figures.weights(view.log, view.rate, found.realised_weight, found.theoretical_weight)))
    number = {client: i for i, client in enumerate(view.log.clients)}
    for entries, title in ((found.most_over, "Most over-represented"), (found.most_under, "Most under-represented")):
        if entries:
            rows = [_client_row(entry, float(view.rate[number[entry.client]])) for entry in entries]
            parts.append(table(title, ("client", "weight / fair share", "weight", "rounds with it"), rows))
    if view.m <= MAX_TABLE:
        parts.append(_everybody(view))
    return "".join(parts)


def _client_row(entry: ClientWeight, rate: float) -> tuple[str, str, str, str]:
    return client_id(entry.client), times(entry.ratio), percent(entry.weight), percent(rate)


def _everybody(view: View) -> str:
    found, rows = view.participation, []
    for i in heat.order_clients(view.rate, view.log.groups)[0]:
        interval = f"{percent(float(found.rate_low[i]))} to {percent(float(found.rate_high[i]))}"
        ratio = times(float(view.bias.realised_weight[i]) * view.m)
        group = [] if view.log.groups is None else [client_id(view.log.groups[i])]
        rate, absence = percent(float(view.rate[i])), f"{found.longest_absence[i]:,.0f}"
        rows.append((client_id(view.log.clients[i]), *group, rate, interval, ratio, absence))
    group = [] if view.log.groups is None else ["group"]
    heads = ("client", *group, "rounds with it", "interval", "weight / fair share", "longest absence")
    return f"<details><summary>All {view.m:,} clients</summary>{table('', heads, rows)}</details>"


# Question 3


def stationary_answer(view: View) -> str:
    """Question 3 in a sentence."""
    drift, memory = view.stationarity.drift, view.stationarity.autocorrelation
    period = view.stationarity.period.rounds
    text = "Not stationary: rates change over time" if drift.found else "No drift found"
    if drift.p_value is None:
        text = "Not tested for drift"
    if memory is not None:
        text += "; there is memory from round to round" if memory.significant else "; no memory found"
    return text + (f"; it repeats every {cycle_of(period)}." if period else ".")


def stationary(view: View) -> str:
    """Question 3 in full."""
    found = view.stationarity
    memory = "" if found.autocorrelation is None else _memory_text(found.autocorrelation)
    parts = [paragraph(text) for text in (_drift_text(view), memory, _period_text(view)) if text]
    parts.append(figure(figures.activity(view.log, found.period.rounds)))
    histogram = view.participation.absence_histogram
    if histogram.counts.any():
        edges = histogram.edges.astype(float)
        parts.append(figure(figures.absences(edges, histogram.counts, view.rate, view.log)))
    return "".join(parts) + paragraph(_absence_text(view))


def _absence_text(view: View) -> str:
    absence, there = view.participation.longest_absence, view.rate > 0
    seen = np.where(there, absence, -1)
    longest = int(seen.argmax())
    rounds, whose = count(int(seen[longest]), "round"), client_id(view.log.clients[longest])
    text = (
        f"The longest absence is {rounds}, of {whose}; the median client's longest is {np.median(absence[there]):,.0f}."
    )
    if censored := view.participation.absence_histogram.censored:
        text += (
            f" {censored:,} absences border on unknown rounds: how long they are is not known, and they are not in"
            " the picture; for the longest, their known rounds count."
        )
    return text + (" Clients never seen are left out." if seen.min() < 0 else "")


def _drift_text(view: View) -> str:
    drift = view.stationarity.drift
    if drift.p_value is None:
        return "Whether rates drift was not tested."
    test = f"p {p_value(drift.p_value)}, {html.escape(drift.method)}"
    if not drift.found:
        return f"Nothing says that the clients' rates change over the log ({test})."
    who = drift.drifting
    named = f" {count(len(who), 'client')} of {view.m:,} stand out: {client_ids(who)}." if who else ""
    if drift.counts_drift:
        named += " The number of active clients per round drifts."
    return (
        f"The clients' rates change over the log ({test}).{named} What was measured over the whole log need not hold"
        " for the next rounds."
    )


def _memory_text(memory: Autocorrelation) -> str:
    if memory.median is None:
        return ""
    span = f" (90% of the clients between {memory.low:z.2f} and {memory.high:z.2f})"
    text = f"The median correlation of a client's participation with its next round is {memory.median:z.2f}{span}: "
    if not memory.significant:
        return text + "no more than chance gives."
    if memory.median > 0:
        return (
            text
            + "who took part in a round is more likely to take part in the next, and absences are longer than chance."
        )
    return text + "who took part in a round is less likely to take part in the next, as when a scheduler takes turns."


def _period_text(view: View) -> str:
    period = view.stationarity.period
    if period.rounds is None:
        return "No cycle was found in the number of active clients."
    return (
        f"The number of active clients repeats every {cycle_of(period.rounds)} (p {p_value(period.p_value)}). If rounds"
        " are minutes or hours, look for a daily cycle: devices on charge at night, sites that open and close."
    )


# Question 4


def fedpbc_answer(view: View) -> str:
    """Question 4 in a sentence; the distance is not squared."""
    half, cooldown = view.mixing.distance_half_life_rounds, view.mixing.distance_cooldown_rounds_1e3
    if view.mixing.squared_distance_left_for_good:
        return "FedPBC weighs all clients equally, but on this log their models would never all agree."
    if half is None or cooldown is None:
        return "FedPBC weighs all clients it hears from equally; how fast they would agree could not be measured here."
    halved = view.mixing.distance_halved_after
    first = in_rounds(half if halved is None else halved)
    speed = f"halves in {first}, and a thousandth is left after {in_whole_rounds(cooldown)}"
    return f"FedPBC weighs all clients equally; on this log the distance between their models {speed}."


def fedpbc(view: View) -> str:
    """Question 4 in full."""
    mixing = view.mixing
    text = (
        "FedPBC sends the new model at the end of a round, only to the clients it heard from; everybody else goes on"
        " from its own model. So no client counts more because it is heard more often, <strong>if every client computes"
        " in every round, also when it cannot be reached</strong>; if clients compute only when they take part, it is"
        " as biased as FedAvg. The price: the clients' models differ, and agree only as fast as the log brings them"
        " together."
    )
    rows = []
    if mixing.distance_left_per_round is not None:
        rows.append(("distance left after a round, on average", left(mixing.distance_left_per_round)))
    if mixing.squared_distance_left_per_round is not None:
        rows.append(("squared distance left after a round", left(mixing.squared_distance_left_per_round)))
    if mixing.distance_halved_after is not None:
        rows.append(("halved, from models that all differ, after", in_rounds(mixing.distance_halved_after)))
    if mixing.distance_tenth_after is not None:
        rows.append(("a tenth left after", in_rounds(mixing.distance_tenth_after)))
    if mixing.distance_cooldown_rounds_1e3 is not None:
        rounds = in_whole_rounds(mixing.distance_cooldown_rounds_1e3)
        rounds += ", more than the log has in a row: extrapolated" if mixing.extrapolated else ""
        rows.append(("cool-down until a thousandth of the distance is left (a millionth of its square)", rounds))
    if mixing.squared_distance_left_for_good:
        rows.append(("squared distance that stays for good", percent(mixing.squared_distance_left_for_good)))
    rows.append(("local work, compared with computing only when active", times(mixing.local_work_ratio)))
    if mixing.clients_seen < view.m:
        rows.append(("clients that this is about (seen at least once)", f"{mixing.clients_seen:,} of {view.m:,}"))
    parts = [
        paragraph(text),
        table("", ("measured on this log", ""), [(html.escape(what), value) for what, value in rows]),
    ]
    if mixing.distance_half_life_rounds is not None:
        parts.append(
            paragraph(
                "The distance is the root of the mean squared distance of the models from their mean. A cool-down is a"
                " number of rounds at the end without local steps, in which the models only average. Where the first"
                " rounds take most of the distance and the later ones wait for the rarest clients, the average over the"
                " way is slower than the first half. A cool-down that is long compared with your training means that"
                " models stay apart."
            )
        )
    return "".join(parts)
