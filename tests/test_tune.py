"""fedpbc tune: its choices against a plain loop and hand-made scores; what it writes, refuses and survives."""

from __future__ import annotations

import copy
import csv
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE, wait_until

import fedpbc as package
from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.grids import OWN, PLAIN_STEP
from fedpbc.core.schema import options_of
from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError, FedpbcError
from fedpbc.experiment.grid import Experiment
from fedpbc.plots.sensitivity import curves_of, draw_sensitivity
from fedpbc.tuning import rungs as rungs_module
from fedpbc.tuning.budget import lengths_of, ranked, schedule
from fedpbc.tuning.page import plan_lines, result_lines
from fedpbc.tuning.plan import plan_of
from fedpbc.tuning.record import record_of, warnings_of
from fedpbc.tuning.tune import _searched

RATES = [0.01, 0.1, {"name": "inverse_sqrt", "initial": 0.2, "period": 2.0}]
LOSS = Measure("loss")


@pytest.fixture
def tuned_table(table) -> dict[str, Any]:
    table["algorithms"] = [{"name": "fedavg"}, {"name": "fedprox"}]
    table["problem"] = {"name": "quadratic", "num_clients": 6, "dim": 4, "condition": 10}
    table["tune"] = {"seeds": [5, 9], "learning_rate": RATES, "server": [1.0, 2.0], "grid": {"fedprox": {"mu": [1.0]}}}
    return table


def mean_losses(table: dict[str, Any], algorithms: dict[Any, Any], rounds: int) -> dict[Any, float]:
    """By simulate alone: of each the mean over the tuning seeds of the server's loss after the last round."""
    run = package.simulate(
        table["problem"], links=table["links"], algorithm=[a.using(label=str(k)) for k, a in algorithms.items()],
        rounds=rounds, local_steps=3, learning_rate=1.0, seeds=[5, 9], eval_every=rounds, precision="float64",
        metrics=["server"], progress=False,
    )  # fmt: skip
    return {
        k: float(np.mean([run.cells[key].rows["server_train_loss"][-1] for key in run.select(algorithm=str(k))]))
        for k in algorithms
    }


def test_the_choice_is_that_of_a_plain_loop(tuned_table, tmp_path):
    found = package.tune(tuned_table, tmp_path / "out")
    rates = [0.01, 0.1, package.schedules.inverse_sqrt(initial=0.2, period=2.0)]
    made = {"fedavg": package.algorithms.fedavg, "fedprox": lambda **o: package.algorithms.fedprox(mu=1.0, **o)}
    grid = {
        (name, k, server): made[name](server=server).using(learning_rate=rates[k])
        for name, k, server in itertools.product(made, range(3), (1.0, 2.0))
    }
    scores = mean_losses(tuned_table, grid, 12)
    assert len(set(scores.values())) == len(scores), "no ties: the comparison means something"
    for choice in found.choices:
        best = min((point for point in grid if point[0] == choice["algorithm"]), key=scores.get)
        assert choice["score"] == pytest.approx(scores[best], rel=1e-12)
        assert choice["settings"]["learning_rate"] == RATES[best[1]]
        assert choice["settings"]["server"] == {"name": "sgd", "learning_rate": best[2]}


