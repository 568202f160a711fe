"""Question 5 of an audit: one table of rules. A later study refreshes RULES and the thresholds, nothing else.

The evidence of a rule is a section of docs/results.md, whose experiments have other clients, other data and other
links than the log at hand; where no experiment supports a rule it says "not known".
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from fedpbc.audit.evidence import link_of
from fedpbc.audit.numbers import in_whole_rounds, percent
from fedpbc.audit.types import Advice, Bias, Findings, Participation
from fedpbc.io.participation.reading import as_option
from fedpbc.io.participation.source import STANDARD_INPUT

UNKNOWN = "not known"
COUNTEREXAMPLE = "docs/results.md, section 1 (the counterexample)"
ZIPF = "docs/results.md, section 2 (almost equal links)"
READINGS = "docs/results.md, sections 1, 3 and 4 (only active clients compute)"
RIVALS = "docs/results.md, section 5 (all methods under every kind of link)"
FRESH = "docs/results.md, section 6 (fresh seeds, links with memory)"

HARMFUL = 0.14
"""Total variation at which harm was measured: links of .5 and .9, section 1, have .144 and move FedAvg by 72."""
HARMLESS = 0.06
"""Total variation at which none was: the Zipf links of section 2 have .049 (a log of their 3000 rounds: .052 to .056),
and FedAvg over the active clients wins there."""
MEMORY = 0.5
"""Autocorrelation from which the advice for links with memory is given: harm was measured at .9, nothing below was."""
SLOW = 200
"""Cool-down rounds to a thousandth of the distance: section 1 ran up to 200, and they gave that at every pair of
probabilities."""


@dataclass(frozen=True)
class Rule:
    """When ``applies(findings)``, say ``advice`` because of ``reason(findings)``."""

    name: str
    applies: Callable[[Findings], bool]
    advice: str
    reason: Callable[[Findings], str]
    evidence: str
    code: Callable[[Findings], str]
    """The line that follows the advice: of Python (an app of Flower) or of the shell."""


def advise(findings: Findings) -> tuple[Advice, ...]:
    """The rules that apply, in the order of the table."""
    return tuple(
        Advice(
            rule.name, rule.advice, rule.reason(findings), rule.evidence, rule.code(findings), link_of(rule.evidence)
        )
        for rule in RULES
        if rule.applies(findings)
    )


def _weighed(findings: Findings) -> bool:
    return findings.bias is not None


def _variation(findings: Findings) -> float:
    return 0.0 if findings.bias is None else findings.bias.total_variation


def _chance(findings: Findings) -> float:
    return 0.0 if findings.bias is None else findings.bias.total_variation_by_chance


def _by_chance(findings: Findings) -> bool:
    return _variation(findings) <= _chance(findings)


def _harmful(findings: Findings) -> bool:
    return _weighed(findings) and _variation(findings) >= HARMFUL and not _by_chance(findings)


def _harmless(findings: Findings) -> bool:
    return _weighed(findings) and _variation(findings) <= HARMLESS


def _undecided(findings: Findings) -> bool:
    return _weighed(findings) and _variation(findings) > HARMLESS and _by_chance(findings)


def _between(findings: Findings) -> bool:
    return _weighed(findings) and HARMLESS < _variation(findings) < HARMFUL and not _by_chance(findings)


def _groups(findings: Findings) -> int:
    found = findings.participation
    return len(found.components) if isinstance(found, Participation) else 0


def _unseen(findings: Findings) -> int:
    found = findings.participation
    return len(found.never_seen) if isinstance(found, Participation) else 0


def _cooldown(findings: Findings) -> float:
    """Rounds to a thousandth of the distance (a millionth of its square); 0 when there is no such number."""
    return 0.0 if findings.mixing is None else findings.mixing.distance_cooldown_rounds_1e3 or 0.0


def _autocorrelation(findings: Findings) -> float:
    """Pooled over the clients, at lag 1; 0 when it is not known or may be chance."""
    found = findings.stationarity.autocorrelation
    return found.pooled if found is not None and found.significant else 0.0


def _has_memory(findings: Findings) -> bool:
    return _autocorrelation(findings) >= MEMORY


def _moved(findings: Findings) -> str:
    return f"FedAvg puts {percent(_variation(findings))} of its weight on other clients than equal weights would"


def _strategy(name: str) -> Callable[[Findings], str]:
    """The line of a server's app."""
    options = 'round_deadline=60, directory="federation"'
    return lambda findings: f"strategy = fedpbc.flower.{name}(num_clients={findings.log.num_clients}, {options})"


