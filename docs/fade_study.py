"""What FedFade does and where it loses: runs the study and writes docs/fedfade.md from its template.

Usage: python docs/fade_study.py [--runs runs/fade]. An interrupted call goes on where it stopped. About a quarter of an
hour on one core. Everything is drawn from seeds, which no earlier experiment used: the same numbers come out again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import fade_models as models
import jax
import numpy as np
from drift_study import number
from page import markdown, write_page
from section5 import WITHOUT_P

from fedpbc.core.programs import Programs
from fedpbc.experiment.grid import Experiment
from fedpbc.runs.run import Run
from fedpbc.runs.runner import run

SEEDS = [20, 21]
METHODS: dict[str, dict[str, Any]] = {
    **WITHOUT_P,
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

    def hard(self, name: str, table: dict[str, Any]) -> str:
        """Methods by links."""
        result = self.run(f"{name}_links", table, hard_links(table, self.runs), ROWS)
        header = [link.label for link in result.experiment.links]
        rows = [[label, *(cell(result, link, label) for link in header)] for label in ROWS]
        return markdown(["method", *header], rows)

    def settings(self) -> str:
        """Methods by settings, Synthetic with memory .9."""
        columns = {}
        for name, changes in SETTINGS.items():
            table = {**SYNTHETIC, "rounds": 500, **changes}
            folder = "setting_" + name.replace(" ", "_").replace(".", "")
            result = self.run(folder, table, usual_links(table)[1:], SHORT)
            columns[name] = [cell(result, "memory .9", label) for label in SHORT]
        rows = [[label, *(columns[name][k] for name in columns)] for k, label in enumerate(SHORT)]
        return markdown(["method", *columns], rows)

    def lost(self) -> str:
        """Methods by links, both problems."""
        header, rows = [], [[label] for label in LOSING]
        for name, table in (("quadratic", QUADRATIC), ("synthetic", SYNTHETIC)):
            result = self.run(f"lost_{name}", losing(table), usual_links(table), LOSING)
            for link in result.experiment.links:
                header.append(f"{name}, {link.label}")
                for row in rows:
                    row.append(cell(result, link.label, row[0]))
        return markdown(["", *header], rows)


def cell(result: Run, link: str, label: str) -> str:
    """Mean over the seeds at the end; of losses also the largest of the second half, of any seed."""
    loss = "server_distance" not in result.cells[next(iter(result.cells))].rows
    metric = "server_train_loss" if loss else "server_distance"
    found = [result.cells[link, label.replace("*", ""), "active", seed].rows for seed in result.experiment.seeds]
    mean = float(np.mean([rows[metric][-1] for rows in found]))
    if not loss:
        return number(mean, ".2g")
    worst = max(float(rows[metric][2 * rows["round"] > result.experiment.rounds].max()) for rows in found)
    return f"{number(mean, '.3f')} ({number(worst, '.2f')})"


# ------------------------------------------------------------------------------------------------- the small models


def weights_table() -> str:
    """E[1_A w_i] after some rounds, exactly, and in the long run."""
    rows = []
    for p in (0.1, 0.9):
        for memory in (0.0, 0.9, 0.97):
            found = models.weight_bias(p, memory, 50, 1000)
            limit = p * models.limit_weight(p, memory, 50)
            numbers = [f"{found[t]:.2f}" for t in (10, 100, 300, 999)]
            rows.append([f"{p:g}, {memory:g}", *numbers, f"{limit:.2f}", f"{models.noise(p, memory):.3g}"])
    return markdown(["p, memory", "t = 10", "100", "300", "1000", "for ever", "noise"], rows)


def stability_table() -> str:
    """The critical eta s L T."""
    rows = []
    for away, back, together in ((90, 10, True), (90, 10, False), (50, 50, False)):
        for ratio in (1.0, 4.0, 100.0):
            cells = [
                models.critical(away, back, ratio, delta, together, mean)
                for mean in (True, False)
                for delta in (1.0, 0.97)
            ]
            who = "always there" if together else "there in turns"
            numbers = [f"{value:.3g}" if np.isfinite(value) else "never" for value in cells]
            rows.append([f"{away} / {back}, {who}, {ratio:g}", *numbers])
    header = ["mean over A, delta = 1 (SCAFFOLD)", "mean, .97", "w_i, delta = 1", "w_i, .97"]
    return markdown(["away / back, the others, h_2/h_1", *header], rows)


SWINGING = {
    "FedAU": {"name": "fedau"},
    "SCAFFOLD": {"name": "scaffold"},
    "FedFade, delta = 1": {"name": "fedfade", "fading": "none"},
    "FedFade": {"name": "fedfade"},
}


def swing_table() -> str:
    """Quadratic and logistic, two kinds of absences."""
    sizes = (0.003, 0.01, 0.03, 0.1)
    rows = []
    for name, method in SWINGING.items():
        found = [models.swing(method, bent, size, 90, 10, True, 20) for bent in (False, True) for size in sizes]
        rows.append([name, *(number(value, ".2g") for value in found)])
    header = [f"{kind}, {eta_s:g}" for kind in ("quadratic", "logistic") for eta_s in sizes]
    return markdown(["", *header], rows)


def small_synthetic(seed: int, m: int = 20) -> tuple[models.Softmax, np.ndarray]:
    """Synthetic(1,1) of few samples, all of them in every gradient, and p .1/.9 by mean label."""
    problem = {"name": "synthetic", "num_clients": m, "max_rows": 100}
    table = {**SYNTHETIC, "problem": problem, "links": usual_links(SYNTHETIC), "algorithms": [{"name": "fedavg"}]}
    experiment = Experiment.from_table(table)
    built = experiment.problem.build(experiment.context(seed))
    features, labels = (np.asarray(part) for part in built.params["train"]["data"])
    rows = [slice(a, a + n) for a, n in zip(built.params["offsets"], built.params["sizes"], strict=True)]
    rank = np.argsort(np.argsort(built.client_traits["mean_label"]))
    return models.Softmax([features[r] for r in rows], [labels[r] for r in rows], 10), np.where(rank < m // 2, 0.1, 0.9)


def variance_table() -> str:
    """What controls leave of the variance of FedAU's step."""
    rows = []
    for memory in (0.0, 0.9):
        found = []
        for seed in SEEDS:
            curvature, center = models.quadratics(seed)
            prob = np.where(np.arange(50) < 25, 0.1, 0.9)
            active = models.chains(prob, memory, 1000, np.random.default_rng([seed, 2]))

            def gradient(t: int, x: np.ndarray, h: np.ndarray = curvature, u: np.ndarray = center) -> np.ndarray:
                return h * (x - u)

            quadratic = models.variance_ratio(prob, active, gradient, 20, 0.05)
            problem, prob = small_synthetic(seed)
            active = models.chains(prob, memory, 400, np.random.default_rng([seed, 2]))
            logistic = models.variance_ratio(prob, active, problem.gradient, 610, 0.01)
            found.append([*quadratic, *logistic])
        means = [float(value) for value in np.mean(found, axis=0)]
        forms = (".2g", ".2g", ".4f") * 2
        rows.append([f"memory {memory:g}", *(number(v, form) for v, form in zip(means, forms, strict=True))])
    names = ("V / V of FedAU", "1 - r^2", "delta")
    return markdown(["", *(f"{kind}: {name}" for kind in ("quadratics", "Synthetic") for name in names)], rows)


def change_table() -> str:
    """Rounds after a change of the data, without memory and with."""
    looks = (20, 100, 400, 1000)
    rows = []
    for label in ("FedAU", "MIFA", "FedVARP", "SCAFFOLD", "**FedFade**"):
        row = [label]
        for memory in (0.0, 0.9):
            found = np.mean([models.after_a_change(METHODS[label], memory, seed, looks) for seed in SEEDS], axis=0)
            row += [number(float(value), ".2g") for value in found]
        rows.append(row)
    header = [f"{kind}, {look}" for kind in ("no memory", "memory .9") for look in looks]
    return markdown(["", *header], rows)


def main() -> None:
    """Run, fill in the template."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/fade"), help="where the runs are kept")
    study = Study(parser.parse_args().runs)
    tables = {
        "weights": weights_table(),
        "stability": stability_table(),
        "swing": swing_table(),
        "variance": variance_table(),
        "change": change_table(),
        "quadratic": study.hard("quadratic", QUADRATIC),
        "synthetic": study.hard("synthetic", SYNTHETIC),
        "settings": study.settings(),
        "lost": study.lost(),
    }
    write_page("fedfade", tables)


if __name__ == "__main__":
    main()
