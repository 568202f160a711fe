"""Figures: what is drawn, for complete, diverged, single-seed and compared runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError
from fedpbc.experiment.grid import Experiment
from fedpbc.plots.choice import shown_metrics
from fedpbc.plots.palette import COLORS, MARKERS, RESERVED
from fedpbc.plots.runs import MAX_POINTS, draw
from fedpbc.plots.style import save
from fedpbc.plots.tables import table_columns, terminal
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


@pytest.mark.parametrize("how", ["sd", "ci", "range"])
def test_curves_are_the_mean_and_the_band_is_what_the_experiment_asks_for(table, tmp_path, how):
    read = finished(table, tmp_path, seeds=[0, 1, 2], figure={"spread": how})
    figure = draw([read])
    rounds, values = read.curves("half", "fedavg", "all", "server_grad_norm")
    server = figure.axes[0].lines[0]
    np.testing.assert_array_equal(server.get_xdata(), rounds)
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    np.testing.assert_allclose(server.get_ydata(), mean)
    half = {"sd": sd, "ci": 4.302653 * sd / 3**0.5}.get(how)  # t of 2 degrees of freedom, 97.5 %
    low, high = (values.min(axis=0), values.max(axis=0)) if half is None else (mean - half, mean + half)
    low = np.maximum(low, values.min(axis=0))  # a log axis: no band below the smallest seed
    corners = figure.axes[0].collections[0].get_paths()[0].vertices
    for t, bottom, top in zip(rounds, low, high, strict=True):
        at = corners[corners[:, 0] == t, 1]
        assert at.min() == pytest.approx(bottom, rel=1e-6)
        assert at.max() == pytest.approx(top, rel=1e-6)
    words = {"sd": "mean ± standard deviation", "ci": "95 % confidence interval", "range": "mean and range"}[how]
    assert any(words in text.get_text() for text in figure.legends[0].get_texts())
    assert words in " ".join(terminal([read]).split())


def test_the_experiment_chooses_metrics_models_and_the_first_round(table, tmp_path):
    look = {"metrics": ["train_loss", "distance"], "models": ["server"], "from_round": 5}
    read = finished(table, tmp_path, figure=look)
    assert shown_metrics([read]) == ["train_loss", "distance"]
    figure = draw([read])
    assert len(figure.axes) == 2
    assert [ax.get_yscale() for ax in figure.axes] == ["linear", "log"]
    assert all(len(ax.lines) == 2 and ax.lines[0].get_xdata()[0] == 5 for ax in figure.axes)


@pytest.mark.first(3)
@pytest.mark.parametrize("label", [r"$\foo$", "$x^$", "$5 and $6", "[bold]x[/bold]", "[/bold]", "名前"])
def test_labels_are_text_and_not_markup(table, tmp_path, label):
    links = [{"label": label, "name": "bernoulli", "prob": 0.5}]
    algorithms = [{"label": label, "name": "fedpbc"}]
    read = finished(table, tmp_path, links=links, algorithms=algorithms, rounds=2)
    figure = draw([read])
    save(figure, tmp_path, "labels")
    assert figure.axes[0].get_title() == label
    assert label in terminal([read])


def test_short_runs_still_give_a_figure(table, tmp_path):
    look = {"from_round": 50}
    read = finished(table, tmp_path, figure=look, rounds=3)
    assert shown_metrics([read]) == ["grad_norm"]
    assert draw([read]).axes[0].lines[0].get_xdata().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("figure", [{}, {"models": ["mean"]}])
def test_a_run_without_the_mean_model_is_drawn(table, tmp_path, figure):
    read = finished(table, tmp_path, metrics=["server"], rounds=3, figure=figure)
    assert len(draw([read]).axes[0].lines) == len(table["algorithms"])
    assert table_columns([read])[0] == "server_grad_norm"


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
    assert "not finite" in terminal([read])


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
    assert len(figure.axes) == 2, "more than three methods: the server's and the mean model have panels of their own"
    assert all(len(ax.lines) == 4 for ax in figure.axes)
    assert ["server model" in ax.get_ylabel() for ax in figure.axes] == [True, False]
    assert ["mean of client models" in ax.get_ylabel() for ax in figure.axes] == [False, True]


def test_an_unknown_metric_is_named(table, tmp_path):
    read = finished(table, tmp_path)
    assert shown_metrics([read], ["distance"]) == ["distance"]
    with pytest.raises(ConfigError, match=r'no metric "distanse" \(did you mean "distance"\?\); there are .*distance'):
        draw([read], ["distanse"])


def test_plain_fedavg_and_fedpbc_look_the_same_in_every_figure(table, tmp_path):
    """Also among others, with defaults spelt out, and under other names; with other options they are others."""
    algorithms = [
        {"name": "fedau"},
        {"label": "ours", "name": "fedpbc", "max_catchup": 0},
        {"label": "latest", "name": "fedpbc", "max_catchup": 1},
        {"label": "plain", "name": "fedavg"},
    ]
    figure = draw([finished(table, tmp_path, algorithms=algorithms, rounds=2)])
    legend = figure.legends[0]
    colors = {text.get_text(): line.get_color() for text, line in zip(legend.get_texts(), legend.get_lines())}  # noqa: B905
    assert colors["ours"] == RESERVED["fedpbc"]
    assert colors["plain"] == RESERVED["fedavg"]
    assert len({colors[name] for name in ("fedau", "ours", "latest", "plain")}) == 4
    assert colors["latest"] not in RESERVED.values()


def color_by_label(figure) -> dict[str, str]:
    legend = figure.legends[0]
    return {text.get_text(): line.get_color() for text, line in zip(legend.get_texts(), legend.get_lines())}  # noqa: B905


def test_a_method_that_is_alone_of_its_name_has_its_colour_whatever_its_options(table, tmp_path):
    first = [{"label": "pbc", "name": "fedpbc", "max_catchup": 1}, {"label": "au", "name": "fedau", "cutoff": 20}]
    second = [{"label": "avg", "name": "fedavg", "server": 0.5}, {"label": "au", "name": "fedau"}, {"name": "mifa"},
              {"label": "pbc", "name": "fedpbc"}]  # fmt: skip
    one = finished(table, tmp_path, "one", algorithms=first, rounds=2)
    two = finished(table, tmp_path, "two", algorithms=second, rounds=2)
    colors, others = color_by_label(draw([one])), color_by_label(draw([two]))
    assert colors["pbc"] == others["pbc"] == RESERVED["fedpbc"]
    assert colors["au"] == others["au"]
    assert others["avg"] == RESERVED["fedavg"]
    assert color_by_label(draw([two], ["distance"])) == others, "every figure of a run"
    assert len({others[label] for label in ("avg", "au", "mifa", "pbc")}) == 4


@pytest.mark.release
def test_of_several_variants_none_pretends_to_be_the_method(table, tmp_path):
    algorithms = [{"label": str(k), "name": "fedpbc", "max_catchup": k} for k in (1, 2)] + [{"name": "fedavg"}]
    colors = color_by_label(draw([finished(table, tmp_path, algorithms=algorithms, rounds=2)]))
    assert RESERVED["fedpbc"] not in colors.values()
    assert colors["fedavg"] == RESERVED["fedavg"]
    assert len({colors[label] for label in ("1", "2", "fedavg")}) == 3


def test_every_method_has_a_marker_of_its_own(table, tmp_path):
    algorithms = [{"label": f"method {i}", "name": "fedavg", "server": 0.5 + i / 10} for i in range(len(COLORS))]
    figure = draw([finished(table, tmp_path, algorithms=algorithms, rounds=2)])
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(looks) == len({marker for _, marker in looks}) == len({color for color, _ in looks}) == len(COLORS)
    assert len(set(MARKERS)) == len(MARKERS) == len(COLORS)


def linear_rgb(color: str) -> np.ndarray:
    value = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    """CIE 1976 L*a*b* of linear sRGB, D65."""
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip # noqa: E501
    t = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
"""Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB."""
GREYS = ("#4D4D4D", "#595959", "#D6D6D6")
"""The legend's lines (0.3), the ranking's others (0.35), and the legend's band (0.6 at 40 %)."""


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart_for_colour_blind_readers_and_from_the_greys(sight):
    seen = {color: cielab(np.array(SIGHT[sight]) @ linear_rgb(color)) for color in (*COLORS, *GREYS)}
    pairs = [*itertools.combinations(COLORS, 2), *itertools.product(COLORS, GREYS)]
    distances = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in pairs}
    closest = min(distances, key=distances.get)
    assert distances[closest] > 17, closest
    wine = cielab(np.array(SIGHT["deuteranopia"]) @ linear_rgb("#882255"))
    grey = cielab(np.array(SIGHT["deuteranopia"]) @ linear_rgb("#4D4D4D"))
    assert np.linalg.norm(wine - grey) < 5, "the measure must notice what is easily mistaken: wine is grey to some"


def test_the_measure_says_title_unit_and_scale(table, tmp_path):
    read = finished(table, tmp_path, rounds=3)
    read.measures = {
        "distance": Measure("price of $\\foo$", "EUR", scale="log", better="higher", shown=True),
        "grad_norm": Measure("slope"),
    }
    figure = draw([read])
    assert [ax.get_ylabel() for ax in figure.axes] == ["price of $\\foo$ [EUR]"]
    assert figure.axes[0].get_yscale() == "log"
    save(figure, tmp_path, "words")
    assert "price of $\\foo$ [EUR]" in " ".join(terminal([read], 200).split()) or "[EUR]" in terminal([read], 200)
    assert draw([read], ["grad_norm"]).axes[0].get_yscale() == "linear"


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
