"""The example apps: they run as they are written, and compute what they should."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import logging
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from ray_simulation import superlink
from waiting import PATIENCE

from fedpbc.flower import InProcessGrid
from fedpbc.flower.wire.protocol import TRAIN, Order
from fedpbc.io.whole import read_arrays

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
STRATEGIES = ("fedpbc", "fedavg", "fedau", "mifa", "fedvarp", "scaffold")
APPS = ("numpy_quadratic", "sklearn_digits", "pytorch_mnist")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def run_config(app: str) -> dict[str, Any]:
    return tomllib.loads((EXAMPLES / app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def load(monkeypatch, app: str, module: str) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES / app))
    return importlib.import_module(f"{app}.{module}")


def initial_arrays(monkeypatch, app: str) -> ArrayRecord:
    task = load(monkeypatch, app, "task")
    if app == "pytorch_mnist":
        return ArrayRecord(task.make_model().state_dict())
    return ArrayRecord([np.zeros(task.DIM)] if app == "numpy_quadratic" else task.init_model())


def grid_of(client: ClientApp, partitions: Iterable[int], config: dict[str, Any]) -> InProcessGrid:
    """Clients that have a partition-id, as in Flower's simulation."""
    grid = InProcessGrid(client, run_config=config)
    for i in partitions:
        grid.contexts[grid.connect(str(i))].node_config["partition-id"] = i
    return grid


def run_in_process(monkeypatch, app: str, directory: Path, **overrides: Any) -> list[dict[str, float]]:
    """The server's metrics after rounds 0, 1, ..., with server and clients as the example has them."""
    monkeypatch.delitem(sys.modules, f"{app}.client_app", raising=False)  # its drop_by_trace keeps the trace it read
    server, client = (load(monkeypatch, app, module).app for module in ("server_app", "client_app"))
    changed = {key.replace("_", "-"): value for key, value in overrides.items()}
    config = run_config(app) | {"directory": str(directory), "round-deadline": PATIENCE} | changed
    assert config.keys() == run_config(app).keys()
    grid = grid_of(client, range(config["num-clients"]), config)
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return evaluations(directory)


def evaluations(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line)["server"] for line in (directory / "evaluation.jsonl").read_text().splitlines()]


def final_model(directory: Path) -> list[np.ndarray]:
    latest = json.loads((directory / "checkpoint.json").read_text())["latest"]
    stored = read_arrays(directory / "arrays" / f"{latest}.npz", "")
    return [stored[f"a{i}"] for i in range(len(stored) - 1)]


def write_trace(path: Path, links: np.ndarray) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "client", "active"])
        writer.writerows((t, i, int(active)) for (t, i), active in np.ndenumerate(links))
    return path


