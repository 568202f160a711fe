"""Where drift correction breaks: runs the study and writes docs/drift-correction.md from its template.

Usage: python docs/drift_study.py [--runs runs/drift]. An interrupted call goes on where it stopped. About eight
minutes on two cores. Everything is drawn from seeds: the same numbers come out again.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from page import markdown, write_page

from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.runner import run

CERTAIN = "FedAvg, p = 1 (reference)"
FULL = {"name": "fedpbc_corrected"}
LIGHT = {**FULL, "correction": "light"}


class Method(NamedTuple):
    """A row of the tables."""

    options: dict[str, Any]
    compute: str = "all"


METHODS = {
    "FedAvg": Method({"name": "fedavg"}),
    "FedPBC": Method({"name": "fedpbc"}),
    "corrected, full": Method(FULL),
    "corrected, light": Method(LIGHT),
    "corrected, light, black box": Method({**LIGHT, "apply": "around"}),
    "corrected, full, only active compute": Method(FULL, "active"),
    "SCAFFOLD": Method({"name": "scaffold"}, "active"),
    "SCAFFOLD, on server, black box": Method({"name": "scaffold", "controls": "server", "apply": "around"}, "active"),
    "MIFA": Method({"name": "mifa"}, "active"),
}
LOSING = {
    "corrected, full, epochs": Method({**FULL, "epoch_reset": True}),
    "corrected, full, no epochs": Method({**FULL, "epoch_reset": False}),
    "corrected, light, epochs": Method({**LIGHT, "epoch_reset": True}),
    "corrected, light, no epochs": Method({**LIGHT, "epoch_reset": False}),
    "SCAFFOLD": Method({"name": "scaffold"}, "active"),
    "SCAFFOLD, on server": Method({"name": "scaffold", "controls": "server"}, "active"),
}

M, ROUNDS = 50, 3000
QUADRATIC = {
    "name": "drift",
    "rounds": ROUNDS,
    "local_steps": 10,
    "seeds": [0, 1, 2],
    "eval_every": ROUNDS,
    "precision": "float64",
    "problem": {"name": "quadratic", "num_clients": M, "dim": 10, "condition": 20.0},
}
SYNTHETIC = {
    "name": "drift",
    "rounds": 600,
    "local_steps": 10,
    "learning_rate": 0.02,
    "seeds": [0, 1],
    "eval_every": 600,
    "minibatch": "step",
    "batch_size": 16,
    "problem": {"name": "synthetic", "num_clients": 30},
}
NETWORK = {
    **SYNTHETIC,
    "rounds": 400,
    "learning_rate": 0.05,
    "seeds": [0],
    "eval_every": 400,
    "problem": {"name": "synthetic", "num_clients": 30, "hidden": 32},
}
DECAYING = {"name": "inverse_sqrt", "period": 10}


def bernoulli(label: str, prob: Any, memory: float = 0.0) -> dict[str, Any]:
    """Independent rounds are the Markov process without memory: one compiled program for both."""
    return {"label": label, "name": "markov", "prob": prob, "memory": memory}


def unequal(trait: str, low: float = 0.1, high: float = 0.9) -> dict[str, Any]:
    """Half of the clients, by what they have to teach, is heard with ``low``, the rest with ``high``."""
    return {"name": "by_trait", "trait": trait, "low": low, "high": high}


def traces(folder: Path) -> dict[str, Path]:
    """Links of groups that seldom or never meet; files, because no link process is made for them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, first = np.random.default_rng(0), np.arange(M) < M // 2
    coin, turn = rng.random((ROUNDS, M)) < 0.5, np.arange(ROUNDS) % 2 == 0
    apart = coin & (first == turn[:, None])
    together = np.where((np.arange(ROUNDS) % 100 == 99)[:, None], coin, apart)
    alone = rng.integers(M, size=ROUNDS)[:, None] == np.arange(M)
    paths = {}
    for label, active in {
        "one client a round": alone,
        "two groups, never together": apart,
        "two groups, together every 100th round": together,
    }.items():
        paths[label] = (folder / f"{label.replace(' ', '_')}.npy").resolve()
        np.save(paths[label], active)
    return paths


