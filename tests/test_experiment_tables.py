"""What an experiment writes of itself: defaults that are components, labels of sweeps."""

from __future__ import annotations

import numpy as np
import pytest
import tomli_w

import fedpbc
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment


@pytest.mark.parametrize("name", ["classification", "regression"])
def test_a_default_that_is_a_component_is_written_as_a_table_and_read_back(table, tmp_path, name):
    data = {"train.0": np.ones((4, 2)), "train.1": np.arange(4) % 2, "client": np.arange(4) % 2}
    np.savez(tmp_path / "data.npz", **data)
    experiment = Experiment.from_table({**table, "problem": {"name": name, "data": "data.npz"}}, tmp_path)
    written = experiment.table()
    assert written["problem"]["model"] == {"name": "logistic"}
    assert Experiment.from_table(tomli_w.dumps(written) and written).table() == written
    assert experiment.problem.build(experiment.context(0)).init.size == (2 * 3 if name == "classification" else 3)


def test_a_label_of_a_sweep_says_a_value_that_is_the_default_too(table):
    sweep = [{"name": "fedprox", "mu": [0.01, 0.1], "learning_rate": [0.5]}]
    labels = [a.label for a in Experiment.from_table({**table, "algorithms": sweep}).algorithms]
    assert labels == ["fedprox(mu=0.01, learning_rate=0.5)", "fedprox(mu=0.1, learning_rate=0.5)"]
    labelled = [{"label": "prox", "name": "fedprox", "mu": [0.01, 0.1]}]
    labels = [a.label for a in Experiment.from_table({**table, "algorithms": labelled}).algorithms]
    assert labels == ["prox, mu=0.01", "prox, mu=0.1"]
    own = [fedpbc.algorithms.fedprox().using(learning_rate=[0.1, 0.2])]
    labels = [a.label for a in Experiment.from_table({**table, "algorithms": own}).algorithms]
    assert labels == ["fedprox(learning_rate=0.1)", "fedprox(learning_rate=0.2)"]


def test_a_figure_shows_itself_in_a_notebook_without_pyplot(table):
    figure = fedpbc.run(Experiment.from_table({**table, "rounds": 2, "seeds": [0]})).plot()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_label_does_not_outlive_the_settings_it_was_written_for(table, write_toml):
    links = [{"label": "half", "name": "bernoulli", "prob": 0.5}, {"label": "rare", "name": "bernoulli", "prob": 0.1}]
    path = write_toml(table | {"links": links})
    changed = load_experiment(path, {"links[0].prob": 0.3})
    assert [link.options["prob"].options["value"] for link in changed.links] == [0.3, 0.1]
    assert "half" not in changed.links[0].label
    assert "0.3" in changed.links[0].label
    assert changed.links[1].label == "rare"
    named = load_experiment(path, {"links.0.prob": 0.3, "links.0.label": "a third"})
    assert [link.label for link in named.links] == ["a third", "rare"]
    assert [link.label for link in load_experiment(path, {"rounds": 3}).links] == ["half", "rare"]


def test_every_seed_has_data_of_its_own_whatever_stands_beside_it(table):
    """quadratic centres are drawn from the seed."""

    def centers(experiment, seed):
        return experiment.problem.build(experiment.context(seed)).params["centers"]

    both, alone = Experiment.from_table(table), Experiment.from_table(table | {"seeds": [1]})
    np.testing.assert_array_equal(centers(both, 1), centers(alone, 1))
    assert np.all(centers(both, 0) != centers(both, 1))
