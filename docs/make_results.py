"""Regenerates docs/results.md and docs/figures/: runs the experiments (or goes on with them) and fills in the numbers.

Usage: python docs/make_results.py [--runs runs/results] [--rows METHOD ...] [--fresh]. An interrupted call goes on
where it stopped. --rows renews these methods in the tables of outcomes of section 5, and all costs; --fresh renews
section 6. Both take everything else from the page as it stands: for a new method, or one whose code changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import fresh
import jax
import numpy as np
import section5
from page import markdown, write_page

import fedpbc
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment
from fedpbc.runs.run import Run
from fedpbc.theory import fedavg_weights

DOCS = Path(__file__).resolve().parent
DECAYING = {"learning_rate": {"name": "inverse_sqrt", "initial": 0.02, "period": 10}, "cooldown_rounds": 100}
SLOW = {"learning_rate": 0.0005}
SPARSE = {"eval_every": 50}
NAMES = {"fedavg": "FedAvg, active", "fedavg_all": "FedAvg, all", "fedpbc": "FedPBC"}

ETA, LOCAL_STEPS = 3e-4, 30
PAIRS = [(0.1, 0.9), (0.5, 0.9), (0.1, 0.5), (0.5, 0.5), (0.1, 0.1)]
OTHER_LINKS = [
    {"label": "sine, period 40", "name": "bernoulli", "prob": 0.5, "varying": {"name": "sine", "amplitude": 0.4}},
    {"label": "Zipf counts", "name": "bernoulli", "prob": {"name": "zipf"}},
    {"label": "recorded trace (3 % active, no pattern kept)", "name": "trace", "path": "trace.npy"},
    {"label": "nobody ever active (p = 0)", "name": "bernoulli", "prob": 0.0},
]


def experiments(runs: Path) -> dict[str, Experiment]:
    """Every run the page rests on, by the name of its folder."""
    runs.mkdir(parents=True, exist_ok=True)
    active = np.random.default_rng(0).random((2000, 100)) < np.random.default_rng(1).random((2000, 1)) * 0.06
    np.save(runs / "trace.npy", active)
    trace = [{**link, **({"path": str(runs / "trace.npy")} if "path" in link else {})} for link in OTHER_LINKS]
    only_fedpbc = {"algorithms": [{"name": "fedpbc"}], "compute": ["all"]}
    return {
        "counterexample": load_experiment("counterexample"),
        "identity": load_experiment("counterexample", {**only_fedpbc, "links": trace, "seeds": [0]}),
        "cooldown": load_experiment("counterexample", {**only_fedpbc, "rounds": 2200, "cooldown_rounds": 200}),
        "zipf": load_experiment("synthetic"),
        "zipf_slow": load_experiment("synthetic", {**SLOW, **SPARSE}),
        "zipf_decaying": load_experiment("synthetic", {**DECAYING, **SPARSE}),
        "zipf_step": load_experiment("synthetic", {"minibatch": "step", **SPARSE}),
        "zipf_active": load_experiment("synthetic", {"compute": ["active"], **SPARSE}),
        "label": load_experiment("synthetic_by_label"),
        "label_fast": load_experiment("synthetic_by_label", {"learning_rate": 0.05, **SPARSE}),
        "label_slow": load_experiment("synthetic_by_label", {**SLOW, **SPARSE}),
        "label_decaying": load_experiment("synthetic_by_label", {**DECAYING, **SPARSE}),
        "label_active": load_experiment("synthetic_by_label", {"compute": ["active"], **SPARSE}),
        "label_slow_active": load_experiment("synthetic_by_label", {"compute": ["active"], **SLOW, **SPARSE}),
        **section5.experiments(),
        **fresh.experiments(),
    }


def run_all(runs: Path, chosen: dict[str, Experiment]) -> dict[str, Run]:
    """Run or go on with every experiment."""
    results = {}
    for name, experiment in chosen.items():
        began = time.perf_counter()
        results[name] = fedpbc.run(experiment, runs / name, resume=True)
        print(f"{name}: {len(experiment.cells())} runs, {time.perf_counter() - began:.0f} s", flush=True)
    return results


def values(result: Run, metric: str, row: int = -1, **where: Any) -> np.ndarray:
    """A metric of one group, one value per seed."""
    chosen = [
        cell.rows[metric][row]
        for key, cell in result.cells.items()
        if all(getattr(key, name) == value for name, value in where.items())
    ]
    return np.array(chosen, np.float64)


def mean_sd(numbers: np.ndarray, digits: int = 3) -> str:
    """``mean ± sd`` over the seeds."""
    return f"{numbers.mean():.{digits}f} ± {numbers.std(ddof=1):.{digits}f}"


def short(numbers: np.ndarray) -> str:
    """``mean ± sd`` with few digits, whatever the size."""
    return f"{numbers.mean():.3g} ± {numbers.std(ddof=1):.1g}"


def ubar_of(experiment: Experiment, seed: int) -> np.ndarray:
    """The minimiser of the counterexample."""
    return experiment.problem.build(experiment.context(seed)).params["mean"]


def predicted_bias(experiment: Experiment, pair: tuple[float, float], seed: int) -> float:
    """||sum_i w_i u_i - ubar|| with the weights of Proposition 1."""
    params = experiment.problem.build(experiment.context(seed)).params
    weights = fedavg_weights(np.where(np.arange(100) < 50, *pair))
    return float(np.linalg.norm(weights @ params["centers"] - params["mean"]))


def server_bias(result: Run, links: str, algorithm: str, compute: str) -> np.ndarray:
    """||mean of the server model over the last 1000 rounds - ubar||, one value per seed."""
    biases = []
    for key, cell in result.cells.items():
        if (key.links, key.algorithm, key.compute) == (links, algorithm, compute):
            error = cell.models["server_average"] - ubar_of(result.experiment, key.seed)
            biases.append(np.linalg.norm(error))
    return np.array(biases)


def counterexample_table(result: Run) -> str:
    """The bias of the server models, and the mean models, at the five pairs."""
    rows = []
    for pair in PAIRS:
        links = f"p0={pair[0]}, p1={pair[1]}"
        predicted = np.array([predicted_bias(result.experiment, pair, seed) for seed in result.experiment.seeds])
        row = [links, f"{predicted.mean():.1f}"]
        row += [short(server_bias(result, links, "fedavg", "all"))]
        row += [short(server_bias(result, links, "fedpbc", compute)) for compute in ("all", "active")]
        row += [f"{values(result, 'mean_grad_norm', links=links, algorithm='fedpbc', compute='all').mean():.3g}"]
        row += [f"{values(result, 'mean_grad_norm', links=links, algorithm='fedavg', compute='all').mean():.3g}"]
        rows.append(row)
    header = ["links", "Proposition 1", "FedAvg, server", "FedPBC, server", "FedPBC `active`, server"]
    return markdown([*header, "FedPBC, mean model", "FedAvg, mean model"], rows)


def identity_table(results: dict[str, Run]) -> str:
    """max over t of | ||grad F(xbar^t)|| - ||ubar|| (1-eta)^(s t) | / ||ubar||, per link process."""
    worst: dict[str, float] = {}
    for name in ("counterexample", "identity"):
        result = results[name]
        for key, cell in result.cells.items():
            if (key.algorithm, key.compute) != ("fedpbc", "all"):
                continue
            scale = np.linalg.norm(ubar_of(result.experiment, key.seed))
            theory = scale * (1 - ETA) ** (LOCAL_STEPS * cell.rows["round"])
            error = np.max(np.abs(cell.rows["mean_grad_norm"] - theory)) / scale
            worst[key.links] = max(worst.get(key.links, 0.0), float(error))
    return markdown(["links", "largest relative error over 2001 rows"], [[k, f"{v:.1e}"] for k, v in worst.items()])


def cooldown_table(result: Run) -> str:
    """The server's error in the course of 200 rounds without local steps."""
    rows = []
    for link in result.experiment.links:
        errors = [values(result, "server_distance", t, links=link.label).mean() for t in (2000, 2010, 2050, 2100, 2200)]
        mean = values(result, "mean_distance", links=link.label).mean()
        rows.append([link.label, *(f"{error:.2g}" for error in errors), f"{mean:.2g}"])
    return markdown(["links", "before", "10 rounds", "50", "100", "200", "mean model"], rows)


