"""What FedFade does and where it loses: runs the study and writes docs/fedfade.md from its template.

Usage: python docs/fade_study.py [--runs runs/fade]. An interrupted call goes on where it stopped. About a quarter of an
hour on one core. Everything is drawn from seeds, which no earlier experiment used: the same numbers come out again.
"""

from __future__ import annotations

import argparse
import string
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from comparison import markdown

import fedpbc
from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.run import Run
from fedpbc.runs.runner import run

DOCS = Path(__file__).resolve().parent
SEEDS = [20, 21]
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedAU": {"name": "fedau"},
    "MIFA": {"name": "mifa"},
    "FedVARP": {"name": "fedvarp"},
    "SCAFFOLD": {"name": "scaffold"},
    "**FedFade**": {"name": "fedfade"},
    "**FedFade, black box**": {"name": "fedfade", "apply": "around"},
    "FedFade, delta = .97": {"name": "fedfade", "fading": 0.97},
    "FedFade, no cut-off": {"name": "fedfade", "cutoff": 0},
}
ROWS = list(METHODS)
SHORT = [label for label in ROWS[:-2] if label != "MIFA"]

SYNTHETIC = {
    "name": "fade",
    "rounds": 1000,
    "local_steps": 10,
    "learning_rate": 0.01,
    "seeds": SEEDS,
    "compute": ["active"],
    "eval_every": 50,
    "metrics": ["server"],
    "problem": {"name": "synthetic", "num_clients": 50},
}
"""Section 5's of docs/results.md."""
QUADRATIC = {
    **SYNTHETIC,
    "rounds": 2000,
    "learning_rate": 0.05,
    "eval_every": 100,
    "precision": "float64",
    "problem": {"name": "quadratic", "num_clients": 50, "dim": 20, "condition": 10.0},
}
"""Section 5's too."""
TRAITS = {"synthetic": "mean_label", "quadratic": "center_mean"}


def markov(table: dict[str, Any], label: str, memory: float, low: float = 0.1, high: float = 0.9) -> dict[str, Any]:
    """Half of the clients, by what they have to teach, is heard with ``low``; memory 0: independent rounds."""
    prob = {"name": "by_trait", "trait": TRAITS[table["problem"]["name"]], "low": low, "high": high}
    return {"label": label, "name": "markov", "prob": prob, "memory": memory}


def hard_links(table: dict[str, Any], runs: Path) -> list[dict[str, Any]]:
    """Rare clients, long memory, clients and groups that never meet, ages that are all equal."""
    links = [markov(table, f"memory {memory:g}".replace("0.", "."), memory) for memory in (0.9, 0.97, 0.99)]
    return [*links, markov(table, "p .01", 0, 0.01, 0.01), *traces(table, runs)]


def traces(table: dict[str, Any], runs: Path) -> list[dict[str, Any]]:
    """Links that no process makes, as files."""
    runs.mkdir(parents=True, exist_ok=True)
    rounds, m = table["rounds"], table["problem"]["num_clients"]
    rng, client, t = np.random.default_rng(0), np.arange(m), np.arange(rounds)[:, None]
    coin = rng.random((rounds, m)) < 0.5
    first = client < m // 2
    found = []
    for label, active in {
        "one client a round": rng.integers(m, size=rounds)[:, None] == client,
        "two groups in turns": coin & (first == (t % 2 == 0)),
        "two groups, 50 rounds each": coin & (first == (t // 50 % 2 == 0)),
        "equal ages": client % 10 == t % 10,
    }.items():
        path = (runs / f"{label.replace(' ', '_').replace(',', '')}_{rounds}.npy").resolve()
        if not path.exists():
            np.save(path, active)
        found.append({"label": label, "name": "trace", "path": str(path)})
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "eta .1": {"learning_rate": 0.1},
    "eta .001": {"learning_rate": 0.001},
    "batches of 1": {"minibatch": "step", "batch_size": 1},
    "32 hidden units": {"learning_rate": 0.05, "problem": {"name": "synthetic", "num_clients": 50, "hidden": 32}},
    "10 clients": {"problem": {"name": "synthetic", "num_clients": 10}},
    "300 clients": {"rounds": 200, "problem": {"name": "synthetic", "num_clients": 300}},
}
"""Changes of SYNTHETIC, 500 rounds, memory .9."""
LOSING = ["SCAFFOLD", "SCAFFOLD, epochs", "**FedFade**", "FedFade, epochs", "FedFade, on server"]
METHODS |= {
    "SCAFFOLD, epochs": {"name": "scaffold", "epoch_reset": True},
    "FedFade, epochs": {"name": "fedfade", "epoch_reset": True},
    "FedFade, on server": {"name": "fedfade", "controls": "server"},
}


def usual_links(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Without memory and with."""
    return [markov(table, "no memory", 0), markov(table, "memory .9", 0.9)]


def losing(table: dict[str, Any]) -> dict[str, Any]:
    """A tenth of the clients loses everything in mid-run."""
    return {**table, "state_loss": {"round": table["rounds"] // 2, "share": 0.1}}


class Study:
    """Experiments, each in a folder of its own, and what was measured in them."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.programs = runs, Programs(jax.devices())

    def run(self, name: str, table: dict[str, Any], links: list[dict[str, Any]], methods: list[str]) -> Run:
        """One experiment."""
        began = time.perf_counter()
        entries = [{"label": label.replace("*", ""), **METHODS[label]} for label in methods]
        experiment = Experiment.from_table({**table, "links": links, "algorithms": entries})
        result = run(experiment, self.runs / name, resume=True, programs=self.programs)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        return result
