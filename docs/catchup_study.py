"""What a limit on catching up costs: runs the study and writes docs/catch-up.md from its template.

Usage: python docs/catchup_study.py [--runs runs/catch_up]. An interrupted call goes on where it stopped. About three
minutes on two cores. Everything is drawn from seeds: the same numbers come out again.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from page import markdown, write_page
from section5 import SETTINGS

from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment
from fedpbc.runs.draws import write_links
from fedpbc.runs.run import Run
from fedpbc.runs.runner import run

LIMITS = (1, 2, 5, 10, 0)
SEEDS = [0, 1, 2]
METHODS = [{"label": f"k = {k}" if k else "unlimited", "name": "fedpbc", "max_catchup": k} for k in LIMITS]
FEDAVG = {"label": "FedAvg", "name": "fedavg"}


def links(**unequal: Any) -> list[dict[str, Any]]:
    """Links that fail unequally, and equally; two listed vectors of probabilities are one compiled program."""
    return [
        {"label": "p .1/.9", "name": "bernoulli", "prob": unequal},
        {"label": "p .5", "name": "bernoulli", "prob": 0.5},
    ]


def problems() -> dict[str, dict[str, Any]]:
    """Name -> experiment: the paper's counterexample, its clients with a large step, and Synthetic."""
    common = {"algorithms": [*METHODS, FEDAVG], "seeds": SEEDS, "compute": ["all"], "eval_every": 10}
    paper = {**load_experiment("counterexample").table(), **common, "links": links(name="two_groups", p0=0.1, p1=0.9)}
    del paper["figure"]
    curved, synthetic = (
        {**setting.table, **common, "links": links(name="by_trait", trait=setting.trait, low=0.1, high=0.9)}
        for setting in (SETTINGS["quadratic"], SETTINGS["synthetic"])
    )
    return {"counterexample": paper, "curved": curved, "synthetic": synthetic}


def late_mean(result: Run, metric: str, link: str, method: str) -> np.ndarray:
    """The mean of a metric over the second half of the rounds, a value per seed."""
    means = []
    for seed in result.experiment.seeds:
        rows = result.cells[link, method, "all", seed].rows
        means.append(rows[metric][2 * rows["round"] > result.experiment.rounds].mean())
    return np.array(means)


def replayed(active: np.ndarray, limit: int) -> np.ndarray:
    """Whether round t of client i is ever replayed: there is a contact in rounds t..t+k-1; all bool[rounds, m]."""
    wait = np.full(active.shape[1], len(active))
    found = np.zeros_like(active)
    for t in reversed(range(len(active))):
        wait = np.where(active[t], 0, wait + 1)
        found[t] = wait < (limit or len(active))
    return found


def predicted(experiment: Experiment, seed: int, share: np.ndarray) -> float:
    """How far the minimiser of sum_i share_i F_i is from that of F on the counterexample; share [m]."""
    centers = experiment.problem.build(experiment.context(seed)).params["centers"]
    return float(np.linalg.norm(share @ centers / share.sum() - centers.mean(axis=0)))


def table(result: Run, runs: Path, metric: str, digits: str) -> str:
    """A row per limit: mean and standard deviation over the seeds, what is computed, what the shares predict."""
    experiment = result.experiment
    header, lines = [""], [[method["label"]] for method in [*METHODS, FEDAVG]]
    for link in experiment.links:
        traces = {}
        for seed in experiment.seeds:
            path = runs / f"{experiment.name}_{seed}.npy"
            write_links(experiment, link, seed, path)
            traces[seed] = np.load(path)
        counterexample = experiment.name == "counterexample"
        header += [link.label, *(["predicted bias"] if counterexample else []), "rounds a contact"]
        for line, limit in zip(lines, [*LIMITS, 1], strict=True):
            values = late_mean(result, metric, link.label, line[0])
            line.append(f"{values.mean():{digits}} ± {values.std(ddof=1):.1g}")
            used = {seed: replayed(trace, limit) for seed, trace in traces.items()}
            if counterexample:
                bias = [predicted(experiment, seed, rounds.mean(axis=0)) for seed, rounds in used.items()]
                line.append("" if line[0] == FEDAVG["label"] else f"{np.mean(bias):.3g}")
            line.append(f"{np.mean([used[seed].sum() / trace.sum() for seed, trace in traces.items()]):.2f}")
    return markdown(header, lines)


def main() -> None:
    """Run, fill in the template."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/catch_up"), help="where the runs are kept")
    runs = parser.parse_args().runs
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    programs, tables = Programs(jax.devices()), {}
    for name, settings in problems().items():
        began = time.perf_counter()
        result = run(Experiment.from_table(settings), runs / name, resume=True, programs=programs)
        metric, digits = ("server_train_loss", ".3f") if name == "synthetic" else ("server_distance", ".3g")
        tables[name] = table(result, runs, metric, digits)
        print(f"{name}: {time.perf_counter() - began:.0f} s\n{tables[name]}", flush=True)
    write_page("catch-up", tables)


if __name__ == "__main__":
    main()