class Study:
    """Runs sections, one experiment each, and keeps them in a folder."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.programs = runs, Programs(jax.devices())

    def measure(
        self, name: str, table: dict[str, Any], methods: dict[str, Method], metric: str = "server_distance"
    ) -> dict[str, list[float]]:
        """Method -> the metric's last value under each of the links of the table, mean over seeds."""
        found: dict[str, list[float]] = {}
        began = time.perf_counter()
        for compute in ("all", "active"):
            chosen = {label: method for label, method in methods.items() if method.compute == compute}
            if not chosen:
                continue
            entries = [{"label": label, **method.options} for label, method in chosen.items()]
            experiment = Experiment.from_table({**table, "algorithms": entries, "compute": [compute]})
            result = run(experiment, self.runs / f"{name}_{compute}", resume=True, programs=self.programs)
            for label in chosen:
                finals = [result.final(metric, algorithm=label, links=link.label) for link in experiment.links]
                found[label] = [float(value) for value in finals]
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        return {label: found[label] for label in methods}

    def table(self, name: str, columns: list[dict[str, Any]], methods: dict[str, Method], metric: str) -> Table:
        """One experiment after the other, a column for each of its links; FedAvg with everybody active below."""
        header: list[str] = []
        rows: dict[str, list[float]] = {label: [] for label in [*methods, CERTAIN]}
        for k, table in enumerate(columns):
            for label, values in self.measure(f"{name}_{k}", table, methods, metric).items():
                rows[label] += values
            certain = {**table, "links": [bernoulli("p = 1", 1.0)]}
            reference = self.measure(f"{name}_{k}_certain", certain, {CERTAIN: METHODS["FedAvg"]}, metric)[CERTAIN]
            rows[CERTAIN] += reference * len(table["links"])
            header += [link["label"] for link in table["links"]]
        return Table(header, rows)


class Table(NamedTuple):
    """Numbers with names."""

    header: list[str]
    rows: dict[str, list[float]]

    def turned(self) -> Table:
        """Rows and columns exchanged."""
        columns = zip(*self.rows.values(), strict=True)
        return Table(list(self.rows), dict(zip(self.header, map(list, columns), strict=True)))

    def beside(self, other: Table, mine: str = "", its: str = "") -> Table:
        """The columns of both, for the same rows; ``mine`` and ``its`` go before their names."""
        header = [mine + name for name in self.header] + [its + name for name in other.header]
        return Table(header, {label: values + other.rows[label] for label, values in self.rows.items()})

    def markdown(self, corner: str, form: str) -> str:
        """Every column but the first is right-aligned."""
        rows = [[label, *(number(value, form) for value in values)] for label, values in self.rows.items()]
        return markdown([corner, *self.header], rows)


def number(value: float, form: str) -> str:
    """What is not finite, or far beyond every start, diverged."""
    return f"{value:{form}}".replace("e-0", "e-").replace("e+0", "e") if abs(value) < 1e4 else "diverges"


# ------------------------------------------------------------------------------------------------------- the sections


def grid() -> list[dict[str, Any]]:
    """Tiny p and large eta s / p."""
    probs = {".1/.9": unequal("center_mean"), ".02/.5": unequal("center_mean", 0.02, 0.5), ".01": 0.01}
    return [
        {
            **QUADRATIC,
            "learning_rate": eta,
            "links": [bernoulli(f"p {p}, eta {eta:g}", prob) for p, prob in probs.items()],
        }
        for eta in (0.01, 0.1, 1.0)
    ]


def kinds_of_links(folder: Path) -> list[dict[str, Any]]:
    """Memory, groups, a downlink of its own; and a decaying rate."""
    prob = unequal("center_mean")
    links = [
        bernoulli("independent", prob),
        bernoulli("memory .9", prob, 0.9),
        bernoulli("memory .99", prob, 0.99),
        {"label": "cyclic, period 50", "name": "cyclic", "prob": prob, "period": 50},
        *({"label": label, "name": "trace", "path": str(path)} for label, path in traces(folder).items()),
        {
            "label": "downlink of its own, .7",
            "name": "two_way",
            "up": {"name": "bernoulli", "prob": prob},
            "down": {"name": "bernoulli", "prob": 0.7},
        },
    ]
    decaying = {**QUADRATIC, "learning_rate": {**DECAYING, "initial": 0.2}, "links": [bernoulli("decaying eta", prob)]}
    return [{**QUADRATIC, "learning_rate": 0.05, "links": links}, decaying]


