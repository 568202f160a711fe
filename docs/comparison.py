"""The comparison of all methods for docs/results.md: which experiments, and the tables made of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import minimize

from fedpbc.algorithms import ALGORITHMS
from fedpbc.experiment import Experiment
from fedpbc.runner import RunResult

ALL_METHODS: list[tuple[str, dict[str, Any]]] = [
    ("FedAvg, active", {"name": "fedavg"}),
    ("FedAvg, all", {"name": "fedavg_all"}),
    ("FedAvgM", {"name": "fedavg", "server": {"name": "momentum", "learning_rate": 0.3}}),
    ("FedAdam", {"name": "fedavg", "server": {"name": "adam", "learning_rate": 0.03}}),
    ("FedProx", {"name": "fedprox", "mu": 0.1}),
    ("Amplified FedAvg", {"name": "amplified_fedavg"}),
    ("FedAvg, known p", {"name": "fedavg_known"}),
    ("FedAU", {"name": "fedau"}),
    ("F3AST", {"name": "f3ast"}),
    ("FedAWE", {"name": "fedawe"}),
    ("MIFA", {"name": "mifa"}),
    ("FedVARP", {"name": "fedvarp"}),
    ("SCAFFOLD", {"name": "scaffold"}),
    ("SCAFFOLD, on server", {"name": "scaffold", "controls": "server"}),
    ("SCAFFOLD, black box", {"name": "scaffold", "controls": "server", "apply": "around"}),
]
MIXING: list[tuple[str, dict[str, Any]]] = [
    ("FedPBC", {"name": "fedpbc"}),
    ("corrected, full", {"name": "fedpbc_corrected"}),
    ("corrected, light", {"name": "fedpbc_corrected", "correction": "light"}),
    ("corrected, black box", {"name": "fedpbc_corrected", "correction": "light", "apply": "around"}),
]
COMPUTES = {"all": "everybody computes", "active": "only active compute"}


class Setting(NamedTuple):
    """One problem of the comparison, and what its tables show."""

    table: dict[str, Any]
    trait: str
    metric: str
    digits: str


SETTINGS = {
    "quadratic": Setting(
        {
            "name": "comparison",
            "rounds": 2000,
            "local_steps": 10,
            "learning_rate": 0.05,
            "seeds": [0, 1, 2, 3, 4],
            "eval_every": 100,
            "precision": "float64",
            "problem": {"name": "quadratic", "num_clients": 50, "dim": 20, "condition": 10.0},
        },
        "center_mean",
        "server_distance",
        ".2g",
    ),
    "synthetic": Setting(
        {
            "name": "comparison",
            "rounds": 1000,
            "local_steps": 10,
            "learning_rate": 0.01,
            "seeds": [0, 1, 2, 3, 4],
            "eval_every": 50,
            "problem": {"name": "synthetic", "num_clients": 50},
        },
        "mean_label",
        "server_train_loss",
        ".3f",
    ),
}


def regimes(setting: Setting) -> list[dict[str, Any]]:
    """The link settings; all but the first are unequal in the same way, by what clients have to teach."""
    half = setting.table["rounds"] // 2
    prob = {"name": "by_trait", "trait": setting.trait, "low": 0.1, "high": 0.9}
    absence = {"name": "absence", "first": half, "rounds": 200, "share": 0.1}
    return [
        {"label": "Zipf", "name": "bernoulli", "prob": {"name": "zipf"}},
        {"label": ".1 / .9", "name": "bernoulli", "prob": prob},
        {"label": "sine", "name": "bernoulli", "prob": prob, "varying": {"name": "sine"}},
        {"label": "Markov .9", "name": "markov", "prob": prob, "memory": 0.9},
        {"label": "cyclic", "name": "cyclic", "prob": prob, "period": 20},
        {"label": "absence", "name": "bernoulli", "prob": prob, "varying": absence},
    ]


def experiments() -> dict[str, Experiment]:
    """Every run of the comparison, by the name of its folder."""
    found = {}
    for name, setting in SETTINGS.items():
        links, table = regimes(setting), setting.table
        loss = {"links": links[1:2], "state_loss": {"round": table["rounds"] // 2, "share": 0.1}}
        everything = {"algorithms": _labelled(ALL_METHODS + MIXING), "compute": ["all"]}
        mixing = {"algorithms": _labelled(MIXING), "compute": ["active"]}
        certain = {"links": [{"label": "p = 1", "name": "bernoulli", "prob": 1.0}], "compute": ["active"]}
        references = [("FedAvg, active", {"name": "fedavg"}), ("SCAFFOLD", {"name": "scaffold"})]
        for suffix, changes in {
            "": {"links": links, **everything},
            "_active": {"links": links, **mixing},
            "_lost": {**loss, **everything},
            "_lost_active": {**loss, **mixing},
            "_certain": {"algorithms": _labelled(references), **certain},
        }.items():
            found[f"comparison_{name}{suffix}"] = Experiment.from_table({**table, **changes})
    return found


def _labelled(methods: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"label": label, **options} for label, options in methods]