METRICS = ("train_loss", "test_accuracy", "test_accuracy_by_client")


def synthetic_table(settings: list[tuple[str, Run]], metrics: tuple[str, ...] = METRICS) -> str:
    """Server models after the last round, mean and sd over the seeds."""
    rows = []
    for title, result in settings:
        for algorithm in NAMES:
            groups = [values(result, f"server_{metric}", algorithm=algorithm) for metric in metrics]
            mean = values(result, "mean_train_loss", algorithm=algorithm)
            rows.append([title, NAMES[algorithm], *(mean_sd(group) for group in groups), mean_sd(mean)])
    header = [
        "setting",
        "method",
        "train loss",
        "accuracy, pooled",
        "accuracy, by client",
        "train loss of the mean model",
    ]
    return markdown(header, rows)


def paired_table(settings: list[tuple[str, Run]]) -> str:
    """FedPBC minus its rival on the same seed; and on how many seeds FedPBC is better."""
    rows = []
    for title, result in settings:
        row = [title]
        for rival in ("fedavg", "fedavg_all"):
            for metric, sign in (("server_train_loss", -1), ("server_test_accuracy", 1)):
                gain = values(result, metric, algorithm="fedpbc") - values(result, metric, algorithm=rival)
                row.append(f"{gain.mean():+.3f} ({int(np.sum(sign * gain > 0))}/{len(gain)})")
        rows.append(row)
    header = ["setting", "train loss, to FedAvg active", "accuracy, to FedAvg active"]
    return markdown([*header, "train loss, to FedAvg all", "accuracy, to FedAvg all"], rows)