def test_the_tuned_file_runs_as_it_was_tuned(tuned_table, write_toml, tmp_path, fedpbc):
    command = ("tune", str(write_toml(tuned_table)), "--out", "t", "--quiet")
    status, out, err = fedpbc(*command)
    assert (status, "next: fedpbc run t/tuned.toml\n" in out) == (0, True), err
    usual = Path("runs") / tuned_table["name"]
    usual.mkdir(parents=True)
    assert f"next: fedpbc run t/tuned.toml --out {usual}.tuned\n" in fedpbc(*command, "--resume")[1]
    again = fedpbc("report", "t")
    assert again[1].splitlines()[:-1] == out.splitlines()[:-2], "fedpbc report shows the same again"
    assert again[2].splitlines() == [line for line in err.splitlines() if line.startswith("warning")]
    for text in ("{", '{"methods": [{}]}', "[]"):
        Path("d").mkdir(exist_ok=True)
        Path("d/tuning.json").write_text(text)
        status, _, err = fedpbc("report", "d")
        assert (status, err.startswith("error: d/tuning.json: is damaged"), err.count("\n")) == (2, True, 1)
    changes = {"eval_every": 12, "metrics": ["server"], "figure.models": ["server"]}
    overrides = [part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    status, out, err = fedpbc("run", "t/tuned.toml", "--out", "r", "--quiet", *overrides)
    assert (status, err) == (0, "")
    assert "tuned on seeds 5, 9; reported on seeds 0, 1." in out
    record = json.loads(Path("t/tuning.json").read_text())
    run = package.read_run("r")
    assert (run.manifest["tuned_on"], run.manifest["reported_on"]) == ([5, 9], [0, 1])
    assert "tuned on seeds 5, 9; reported on seeds 0, 1" in run.to_markdown()
    assert b"tuned on" not in Path("r/metrics.csv").read_bytes()
    for method in record["methods"]:
        settings = dict(method["settings"])
        rate = settings.pop("learning_rate")
        if isinstance(rate, dict):
            rate = package.schedules.inverse_sqrt(initial=rate["initial"], period=rate["period"])
        settings["server"] = settings["server"]["learning_rate"]
        algorithm = getattr(package.algorithms, method["algorithm"])(**settings).using(learning_rate=rate)
        plain = package.simulate(
            tuned_table["problem"], links=tuned_table["links"], algorithm=algorithm, rounds=12, local_steps=3,
            learning_rate=1.0, seeds=[0, 1], eval_every=12, precision="float64", metrics=["server"], progress=False,
        )  # fmt: skip
        assert run.final("server_train_loss", algorithm=method["algorithm"]) == plain.final("server_train_loss")
    again = package.load_experiment("r/experiment.toml")
    assert again.table() == package.load_experiment("t/tuned.toml", changes).table()
    assert again.replace(rounds=5).chosen == again.chosen


def test_every_value_is_written_down(tuned_table, tmp_path):
    found = package.tune(tuned_table, tmp_path / "out")
    with open(tmp_path / "out" / "tuning.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == plan_of(Experiment.from_table(tuned_table)).runs == 2 * 6 * 2
    for method in found.record["methods"]:
        own = [row for row in rows if row["algorithm"] == method["algorithm"] and row["chosen"] == "1"]
        assert [row["seed"] for row in own] == ["5", "9"]
        assert np.mean([float(row["value"]) for row in own]) == pytest.approx(method["score"], rel=1e-12)
        assert json.loads(own[0]["options"]) == {k: v for k, v in method["settings"].items() if k != "learning_rate"}
    assert found.record["cost"]["rounds"] == 2 * 6 * 2 * 12
    steps = [run["gradient_steps"] for m in found.record["methods"] for r in m["rungs"] for run in r["settings"]]
    assert found.record["cost"]["gradient_steps"] == sum(steps) > 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".lock", "experiment.toml", "rungs", "sensitivity.png", "sensitivity.svg", "tuned.toml", "tuning.csv",
        "tuning.json",
    }  # fmt: skip
    assert not list((tmp_path / "out" / "rungs").rglob("*.npz"))


class HandMade:
    """Scores by hand instead of runs: ``score(method, point, rounds)``."""

    def __init__(self, plan: Any, score: Any, measure: Measure = LOSS) -> None:
        self.plan, self.score, self.measure, self.asked = plan, score, measure, []

    def run(self, name: str, experiment: Experiment) -> list[dict[str, Any]]:
        labels = [algorithm.label for algorithm in experiment.algorithms]
        self.asked.append((name, experiment.rounds, labels))
        values = [self.score(a.label, experiment.setting(a, "learning_rate"), experiment.rounds) for a in
                  experiment.algorithms]  # fmt: skip
        return [{"values": [v], "rounds": 1, "gradient_steps": 1, "seconds": 0.0} for v in values]


def test_halving_keeps_what_the_scores_say(table):
    table |= {"rounds": 90, "algorithms": [{"name": "fedpbc"}, {"name": "fedavg"}]}
    table["tune"] = {
        "budget": 4, "lengths": 3, "server": [1.0], "learning_rate": [round(0.01 * k, 2) for k in range(1, 10)]
    }  # fmt: skip
    plan = plan_of(Experiment.from_table(table))
    early = {f"fedpbc #{i}": v for i, v in enumerate([9, None, 3, 3, 3, 1, 8, 7, 6])}
    late = {"fedpbc #2": 5, "fedpbc #3": 4, "fedpbc #5": None}

    def score(label: str, rate: Any, rounds: int) -> float | None:
        if label.startswith("fedavg"):
            return 1.0  # all alike: the first of the grid
        return (early if rounds == 10 else late)[label]

    made = HandMade(plan, score)
    searches = _searched(plan, plan.targets[0], made, extend=False)
    asked = {(rounds, label) for _, rounds, labels in made.asked for label in labels}
    assert {label for rounds, label in asked if rounds == 30 and "pbc" in label} == set(late), "3 of 9, ties in order"
    assert {label for rounds, label in asked if rounds == 90} == {"fedpbc #3", "fedavg #0"}
    assert [search.best(LOSS) for search in searches] == [3, 0]


@pytest.mark.parametrize(
    ("end", "middle", "chosen", "rounds"),
    [
        ({3: 4}, {2: 5, 3: 4, 5: None}, 3, 90),
        ({3: None}, {2: 5, 3: 4, 5: 6}, 2, 30),
        ({3: None}, {2: None, 3: 4, 5: None}, 8, 10),
    ],
)
def test_what_diverged_in_the_end_is_not_chosen_where_something_else_stands(table, end, middle, chosen, rounds):
    table |= {"rounds": 90, "algorithms": [{"name": "fedpbc"}]}
    table["tune"] = {
        "budget": 4, "lengths": 3, "server": [1.0], "learning_rate": [round(0.01 * k, 2) for k in range(1, 10)]
    }  # fmt: skip
    plan = plan_of(Experiment.from_table(table))
    early = [9, None, 3, 3, 3.5, 1, 8, 7, 3.2]
    early[4] = None if rounds == 10 else early[4]

    def score(label: str, rate: Any, length: int) -> float | None:
        place = int(label[-1])
        return {10: dict(enumerate(early)), 30: middle, 90: end}[length][place]

    made = HandMade(plan, score)
    searches = _searched(plan, plan.targets[0], made, extend=False)
    assert searches[0].best(LOSS) == chosen
    found = record_of(plan, searches, LOSS, False)
    assert found.record["methods"][0]["tried_for"] == rounds
    told = [line for line in found.warnings if f"after {rounds} rounds stands" in line]
    assert len(told) == (rounds < 90)
    assert any(f"after {rounds}" in line for line in result_lines(found.record)) is (rounds < 90)
    assert found.choices[0]["settings"]["learning_rate"] == pytest.approx(0.01 * (chosen + 1))
    old = copy.deepcopy(found.record)
    for one in old["methods"]:
        del one["tried_for"]  # as it was written before
    assert not any("stands" in line for one in old["methods"] for line in warnings_of(one))


def test_higher_may_be_better(table):
    table["tune"] = {"learning_rate": [0.1, 0.2, 0.3], "server": [1.0]}
    plan = plan_of(Experiment.from_table(table))
    made = HandMade(plan, lambda label, rate, rounds: [0.5, 0.9, None][int(label[-1])], Measure("x", better="higher"))
    assert [search.best(made.measure) for search in _searched(plan, plan.targets[0], made, False)] == [1, 1]


@pytest.mark.parametrize("optimum", [0.0001, 0.02, 3.0])
def test_the_grid_is_extended_until_the_best_is_inside(table, optimum):
    table["algorithms"] = [{"name": "fedpbc"}]
    table["tune"] = {"learning_rate": [0.01, 0.03, 0.1]}
    plan = plan_of(Experiment.from_table(table))

    def score(label: str, rate: Any, rounds: int) -> float:
        return abs(float(np.log(rate.options["value"] / optimum)))

    for extend in (False, True):
        made = HandMade(plan, score)
        (search,) = _searched(plan, plan.targets[0], made, extend)
        best = search.points[search.best(LOSS)]["learning_rate"].options["value"]
        inside = 0.01 < best < 0.1
        assert (search.edges(search.best(LOSS)) == {}) == (extend or inside)
        if extend:
            ladder = [0.01 / 3**k for k in range(9)] + [0.03] + [0.1 * (10 / 3) ** k for k in range(9)]
            assert best == pytest.approx(min(ladder, key=lambda r: abs(np.log(r / optimum))), rel=1e-4)
        assert all(rounds == 12 for name, rounds, _ in made.asked if name.startswith("links-0/beyond"))


def test_no_edge_where_zero_means_none_and_of_words(table):
    table["algorithms"] = [{"name": "fedau", "learning_rate": 0.1}, {"name": "fedfade"}]
    table["tune"] = {"learning_rate": [0.1], "server": [1.0]}
    plan = plan_of(Experiment.from_table(table))
    for search in _searched(plan, plan.targets[0], HandMade(plan, lambda *_: 1.0), False):
        assert all(search.edges(i) == {} for i in range(len(search.points)))


@pytest.mark.parametrize("halving", [2, 3, 5])
def test_no_method_gets_more_than_its_budget_and_small_grids_are_run_to_the_end(halving):
    for rounds, most, budget, size in itertools.product((1, 7, 100, 1000), (1, 3, 5), (1, 6, 20), (1, 10, 90, 400)):
        lengths = lengths_of(rounds, most, halving)
        plan = schedule(size, budget, lengths, halving)
        assert lengths[-1] == rounds == plan.lengths[-1]
        assert sum(n * c for n, c in zip(plan.lengths, plan.counts, strict=True)) <= budget * rounds
        assert plan.counts[0] == plan.drawn <= size
        assert all(after == -(-before // halving) for before, after in itertools.pairwise(plan.counts))
        if size <= budget:
            assert (plan.lengths, plan.drawn) == ([rounds], size)
        if plan.drawn < size and len(lengths) == 1:
            assert plan.drawn == budget


def test_ranks_put_what_is_not_finite_last_and_ties_in_order():
    scores = [3.0, float("inf"), 1.0, float("nan"), 1.0, -2.0]
    assert ranked(scores) == [5, 2, 4, 0, 1, 3]


def test_a_part_of_the_grid_is_drawn_the_same_each_time(table):
    table["tune"] = {"budget": 2, "lengths": 2}
    first, second = (plan_of(Experiment.from_table(copy.deepcopy(table))).methods[0] for _ in range(2))
    assert first.points == second.points
    assert 0 < len(first.points) < first.size == 30
    assert [point for point in first.points if point in second.points] == first.points


def test_diverged_runs_are_the_worst_and_no_error(tuned_table, tmp_path):
    tuned_table |= {"rounds": 400, "algorithms": [{"name": "fedavg"}]}
    tuned_table["tune"] = {"seeds": [5], "learning_rate": [100.0, 0.05], "server": [1.0]}
    found = package.tune(tuned_table, tmp_path / "some")
    assert found.choices[0]["settings"]["learning_rate"] == 0.05
    assert "diverged" in (tmp_path / "some" / "tuning.csv").read_text()
    tuned_table["tune"]["learning_rate"] = [100.0, 90.0]
    found = package.tune(tuned_table, tmp_path / "all", extend=True)
    assert (found.choices[0]["settings"]["learning_rate"], found.choices[0]["score"]) == (100.0, None)
    assert "every setting diverged" in found.warnings[0]
    assert (tmp_path / "all" / "sensitivity.png").is_file()


def test_over_all_links_it_is_the_mean(tuned_table):
    tuned_table["links"].append({"label": "rare", "name": "bernoulli", "prob": 0.2})
    tuned_table["algorithms"] = [{"name": "fedavg"}]
    del tuned_table["tune"]["grid"]
    apart = package.tune(tuned_table)
    tuned_table["tune"]["per"] = "all"
    together = package.tune(tuned_table)
    assert [c["links"] for c in apart.choices] == ["half", "rare"]
    assert [c["links"] for c in together.choices] == [None]
    scores = [[s["score"] for s in method["rungs"][0]["settings"]] for method in apart.record["methods"]]
    means = np.mean(scores, axis=0)
    assert together.choices[0]["score"] == pytest.approx(means.min(), rel=1e-12)
    assert together.record["methods"][0]["chosen"] == int(means.argmin())
    assert set(together.experiment.chosen) == {("half", "fedavg"), ("rare", "fedavg")}
    assert len({str(cell.learning_rate) for cell in together.experiment.cells()}) == 1


def test_it_goes_on_after_an_interruption_and_measures_nothing_twice(tuned_table, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpbc.plots.style.save", lambda *_: None)
    tuned_table["tune"] |= {"budget": 3}
    whole = package.tune(tuned_table, tmp_path / "whole")
    saved: list[str] = []
    save = rungs_module._Cells.save

    def interrupted(self: Any, cell: Any, result: Any) -> None:
        if len(saved) in (5, 21):
            saved.append("killed")
            raise KeyboardInterrupt
        saved.append(f"{cell.key} {self.path.name}")
        save(self, cell, result)

    monkeypatch.setattr(rungs_module._Cells, "save", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            package.tune(tuned_table, tmp_path / "out", resume=True, devices=1)
        assert not (tmp_path / "out" / "tuning.json").exists()
    package.tune(tuned_table, tmp_path / "out", resume=True, devices=1)
    kept = [one for one in saved if one != "killed"]
    assert len(kept) == len(set(kept)) == plan_of(Experiment.from_table(tuned_table)).runs
    for name in ("tuned.toml", "tuning.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert whole.choices == package.tune(tuned_table, tmp_path / "out", resume=True).choices
    assert len([one for one in saved if one != "killed"]) == len(kept)
    tuned_table["tune"]["budget"] = 4
    with pytest.raises(ConfigError, match=r"the experiment changed: tune.budget was 3, is 4"):
        package.tune(tuned_table, tmp_path / "out", resume=True)
    with pytest.raises(ConfigError, match="is not empty"):
        package.tune(tuned_table, tmp_path / "out")


@pytest.mark.release
def test_it_survives_sigkill(tuned_table, write_toml, tmp_path):
    path = write_toml(tuned_table | {"rounds": 3000})
    command = [sys.executable, "-m", "fedpbc", "tune", str(path), "--quiet", "--resume", "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True, timeout=PATIENCE)
    for count in (1, 7, 15):
        process = subprocess.Popen(
            [*command, str(tmp_path / "out")], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        began = lambda n=count, p=process: p.poll() is not None or len(list((tmp_path / "out").rglob("*.npz"))) >= n  # noqa: E731
        wait_until(began, "no cell is finished")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*command, str(tmp_path / "out")], check=True, capture_output=True, timeout=PATIENCE)
    for name in ("tuned.toml", "tuning.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_option_that_an_entry_is_about_stays(table):
    table["algorithms"] = [
        {"name": "fedau", "label": "no cutoff", "cutoff": 0},
        {"name": "fedau", "learning_rate": 0.5},
        {"name": "fedavg", "server": {"name": "adam", "learning_rate": 0.1, "beta1": 0.5}},
        {"name": "scaffold", "server_learning_rate": 2.0},
    ]
    methods = {method.algorithm.label: method for method in plan_of(Experiment.from_table(table)).methods}
    fixed, plain, adam, scaffold = methods.values()
    assert list(fixed.axes) == ["learning_rate", "server"]
    assert plain.axes["cutoff"] == [0, 10, 50]
    assert [rate.options["value"] for rate in plain.axes["learning_rate"][:5]] == [0.05, 0.15, 0.5, 1.5, 5.0]
    assert [rate.name for rate in plain.axes["learning_rate"][5:]] == ["inverse_sqrt"] * 5
    assert [(s.name, s.options["learning_rate"], s.options["beta1"]) for s in adam.axes["server"]] == [
        ("adam", 0.03, 0.5), ("adam", 0.1, 0.5), ("adam", 0.3, 0.5)
    ]  # fmt: skip
    assert scaffold.axes["server_learning_rate"] == [0.6, 2.0, 6.0]


def test_focus_is_tuned_around_a_step_as_long_as_plain_ones(table):
    """Its default, 1, is m / s times as long, and the more clients the longer."""
    table["problem"]["num_clients"] = 60
    table["algorithms"] = [
        {"name": "focus"},
        {"name": "focus", "label": "more steps", "local_steps": 15},
        {"name": "focus", "label": "set by hand", "server_learning_rate": 0.02},
        {"name": "focus", "label": "stated", "local_steps": 6},
    ]
    table["tune"] = {"grid": {"stated": {"server_learning_rate": [1.0]}}}
    axes = [m.axes["server_learning_rate"] for m in plan_of(Experiment.from_table(table)).methods]
    assert axes == [[0.015, 0.05, 0.15], [0.075, 0.25, 0.75], [0.006, 0.02, 0.06], [1.0]]


def test_a_plain_step_of_focus_goes_as_far_as_fedavg_s():
    """On one quadratic for all, everybody heard: the first model of FOCUS with eta_g = s / m, s = 1, is FedAvg's."""
    m = 8
    rate = PLAIN_STEP["focus"](1, m)
    problem = package.problems.quadratic(num_clients=m, dim=3)
    models = [
        package.simulate(
            problem, links=package.links.bernoulli(prob=1.0), algorithm=algorithm, rounds=1, local_steps=1,
            learning_rate=0.1, precision="float64", progress=False,
        ).model()
        for algorithm in (package.algorithms.focus(server_learning_rate=rate), package.algorithms.fedavg())
    ]  # fmt: skip
    np.testing.assert_allclose(models[0], models[1], rtol=1e-12)


def test_the_table_of_own_options_is_of_options_that_are_there():
    for name, grid in OWN.items():
        options = options_of(ALGORITHMS.registry[name])
        for option, values in grid.items():
            assert options[option].default in values, f"{name}.{option}"
            for value in values:
                ALGORITHMS.registry[name](**{option: value})


BAD = [
    ("tune.seeds=[1, 7]", "tune.seeds = [1, 7]: 1 is in seeds, those reported; must be others"),
    ("tune.seeds=[7, 8, 7]", "tune.seeds = [7, 8, 7]: 7 is given twice"),
    ("tune.grid=3", "tune.grid = 3: must be a table"),
    ('tune.metric="los"', 'tune.metric = "los": is not measured; allowed: distance, grad_norm, train_loss'),
    ("tune.budget=0", "tune.budget = 0: must be an integer >= 1 and < 2^31"),
    ("tune.budgt=2", 'unknown key tune.budgt (did you mean "budget"?); allowed: seeds, metric, per, budget, lengths, '
     "halving, learning_rate, server, grid"),
    ("tune.grid.fedprx.mu=[1]", 'tune.grid."fedprx": no method (did you mean "fedprox"?); there are fedavg, fedprox'),
    ("tune.grid.fedprox.mu=[-1]", "tune.grid.fedprox.mu = -1: must be a finite number >= 0"),
    ("tune.grid.fedprox.mu=[]", "tune.grid.fedprox.mu = []: must be a value, or a list of values to try"),
    ("tune.grid.fedprox.nu=1", "unknown key tune.grid.fedprox.nu; allowed: learning_rate, local_steps, batch_size, mu, "
     "server"),
    ("tune.learning_rate=[0.1, -1]", "tune.learning_rate[1] = -1: must be a finite number > 0"),
    ('tune.per="link"', 'tune.per = "link": must be one of "links", "all" (did you mean "links"?)'),
    ("tune=3", "tune = 3: must be a table"),
    ("tuned={seeds=[9], metric='a', budget=1, choices=[]}", "tuned.choices = []: must be a non-empty list"),
    ("tuned={seeds=[1], metric='a', budget=1, choices=[{}]}", "tuned.choices[0].algorithm = None: must be one of the "
     'labels "fedavg", "fedprox"'),
    ("tuned={seeds=[9], metric='a', budget=1, choices=[{algorithm='fedavg'}]}", "tuned.choices: there is none for "
     "fedprox under half; needs one, tune again"),
    ("tuned={seeds=[1], metric='a', budget=1, choices=[{algorithm='fedavg'}, {algorithm='fedprox'}]}",
     "tuned.seeds = [1]: 1 is in seeds, those reported; must be others"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "message"), BAD, ids=[override for override, _ in BAD])
def test_mistakes_are_one_line_and_leave_nothing(tuned_table, write_toml, fedpbc, override, message):
    status, _, err = fedpbc("tune", str(write_toml(tuned_table)), "--set", override, "--out", "o", "--quiet")
    assert status == 2
    assert err.splitlines()[-1] == f"error: {message}"
    assert "Traceback" not in err
    assert not Path("o").exists()


def test_the_plan_says_what_will_be_run_and_writes_nothing(tuned_table, write_toml, fedpbc, tmp_path):
    status, out, _ = fedpbc("tune", str(write_toml(tuned_table)), "--plan")
    assert status == 0
    assert "tuned on seeds 5, 9 by train_loss; reported on 0, 1" in out
    assert "24 runs of 12 rounds, 288 rounds in all" in " ".join(out.split())
    assert "  mu = 1\n" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment.toml"]


def test_the_plan_names_the_lengths_that_are_run(tuned_table):
    """A small grid is run to the end at once; the shorter lengths of the table are not."""
    tuned_table["rounds"] = 27
    for budget, said in ((100, "of 27 rounds"), (2, "of 9, 27 rounds")):
        tuned_table["tune"] |= {"budget": budget, "server": [1.0]}
        plan = plan_of(Experiment.from_table(tuned_table))
        assert {len(method.schedule.lengths) for method in plan.methods} == {said.count(",") + 1}
        assert said in list(plan_lines(plan))[1]


@pytest.mark.parametrize(
    "content",
    ['{"settings": {"a": {}}}', '{"settings": {"a": 3}}', "[]", '{"settings": {"a": {"values": [1.0], "rounds": 1, '
     '"gradient_steps": 1, "seconds": 1}}}', '{"settings": {"a": {"values": ["x", 1], "rounds": 1, "gradient_steps": 1,'
     ' "seconds": 1}}}', '{"settings": {"a": {"values": [1, 2], "rounds": null, "gradient_steps": 1, "seconds": 1}}}'],
)  # fmt: skip
def test_a_rung_that_is_not_whole_is_one_line(tmp_path, content):
    path = tmp_path / "measured.json"
    path.write_text(content)
    with pytest.raises(FedpbcError, match=r"measured.json: is damaged .*delete it to do that run again"):
        rungs_module._read(path, ["a"], 2)
    whole = {"values": [1.5, None], "rounds": 4, "gradient_steps": 3, "seconds": 0.5}
    path.write_text(json.dumps({"settings": {"a": whole}}))
    assert rungs_module._read(path, ["a"], 2) == [whole]


def test_a_record_without_methods_is_one_line(fedpbc):
    Path("o").mkdir()
    record = {"experiment": "e", "links": [], "methods": [], "measure": {"title": "loss"}, "per": "all", "seeds": [1]}
    Path("o/tuning.json").write_text(json.dumps(record))
    status, _, err = fedpbc("report", "o")
    assert (status, err.count("\n")) == (2, 1)
    assert "o/tuning.json: is damaged" in err


def test_a_folder_of_a_run_is_refused(tuned_table, write_toml, fedpbc):
    Path("o").mkdir()
    Path("o/metrics.csv").write_text("links,algorithm,compute,seed,round\n")
    status, _, err = fedpbc("tune", str(write_toml(tuned_table)), "--out", "o", "--resume", "--quiet")
    assert (status, err.splitlines()[-1]) == (2, "error: o: holds a run; choose another --out")


def test_the_curve_of_the_picture_is_the_best_at_each_rate():
    settings = [{"setting": i, "score": score} for i, score in enumerate([5.0, 3.0, None, None, 2.0])]
    method = {
        "rates": [(0.1, "constant"), (0.1, "constant"), (1.0, "constant"), (1.0, "constant"), (0.1, "inverse_sqrt")],
        "rungs": [{"rounds": 9, "settings": settings}, {"rounds": 3, "settings": [{"setting": 0, "score": 1.0}]}],
    }
    assert curves_of(method, "lower", 9) == {"constant": {0.1: 3.0, 1.0: None}, "inverse_sqrt": {0.1: 2.0}}
    assert curves_of(method, "higher", 9)["constant"] == {0.1: 5.0, 1.0: None}


def test_the_choice_of_each_link_is_what_its_cells_run(table):
    table["links"].append({"label": "rare", "name": "bernoulli", "prob": 0.2})
    table["tuned"] = {"seeds": [7], "metric": "train_loss", "budget": 1, "choices": [
        {"links": "half", "algorithm": "fedavg", "learning_rate": 0.25},
        {"links": "rare", "algorithm": "fedavg", "learning_rate": 0.5, "local_steps": 2, "server": 3.0},
        {"algorithm": "fedpbc", "learning_rate": 0.75},
    ]}  # fmt: skip
    cells = {cell.key: cell for cell in Experiment.from_table(table).cells()}
    wanted = {("half", "fedavg"): (0.25, 3), ("rare", "fedavg"): (0.5, 2), ("half", "fedpbc"): (0.75, 3),
              ("rare", "fedpbc"): (0.75, 3)}  # fmt: skip
    assert len(cells) == 8
    for key, cell in cells.items():
        assert (cell.learning_rate.options["value"], cell.local_steps) == wanted[key.links, key.algorithm]
        server = cell.algorithm.options.get("server")
        assert (server.options["learning_rate"] if server else None) == (3.0 if key[:2] == ("rare", "fedavg") else None)


@pytest.mark.parametrize("rates", [(0.05,), (0.01, 0.012), (0.015, 0.05, 0.5), (0.005, 0.05, 0.5), (1e-4, 1e-2, 1.0)])
def test_learning_rates_under_the_picture_do_not_meet(rates):
    settings = [{"setting": k, "score": 1.0 + k} for k in range(len(rates))]
    method = {
        "algorithm": "fedavg", "links": "a", "rates": [(rate, "constant") for rate in rates], "score": 1.0,
        "chosen": 0, "rungs": [{"rounds": 9, "settings": settings}],
    }  # fmt: skip
    measure = {"title": "train loss", "unit": "", "scale": "linear", "better": "lower"}
    figure = draw_sensitivity(
        {"methods": [method, method | {"algorithm": "b"}], "measure": measure, "seeds": [1], "experiment": "x"}
    )
    figure.draw_without_rendering()
    for ax in figure.axes:
        ticks = ax.xaxis.get_major_ticks() + ax.xaxis.get_minor_ticks()
        left, right = ax.get_xlim()
        shown = [t.label1 for t in ticks if t.label1.get_text() and left <= t.get_loc() <= right]
        boxes = sorted((box.x0, box.x1) for box in (label.get_window_extent() for label in shown))
        assert len(boxes) >= 2
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(boxes))
