"""Tables and pictures of docs/comparison.md, from docs/data/ alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from page import DOCS, write_page
from scipy.special import stdtrit
from study import CERTAIN, LOST, METHODS, MIXING, ORACLES, OURS, REFERENCE

from fedpbc.compare.ties import ties


class Shown(NamedTuple):
    """What a problem is judged by."""

    title: str
    metric: str
    digits: str
    log: bool


PROBLEMS = {
    "digits": Shown("Digits, MLP: train loss, mean over clients", "train_loss", ".3f", True),
    "synthetic": Shown("Synthetic(1,1): train loss, mean over clients", "train_loss", ".3f", True),
    "quadratic": Shown("Curved quadratics: distance to the minimiser", "distance", ".2g", True),
    "mnist_20": Shown("MNIST-5k, CNN, 20 clients: train loss", "train_loss", ".3f", True),
    "mnist_100": Shown("MNIST-5k, CNN, 100 clients: train loss", "train_loss", ".3f", True),
}
EVERYBODY = ", everybody"
"""Of labels: all clients compute, not the active ones alone."""
TOLD = ("FedAvg", "FedAU", "MIFA", "SCAFFOLD", "FedFade", "FedFade, black box", "FedPBC")


def write(data: Path) -> None:
    """docs/comparison.md and docs/figures/study*.png."""
    runs = load(data)
    figures = DOCS / "figures"
    figures.mkdir(exist_ok=True)
    draw_outcomes(runs, figures / "study.png")
    made = {f"study_{p}": outcome_table(runs, p, s.metric, s.digits) for p, s in PROBLEMS.items() if has(runs, p)}
    for problem in ("digits", "mnist_20", "mnist_100"):
        if has(runs, problem):
            made[f"study_{problem}_accuracy"] = outcome_table(runs, problem, "test_accuracy", ".3f", better="higher")
    made["study_worst"] = outcome_table(runs, "digits", "worst_train_accuracy", ".2f", better="higher", only=TOLD)
    write_page("comparison", made)


def load(data: Path) -> pd.DataFrame:
    """A row per run; methods with which everybody computes have names of their own."""
    runs = pd.read_csv(data / "study_runs.csv")
    both = runs["compute"].eq("all")
    runs.loc[both, "algorithm"] = runs.loc[both, "algorithm"] + EVERYBODY
    return runs


def has(runs: pd.DataFrame, problem: str) -> bool:
    """Whether there is anything of it."""
    return bool((runs["problem"] == problem).any())


def rows_of(runs: pd.DataFrame, problem: str) -> list[str]:
    """The methods of a problem, in the order of the study."""
    there = set(runs.loc[runs["problem"] == problem, "algorithm"])
    return [label for label in (*METHODS, *(f"{label}{EVERYBODY}" for label in MIXING)) if label in there]


def columns_of(runs: pd.DataFrame, problem: str) -> list[str]:
    """The links of a problem, in the order of the study; state lost at the end."""
    return list(dict.fromkeys(runs.loc[runs["problem"] == problem, "links"]))


def values(runs: pd.DataFrame, problem: str, metric: str, algorithm: str, links: str) -> np.ndarray:
    """Of each seed; infinite (the worst) where the run diverged."""
    chosen = runs[(runs["problem"] == problem) & (runs["algorithm"] == algorithm) & (runs["links"] == links)]
    found = chosen.sort_values("seed")
    worst = np.where(found["diverged"].to_numpy() == 1, np.inf, found[metric].to_numpy(np.float64))
    return np.where(np.isnan(worst), np.inf, worst)


def interval(numbers: np.ndarray) -> float:
    """Half of the 95 % confidence interval of the mean, by Student's t."""
    n = len(numbers)
    return float(stdtrit(n - 1, 0.975) * numbers.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")


def judged(runs: pd.DataFrame, problem: str, metric: str, links: str, better: Any) -> tuple[str | None, set[str]]:
    """The best method that is told nothing, and those that the seeds do not tell apart from it."""
    labels = [label for label in rows_of(runs, problem) if label not in ORACLES]
    found = [values(runs, problem, metric, label, links) for label in labels]
    some = [(label, one) for label, one in zip(labels, found, strict=True) if len(one)]
    result = ties([one for _, one in some], better)
    best = None if result.best is None else some[result.best][0]
    return best, {some[i][0] for i in result.tied}


def outcome_table(
    runs: pd.DataFrame,
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
    return table(["method", *columns], lines)


def shown(numbers: np.ndarray, digits: str) -> str:
    """Mean and interval, or on how many seeds it diverged."""
    if not len(numbers):
        return ""
    lost = int(np.sum(~np.isfinite(numbers)))
    if lost:
        return f"diverged on {lost}"
    mean, half = numbers.mean(), interval(numbers)
    if digits == ".2g":
        return f"{mean:.2g} ± {half:.1g}" if mean < 10 else f"{mean:.0f} ± {half:.0f}"
    return f"{mean:{digits}} ± {half:{digits}}"


def draw_outcomes(runs: pd.DataFrame, path: Path) -> None:
    """Methods by links, a panel per problem: the darker, the farther behind the best of the column."""
    problems = [p for p in PROBLEMS if has(runs, p)]
    figure = Figure(figsize=(8.4 * min(len(problems), 3), 8.4), layout="constrained")
    shades = LinearSegmentedColormap.from_list("behind", ["#FFFFFF", "#9CC9E3", "#0072B2", "#00263D"])
    for ax, problem in zip(np.atleast_1d(figure.subplots(1, len(problems))), problems, strict=True):
        title, metric, digits, _ = PROBLEMS[problem]
        labels, columns = rows_of(runs, problem), columns_of(runs, problem)
        means = np.array([[values(runs, problem, metric, a, c).mean() if len(values(runs, problem, metric, a, c)) else np.nan for c in columns] for a in labels])
        told = np.array([label not in ORACLES for label in labels])
        best = np.nanmin(np.where(np.isfinite(means), means, np.nan)[told], axis=0)
        behind = np.clip(np.log10(np.maximum(means, 1e-9) / np.maximum(best, 1e-9)), 0, 1)
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


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; every column but the first is right-aligned."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
