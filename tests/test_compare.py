"""Comparisons: tests over seeds against SciPy and the definition, and what it took to reach a target, by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from fedpbc.compare.targets import Clock, Comparison, Target, reached
from fedpbc.compare.ties import holm, paired_p, ties
from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import CellKey
from fedpbc.plots.comparison import Compared
from fedpbc.plots.tables import latex, markdown, terminal
from fedpbc.runs.run import CellResult, Group, Run

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_the_paired_test_is_scipys(n):
    for _ in range(20):
        first, second = RNG.normal(size=(2, n)) + np.array([[0.0], [RNG.normal()]])
        assert paired_p(first, second) == pytest.approx(scipy.stats.ttest_rel(first, second).pvalue, rel=1e-9)


def test_differences_without_spread_are_certain():
    assert paired_p(np.ones(5), np.ones(5)) == 1.0
    assert paired_p(np.ones(5), np.full(5, 1.5)) == 0.0
    assert np.isnan(paired_p(np.ones(1), np.zeros(1)))


def stepped_down(p: list[float], level: float) -> set[int]:
    """Holm's own words: from the smallest, reject while p <= level / (how many are left)."""
    rejected = set()
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] > level / (len(p) - place):
            break
        rejected.add(i)
    return rejected


def test_the_correction_is_holms():
    for n, level in itertools.product((1, 2, 5, 9), (0.01, 0.05, 0.3)):
        for _ in range(20):
            p = (RNG.random(n) ** 3).tolist()
            assert {i for i, adjusted in enumerate(holm(p)) if adjusted <= level} == stepped_down(p, level)


def test_five_seeds_are_too_few_for_a_rank_test_as_is_said():
    assert scipy.stats.wilcoxon(np.arange(1.0, 6.0)).pvalue == 1 / 16 > 0.05


def test_ties_are_those_that_the_corrected_tests_do_not_reject():
    for better, n in itertools.product(("lower", "higher"), (3, 5)):
        seeds = RNG.normal(size=n)
        values = [seeds + shift + 0.3 * RNG.normal(size=n) for shift in (0.0, 0.1, 0.5, 2.0, -0.2, 8.0)]
        values.append(np.array([np.nan, *seeds[1:]]))
        found = ties(values, better)
        means = [one.mean() if np.all(np.isfinite(one)) else np.nan for one in values]
        assert found.best == int(np.nanargmin(means) if better == "lower" else np.nanargmax(means))
        others = [i for i in range(6) if i != found.best]
        p = [scipy.stats.ttest_rel(values[found.best], values[i]).pvalue for i in others]
        rejected = {others[k] for k in stepped_down(p, 0.05)}
        assert found.tied == set(others) - rejected


def test_where_nothing_can_be_said():
    assert ties([np.ones(3), np.zeros(3)], "neither").best is None
    assert ties([np.full(3, np.nan)], "lower") == (None, frozenset(), pytest.approx((np.nan,), nan_ok=True))
    alone = ties([np.array([2.0]), np.array([1.0])], "lower")
    assert (alone.best, alone.tied) == (1, frozenset())


@pytest.fixture
def made() -> Run:
    """Three methods, five seeds, ten rounds, every second evaluated; accuracy by hand."""
    finals = {"good": [0.90, 0.91, 0.92, 0.90, 0.91], "as good": [0.905, 0.89, 0.93, 0.90, 0.90], "bad": [0.5] * 5}
    finals["bad"] = [0.50, 0.52, 0.51, 0.53, 0.5]
    rounds = np.arange(0, 11, 2)
    cells = {}
    for label, values in finals.items():
        for seed, final in enumerate(values):
            accuracy = np.linspace(0, final, 6)
            rows = {
                "round": rounds, "server_test_accuracy": accuracy, "server_worst_test_accuracy": accuracy / 2,
                "gradient_steps": 30 * rounds, "bytes_up": 1000 * rounds, "bytes_down": 0 * rounds,
                "empty_rounds": 0 * rounds,
            }  # fmt: skip
            info = {"cost": {"up": 2, "scalars": [3, 0]}, "first_nonfinite_round": None}
            cells[CellKey("l", label, "all", seed)] = CellResult(rows, {"server": np.zeros(7)}, info)
    methods: list[dict[str, Any]] = [{"name": "fedavg", "label": label} for label in finals]
    methods[1]["local_steps"] = 9
    table = {"name": "made", "rounds": 10, "cooldown_rounds": 3, "local_steps": 5, "precision": "float32",
             "seeds": [0, 1, 2, 3, 4], "links": [{"label": "l"}], "algorithms": methods, "figure": {}}  # fmt: skip
    measures = {"test_accuracy": Measure("test accuracy", better="higher", shown=True),
                "worst_test_accuracy": Measure("test accuracy, worst tenth", better="higher")}  # fmt: skip
    return Run(table, cells, measures)


