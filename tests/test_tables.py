"""Tables: what stands in them, in every form, and that they fit a terminal."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import CellKey
from fedpbc.plots.choice import shown_metrics
from fedpbc.plots.spread import Spread, spread, written
from fedpbc.plots.tables import latex, markdown, terminal
from fedpbc.runs.run import CellResult, Run

MEASURES = {
    "test_accuracy": Measure("test accuracy", better="higher", shown=True),
    "train_loss": Measure("train loss", shown=True),
    "distance": Measure("distance to the minimiser", "km", scale="log"),
}
LONG = "bernoulli(prob=by_label(dirichlet, concentration=0.3, minimum=0.02), varying=sine(amplitude=0.4, period=40))"


def made(
    methods=("fedavg", "fedpbc"), links=("half",), computes=("all",), seeds=3, figure=None, name="made", stop=None
):
    """A run of made-up numbers: value of seed s is base + s / 100."""
    cells = {}
    for number, (link, method, compute) in enumerate((a, b, c) for a in links for b in methods for c in computes):
        for seed in range(seeds):
            rows = {"round": np.array([0, 10])}
            for place, metric in enumerate(MEASURES):
                for model in ("server", "mean"):
                    base = 0.5 + number / 10 + place + (model == "mean") / 20
                    rows[f"{model}_{metric}"] = np.array([0.0, base + seed / 100])
            rows["consensus_distance"] = np.array([0.0, 1234.5 + number + seed])
            for column, value in {"num_active": 3, "empty_rounds": 2, "gradient_steps": 123456, "bytes_up": 7e6,
                                  "bytes_down": 8e6}.items():  # fmt: skip
                rows[column] = np.array([0, int(value)])
            info = {"stopped_after": 10} if stop and method == stop else {}
            cells[CellKey(link, method, compute, seed)] = CellResult(rows, {}, info)
    table = {"name": name, "rounds": 20 if stop else 10, "eval_every": 10, "seeds": list(range(seeds)),
             "figure": figure or {}, "algorithms": []}  # fmt: skip
    return Run(table, cells, MEASURES)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize(
    "run",
    [
        made(),
        made(links=("half", LONG), computes=("all", "active")),
        made(methods=("corrected, black box, with a long name", "x", "名前の長い方法")),
        made(figure={"metrics": list(MEASURES), "spread": "range"}),
        made(seeds=1),
        made(stop="fedpbc"),
    ],
    ids=["plain", "long links", "long methods", "three metrics with ranges", "one seed", "stopped"],
)
def test_a_table_fits_and_breaks_no_word_or_number(run, width):
    from rich.cells import cell_len

    text = terminal([run], width)
    longest = max(cell_len(word) for word in text.split())
    assert max(map(cell_len, text.splitlines())) <= max(width, longest)
    everything = " ".join(text.split())
    for group in run.groups:
        for word in [*group.links.split(), *group.algorithm.split()]:
            assert word in everything
    wide = terminal([run], 10_000)
    metrics = set(re.findall(r"\d[\d.,]* ± [\d.]+|\d[\d.]* \([\d.]+ to [\d.]+\)", wide))
    assert all(value in text for value in metrics), "no value of a metric is dropped, whatever the width"
    assert bool(metrics) == (len(run.table["seeds"]) > 1)
    assert text == "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def test_what_has_no_room_is_named():
    wide, narrow = terminal([made()], 200), terminal([made()], 60)
    assert "No room" not in wide
    assert "MB down" in " ".join(wide.split())
    assert "No room here: " in narrow
    assert "MB down" in " ".join(narrow.split())
    assert "123,456" in wide


def test_the_values_are_the_means_and_the_spread_that_is_asked_for():
    # seeds .50, .51, .52: sd .01, t(2, 97.5 %) = 4.3027, 4.3027 * .01 / sqrt 3 = .0248
    values = {"sd": "0.510 ± 0.010", "ci": "0.510 ± 0.025", "range": "0.510 (0.500 to 0.520)"}
    for (
        how,
        text,
    ) in values.items():
        run = made(figure={"spread": how})
        for table in (terminal([run]), markdown([run])):
            assert text.replace("(", "(") in table
        assert text.replace("±", r"$\pm$") in latex([run])


def test_numbers_are_rounded_to_what_the_spread_allows():
    def text(mean, half, how="sd"):
        return written(Spread(mean, mean - half, mean + half), how)

    assert text(0.85312, 0.0123) == "0.853 ± 0.012"
    assert text(99.96, 0.5) == "99.96 ± 0.50"
    assert text(0.00012345, 0.0000071) == "0.0001234 ± 0.0000071"
    assert text(1.2345e-9, 2e-10) == "1.23e-09 ± 0.20e-09"
    assert text(123456789.0, 4e6) == "1.235e+08 ± 0.040e+08"
    assert text(-3.21, 0.5) == "-3.21 ± 0.50"
    assert text(5.0, 0.0) == "5 ± 0"
    assert text(0.0, 0.0) == "0 ± 0"
    assert text(1.0, 1e-12) == "1.00000 ± 0.00000"
    assert text(0.0, 0.3) == "0.00 ± 0.30"


def test_one_seed_has_no_spread():
    assert spread(np.array([[1.0, 2.0]]), "ci").low.tolist() == [1.0, 2.0]
    for table in (terminal([made(seeds=1)]), markdown([made(seeds=1)]), latex([made(seeds=1)])):
        assert "±" not in table
        assert "pm" not in table


def test_costs_are_in_the_units_of_their_headings():
    """A megabyte is 10^6 bytes; counts are whole."""
    head, _, row, *_ = ([cell.strip() for cell in line.split("|")] for line in markdown([made()]).splitlines())
    found = dict(zip(head, row, strict=True))
    costs = {name: found[name] for name in ("MB up", "MB down", "gradient steps", "empty rounds")}
    assert costs == {"MB up": "7", "MB down": "8", "gradient steps": "123,456", "empty rounds": "2"}


def test_runs_are_compared_by_what_all_of_them_measure():
    ours, theirs = made(), made(name="theirs")
    for cell in theirs.cells.values():
        del cell.rows["server_train_loss"], cell.rows["mean_train_loss"]
    assert shown_metrics([ours]) == ["test_accuracy", "train_loss"]
    assert shown_metrics([ours, theirs]) == ["test_accuracy"]
    assert "train loss" not in markdown([ours, theirs])
    with pytest.raises(ConfigError, match="no metric"):
        shown_metrics([ours, theirs], ["train_loss"])


def test_markdown_is_a_table_whatever_the_labels():
    run = made(methods=("a|b", "*c* `d` <e>"), links=("$x$ [y](z)",))
    lines = markdown([run]).splitlines()[:4]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert len(columns) == 1
    assert r"a\|b" in lines[2]
    assert r"\*c\* \`d\` \<e>" in lines[3]
    assert "| compute |" not in lines[0], "all cells are alike there"
    assert "compute" in markdown([made(computes=("all", "active"))]).splitlines()[0]


def test_latex_escapes_and_has_a_column_for_each_cell():
    run = made(methods=("50% & more_x", r"\foo{a}^2~$"), links=("a < b > c | d #1",))
    lines = latex([run]).splitlines()
    spec = re.search(r"\\begin\{tabular\}\{(\w+)\}", "\n".join(lines))[1]
    rows = [line for line in lines if line.endswith(r" \\")]
    assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(spec)}
    assert r"50\% \& more\_x" in rows[1]
    assert r"\textbackslash{}foo\{a\}\textasciicircum{}2\textasciitilde{}\$" in rows[2]
    assert r"a \textless{} b \textgreater{} c \textbar{} d \#1" in rows[1]
    assert lines[-1] == r"\end{tabular}"
    assert r"\toprule" in lines


def test_units_and_other_runs_stand_in_the_heading():
    runs = [made(name="one"), made(name="two")]
    text = terminal(runs, 80, ["distance"])
    assert "one / two" in text
    assert "one: half" in text
    assert "two: half" in text
    assert "[km]" in text
    assert "accuracy" not in text
    heading = markdown(runs, ["distance"]).splitlines()[0]
    assert heading.startswith(r"| run | links | algorithm | server distance to the minimiser \[km] |")


def test_what_is_not_finite_is_said():
    run = made()
    key = next(iter(run.cells))
    run.cells[key].rows["server_train_loss"][-1] = np.inf
    for table in (terminal([run]), markdown([run]), latex([run])):
        assert "not finite" in table


def test_early_stops_have_a_column_in_every_form():
    run = made(stop="fedpbc")
    assert "where a callback ended a run early" in " ".join(terminal([run]).split())
    assert "| last round |" in markdown([run])
    assert "& last round &" in latex([run])
    for table in (terminal([made()]), markdown([made()]), latex([made()])):
        assert "early" not in table
        assert " last round " not in table.splitlines()[2]
