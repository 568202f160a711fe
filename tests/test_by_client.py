"""Metrics by client: the worst tenth, and the active clients alone, against plain NumPy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import fedpbc
from fedpbc.core.schema import Context
from fedpbc.data.arrays import Dataset, Scaling
from fedpbc.errors import ConfigError
from fedpbc.problems.by_client import worst_and_active
from fedpbc.runs.draws import write_links

RNG = np.random.default_rng(3)
SIZES = RNG.integers(1, 9, 23)
"""Training samples of each of 23 clients; two of them have no test samples."""
TESTS = np.where(np.arange(23) % 11 == 4, 0, RNG.integers(1, 6, 23))


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    rows, tests = int(SIZES.sum()), int(TESTS.sum())
    return {
        "x": RNG.normal(size=(rows, 3)), "y": RNG.integers(0, 4, rows), "client": np.repeat(np.arange(23), SIZES),
        "tx": RNG.normal(size=(tests, 3)), "ty": RNG.integers(0, 4, tests), "tclient": np.repeat(np.arange(23), TESTS),
    }  # fmt: skip


def made(data: dict[str, np.ndarray]) -> Any:
    """Weights by samples must not matter: a client's own mean is its own."""
    arrays = fedpbc.data.from_arrays(
        data["x"], data["y"], client=data["client"], test=(data["tx"], data["ty"]), test_client=data["tclient"]
    )
    return fedpbc.problems.classification(arrays, weights="samples")


def simulated(problem: Any, prob: float, rounds: int, **options: Any) -> fedpbc.Run:
    return fedpbc.simulate(
        problem, links=fedpbc.links.bernoulli(prob=prob), algorithm=fedpbc.algorithms.fedavg(), rounds=rounds,
        local_steps=2, learning_rate=0.3, batch_size=4, precision="float64", metrics=["server", "clients"],
        chunk_size=8, progress=False, **options,
    )  # fmt: skip


def worst(values: np.ndarray, higher: bool) -> float:
    ordered = sorted(values.tolist(), reverse=not higher)
    return float(np.mean(ordered[: math.ceil(len(ordered) / 10)]))


def latest_active(run: fedpbc.Run, tmp_path: Any, rounds: int) -> np.ndarray:
    """A^t of the latest round with anybody in it, from the file that ``fedpbc links`` writes."""
    write_links(run.experiment, run.experiment.links[0], 0, tmp_path / "a.npy")
    active = np.load(tmp_path / "a.npy")[:rounds]
    held = [row for row in active if row.any()]
    return held[-1] if held else np.ones(active.shape[1], bool)


@pytest.mark.first(1)
@pytest.mark.parametrize("prob", [0.3, 0.02])
def test_worst_and_active_are_plain_numpys(data, tmp_path, prob):
    run = simulated(made(data), prob, 9)
    (cell,) = run.cells.values()
    params = run.model()
    active = latest_active(run, tmp_path, 9)
    for x, y, owner, part in (("x", "y", "client", "train"), ("tx", "ty", "tclient", "test")):
        logits = params[:, :3] @ data[x].T + params[:, 3:]
        log_p = logits - np.log(np.exp(logits).sum(axis=0))
        samples = {"loss": -log_p[data[y], np.arange(len(data[y]))], "accuracy": logits.argmax(axis=0) == data[y]}
        for name, values in samples.items():
            have = [i for i in range(23) if np.any(data[owner] == i)]
            each = {i: float(np.mean(values[data[owner] == i])) for i in have}
            wanted = {
                f"server_worst_{part}_{name}": worst(np.array(list(each.values())), name == "accuracy"),
                f"server_active_{part}_{name}": np.mean([each[i] for i in have if active[i]]),
            }
            for column, value in wanted.items():
                assert cell.rows[column][-1] == pytest.approx(value, rel=1e-9), column
    assert run.measure("server_worst_test_accuracy").better == "higher"
    assert run.measure("server_active_train_loss").title == "train loss, active clients alone"


def test_before_the_first_active_client_it_is_everybody(data):
    run = simulated(made(data), 1e-6, 2)
    (cell,) = run.cells.values()
    assert cell.rows["empty_rounds"][-1] == 2
    everybody = cell.rows["server_test_accuracy_by_client"]
    assert cell.rows["server_active_test_accuracy"] == pytest.approx(everybody)


@pytest.mark.release
def test_devices_that_share_a_round_give_the_same_bits(data):
    alone, shared = (simulated(made(data), 0.4, 4, devices=n) for n in (1, 3))
    for one, other in zip(alone.cells.values(), shared.cells.values(), strict=True):
        assert other.info["num_devices"] == 3
        for name, column in one.rows.items():
            np.testing.assert_array_equal(column, other.rows[name], err_msg=name)


@pytest.mark.parametrize("condition", [pytest.param(1.0, marks=pytest.mark.release), 20.0])
def test_quadratics_too(tmp_path, condition):
    problem = fedpbc.problems.quadratic(num_clients=23, dim=4, condition=condition)
    run = simulated(problem, 0.3, 6)
    (cell,) = run.cells.values()
    params = problem.build(run.experiment.context(0)).params
    h = params.get("curvatures", np.ones((23, 4)))
    each = 0.5 * np.sum(h * (run.model() - params["centers"]) ** 2, axis=1)
    assert cell.rows["server_worst_train_loss"][-1] == pytest.approx(worst(each, False), rel=1e-9)
    active = latest_active(run, tmp_path, 6)
    assert cell.rows["server_active_train_loss"][-1] == pytest.approx(each[active].mean(), rel=1e-9)
    assert cell.rows["server_train_loss"][-1] == pytest.approx(each.mean(), rel=1e-9)


def test_images_that_stay_bytes_are_measured_like_numbers():
    labels, owner = RNG.integers(0, 4, 40), np.arange(40) % 6
    images = RNG.integers(0, 256, (40, 2, 3), dtype=np.uint8)
    stored = Dataset((images, labels), owner, 6, (images[:9], labels[:9]), owner[:9], scaling=Scaling((1 / 255,)))
    numbers = dataclasses.replace(
        stored, scaling=None, train=(images / 255, labels), test=(images[:9] / 255, labels[:9])
    )
    models = RNG.normal(size=(1, 4 * 7)).astype(np.float32)
    sums = []
    for data in (stored, numbers):
        problem = fedpbc.problems.classification(data).build(Context(0, np.dtype(np.float32), 1))
        sums.append(problem.by_client.sums(problem.params, models, np.int32(0)))
    assert sums[0].keys() == {"train_loss", "train_accuracy", "test_loss", "test_accuracy"}
    for name, values in sums[0].items():
        assert values == pytest.approx(np.asarray(sums[1][name]), rel=1e-4), name


def test_a_value_that_is_not_finite_is_not_hidden():
    each, all_ = np.ones((1, 30)), np.ones(30, bool)
    each[0, 7] = np.nan
    assert np.isnan(worst_and_active("loss", each, all_, all_, False)["worst_loss"][0])
    none = worst_and_active("loss", np.ones((1, 30)), all_, ~all_, False)
    assert np.isnan(none["active_loss"][0]), "no active client has samples"


def test_a_problem_that_cannot_say_is_refused():
    with pytest.raises(ConfigError, match='metrics: "clients" is not measured by this problem'):
        simulated(fedpbc.problems.synthetic(num_clients=5, on_the_fly=True), 0.5, 2)
