"""Section 6 of docs/results.md: the methods that need no knowledge of p, on seeds that nothing was tuned on.

One folder per method, so that a new method is one more folder and nothing else runs again.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from page import markdown
from section5 import SETTINGS, WITHOUT_P, Results, mean_sd, regimes

from fedpbc.experiment.grid import Experiment

SEEDS = [10, 11, 12, 13, 14]
METHODS: dict[str, dict[str, Any]] = {
    **WITHOUT_P,
    "AREA": {"name": "area"},
    "debiased FedAvg": {"name": "debiased_fedavg"},
    "FedStale": {"name": "fedstale"},
    "FedStale, mean": {"name": "fedstale", "weights": "mean"},
    "FedFade": {"name": "fedfade"},
    "FedFade, black box": {"name": "fedfade", "apply": "around"},
}
OURS = ("FedFade", "FedFade, black box")
RIVALS = ("FedAU", "MIFA", "FedVARP", "SCAFFOLD", "FedStale", "FedStale, mean")
CERTAIN = ("FedAvg", "SCAFFOLD")
"""Run with p = 1 too."""
MIXING: dict[str, dict[str, Any]] = {
    "FedPBC": {"name": "fedpbc"},
    "corrected, black box": {"name": "fedpbc_corrected", "correction": "light", "apply": "around"},
}
"""Everybody computes; only beside the decaying rate, as section 5 has them at a constant one."""
DECAYING = {"name": "inverse_sqrt", "initial": 0.04, "period": 10}
""".04 at first, .01 after 150 rounds, .004 after 1000."""
DIVERGED = 1e3


def links(name: str) -> list[dict[str, Any]]:
    """Those of section 5 but the absence; longer memory, rarer clients, and links as spot instances leave them."""
    setting = SETTINGS[name]
    prob = {"name": "by_trait", "trait": setting.trait, "low": 0.1, "high": 0.9}
    rare = {**prob, "low": 0.02, "high": 0.5}
    rates = {"name": "spread", "low": 0.04, "high": 0.98, "trait": setting.trait}
    return [
        *regimes(setting)[:-1],
        {"label": ".02 / .5", "name": "bernoulli", "prob": rare},
        {"label": "Markov .97", "name": "markov", "prob": prob, "memory": 0.97},
        {"label": ".02 / .5, Markov .9", "name": "markov", "prob": rare, "memory": 0.9},
        {"label": "spot", "name": "markov", "prob": rates, "memory": {"name": "spread", "low": 0.5, "high": 0.93}},
    ]


WITH_MEMORY = ("Markov .9", "cyclic", "Markov .97", ".02 / .5, Markov .9", "spot")


def experiments() -> dict[str, Experiment]:
    """Every run by the name of its folder."""
    found = {}
    certain = [{"label": "p = 1", "name": "bernoulli", "prob": 1.0}]
    for name, setting in SETTINGS.items():
        common = {**setting.table, "seeds": SEEDS, "compute": ["active"], "metrics": ["server"]}
        rate = common["learning_rate"]
        for label, method in METHODS.items():
            table = {**common, "links": links(name), "algorithms": [{"label": label, **method}]}
            found[folder(name, label)] = Experiment.from_table(table)
            found[folder(name, label, "twice")] = Experiment.from_table({**table, "learning_rate": 2 * rate})
            if label in CERTAIN:
                found[folder(name, label, "certain")] = Experiment.from_table({**table, "links": certain})
    few = [link for link in links("synthetic") if link["label"] in DECAYING_LINKS]
    for label, method in {**METHODS, **MIXING}.items():
        computing = "all" if label in MIXING else "active"
        table = {**SETTINGS["synthetic"].table, "seeds": SEEDS, "links": few, "compute": [computing]}
        table["algorithms"] = [{"label": label, **method}]
        for suffix, rate in {"constant": table["learning_rate"], "decaying": DECAYING}.items():
            found[folder("synthetic", label, suffix)] = Experiment.from_table({**table, "learning_rate": rate})
    return found


DECAYING_LINKS = (".1 / .9", "Markov .9")


def folder(name: str, label: str, suffix: str = "") -> str:
    """Where a method's runs are."""
    words = ["fresh", name, *label.lower().replace(",", "").split(), *([suffix] if suffix else [])]
    return "_".join(words)