def _file(findings: Findings) -> str:
    """The log's name; LOG where it has none that a command could take."""
    return "LOG" if findings.log.source in ("", STANDARD_INPUT) else findings.log.source


def _source(findings: Findings) -> str:
    """The log on the command line, with the options it was read with."""
    options = (as_option(name, "" if value is True else str(value)) for name, value in findings.log.options.items())
    return " ".join([shlex.quote(_file(findings)), *options])


def _replay(findings: Findings, more: str) -> str:
    """``rivals`` on the links of this log: with its clients, no more than its rounds, and read alike."""
    keys: dict[str, object] = {"name": "trace", "path": _file(findings)}
    keys |= {name: value for name, value in findings.log.options.items() if name not in ("clients", "group")}
    if "missing_rounds" in keys:
        keys["missing_rounds"] = "empty"  # a replay has to say who is active in every round
    trace = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())
    m = sum(not name.startswith("(unseen ") for name in findings.clients)
    size = f"--set problem.num_clients={m} --set rounds={min(findings.log.num_rounds, 1000)}"
    return f"fedpbc run rivals --seeds 0 {size} --set {shlex.quote(f'links=[{{{trace}}}]')} {more}"


def _again(findings: Findings) -> str:
    new = "fedpbc audit NEW_LOG"
    return new if findings.log.counts_only else f"{new} --before {_source(findings)}"


def of_evaluations(found: Bias) -> str:
    """What the weights do to an evaluation by the clients that are heard; "" where they are even, or may be."""
    if found.total_variation <= max(HARMLESS, found.total_variation_by_chance):
        return ""
    m = len(found.realised_weight)
    return (
        f"A model that is evaluated by the clients that are heard is judged with these weights too: the {m // 2:,} of "
        f"{m:,} clients heard least have {percent(found.rarest_half)} of the say. Where their data differ, such a mean "
        "is optimistic."
    )


def _until_told(findings: Findings) -> str:
    """How many more rounds it takes until chance gives no more than HARMLESS."""
    more = 0 if findings.bias is None else findings.bias.more_rounds_to_tell
    return f"After {more:,} more rounds like these chance would give at most {percent(HARMLESS)}: then it can be told."


