"""Tables and pictures of docs/comparison.md, from docs/data/ alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from page import DOCS, markdown, write_page
from study import CERTAIN, LOST, METHODS, MIXING, ORACLES, OURS, REFERENCE, link_labels, tables

from fedpbc.compare.ties import ties
from fedpbc.plots.palette import COLORS, MARKERS, RESERVED
from fedpbc.plots.spread import spread


class Shown(NamedTuple):
    """What a problem is judged by."""

    title: str
    metric: str
    digits: str
    level: float = 0.0
    """What is below this counts as this where it is divided: less is no practical difference."""


class Runs(NamedTuple):
    """A row per run, and its columns by (problem, algorithm, links), in the order of the seeds."""

    rows: pd.DataFrame
    cells: dict[tuple[str, str, str], dict[str, np.ndarray]]


PROBLEMS = {
    "digits": Shown("Digits, MLP: train loss, mean over clients", "train_loss", ".3f"),
    "synthetic": Shown("Synthetic(1,1): train loss, mean over clients", "train_loss", ".3f"),
    "quadratic": Shown("Curved quadratics: distance to the minimiser", "distance", ".2g", level=0.05),
    "mnist_20": Shown("MNIST, small CNN, 20 clients: train loss", "train_loss", ".3f"),
    "mnist_100": Shown("MNIST, small CNN, 100 clients: train loss", "train_loss", ".3f"),
}
EVERYBODY = ", everybody"
"""Of labels: all clients compute, not the active ones alone."""
LABELS = (*METHODS, *(f"{label}{EVERYBODY}" for label in MIXING))
"""In the order of the rows."""
TOLD = ("FedAvg", "FedAU", "MIFA", "SCAFFOLD", "FedFade", "FedFade, black box", "FedPBC")


def write(data: Path) -> None:
    """docs/comparison.md and docs/figures/study*.png."""
    runs = load(data)
    figures = DOCS / "figures"
    figures.mkdir(exist_ok=True)
    draw_outcomes(runs, figures / "study.png")
    made = {
        f"study_{p}": outcome_table(runs, p, one.metric, one.digits) if has(runs, p) else missing(p)
        for p, one in PROBLEMS.items()
    }
    made["study_accuracy"] = outcome_table(runs, "digits", "test_accuracy", ".3f", better="higher")
    made["study_worst"] = outcome_table(runs, "digits", "worst_train_accuracy", ".2f", better="higher")
    made["study_summary"] = summary_table(runs)
    made["study_cost"] = cost_table(runs, "digits", (REFERENCE, "Markov .97", "spot"))
    made["study_seen"] = seen_table(runs, "digits", (REFERENCE, "Markov .9", "cyclic", "spot"))
    for problem in (p for p in PROBLEMS if p.startswith("mnist")):
        there = has(runs, problem)
        pooled = outcome_table(runs, problem, "test_accuracy", ".2f", better="higher") if there else ""
        made[f"study_{problem}_accuracy"] = pooled
        made[f"study_{problem}_thrown"] = thrown_text(runs, problem) if there else ""
    made["study_minimum"] = minimum_text(data)
    made["study_choices"] = choices_table(pd.read_csv(data / "study_choices.csv"))
    made["study_effort"] = effort_text(pd.read_csv(data / "study_seconds.csv"), len(runs.rows))
    made["study_rates"] = sensitivity(runs, figures / "study_rates.png")
    write_page("comparison", made)


def load(data: Path) -> Runs:
    """A row per run; methods with which everybody computes have names of their own."""
    runs = pd.read_csv(data / "study_runs.csv")
    runs["problem"] = runs["name"].str.replace("_everybody|_lost", "", regex=True)
    both = runs["compute"].eq("all")
    runs.loc[both, "algorithm"] = runs.loc[both, "algorithm"] + EVERYBODY
    grouped = runs.sort_values("seed").groupby(["problem", "algorithm", "links"], sort=False)
    return Runs(runs, {key: {name: found[name].to_numpy() for name in found} for key, found in grouped})


def missing(problem: str) -> str:
    """What stands where a problem has no results."""
    names = " ".join(name for name in tables() if name in (problem, f"{problem}_everybody", f"{problem}_lost"))
    return f"*Not run yet: `python docs/make_study.py run {names}`.*"


def has(runs: Runs, problem: str) -> bool:
    """Whether its runs of all methods are there."""
    return bool(((runs.rows["problem"] == problem) & (runs.rows["compute"] == "active")).any())


def rows_of(runs: Runs, problem: str) -> list[str]:
    """The methods of a problem, in the order of the study."""
    there = {algorithm for p, algorithm, _ in runs.cells if p == problem}
    return [label for label in LABELS if label in there]


def columns_of(runs: Runs, problem: str) -> list[str]:
    """The links of a problem, in the order of the study; state lost at the end."""
    there = {link for p, _, link in runs.cells if p == problem}
    return [link for link in (*link_labels(), LOST) if link in there]


def values(runs: Runs, problem: str, metric: str, algorithm: str, links: str) -> np.ndarray:
    """Of each seed; infinite (the worst) where the run diverged."""
    found = runs.cells.get((problem, algorithm, links))
    if found is None:
        return np.zeros(0)
    worst = np.where(found["diverged"] == 1, np.inf, found[metric].astype(np.float64))
    return np.where(np.isnan(worst), np.inf, worst)


def judged(runs: Runs, problem: str, metric: str, links: str, better: Any) -> tuple[str | None, set[str]]:
    """The best method that is told nothing, and those that the seeds do not tell apart from it."""
    labels = [label for label in rows_of(runs, problem) if label not in ORACLES]
    found = [values(runs, problem, metric, label, links) for label in labels]
    some = [(label, one) for label, one in zip(labels, found, strict=True) if len(one)]
    result = ties([one for _, one in some], better)
    best = None if result.best is None else some[result.best][0]
    return best, {some[i][0] for i in result.tied}


def outcome_table(
    runs: Runs,
    problem: str,
    metric: str,
    digits: str,
    better: str = "lower",
    only: tuple[str, ...] = (),
) -> str:
    """Methods by links: mean and 95 % interval; bold the best, a star at those tied with it."""
    columns = columns_of(runs, problem)
    marks = {links: judged(runs, problem, metric, links, better) for links in columns}
    lines = []
    for label in rows_of(runs, problem):
        if only and label not in only:
            continue
        cells = []
        for links in columns:
            numbers = values(runs, problem, metric, label, links)
            text = shown(numbers, digits)
            best, tied = marks[links]
            cells.append(f"**{text}**" if label == best else f"{text} \\*" if label in tied else text)
        name = f"*{label}*" if label in ORACLES else label
        lines.append([name, *cells])
    return markdown(["method", *columns], lines)


def shown(numbers: np.ndarray, digits: str) -> str:
    """Mean and interval, or on how many seeds it diverged."""
    if not len(numbers):
        return ""
    lost = int(np.sum(~np.isfinite(numbers)))
    if lost:
        return f"diverged on {lost}"
    mean, _, high = spread(numbers, "ci")
    half = high - mean
    if digits == ".2g":
        return f"{mean:.2g} ± {half:.1g}" if mean < 10 else f"{mean:.0f} ± {half:.0f}"
    return f"{mean:{digits}} ± {half:{digits}}"


def unequal(runs: Runs, problem: str) -> list[str]:
    """The link settings under which clients differ; all but p = 1."""
    return [links for links in columns_of(runs, problem) if links != CERTAIN]


def summary_table(runs: Runs) -> str:
    """Of each method and problem: on how many link settings best or tied, and how far behind the best it is.

    Behind is the loss (distance) divided by the best method's that is told nothing, both at least the problem's level:
    the median over link settings, and the largest.
    """
    problems = [p for p in PROBLEMS if has(runs, p)]
    marks = {
        (p, links): judged(runs, p, PROBLEMS[p].metric, links, "lower") for p in problems for links in unequal(runs, p)
    }
    lines = []
    for label in LABELS:
        cells = [f"*{label}*" if label in ORACLES else label]
        for problem in problems:
            metric, level, columns = PROBLEMS[problem].metric, PROBLEMS[problem].level, unequal(runs, problem)
            first, ratios = 0, []
            for links in columns:
                numbers = values(runs, problem, metric, label, links)
                if not len(numbers):
                    continue
                best, tied = marks[problem, links]
                first += label == best or label in tied
                least = values(runs, problem, metric, best or label, links).mean()
                ratios.append(max(numbers.mean(), level) / max(least, level))
            if not ratios:
                cells += ["", ""]
                continue
            cells += [f"{first} of {len(ratios)}", f"{times(float(np.median(ratios)))}, {times(max(ratios))}"]
        if any(cells[1:]):
            lines.append(cells)
    header = [h for p in problems for h in (f"{p.replace('_', ' ')}: best or tied", "behind: median, worst")]
    return markdown(["method", *header], lines)


def times(ratio: float) -> str:
    """A ratio with two digits."""
    if not np.isfinite(ratio):
        return "diverged"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def cost_table(runs: Runs, problem: str, some: tuple[str, ...]) -> str:
    """What the target takes, medians over the seeds: rounds, local steps, MB sent by clients, simulated minutes."""
    lines = []
    for label in rows_of(runs, problem):
        cells = [f"*{label}*" if label in ORACLES else label]
        for links in some:
            found = [
                values(runs, problem, f"target_{w}", label, links)
                for w in ("rounds", "gradient_steps", "bytes_up", "seconds")
            ]
            if not len(found[0]):
                cells.append("")
                continue
            rounds, steps, sent, seconds = (float(np.median(one)) for one in found)
            reached = int(np.isfinite(found[0]).sum())
            if not np.isfinite(rounds):
                cells.append(f"reached on {reached} of {len(found[0])}")
            else:
                cells.append(f"{rounds:.0f}, {steps / 1000:.0f}k, {sent / 1e6:.0f} MB, {seconds / 60:.1f} min")
        lines.append(cells)
    return markdown(["method", *some], lines)


def seen_table(runs: Runs, problem: str, some: tuple[str, ...]) -> str:
    """Accuracy after 100 rounds over the clients that are there, over all, and over the worst tenth."""
    lines = []
    for label in TOLD:
        cells = [label]
        for links in some:
            names = [f"early_{part}train_accuracy" for part in ("active_", "", "worst_")]
            means = [values(runs, problem, name, label, links).mean() for name in names]
            cells.append(", ".join(f"{mean:.2f}" for mean in means))
        lines.append(cells)
    return markdown(["method", *(f"{links}: there, all, worst tenth" for links in some)], lines)


THROWN = 1.0
"""A train loss above which a run of the convolutional network has been thrown off: all start at 2.3."""


def thrown_text(runs: Runs, problem: str) -> str:
    """How many runs of each method diverged, or ended above ``THROWN``, over all links."""
    mine = runs.rows[runs.rows["problem"] == problem]
    off = mine["diverged"].eq(1) | (mine["train_loss"] > THROWN)
    counted = off.groupby(mine["algorithm"], sort=False).agg(["sum", "size"])
    told = [f"{label} {row['sum']}" for label, row in counted.sort_values("sum", kind="stable").iterrows()]
    of_each = counted["size"].iloc[0]
    return f"Runs, of {of_each} each, that diverged or ended above a loss of {THROWN:g}: {', '.join(told)}."


def minimum_text(data: Path) -> str:
    """min F of Synthetic(1,1), mean and range over the seeds."""
    file = data / "study_minimum.csv"
    if not file.exists():
        return "not computed yet"
    found = pd.read_csv(file)["minimum"].to_numpy()
    return f"{found.mean():.3f} ({found.min():.3f} to {found.max():.3f})"


def choices_table(chosen: pd.DataFrame) -> str:
    """The learning rates chosen over all link settings, by method and problem: the range, and how many fall."""
    chosen = chosen[~chosen["name"].str.contains("_lost|_everybody")]
    names = list(dict.fromkeys(chosen["name"]))
    lines = []
    for label in METHODS:
        cells = [label]
        for name in names:
            mine = chosen[(chosen["name"] == name) & (chosen["algorithm"] == label)]
            rates, falling = mine["learning_rate"], int((mine["schedule"] != "constant").sum())
            cells.append(f"{rates.min():g} to {rates.max():g}; {falling} of {len(mine)} fall" if len(mine) else "")
        lines.append(cells)
    return markdown(["method", *names], lines)


def effort_text(seconds: pd.DataFrame, runs: int) -> str:
    """How many runs, and how long they took, in all and on each problem."""
    total = (seconds["tuning"] + seconds["reported"]) / 60
    by_problem = total.groupby(seconds["name"].str.replace("_everybody|_lost|_rates", "", regex=True), sort=False).sum()
    each = ", ".join(f"{name} {minutes:.0f}" for name, minutes in by_problem.items())
    return f"{runs:,} reported runs; {total.sum():.0f} minutes on two cores, tuning included ({each})"


def sensitivity(runs: Runs, path: Path) -> str:
    """Draw loss after the last round against the learning rate, a panel per link setting."""
    swept = runs.rows[runs.rows["problem"] == "digits_rates"].copy()
    if swept.empty:
        return "*Not run yet: `python docs/make_study.py run digits_rates`.*"
    parts = swept["algorithm"].str.extract(r"^(?P<method>.*), eta (?P<eta>.*)$")
    swept = swept.assign(method=parts["method"], eta=parts["eta"].astype(float))
    swept["loss"] = np.where(swept["diverged"] == 1, np.inf, swept["train_loss"])
    columns, free = list(dict.fromkeys(swept["links"])), [c for c in COLORS if c not in RESERVED.values()]
    figure = Figure(figsize=(5.2 * len(columns), 4), layout="constrained")
    for ax, links in zip(np.atleast_1d(figure.subplots(1, len(columns), sharey=True)), columns, strict=True):
        for k, label in enumerate(dict.fromkeys(swept["method"])):
            mine = swept[(swept["links"] == links) & (swept["method"] == label)]
            mean = mine.groupby("eta")["loss"].mean()
            kept = mean[np.isfinite(mean)]
            color = RESERVED.get(METHODS[label]["name"]) or free[k % len(free)]
            ax.plot(kept.index, kept, marker=MARKERS[k % len(MARKERS)], ms=4, lw=1.3, color=color, label=label)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(links, loc="left", fontsize=10)
        ax.set_xlabel("learning rate (constant)")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    figure.axes[0].set_ylabel("train loss after 600 rounds")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    return (
        f"![Loss against the learning rate](figures/{path.name})\n\n*Constant learning rates, all other options as "
        "they are by default, three seeds. Where a curve ends, runs with larger rates diverged.*"
    )


def draw_outcomes(runs: Runs, path: Path) -> None:
    """Methods by links, a panel per problem: the darker, the farther behind the best of the column."""
    problems = [p for p in PROBLEMS if has(runs, p)]
    networks = [p for p in problems if p.startswith("mnist")]
    panels = [*([p] * 2 for p in problems if p not in networks), *([[networks[0], networks[-1]]] if networks else [])]
    heights = [len(rows_of(runs, row[0])) + 4 for row in panels]
    figure = Figure(figsize=(11, 0.24 * sum(heights)), layout="constrained")
    shades = LinearSegmentedColormap.from_list("behind", ["#FFFFFF", "#9CC9E3", "#0072B2", "#00263D"])
    for problem, ax in figure.subplot_mosaic(panels, height_ratios=heights).items():
        title, metric, digits, level = PROBLEMS[problem]
        labels, columns = rows_of(runs, problem), columns_of(runs, problem)
        means = np.array(
            [
                [found.mean() if len(found := values(runs, problem, metric, a, c)) else np.nan for c in columns]
                for a in labels
            ]
        )
        told = np.array([label not in ORACLES for label in labels])
        best = np.nanmin(np.where(np.isfinite(means), means, np.nan)[told], axis=0)
        behind = np.clip(np.log10(np.maximum(means, level) / np.maximum(best, level)), 0, 1)
        ax.imshow(np.where(np.isnan(behind), 0, behind), cmap=shades, vmin=0, vmax=1, aspect="auto")
        for j, links in enumerate(columns):
            winner, tied = judged(runs, problem, metric, links, "lower")
            for i, label in enumerate(labels):
                if np.isnan(means[i, j]):
                    continue
                ink = "white" if behind[i, j] > 0.45 else "black"
                text = "div." if not np.isfinite(means[i, j]) else f"{means[i, j]:{digits}}"
                weight = "bold" if label == winner else "normal"
                star = "*" if label in tied else ""
                ax.text(j, i, text + star, ha="center", va="center", fontsize=7, color=ink, fontweight=weight)
        ax.set_xticks(range(len(columns)), columns, rotation=45, ha="right", fontsize=8)
        ax.set_yticks(range(len(labels)), labels, fontsize=8)
        for tick, label in zip(ax.get_yticklabels(), labels, strict=True):
            tick.set_fontweight("bold" if label.removesuffix(EVERYBODY) in OURS else "normal")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=120)
