"""Figures: what is drawn, for complete, diverged, single-seed and compared runs."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from fedpbc.experiment.grid import Experiment
from fedpbc.plots.runs import MAX_POINTS, draw, shown_metrics
from fedpbc.plots.style import save
from fedpbc.plots.tables import final_table
from fedpbc.runs.directory import read_run
from fedpbc.runs.runner import run


def finished(table, tmp_path, name="out", **changes):
    run(Experiment.from_table(table | changes), tmp_path / name)
    return read_run(tmp_path / name)


def test_one_panel_per_link_setting_and_who_computes(table, tmp_path):
    links = [{"label": f"p={p}", "name": "bernoulli", "prob": p} for p in (0.2, 0.5, 0.8)]
    figure = draw([finished(table, tmp_path, links=links, compute=["all", "active"])])
    assert [ax.get_title() for ax in figure.axes[:3]] == ["p=0.2", "p=0.5", "p=0.8"]
    assert len(figure.axes) == 6
    for ax in figure.axes:
        assert len(ax.lines) == 4  # two algorithms, server and mean
        assert len(ax.collections) == 4  # a band each
        assert ax.get_yscale() == "log"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["fedavg", "fedpbc"]
    assert any("no server can compute" in label for label in labels)


def test_curves_are_the_median_and_the_band_the_range(table, tmp_path):
    read = finished(table, tmp_path, seeds=[0, 1, 2])
    figure = draw([read])
    rounds, values = read.curves("half", "fedavg", "all", "server_grad_norm")
    server = figure.axes[0].lines[0]
    np.testing.assert_array_equal(server.get_xdata(), rounds)
    np.testing.assert_allclose(server.get_ydata(), np.median(values, axis=0))
    extent = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData)
    assert extent.y0 == pytest.approx(values.min())
    assert extent.y1 == pytest.approx(values.max())


def test_the_experiment_chooses_metrics_models_and_the_first_round(table, tmp_path):
    look = {"metrics": ["train_loss", "distance"], "models": ["server"], "from_round": 5}
    read = finished(table, tmp_path, figure=look)
    assert shown_metrics([read]) == ["train_loss", "distance"]
    figure = draw([read])
    assert len(figure.axes) == 2
    assert [ax.get_yscale() for ax in figure.axes] == ["linear", "log"]
    assert all(len(ax.lines) == 2 and ax.lines[0].get_xdata()[0] == 5 for ax in figure.axes)


@pytest.mark.parametrize("label", [r"$\foo$", "$x^$", "$5 and $6", "[bold]x[/bold]", "[/bold]", "名前"])
def test_labels_are_text_and_not_markup(table, tmp_path, label):
    links = [{"label": label, "name": "bernoulli", "prob": 0.5}]
    algorithms = [{"label": label, "name": "fedpbc"}]
    read = finished(table, tmp_path, links=links, algorithms=algorithms, rounds=2)
    figure = draw([read])
    save(figure, tmp_path, "labels")
    assert figure.axes[0].get_title() == label
    printed = io.StringIO()
    Console(file=printed, width=150).print(final_table([read]))
    assert label in printed.getvalue()


def test_short_runs_still_give_a_figure(table, tmp_path):
    look = {"from_round": 50}
    read = finished(table, tmp_path, figure=look, rounds=3)
    assert shown_metrics([read]) == ["grad_norm"]
    assert draw([read]).axes[0].lines[0].get_xdata().tolist() == [0, 1, 2, 3]


def test_long_runs_are_thinned(table, tmp_path):
    read = finished(table, tmp_path, rounds=3 * MAX_POINTS, algorithms=[{"name": "fedpbc"}])
    line = draw([read]).axes[0].lines[0]
    assert len(line.get_xdata()) == MAX_POINTS
    assert line.get_xdata()[-1] == 3 * MAX_POINTS


def test_a_diverged_run_is_drawn_as_far_as_it_is_finite(table, tmp_path):
    links = [{"label": "always", "name": "bernoulli", "prob": 1.0}]
    read = finished(table, tmp_path, learning_rate=1e200, links=links)
    figure = draw([read])
    save(figure, tmp_path, "diverged")
    assert all(np.all(np.isfinite(line.get_ydata())) for line in figure.axes[0].lines)
    table_ = final_table([read])
    assert "not finite" in [cell for column in table_.columns for cell in column.cells]


def test_the_same_run_gives_the_same_bytes(table, tmp_path):
    read = finished(table, tmp_path)
    for stem in ("one", "two"):
        save(draw([read]), tmp_path, stem)
    for suffix in ("png", "svg"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_runs_are_compared_side_by_side(table, tmp_path):
    runs = [finished(table, tmp_path, "slow", learning_rate=0.01), finished(table, tmp_path, "fast")]
    figure = draw(runs)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:4] == ["slow: fedavg", "slow: fedpbc", "fast: fedavg", "fast: fedpbc"]
    assert len(figure.axes[0].lines) == 8
    assert final_table(runs).columns[0].header == "run"


def test_a_narrow_table_leaves_the_costs_out(table, tmp_path):
    run(Experiment.from_table(table | {"rounds": 2}), tmp_path / "run")
    read = read_run(tmp_path / "run")
    wide, narrow = ([str(c.header) for c in final_table([read], costs=costs).columns] for costs in (True, False))
    assert wide[:-3] == narrow
    assert wide[-3:] == ["gradient steps", "MB up", "MB down"]


def test_many_methods_are_ranked_and_the_diverged_come_last(table, tmp_path):
    rates = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1e200]
    methods = [{"label": f"rate {rate:g} $x$", "name": "fedavg", "server": rate} for rate in rates]
    run(Experiment.from_table(table | {"rounds": 3, "algorithms": [*methods, {"name": "fedpbc"}]}), tmp_path / "run")
    (ax,) = draw([read_run(tmp_path / "run")]).axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(names) == 9
    assert names[-1] == "rate 1e+200 $x$ (diverged)"
    finals = {group["algorithm"]: group["final"]["server_grad_norm"]["mean"] for group in read_run(
        tmp_path / "run").summary["groups"]}  # fmt: skip
    assert [finals[name] for name in names[:-1]] == sorted(finals[name] for name in names[:-1])