def uneven_links(rounds: int, clients: int) -> np.ndarray:
    """Half of the clients are heard rarely; one round is empty, and the last client is first heard late."""
    prob = np.where(np.arange(clients) < clients // 2, 0.2, 0.9)
    links = np.random.default_rng(3).random((rounds, clients)) < prob
    links[4] = False
    links[: rounds // 2, -1] = False
    return links


def oracle_on_quadratic(links: np.ndarray, config: dict[str, Any]) -> list[oracle.State]:
    """Algorithm 2 with the same u_i, drawn here and not by the example."""
    centers = np.array([np.random.default_rng(i).normal(i, 0.1, 5) for i in range(links.shape[1])])
    rate = oracle.inverse_sqrt(config["learning-rate"], 100)
    gradient = oracle.Quadratic(centers).gradient
    return oracle.run(oracle.FedPBC(), gradient, links, np.zeros(5), steps=config["local-steps"], rate=rate)


def require_torch() -> None:
    if importlib.util.find_spec("torch") is not None:
        return
    if os.environ.get("FEDPBC_REQUIRE_TORCH") == "1":
        pytest.fail("FEDPBC_REQUIRE_TORCH=1, and PyTorch is not installed")
    pytest.skip("PyTorch is not installed")


# Whole runs in Flower's simulation.


@pytest.fixture
def flwr_run(tmp_path: Path) -> Iterator[Any]:
    with superlink(tmp_path) as run:

        def run_app(app: str, **overrides: Any) -> str:
            config = run_config(app) | {"round-deadline": PATIENCE}
            config |= {key.replace("_", "-"): value for key, value in overrides.items()}
            return run(EXAMPLES / app, config, config["num-clients"])

        yield run_app


@pytest.mark.release
def test_the_quadratic_example_in_the_ray_simulation_is_algorithm_2(flwr_run, tmp_path):
    config = run_config("numpy_quadratic") | {"num-clients": 6, "num-server-rounds": 12}
    links = uneven_links(12, 6)
    trace, directory = write_trace(tmp_path / "links.csv", links), tmp_path / "run"
    printed = flwr_run(
        "numpy_quadratic", num_clients=6, num_server_rounds=12, trace=str(trace), directory=str(directory)
    )

    states = oracle_on_quadratic(links, config)
    (model,) = final_model(directory)
    np.testing.assert_allclose(model, states[-1].server, rtol=0, atol=1e-9)
    optimum = np.mean([np.random.default_rng(i).normal(i, 0.1, 5) for i in range(6)], axis=0)
    distances = [np.linalg.norm(state.server - optimum) for state in states]
    np.testing.assert_allclose([line["distance"] for line in evaluations(directory)], distances, rtol=0, atol=1e-9)
    assert f"after round 12: {{'distance': {evaluations(directory)[-1]['distance']}}}" in printed
    heard = [json.loads(line)["clients"] for line in (directory / "participation.jsonl").read_text().splitlines()]
    assert [sorted(map(int, names)) for names in heard] == [list(np.flatnonzero(row)) for row in links]


# Server and clients in this process.


def test_the_quadratic_example_is_algorithm_2_and_goes_on_from_its_checkpoint(monkeypatch, tmp_path):
    config = run_config("numpy_quadratic")
    links = uneven_links(40, config["num-clients"])
    trace = str(write_trace(tmp_path / "links.csv", links))
    for rounds in (25, 40):
        run_in_process(monkeypatch, "numpy_quadratic", tmp_path / "run", trace=trace, num_server_rounds=rounds)
    (model,) = final_model(tmp_path / "run")
    np.testing.assert_allclose(model, oracle_on_quadratic(links, config)[-1].server, rtol=0, atol=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_runs_in_the_quadratic_example(strategy, monkeypatch, tmp_path):
    trace = str(write_trace(tmp_path / "links.csv", uneven_links(25, 10)))
    overrides = {"strategy": strategy, "trace": trace, "num_server_rounds": 25}
    distances = [line["distance"] for line in run_in_process(monkeypatch, "numpy_quadratic", tmp_path, **overrides)]
    assert distances[-1] < 0.75 * distances[0]
    assert json.loads((tmp_path / "checkpoint.json").read_text())["settings"]["strategy"] == strategy


def test_an_unknown_strategy_is_refused(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="strategy = 'fedprox': must be one of fedpbc, fedavg, "):
        run_in_process(monkeypatch, "numpy_quadratic", tmp_path / "run", strategy="fedprox")


@pytest.mark.parametrize("strategy", ["fedpbc", "scaffold"])
def test_the_digits_example_learns(strategy, monkeypatch, tmp_path):
    trace = str(write_trace(tmp_path / "links.csv", uneven_links(30, 10)))
    overrides = {"strategy": strategy, "trace": trace, "num_server_rounds": 30}
    accuracies = [line["accuracy"] for line in run_in_process(monkeypatch, "sklearn_digits", tmp_path, **overrides)]
    assert accuracies[0] < 0.2
    assert accuracies[-1] > 0.4


def test_clients_of_the_digits_example_hold_few_labels_and_all_samples(monkeypatch):
    task = load(monkeypatch, "sklearn_digits", "task")
    labels = [task.load_client(i, 10)[1] for i in range(10)]
    assert max(len(np.unique(own)) for own in labels) <= 3
    assert sum(map(len, labels)) == len(task.load_data()[0][1]) == 1400


@pytest.mark.first(1)
@pytest.mark.parametrize("strategy", ["fedpbc", "scaffold"])
def test_the_mnist_example_learns(strategy, monkeypatch, tmp_path):
    require_torch()
    trace = str(write_trace(tmp_path / "links.csv", np.random.default_rng(3).random((20, 5)) < 0.7))
    overrides = {"strategy": strategy, "trace": trace, "num_server_rounds": 20, "num_clients": 5}
    accuracies = [line["accuracy"] for line in run_in_process(monkeypatch, "pytorch_mnist", tmp_path, **overrides)]
    assert accuracies[0] < 0.2
    assert accuracies[-1] > 0.4


@pytest.mark.parametrize("app", APPS)
def test_a_client_does_the_same_again_and_something_else_in_another_round(app, monkeypatch):
    """What FedPBC asks of a train function, to the last bit: a function of (model, round, client)."""
    if app == "pytorch_mnist":
        require_torch()
    client, initial = load(monkeypatch, app, "client_app").app, initial_arrays(monkeypatch, app)

    def train(partition: int, server_round: int) -> list[np.ndarray]:
        order = Order(TRAIN, str(partition), server_round - 1, server_round - 1)
        records = {"arrays": initial, "config": ConfigRecord({"server-round": 0}), "fedpbc": order.record()}
        grid = grid_of(client, [partition], run_config(app))
        (node,) = grid.get_node_ids()
        (reply,) = grid.send_and_receive([Message(RecordDict(records), node, MessageType.TRAIN)])
        return reply.content["arrays"].to_numpy_ndarrays()

    first = train(3, 5)
    train(4, 5)
    for x, again in zip(first, train(3, 5), strict=True):
        np.testing.assert_array_equal(x, again)
    for partition, server_round in ((3, 6), (4, 5)):
        assert any((x != y).any() for x, y in zip(first, train(partition, server_round), strict=True))


@pytest.mark.parametrize("strategy", ["fedpbc", "scaffold"])
@pytest.mark.parametrize("app", ["sklearn_digits", "pytorch_mnist"])
def test_a_run_does_the_same_again(app, strategy, monkeypatch, tmp_path):
    """Up to rounding: clients are met in any order, and so are their models added."""
    if app == "pytorch_mnist":
        require_torch()
    trace = str(write_trace(tmp_path / "links.csv", uneven_links(6, 10)[:3]))
    for name in ("one", "two"):
        overrides = {"strategy": strategy, "trace": trace, "num_server_rounds": 3}
        run_in_process(monkeypatch, app, tmp_path / name, **overrides)
    for x, y in zip(final_model(tmp_path / "one"), final_model(tmp_path / "two"), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)


@pytest.mark.parametrize("app", APPS)
def test_what_a_flower_app_bundle_leaves_out_is_not_needed(app):
    names = {path.relative_to(EXAMPLES / app).as_posix() for path in (EXAMPLES / app).rglob("*.py")}
    assert names == {f"{app}/{name}.py" for name in ("__init__", "client_app", "server_app", "task")}