def when_table(result: Run) -> str:
    """Train loss and pooled accuracy on the way: the order at each T."""
    rows = []
    rounds = next(iter(result.cells.values())).rows["round"]
    for t in (100, 300, 1000, 3000):
        row = [str(t)]
        at = int(np.searchsorted(rounds, t))
        for metric in ("server_train_loss", "server_test_accuracy"):
            row += [f"{values(result, metric, at, algorithm=algorithm).mean():.3f}" for algorithm in NAMES]
        rows.append(row)
    names = list(NAMES.values())
    return markdown(["T", *(f"loss: {n}" for n in names), *(f"accuracy: {n}" for n in names)], rows)


def all_tables(results: dict[str, Run]) -> dict[str, str]:
    """Every table of the page by its name in the template."""
    zipf = [
        ("eta = .005", results["zipf"]),
        ("eta = .0005", results["zipf_slow"]),
        ("eta = .02 / sqrt(t/10 + 1), 100 cool-down rounds", results["zipf_decaying"]),
    ]
    label = [
        ("eta = .05", results["label_fast"]),
        ("eta = .005", results["label"]),
        ("eta = .0005", results["label_slow"]),
        ("eta = .02 / sqrt(t/10 + 1), 100 cool-down rounds", results["label_decaying"]),
    ]
    active = [
        ("eta = .005, only active clients compute", results["label_active"]),
        ("eta = .0005, only active clients compute", results["label_slow_active"]),
    ]
    readings = [
        ("one minibatch a round, everybody computes (as printed)", results["zipf"]),
        ("a fresh minibatch each step", results["zipf_step"]),
        ("only active clients compute", results["zipf_active"]),
    ]
    return {
        "counterexample": counterexample_table(results["counterexample"]),
        "identity": identity_table(results),
        "cooldown": cooldown_table(results["cooldown"]),
        "zipf": synthetic_table(zipf),
        "zipf_paired": paired_table(zipf),
        "zipf_when": when_table(results["zipf"]),
        "readings": synthetic_table(readings),
        "readings_paired": paired_table(readings),
        "label": synthetic_table(label),
        "label_paired": paired_table(label),
        "label_active": synthetic_table(active),
        "label_active_paired": paired_table(active),
        "label_when": when_table(results["label"]),
        **section5.tables(results),
        **fresh.tables(results),
    }


def standing_tables(page: str) -> dict[str, str]:
    """The tables of a page that ``main`` wrote, by their names."""
    return {name: table.rstrip("\n") for name, table in re.findall(r"<!-- (\w+) -->\n\n((?:\|.*\n)+)", page)}


def named(tables: dict[str, str]) -> dict[str, str]:
    """Each table under a comment with its name, for ``standing_tables``."""
    return {name: f"<!-- {name} -->\n\n{table}" for name, table in tables.items()}


def main() -> None:
    """Run, fill in the template, copy the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/results"), help="where the runs are kept")
    parser.add_argument("--rows", nargs="+", metavar="METHOD", help="renew only these rows of section 5")
    parser.add_argument("--fresh", action="store_true", help="renew only section 6")
    arguments = parser.parse_args()
    runs, labels = arguments.runs, [method["label"] for method in section5.METHODS]
    if unknown := [label for label in arguments.rows or () if label not in labels]:
        parser.error(f"--rows: {unknown[0]!r} is not one of {', '.join(map(repr, labels))}")
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    (DOCS / "figures").mkdir(exist_ok=True)
    if arguments.rows or arguments.fresh:
        tables = standing_tables((DOCS / "results.md").read_text(encoding="utf-8"))
        if arguments.rows:
            tables |= section5.renewed(run_all(runs, section5.experiments(arguments.rows)), arguments.rows, tables)
        if arguments.fresh:
            tables |= fresh.tables(run_all(runs, fresh.experiments()))
    else:
        tables = all_tables(run_all(runs, experiments(runs)))
        for name in ("counterexample", "zipf", "label"):
            shutil.copyfile(runs / name / "figure.png", DOCS / "figures" / f"{name}.png")
    write_page("results", named(tables))
    section5.draw(tables, DOCS / "figures" / "comparison.png")


if __name__ == "__main__":
    main()