def test_the_best_and_the_tied_are_marked_in_every_table(made):
    compared = Compared([made], Comparison())
    half = scipy.stats.t.interval(0.95, 4, 0.908, scipy.stats.sem([0.90, 0.91, 0.92, 0.90, 0.91]))
    text = terminal([made], 100, None, compared)
    rows = {line.split("  ")[0]: line for line in text.splitlines() if "±" in line and "over seeds" not in line}
    assert f"0.908 ± {half[1] - 0.908:.3f} *" in rows["good"]
    assert rows["as good"].count(" =") == 2, "worst tenth too"
    assert "=" not in rows["bad"]
    assert "*" not in rows["bad"]
    assert "paired t-test over 5 seeds at 5 %" in " ".join(text.split())
    assert r" \* |" in markdown([made], None, compared)
    assert "paired t-test" in latex([made], None, compared)
    assert "*" not in markdown([made]).replace(r"\*", "*").splitlines()[2], "only where it was asked for"


def test_what_it_took_to_reach_a_target(made):
    target = Target.parse("test_accuracy = 0.728", [made])
    good = reached(made, Group("l", "good", "all"), target)
    assert good.rounds.tolist() == [10, 8, 8, 10, 8]  # 4/5 of .91 is .728
    assert good.gradient_steps.tolist() == [300, 240, 240, 300, 240]
    bad = reached(made, Group("l", "bad", "all"), target)
    assert np.all(np.isinf(bad.rounds))
    some = reached(made, Group("l", "bad", "all"), Target("test_accuracy", 0.515))
    assert np.isfinite(some.rounds).tolist() == [False, True, False, True, False]
    compared = Compared([made], Comparison((target, Target("test_accuracy", 0.515)), Clock(deadline=2.5)))
    line = next(one for one in markdown([made], "test_accuracy", compared).splitlines() if one.startswith("| l | bad"))
    assert line.split(" | ")[-8:] == ["never"] * 4 + ["never (2/5)"] * 3 + ["never (2/5) |"]
    line = next(one for one in markdown([made], "test_accuracy", compared).splitlines() if one.startswith("| l | good"))
    assert line.split(" | ")[-8:-4] == ["8", "240", "0.008", "20"]


def test_a_lower_target_is_reached_from_above(made):
    measures = {"test_accuracy": Measure("loss", better="lower")}
    falling = Run(made.table, made.cells, measures)
    assert reached(falling, Group("l", "bad", "all"), Target("test_accuracy", 0.0)).rounds.tolist() == [0] * 5


def test_simulated_time_is_the_formula(made):
    clock = Clock(step_seconds=0.5, upload_rate=1000.0)
    sent = 8 * 4 * (2 * 7 + 3) / 1000.0
    for label, steps in (("good", 5), ("as good", 9)):
        group = Group("l", label, "all")
        cell = made.cells[CellKey("l", label, "all", 0)]
        for t in (0, 4, 7, 10):  # no local steps in the last three rounds
            assert clock.seconds(made, group, cell, t) == pytest.approx(min(t, 7) * steps * 0.5 + t * sent)
    choices = [{"algorithm": "good", "links": one, "local_steps": k} for one, k in (("l", 2), ("other", 3))]
    made.table["tuned"] = {"seeds": [9], "choices": choices}
    assert Clock(step_seconds=1.0).seconds(made, Group("l", "good", "all"), cell, 1) == 2.0


@pytest.mark.parametrize("text", ["test_accuracy", "test_accuracy=", "test_accuracy=nan", "=1", "tst_accuracy=0.5"])
def test_what_is_no_target_is_refused(made, text):
    with pytest.raises(ConfigError, match=r"must be METRIC=NUMBER|no metric"):
        Target.parse(text, [made])


def test_report_compares(table, write_toml, fedpbc):
    table |= {"algorithms": table["algorithms"][:1], "metrics": ["server"], "figure": {"models": ["server"]}}
    assert fedpbc("run", str(write_toml(table)), "--out", "r", "--quiet")[0] == 0
    status, out, _ = fedpbc("report", "r", "--target", "train_loss=1000", "--deadline", "3")
    assert status == 0
    for words in ("* best mean; = not told apart", "to a target: until the first evaluated round", "seconds"):
        assert words in " ".join(out.split())
    for arguments, message in [
        (["--deadline", "3"], "--deadline: needs --target, which a time is measured to"),
        (["--target", "train_loss=1", "--deadline", "3", "--step-seconds", "1"],
         "--deadline: is all that a round takes; not together with --step-seconds"),
        (["--target", "train_los=1"], 'no metric "train_los" (did you mean "train_loss"?); there are distance, '
         "grad_norm, train_loss"),
    ]:  # fmt: skip
        assert fedpbc("report", "r", *arguments, "--out", "new")[::2] == (2, f"error: {message}\n")
        assert not Path("new").exists()
