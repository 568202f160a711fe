"""Who keeps the memory of a method: server or clients, the models are the same; and what happens when it is lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rivals
from stepwise import Simulated, random_trace, simulate
from test_rivals_oracle import Matrices

import fedpbc
from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.differences import Kept, exchange
from fedpbc.core.schema import Context
from fedpbc.core.types import Cost

M, D = 6, 3
BERNOULLI = {"name": "bernoulli", "prob": 0.3}
DRAWN = {
    "bernoulli": BERNOULLI,
    "markov": {"name": "markov", "prob": 0.4, "memory": 0.8},
    "cyclic": {"name": "cyclic", "prob": 0.3, "period": 7},
    "one-way": {"name": "two_way", "up": BERNOULLI, "down": {"name": "bernoulli", "prob": 0.5}},
}
METHODS: list[dict[str, Any]] = [
    {"name": "mifa"},
    {"name": "mifa", "wait": True},
    {"name": "fedvarp"},
    {"name": "fedvarp", "server_learning_rate": 0.5},
]


def run(link: dict[str, Any], method: dict[str, Any], folder: Any = None, **changes: Any) -> Simulated:
    """One seed of a small logistic regression, fresh minibatches and a decaying rate; all rounds."""
    table = {
        "name": "memory",
        "rounds": 40,
        "local_steps": 3,
        "learning_rate": {"name": "inverse_sqrt", "initial": 0.05, "period": 5},
        "minibatch": "step",
        "batch_size": 4,
        "seeds": [3],
        "precision": "float64",
        "cooldown_rounds": 4,
        "problem": {"name": "synthetic", "num_clients": M},
        "links": [link],
        "algorithms": [method],
        "compute": ["all"],
    }
    experiment = fedpbc.Experiment.from_table({**table, **changes}, *[folder] * (folder is not None))
    return simulate(experiment, experiment.cells()[0])


def test_a_difference_to_what_is_not_in_the_mean_does_not_count() -> None:
    """Client 0 is heard but was not reached since the epoch began: its h_0 = 1 is of the old one, hbar = (0 + 3)/2."""
    kept = Kept(np.array([[1.0], [3.0]]), np.array([1.5]), np.array([0, 1]), np.int32(1))
    latest, everybody = np.array([[5.0], [9.0]]), np.array([True, True])
    after, change, counted = exchange(kept, latest, everybody, np.array([False, True]))
    assert counted.tolist() == [False, True]
    assert change[1].tolist() == [6]
    assert after.own.tolist() == [[0], [9]]
    assert after.mean.tolist() == [4.5]  # (0 + 9)/2: the mean of what everybody has in this epoch
    assert after.epoch.tolist() == [1, 1]


@pytest.mark.first(1)
@pytest.mark.parametrize("link", DRAWN)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_differences_give_the_same_models_in_every_round(link: str, method: dict[str, Any]) -> None:
    table, differences = (run(DRAWN[link], {**method, "memory": keeper}) for keeper in ("server", "client"))
    scale = np.abs(table.servers).max()
    assert scale > 0.1
    np.testing.assert_allclose(differences.servers, table.servers, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(differences.clients, table.clients, rtol=0, atol=1e-12 * scale)
    for kept, kept_there in zip(differences.states, table.states, strict=True):
        np.testing.assert_allclose(kept.kept.own, kept_there.table, rtol=0, atol=1e-11)
        np.testing.assert_allclose(kept.kept.mean, kept_there.table.mean(axis=0), rtol=0, atol=1e-11)


METHOD_AND_LIMIT = [("mifa", rivals.MIFADifferences()), ("fedvarp", rivals.FedVARPDifferences())]


@pytest.mark.parametrize(("name", "method"), METHOD_AND_LIMIT, ids=["mifa", "fedvarp"])
@pytest.mark.parametrize("one_way", [False, True])
def test_a_lost_update_does_not_bias_for_ever(name: str, method: Any, one_way: bool) -> None:
    """hbar is the mean of the h_i of its epoch once a loss was told, and the limit is that of a run without a loss."""
    rng, rounds, eta, steps = np.random.default_rng(2), 1500, 0.05, 2
    problem = Matrices(4, M, D)
    links = rng.random((rounds, M)) < np.linspace(0.2, 0.9, M)
    down = rng.random((rounds, M)) < 0.7 if one_way else links
    lost = {100: {1, 3}, 101: {1}, 130: {0}, 500: {2, 4}}
    given = {"steps": steps, "rate": lambda t: eta, "downlink": down}
    states = rivals.simulate(method, problem.gradient, links, np.ones(D), lost=lost, **given)
    whole = [state for state in states if -1 not in state.extra["epoch"]]  # the server knows of all losses
    assert rounds - 200 < len(whole) < rounds
    for state in whole:
        own = [h for h, e in zip(state.extra["h"], state.extra["epoch"], strict=True) if e == state.extra["E"]]
        np.testing.assert_allclose(state.extra["hbar"], sum(own, np.zeros(D)) / M, atol=1e-11)
    assert states[-1].extra["E"] >= 3
    if one_way:
        return  # clients that were not reached train from models of their own: no common limit
    table = {"mifa": rivals.MIFA, "fedvarp": rivals.FedVARP}[name]()
    undisturbed = rivals.simulate(table, problem.gradient, links, np.ones(D), **given)[-1].server
    np.testing.assert_allclose(states[-1].server, undisturbed, atol=1e-8)

    class Untold(type(method)):  # type: ignore[misc]
        def lose(self, i: int, t: int, x0: Any, memory: Any) -> None:
            memory["h"][i] = 0 * x0

    untold = rivals.simulate(Untold(), problem.gradient, links, np.ones(D), lost=lost, **given)[-1].server
    assert np.abs(untold - undisturbed).max() > 0.1


@pytest.mark.first(1)
@pytest.mark.parametrize("one_way", [False, True])
def test_scaffolds_server_follows_c_from_what_one_model_tells(one_way: bool, tmp_path: Any) -> None:
    """c from Delta_i, s, eta and who had received c: no c_i, no second upload. Without that bit c goes astray."""
    up, down = random_trace(1, 36, M, 0.5), random_trace(2, 36, M, 0.6)
    np.save(tmp_path / "up.npy", up)
    np.save(tmp_path / "down.npy", down)
    link: dict[str, Any] = {"name": "trace", "path": "up.npy"}
    if one_way:
        link = {"name": "two_way", "up": link, "down": {"name": "trace", "path": "down.npy"}}
    result = run(link, {"name": "scaffold"}, tmp_path, rounds=36, learning_rate=0.05, cooldown_rounds=0)
    received = down if one_way else up
    for follows in (True, False) if one_way else (True,):
        c, worst = np.zeros_like(result.servers[0]), 0.0
        for t in range(36):
            x, own = result.servers[t], result.clients[t]
            start = np.where(received[t][:, None], x, own)
            change = -c - (result.clients[t + 1] - start) / (3 * 0.05)
            counts = up[t] & received[t] if follows else up[t]
            c = c + change[counts].sum(axis=0) / M
            worst = max(worst, float(np.abs(c - result.states[t + 1].control).max()))
        assert (worst < 1e-12) == follows
    mean = result.states[-1].controls.mean(axis=0)
    np.testing.assert_allclose(result.states[-1].control, mean, atol=1e-12)
    assert np.abs(mean).max() > 1e-3


AROUND = {"name": "scaffold", "apply": "around"}
COSTS = {
    "FedPBC": ({"name": "fedpbc"}, (1, 1, 1, 0, 1)),
    "corrected, full": ({"name": "fedpbc_corrected"}, (2, 2, 1, 0, 3)),
    "corrected, light": ({"name": "fedpbc_corrected", "correction": "light"}, (1, 1, 1, 0, 2)),
    "SCAFFOLD": ({"name": "scaffold"}, (1, 2, 2, 0, 1)),
    "SCAFFOLD, black box on clients": (AROUND, (1, 2, 2, 0, 1)),
    "SCAFFOLD on server": ({"name": "scaffold", "controls": "server"}, (1, 2, 2, 1, 0)),
    "SCAFFOLD on server, black box": ({**AROUND, "controls": "server"}, (1, 1, 2, 1, 0)),
    "FedFade": ({"name": "fedfade"}, (1, 2, 2, 0, 1)),
    "FedFade, black box on clients": ({"name": "fedfade", "apply": "around"}, (1, 2, 2, 0, 1)),
    "FedFade on server, black box": ({"name": "fedfade", "apply": "around", "controls": "server"}, (1, 1, 2, 1, 0)),
    "MIFA": ({"name": "mifa"}, (1, 1, 1, 1, 0)),
    'MIFA, FedVARP by differences (`memory = "client"`)': ({"name": "mifa", "memory": "client"}, (1, 1, 2, 0, 1)),
}
"""Row of docs/drift-correction.md -> (options, models up, down, on the server, there per client, on a client)."""


def cost(options: dict[str, Any]) -> Cost:
    """What a method says of itself."""
    given = {key: value for key, value in options.items() if key != "name"}
    return ALGORITHMS.registry[options["name"]].function(Context(0, np.dtype(np.float64), M), **given).cost


def test_what_it_costs() -> None:
    """The page's table of costs, the methods' own, and the numbers counted by hand here."""
    page = (Path(__file__).parent.parent / "docs" / "drift-correction.md").read_text(encoding="utf-8")
    lines = [
        line.strip("| ").split(" | ") for line in page.partition("## What it costs")[2].splitlines() if "|" in line
    ]
    rows = {line[0]: line[1:5] for line in lines[2 : 2 + len(COSTS)]}
    assert list(rows) == list(COSTS)
    for name, (options, (up, down, server, per_client, client)) in COSTS.items():
        found = cost(options)
        counted = (up, down, server, per_client, client)
        assert (found.up, found.down, found.server, found.server_per_client, found.client) == counted, name
        assert rows[name] == [str(up), str(down), f"{server} + m" if per_client else str(server), str(client)]
    fedvarp = cost({"name": "fedvarp", "memory": "client"}), cost({"name": "mifa", "memory": "client"})
    assert len({(c.up, c.down, c.scalars, c.server, c.server_per_client, c.client) for c in fedvarp}) == 1
    assert cost({"name": "fedvarp"}).server_per_client == 1


@pytest.mark.parametrize("page", ["results", "drift-correction", "fedfade"])
def test_generated_pages_say_what_their_templates_say(page: str) -> None:
    """Whoever changes a template fills it in again; numbers are not typed by hand."""
    docs = Path(__file__).parent.parent / "docs"
    parts = re.split(r"\$\w+", (docs / f"{page}.template.md").read_text(encoding="utf-8"))
    text = (docs / f"{page}.md").read_text(encoding="utf-8")
    assert re.fullmatch("(.+?)".join(map(re.escape, parts)), text, re.DOTALL)
