"""Distance or its square: what the audit says in words, against models that are mixed over the log's rounds."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from fedpbc.audit import ParticipationLog, audit
from fedpbc.audit.page import render
from fedpbc.audit.rules import SLOW
from fedpbc.audit.terminal import report


def in_words(table: np.ndarray) -> tuple[str, str]:
    """(terminal, page) of a log."""
    log = ParticipationLog.from_matrix(table)
    findings = audit(log)
    console = Console(width=400, record=True, force_terminal=False, file=io.StringIO())
    console.print(report(findings))
    return console.export_text(), re.sub("<[^>]*>", "\n", render(findings, log))


def distances(table: np.ndarray, first: int, rounds: int, seed: int, copies: int = 200) -> np.ndarray:
    """Root of the mean squared distance of the models from their mean, relative to the first; [rounds + 1].

    FedPBC's rule written out, without local steps: who is active takes the mean of the active ones.
    """
    m = table.shape[1]
    models = np.random.default_rng(seed).standard_normal((m, copies))
    found = []
    for t in range(first, first + rounds + 1):
        centre = sum(models) / m
        found.append(np.sqrt(np.mean([np.sum((x - centre) ** 2) for x in models])))
        active = [i for i in range(m) if table[t, i]]
        if active:
            mean = sum(models[i] for i in active) / len(active)
            for i in active:
                models[i] = mean
    return np.array(found) / found[0]


def bernoulli() -> np.ndarray:
    return np.random.default_rng(0).random((1500, 12)) < np.r_[np.full(6, 0.1), np.full(6, 0.9)]


def one_straggler() -> np.ndarray:
    """All clients but one are always there: most of the distance goes in the first round, the rest waits."""
    table = np.ones((1500, 20), bool)
    table[:, 0] = np.random.default_rng(0).random(1500) < 0.05
    return table


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("make", [bernoulli, one_straggler])
def test_words_are_the_distance_of_models_mixed_over_the_log(make):
    table = make()
    terminal, page = in_words(table)
    halved, thousandth, once, squared = map(number, re.search(
        r"the distance between models is halved after ([\d.,]+) rounds?, (?:down to a tenth after [\d.,]+ rounds?, )?"
        r"a thousandth is left after ([\d,]+) rounds? of cool-down.*a round leaves ([\d.]+) of the distance on "
        r"average, ([\d.]+) of its square", terminal.replace("\n", " "),
    ).groups())  # fmt: skip
    paths = [distances(table, first, 300, first) for first in range(0, 1200, 40)]
    needed = [int(np.argmax(path <= 1e-3)) for path in paths]
    assert min(needed) > 0
    assert thousandth == pytest.approx(np.mean(needed), abs=1 + 3 * np.std(needed) / np.sqrt(len(needed)))
    if make is bernoulli:  # the straggler comes, or does not: there the square gets there in the same round
        squares = [int(np.argmax(path**2 <= 1e-3)) for path in paths]
        assert thousandth > np.mean(squares) + 3 * np.std(squares) / np.sqrt(len(squares)) + 1
    assert once == pytest.approx(1e-3 ** (1 / thousandth), abs=0.02)
    assert once**2 == pytest.approx(squared, abs=0.005)
    halves = [int(np.argmax(path <= 0.5)) for path in paths]
    assert halved == pytest.approx(np.median(halves), abs=1.5 + 2 * np.std(halves) / np.sqrt(len(halves)))
    said = re.search(r"the distance between their models halves in ([\d.,]+) rounds?, and a thousandth is left after "
                     r"([\d,]+) rounds?", page)  # fmt: skip
    assert [number(text) for text in said.groups()] == [halved, thousandth]
    assert re.search(
        rf"a thousandth of the distance is left \(a millionth of its square\)\n+{thousandth:,.0f} rounds", page
    )


def test_the_advice_speaks_of_the_same_rounds():
    terminal, _ = in_words(bernoulli())
    advised, said = (
        re.search(text, terminal)[1]
        for text in (
            r"On this log (\d+) rounds shrink the distance between the models to a thousandth",
            r"a thousandth is left after (\d+) rounds",
        )
    )
    assert advised == said


def test_keys_of_the_findings_agree_with_each_other():
    found = audit(ParticipationLog.from_matrix(bernoulli())).mixing
    c = found.squared_distance_left_per_round
    assert found.distance_left_per_round == pytest.approx(np.sqrt(c))
    assert np.sqrt(c) ** found.distance_half_life_rounds == pytest.approx(0.5)
    assert c**found.distance_cooldown_rounds_1e3 == pytest.approx(1e-6)


def test_all_at_once_is_one_round_and_never_is_never():
    terminal, page = in_words(np.ones((50, 5), bool))
    assert "less than 0.001 of its square" in terminal
    assert "halved after 1 round, down to a tenth after 1 round, a thousandth is left after 1 round of cool" in terminal
    assert "halves in 1 round, and a thousandth is left after 1 round." in page
    apart = np.zeros((50, 4), bool)
    apart[::2, :2] = apart[1::2, 2:] = True
    terminal, page = in_words(apart)
    assert "33% of the squared distance between them stays forever" in terminal
    assert "squared distance that stays for good\n\n33%" in page
    assert "halve" not in terminal
    assert "extrapolated" in in_words(bernoulli()[:12])[0]


@pytest.mark.parametrize(("p0", "p1"), [(0.1, 0.9), (0.5, 0.9), (0.1, 0.5)])
def test_the_links_of_section_1_are_not_slow(p0, p1):
    """docs/results.md, section 1, measured a cool-down of up to 200 rounds at these links."""
    table = np.random.default_rng(0).random((800, 100)) < np.where(np.arange(100) < 50, p0, p1)
    findings = audit(ParticipationLog.from_matrix(table))
    assert findings.mixing.distance_cooldown_rounds_1e3 < SLOW
    given = {entry.rule for entry in findings.advice}
    assert "cool-down" in given
    assert "slow-mixing" not in given