def classification(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Unequal and tiny p, and links with memory."""
    prob = unequal("mean_label")
    links = [
        bernoulli("p .1/.9", prob),
        bernoulli("p .02/.5", unequal("mean_label", 0.02, 0.5)),
        bernoulli("p .1/.9, memory .9", prob, 0.9),
    ]
    return [{**table, "links": links[: 2 if table is NETWORK else 3]}]


def noise() -> list[dict[str, Any]]:
    """Small minibatches, and a decaying rate; p .1/.9."""
    prob = unequal("mean_label")
    sizes = [{**SYNTHETIC, "batch_size": n, "links": [bernoulli(f"batch {n}", prob)]} for n in (1, 4)]
    rate = {**DECAYING, "initial": 0.05}
    return [*sizes, {**SYNTHETIC, "learning_rate": rate, "links": [bernoulli("batch 16, decaying eta", prob)]}]


def lost(share: float) -> dict[str, Any]:
    """Some clients lose everything after a third of the rounds."""
    prob = unequal("center_mean")
    links = [bernoulli(f"{share:.0%} of the clients", prob)]
    return {**QUADRATIC, "learning_rate": 0.05, "links": links, "state_loss": {"round": ROUNDS // 3, "share": share}}


# --------------------------------------------------------------- local momentum: not in the simulator, NumPy, by itself


def momentum_error(method: str, beta: float, kept: bool, honest: bool, seed: int) -> float:
    """||x^T - x*|| when every client takes heavy-ball steps v <- beta v + g + shift, x <- x - eta v; p .1/.9.

    ``kept``: v lives on from round to round, else it starts from 0. ``honest``: h is the weight that s equal gradients
    get, not eta s.
    """
    rng = np.random.default_rng([seed, 1])
    dim, eta, steps = 10, 0.02, 10
    centers = np.arange(1, M + 1)[:, None] + 0.1 * rng.standard_normal((M, dim))
    curvatures = 20.0 ** -rng.random((M, dim))
    best = (curvatures * centers).sum(axis=0) / curvatures.sum(axis=0)
    p = np.where(np.arange(M) < M // 2, 0.1, 0.9)
    weights = np.ones(steps) / (1 - beta) if kept else np.cumsum(beta ** np.arange(steps))
    per_round = eta * (weights.sum() if honest else steps)
    x, v, z, h = np.zeros((M, dim)), np.zeros((M, dim)), np.zeros((M, dim)), np.zeros(M)
    base, server, c = x.copy(), x[0], np.zeros(dim)
    mixing = method != "SCAFFOLD"
    for _ in range(ROUNDS):
        active = rng.random(M) < p
        start = x if mixing else np.tile(server, (M, 1))
        shift = c - z if method == "SCAFFOLD" else z  # there z holds the c_i
        y, v = start, v if kept else 0 * v
        for _ in range(steps):
            v = beta * v + curvatures * (y - centers) + shift
            y = y - eta * v
        h = h + per_round
        if not active.any():
            x = y if mixing else x
            continue
        mean = y[active].mean(axis=0)
        if method == "full":
            direction = (base - y) / h[:, None]
            z[active] += direction[active].mean(axis=0) - direction[active]
        elif method == "light":
            z[active] += (y[active] - mean) / h[active].max()
        else:
            new = z[active] - c + (start - y)[active] / per_round
            c = c + (new - z[active]).sum(axis=0) / M
            z[active] = new
        x, server = y.copy(), mean
        x[active] = base[active] = mean
        h[active] = 0
    return float(np.linalg.norm(server - best))


def momentum_table() -> Table:
    """A row for each method and what it takes for h."""
    columns = [(0.5, False), (0.9, False), (0.9, True)]
    rows = {}
    for label, method, honest in [
        (f"{name}, h = {h}", key, h != "eta s") for name, key in NAMED.items() for h in ("eta s", "weight")
    ]:
        with np.errstate(all="ignore"):
            errors = [[momentum_error(method, beta, kept, honest, seed) for seed in range(3)] for beta, kept in columns]
        rows[label] = [float(np.mean(values)) for values in errors]
    header = [f"beta {beta:g}, v {'kept' if kept else 'anew each round'}" for beta, kept in columns]
    return Table(header, rows)


NAMED = {"corrected, full": "full", "corrected, light": "light", "SCAFFOLD": "SCAFFOLD"}


def main() -> None:
    """Run, fill in the template."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/drift"), help="where the runs are kept")
    runs = parser.parse_args().runs
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    study = Study(runs)
    loss, accuracy = "server_train_loss", "server_test_accuracy"
    distance = "server_distance"
    logistic = study.table("logistic", classification(SYNTHETIC), METHODS, loss)
    logistic = logistic.beside(study.table("noise", noise(), METHODS, loss))
    network, right = (study.table("network", classification(NETWORK), METHODS, metric) for metric in (loss, accuracy))
    tables = {
        "grid": study.table("grid", grid(), METHODS, distance).markdown("method", ".2g"),
        "links": study.table("links", kinds_of_links(runs), METHODS, distance).markdown("method", ".2g"),
        "lost": study.table("lost", [lost(0.02), lost(0.2)], LOSING, distance).turned().markdown("lost by", ".2g"),
        "logistic": logistic.markdown("method", ".3f"),
        "network": network.beside(right, "loss, ", "accuracy, ").markdown("method", ".3f"),
        "momentum": momentum_table().turned().markdown("momentum", ".2g"),
    }
    write_page("drift-correction", tables)


if __name__ == "__main__":
    main()
