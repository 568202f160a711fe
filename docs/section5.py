"""The comparison of all methods for docs/results.md: which experiments, and the tables made of them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure
from page import markdown, markdown_row
from scipy.optimize import minimize

from fedpbc.core.engine import draw_links
from fedpbc.core.local import sum_blocks
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.load import load_experiment
from fedpbc.runs.run import Run

METHODS: list[dict[str, Any]] = load_experiment("rivals").table()["algorithms"]
"""Those of the shipped experiment ``rivals``."""
WITHOUT_P: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedAU": {"name": "fedau"},
    "MIFA": {"name": "mifa"},
    "FedVARP": {"name": "fedvarp"},
    "SCAFFOLD": {"name": "scaffold"},
}
"""What every study has beside its own: no method here needs p, and only active clients compute."""
MIXING = ("FedPBC", "corrected, full", "corrected, light", "corrected, black box")
"""Methods to which it matters whether everybody computes."""


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


REFERENCES = ("FedAvg, active", "SCAFFOLD")
"""Methods that are run with p = 1 too."""


def experiments(only: Collection[str] | None = None) -> dict[str, Experiment]:
    """Every run of the comparison, by the name of its folder; ``only``: those of some rows, in folders of their own."""
    found = {}
    methods = [method for method in METHODS if only is None or method["label"] in only]
    mixing = [method for method in methods if method["label"] in MIXING]
    references = [method for method in methods if method["label"] in REFERENCES]
    for name, setting in SETTINGS.items():
        links, table = regimes(setting), setting.table
        loss = {"links": links[1:2], "state_loss": {"round": table["rounds"] // 2, "share": 0.1}}
        certain = {"links": [{"label": "p = 1", "name": "bernoulli", "prob": 1.0}], "compute": ["active"]}
        for suffix, changes in {
            "": {"links": links, "algorithms": methods, "compute": ["all"]},
            "_active": {"links": links, "algorithms": mixing, "compute": ["active"]},
            "_lost": {**loss, "algorithms": methods, "compute": ["all"]},
            "_lost_active": {**loss, "algorithms": mixing, "compute": ["active"]},
            "_certain": {"algorithms": references, **certain},
        }.items():
            if changes["algorithms"]:
                folder = f"comparison_{name}{suffix}" + ("" if only is None else "_part")
                found[folder] = Experiment.from_table({**table, **changes})
    return found


Results = dict[str, Run]


def tables(results: Results) -> dict[str, str]:
    """Markdown by the names of the template."""
    found = {f"comparison_{name}": outcome_table(results, name) for name in SETTINGS}
    return {**found, "comparison_paired": paired_table(results, "synthetic"), "comparison_cost": cost_table()}


def renewed(results: Results, only: Collection[str], before: dict[str, str]) -> dict[str, str]:
    """The tables of outcomes with the rows ``only`` anew and all others as they stand, and the costs.

    ``before``: the tables of the page. The paired table stands, so none of the methods it compares may be renewed.
    """
    paired = [label for label in only if label in (*MIXING, *RIVALS)]
    if paired:
        raise SystemExit(f"{paired[0]} is in the table of wins, which needs all runs: leave --rows out")
    part = {name.removesuffix("_part"): result for name, result in results.items()}
    found = {}
    for name in SETTINGS:
        key = f"comparison_{name}"
        standing = {row.split(" | ")[0].removeprefix("| "): row for row in before[key].splitlines()[2:]}
        anew = outcome_rows(part, name, [(label, "all") for label in only])
        fresh = {title(*row): cells for row, cells in anew.items()}
        order = [title(*row) for row in rows()]
        order += [heading for heading in standing if heading.startswith("*")]
        missing = [heading for heading in order if heading not in fresh and heading not in standing]
        if missing:
            raise SystemExit(f"the page has no row {missing[0]}: add it to --rows")
        head = markdown(["method", *columns(part, name)], [])
        lines = [markdown_row([h, *fresh[h]]) if h in fresh else standing[h] for h in order]
        found[key] = "\n".join([head, *lines])
    return {**found, "comparison_cost": cost_table()}


def columns(results: Results, name: str) -> dict[str, tuple[str, str, int]]:
    """Heading -> (suffix of the experiment, links, row of the metrics)."""
    rounds = next(iter(results[f"comparison_{name}"].cells.values())).rows["round"]
    back = int(np.searchsorted(rounds, SETTINGS[name].table["rounds"] // 2 + 200))
    found = {links["label"]: ("", links["label"], -1) for links in regimes(SETTINGS[name])[:-1]}
    found["absent, at its end"] = ("", "absence", back)
    found["absent, after the run"] = ("", "absence", -1)
    found["state lost"] = ("_lost", ".1 / .9", -1)
    return found


def rows() -> list[tuple[str, str]]:
    """(method, who computes) in the order of the tables."""
    labels = [method["label"] for method in METHODS]
    return [(label, "all") for label in labels] + [(label, "active") for label in MIXING]


ROUNDING = 1e-5
"""Distances below it are those of float64 sums and of unfinished convergence."""


def title(method: str, compute: str) -> str:
    """How a row is called."""
    return f"{method}, `active`" if compute == "active" else method


def outcomes(results: Results, name: str, column: tuple[str, str, int], method: str, compute: str) -> np.ndarray:
    """The metric of one method under one regime, a value per seed."""
    suffix, links, row = column
    result = results[f"comparison_{name}{suffix}" + ("_active" if compute == "active" else "")]
    return np.array(
        [
            result.cells[links, method, compute, seed].rows[SETTINGS[name].metric][row]
            for seed in result.experiment.seeds
        ],
        np.float64,
    )


def outcome_table(results: Results, name: str) -> str:
    """Methods by regimes, mean and standard deviation over the seeds; then the references."""
    found, digits = columns(results, name), SETTINGS[name].digits
    lines = [[title(*row), *cells] for row, cells in outcome_rows(results, name, rows()).items()]
    certain = results[f"comparison_{name}_certain"]
    for method in REFERENCES:
        values = [
            certain.cells["p = 1", method, "active", seed].rows[SETTINGS[name].metric][-1]
            for seed in certain.experiment.seeds
        ]
        lines.append(
            [f"*{method.partition(',')[0]} with p = 1*", mean_sd(np.array(values), digits)] + [""] * (len(found) - 1)
        )
    if name == "synthetic":
        smallest = np.array([smallest_loss(certain.experiment, seed) for seed in certain.experiment.seeds])
        lines.append(["*minimum of F (L-BFGS)*", mean_sd(smallest, digits)] + [""] * (len(found) - 1))
    return markdown(["method", *found], lines)


def outcome_rows(results: Results, name: str, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """(method, who computes) -> its cells."""
    found, digits = columns(results, name), SETTINGS[name].digits
    return {
        row: [mean_sd(outcomes(results, name, column, *row), digits) for column in found.values()] for row in wanted
    }


RIVALS = ("FedAvg, active", "FedAU", "MIFA", "SCAFFOLD, on server")
"""The strongest rivals of the mixing family."""


def paired_table(results: Results, name: str) -> str:
    """On how many of the seeds a method of the mixing family beats each of its strongest rivals."""
    found = columns(results, name)
    lines = []
    for method, compute in [(label, "all") for label in MIXING] + [("corrected, full", "active")]:
        for rival in RIVALS:
            wins = []
            for column in found.values():
                ours = outcomes(results, name, column, method, compute)
                theirs = outcomes(results, name, column, rival, "all")
                equal = np.maximum(ours, theirs) < ROUNDING
                wins.append("both 0" if equal.all() else str(int(np.sum((ours < theirs) & ~equal))))
            lines.append([f"{title(method, compute)} better than {rival}", *wins])
    return markdown(["", *found], lines)


def active_rounds(experiment: Experiment) -> float:
    """Pairs of round and active client in a run, mean over the seeds: the links are drawn, nothing is trained."""
    totals = []
    for seed in experiment.seeds:
        with jax.threefry_partitionable(True):
            problem = experiment.problem.build(experiment.context(seed))
            process = experiment.links[0].build(experiment.context(seed, problem))
            shape = experiment.rounds, problem.num_clients
            totals.append(sum(int(block.sum()) for block in draw_links(process, seed, *shape, experiment.rounds)))
    return float(np.mean(totals))


def cost_table() -> str:
    """What every method costs per round on Synthetic with .1/.9 links, and what it must know.

    Sent and received are one message of every active client; local steps are counted where they are used.
    """
    setting = SETTINGS["synthetic"]
    experiment = Experiment.from_table({**setting.table, "links": regimes(setting)[1:2], "algorithms": METHODS})
    context = experiment.context(experiment.seeds[0])
    problem = experiment.problem.build(context)
    active = active_rounds(experiment) / experiment.rounds
    lines = []
    for method, compute in rows():
        (component,) = (c for c in experiment.algorithms if c.label == method)
        cost = component.build(context).cost
        computing = problem.num_clients if cost.uses_all and compute == "all" else active
        up, down = (
            active * context.dtype.itemsize * (models * problem.init.size + scalars) / 1e3
            for models, scalars in zip((cost.up, cost.down), cost.scalars, strict=True)
        )
        server = f"{cost.server} + m" if cost.server_per_client == 1 else str(cost.server)
        numbers = [f"{computing * experiment.local_steps:.0f}", f"{up:.0f}", f"{down:.0f}"]
        lines.append([title(method, compute), *numbers, server, str(cost.client), cost.needs or "-"])
    header = ["method", "gradient steps a round", "kB up", "kB down", "models on the server", "on a client", "needs"]
    return markdown(header, lines)


def smallest_loss(experiment: Experiment, seed: int) -> float:
    """min F by L-BFGS in float64, with the exact gradient over all training samples."""
    with jax.enable_x64(True):
        exact = experiment.replace(precision="float64")
        problem = exact.problem.build(exact.context(seed))

        @jax.jit
        def value_and_gradient(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = sum_blocks(problem, x[None], 1)
            return total["train_loss_by_client"][0], total["gradient"][0]

        done = minimize(
            lambda x: tuple(np.asarray(part, np.float64) for part in value_and_gradient(x)),
            problem.init,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 3000, "maxfun": 4000, "maxcor": 30},
        )
        return float(done.fun)


def draw(tables: dict[str, str], path: Path) -> None:
    """The means of the two tables of outcomes as a picture: the darker, the farther from the best of the column."""
    panels = {"quadratic": "curved quadratics: distance to the minimiser", "synthetic": "Synthetic(1,1): train loss"}
    figure = Figure(figsize=(15, 7.2), layout="constrained")
    for ax, (name, heading) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        head, _, *lines = (line.strip("| ").split(" | ") for line in tables[f"comparison_{name}"].splitlines())
        lines = [line for line in lines if not line[0].startswith("*")]
        means = np.array([[float(cell.partition(" ")[0]) for cell in line[1:]] for line in lines])
        shade = np.log10(np.clip(means, ROUNDING, 100)) if name == "quadratic" else np.minimum(means, 1)
        ax.imshow(shade, cmap="Blues", aspect="auto", alpha=0.75)
        for (i, j), value in np.ndenumerate(means):
            dark = shade[i, j] > 0.55 * np.nanmax(shade) + 0.45 * np.nanmin(shade)
            text = f"{value:.3f}" if name == "synthetic" else _distance(value)
            ax.text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "black")
        ax.set_xticks(range(len(head) - 1), [heading.replace(", ", ",\n") for heading in head[1:]], fontsize=8)
        ax.set_yticks(range(len(lines)), [line[0].replace("`", "") for line in lines], fontsize=8)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_title(heading, fontsize=10)
    figure.savefig(path, dpi=130)


def mean_sd(values: np.ndarray, digits: str) -> str:
    """``digits`` decides on the mean; what is left of rounding errors is called 0."""
    mean, sd = values.mean(), values.std(ddof=1)
    if abs(mean) < ROUNDING:
        return "0"
    if digits == ".2g":
        return f"{mean:.0f} ± {sd:.0f}" if mean >= 10 else f"{mean:.2g} ± {sd:.1g}"
    return f"{mean:{digits}} ± {sd:{digits}}"


def _distance(value: float) -> str:
    if value < ROUNDING:
        return "0"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