def tables(results: Results) -> dict[str, str]:
    """Markdown by the names of the template."""
    return {
        "fresh_synthetic": outcome_table(results, "synthetic"),
        "fresh_wins": wins_table(results, "synthetic"),
        "fresh_largest": largest_table(results, "synthetic"),
        "fresh_synthetic_twice": outcome_table(results, "synthetic", "twice"),
        "fresh_quadratic": outcome_table(results, "quadratic"),
        "fresh_quadratic_twice": outcome_table(results, "quadratic", "twice"),
        "fresh_decaying": decaying_table(results),
    }


def columns_of(name: str) -> list[str]:
    """The links, by their labels."""
    return [link["label"] for link in links(name)]


def heading(label: str) -> str:
    """Of a row; ours stand out."""
    return f"**{label}**" if label in OURS else label


def outcomes(results: Results, name: str, label: str, link: str, suffix: str = "", metric: str = "") -> np.ndarray:
    """The metric in every row of the run, [seeds, rows]; runs that diverged are infinite."""
    run = results[folder(name, label, suffix)]
    metric = metric or SETTINGS[name].metric
    rows = [cell.rows[metric] for key, cell in run.cells.items() if key.links == link]
    return np.nan_to_num(np.array(rows, np.float64), nan=np.inf)


def shown(values: np.ndarray, digits: str) -> str:
    """Mean and standard deviation over the seeds, or on how many seeds it diverged."""
    lost = int(np.sum(values > DIVERGED))
    return f"diverged on {lost}" if lost else mean_sd(values, digits)


def outcome_table(results: Results, name: str, suffix: str = "") -> str:
    """Methods by links, after the last round; then p = 1."""
    digits, columns = SETTINGS[name].digits, columns_of(name)
    lines = []
    for label in METHODS:
        cells = [shown(outcomes(results, name, label, link, suffix)[:, -1], digits) for link in columns]
        lines.append([heading(label), *cells])
    for label in () if suffix else CERTAIN:
        cell = shown(outcomes(results, name, label, "p = 1", "certain")[:, -1], digits)
        lines.append([f"*{label} with p = 1*", cell, *[""] * (len(columns) - 1)])
    return markdown(["method", *columns], lines)


def wins_table(results: Results, name: str) -> str:
    """On how many of the seeds ours has the smaller value."""
    lines, columns = [], columns_of(name)
    for ours in OURS:
        for rival in RIVALS:
            pairs = [[outcomes(results, name, label, link)[:, -1] for label in (ours, rival)] for link in columns]
            lines.append([f"{ours} better than {rival}", *(str(int(np.sum(a < b))) for a, b in pairs)])
    return markdown(["", *columns], lines)


def largest_table(results: Results, name: str) -> str:
    """The largest value in the second half of the run, mean over the seeds: who is steady."""
    lines = []
    for label in METHODS:
        cells = []
        for link in WITH_MEMORY:
            rows = outcomes(results, name, label, link)
            cells.append(f"{rows[:, rows.shape[1] // 2 :].max(axis=1).mean():.2f}")
        lines.append([heading(label), *cells])
    return markdown(["method", *WITH_MEMORY], lines)


def decaying_table(results: Results) -> str:
    """The server's and the mean model at a constant and at a decaying rate."""
    rates = {"constant": "eta .01", "decaying": "decaying"}
    columns = list(itertools.product(DECAYING_LINKS, rates, ("server", "mean")))
    lines = []
    for label in (*METHODS, *MIXING):
        ends = [
            outcomes(results, "synthetic", label, link, rate, f"{m}_train_loss")[:, -1] for link, rate, m in columns
        ]
        lines.append([heading(label), *(shown(values, ".3f") for values in ends)])
    return markdown(["method", *(f"{link}, {rates[rate]}, {model}" for link, rate, model in columns)], lines)