RULES: tuple[Rule, ...] = (
    Rule(
        "counts-only",
        lambda f: f.log.counts_only,
        "Log which clients take part in each round, then audit again.",
        lambda f: "The log holds counts only: rates, weights and mixing cannot be had from it.",
        UNKNOWN,
        lambda f: 'fedpbc.flower.FedAvg(round_deadline=60, directory="federation")  # writes participation.jsonl',
    ),
    Rule(
        "biased",
        _harmful,
        "If the clients' data differ, use FedAU instead of FedAvg: three numbers per client on the server, and nothing "
        "changes on the clients.",
        lambda f: (
            f"{_moved(f)}. If the rare clients' data differ, FedAvg fits the frequent ones. FedAU came within .005 of "
            "perfect links in train loss, and .07 under links with memory; on exact quadratics it leaves noise."
        ),
        RIVALS,
        _strategy("FedAU"),
    ),
    Rule(
        "correct-drift",
        lambda f: _harmful(f) and not _has_memory(f),
        "To gain more, correct the drift: SCAFFOLD, its control variates on the clients where the server cannot hold a "
        "model per client, on the server where clients lose state; also around clients whose training stays as it is.",
        lambda f: "Best of all that was tried under links without memory, and exact where gradients are.",
        RIVALS,
        _strategy("SCAFFOLD"),
    ),
    Rule(
        "memory",
        lambda f: _harmful(f) and _has_memory(f),
        "Prefer FedStale here, which keeps a model per client on the server, or FedFade, which keeps one on each "
        "client; FedAU where neither can. SCAFFOLD, drift-corrected FedPBC, FedAWE and debiased FedAvg are not safe "
        "for classifiers.",
        lambda f: (
            f"Taking part depends on the round before (autocorrelation {_autocorrelation(f):.2f}). With tuned steps, "
            "at .9 and .97, FedStale and FedFade were ahead of FedAU, MIFA, FedVARP and SCAFFOLD on a logistic "
            "classifier. On a small network FedStale was level with FedFade and MIFA at .9, and second to FedAU at .97 "
            "(docs/comparison.md). On a convolutional network FedFade diverged in 5 runs of 6 at .9, FedAU was thrown "
            "off in 2, and FedAvg had the lowest loss; on quadratics MIFA and SCAFFOLD were the most exact at .9."
        ),
        FRESH,
        _strategy("FedStale"),
    ),
    Rule(
        "only-active-compute",
        _harmful,
        "If clients compute only in the rounds they take part in, plain FedPBC is no remedy.",
        lambda f: "It then is as biased as FedAvg and slower. The log cannot say whether this holds for you.",
        READINGS,
        lambda f: _replay(f, """--set 'compute=["active"]'"""),
    ),
    Rule(
        "even",
        _harmless,
        "Stay with FedAvg over the active clients.",
        lambda f: f"{_moved(f)}: at .05, measured, there was hardly a bias to mend and FedPBC lost.",
        ZIPF,
        _strategy("FedAvg"),
    ),
    Rule(
        "by-chance",
        _undecided,
        "The log is too short to tell whether FedAvg is biased; audit again with more rounds.",
        lambda f: (
            f"{_moved(f)}, and clients that are all alike would give up to "
            f"{percent(_chance(f))} by chance in so few rounds. {_until_told(f)}"
        ),
        UNKNOWN,
        _again,
    ),
    Rule(
        "between",
        _between,
        "Try both FedAvg and FedPBC on a held-out set of the rarest clients.",
        lambda f: (
            f"{_moved(f)}: harm was measured from {HARMFUL:g} on and none up to {HARMLESS:g}, nothing in between."
        ),
        UNKNOWN,
        lambda f: _replay(f, """--set 'algorithms=[{name="fedavg"}, {name="fedpbc"}]'"""),
    ),
    Rule(
        "cool-down",
        lambda f: _harmful(f) and 0 < _cooldown(f) <= SLOW,
        "With FedPBC, end with a cool-down: rounds that go on without local steps.",
        lambda f: (
            f"On this log {in_whole_rounds(_cooldown(f))} shrink the distance between the models to a thousandth of "
            "what it was, its square to a millionth."
        ),
        COUNTEREXAMPLE,
        lambda f: f"cooldown_rounds = {math.ceil(_cooldown(f) - 1e-9)}",
    ),
    Rule(
        "slow-mixing",
        lambda f: _harmful(f) and _cooldown(f) > SLOW,
        "Before FedPBC, have the clients take part more often, or accept that their models stay apart.",
        lambda f: (
            f"A cool-down to a thousandth of the distance takes {in_whole_rounds(_cooldown(f))} here: slower than any "
            "that was measured."
        ),
        UNKNOWN,
        lambda f: f"cooldown_rounds = {math.ceil(_cooldown(f) - 1e-9)}",
    ),
    Rule(
        "never-meet",
        lambda f: _groups(f) > 1,
        "Bring the groups together in some rounds; no method that averages the active clients can join them.",
        lambda f: (
            f"{_groups(f)} groups of clients never take part in a common round, directly "
            "or through others: this follows from how averaging works, no experiment was run."
        ),
        UNKNOWN,
        lambda f: f"fedpbc audit {_source(f)} --json - | jq .participation.components",
    ),
    Rule(
        "never-seen",
        lambda f: _unseen(f) > 0,
        "Find out why some clients never take part; their data cannot influence any model.",
        lambda f: f"{_unseen(f):,} of {f.log.num_clients:,} clients never appear.",
        UNKNOWN,
        lambda f: f"fedpbc audit {_source(f)} --json - | jq .participation.never_seen",
    ),
    Rule(
        "changing",
        lambda f: f.stationarity.drift.found or f.stationarity.period.rounds is not None,
        "Do not rely on probabilities estimated from the whole log.",
        lambda f: (
            "Participation changes over the log, so such weights would be wrong for a part of it; methods that "
            "learn as they go (FedAU, MIFA) lost little under a sine and an absence of 200 rounds."
        ),
        RIVALS,
        _strategy("FedAU"),
    ),
    Rule(
        "short",
        lambda f: f.log.known_rounds < 100,
        "Audit again with more rounds.",
        lambda f: f"{f.log.known_rounds} rounds are few: intervals are wide and the tests find only large effects.",
        UNKNOWN,
        _again,
    ),
)
