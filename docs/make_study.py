"""The study of docs/comparison.md: runs it, keeps what matters in docs/data/, and writes the page and its pictures.

Usage: python docs/make_study.py run [NAME ...] [--runs runs/study] tunes and runs the files of experiments/study/, or
goes on with them, and writes docs/data/*.csv; --plan only says what that takes.
       python docs/make_study.py page writes docs/comparison.md and its figures from docs/data/*.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import study_page
from section5 import smallest_loss
from study import FILES, tables

import fedpbc
from fedpbc.compare.targets import Clock, Target, reached
from fedpbc.experiment.load import load_experiment
from fedpbc.runs.run import Run

DATA = Path(__file__).resolve().parent / "data"
CLOCK = Clock(step_seconds=0.05, upload_rate=1e6)
"""A local step takes 50 ms, and a client sends 1 Mbit/s."""
TARGETS = {
    "digits": "train_loss=0.1",
    "synthetic": "train_loss=0.6",
    "quadratic": "distance=1",
    "mnist": "train_loss=0.5",
}
EARLY = 100
"""The round after which evaluation by those who are there is compared with that of all."""
SEEN = ("active_train_accuracy", "train_accuracy", "worst_train_accuracy")
PLACES = 6
"""Significant digits that are kept."""


def main() -> None:
    """Run, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="files of experiments/study/ (default: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), help="where the runs are kept")
    parser.add_argument("--plan", action="store_true", help="only say what it takes")
    arguments = parser.parse_args()
    if arguments.what == "page":
        study_page.write(DATA)
        return
    names = list(tables())
    if unknown := [name for name in arguments.names if name not in names]:
        parser.error(f"{unknown[0]}: is not one of {', '.join(names)}")
    names = [name for name in names if name in arguments.names or not arguments.names]
    foresee(names)
    if not arguments.plan:
        for name in names:
            run(name, arguments.runs)
        keep(arguments.runs)


def foresee(names: list[str]) -> None:
    """Say how long it took when docs/data/ was made."""
    took = {row["name"]: row for row in read(DATA / "study_seconds.csv")}
    total = 0.0
    for name in names:
        table = tables()[name]
        seconds = sum(float(took[name][part]) for part in ("tuning", "reported")) if name in took else float("nan")
        total += seconds
        methods, links = len(table["algorithms"]), len(table["links"])
        told = "not measured yet" if np.isnan(seconds) else f"{seconds / 60:.0f} min"
        print(f"{name}: {methods} methods x {links} links, {told}")
    print("on two cores, with nothing compiled before: " + ("?" if np.isnan(total) else f"{total / 60:.0f} min in all"))


def run(name: str, runs: Path) -> None:
    """Tune and run one file, or go on with it."""
    began = time.perf_counter()
    file, tuning, out = FILES / f"{name}.toml", runs / f"{name}.tuning", runs / name
    if "tune" in tables()[name]:
        if not (tuning / "tuned.toml").exists():
            fedpbc.tune(file, tuning, resume=True, progress=True)
        file = tuning / "tuned.toml"
    fedpbc.run(file, out, resume=True, progress=True)
    print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


def keep(runs: Path) -> None:
    """Write docs/data/: of what ``runs`` has, what it has; of all else, what was there."""
    done = [name for name in tables() if (runs / name / "manifest.json").exists()]
    tuned = [name for name in done if "tune" in tables()[name]]
    renew("study_runs.csv", done, [row for name in done for row in outcomes(name, fedpbc.read_run(runs / name))])
    tried = [row for name in tuned for row in tunings(name, runs)]
    renew("study_tuning.csv", tuned, tried)
    renew("study_choices.csv", tuned, [row for row in tried if row["chosen"] == "1"])
    renew("study_seconds.csv", done, [spent(name, runs) for name in done])
    if "synthetic" in done:
        write(DATA / "study_minimum.csv", minima(runs / "synthetic"))


def renew(file: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    """Replace the rows of ``names``, in the order of the study."""
    path, order = DATA / file, list(tables())
    rows = [row for row in read(path) if row["name"] not in names] + rows
    write(path, sorted(rows, key=lambda row: order.index(row["name"])))


def outcomes(name: str, run_: Run) -> Iterator[dict[str, Any]]:
    """A row for each run: metrics after the last round, what the target took, and how steady it was."""
    target = Target.parse(TARGETS[name.partition("_")[0]], [run_])
    metrics = [f"{which}{m}" for m in run_.measures for which in ("", "worst_", "active_")]
    for group in run_.groups:
        spent = reached(run_, group, target, CLOCK)
        for i, key in enumerate(run_.select(**group._asdict())):
            rows = run_.cells[key].rows
            early = int(np.searchsorted(rows["round"], EARLY))
            half = rows[f"server_{target.metric}"][len(rows["round"]) // 2 :]
            yield {
                "name": name,
                **group._asdict(),
                "seed": key.seed,
                "diverged": int(key in run_.diverged),
                **{m: number(rows[f"server_{m}"][-1]) for m in metrics if f"server_{m}" in rows},
                f"largest_{target.metric}": number(half.max()),
                **{f"early_{m}": number(rows[f"server_{m}"][early]) for m in SEEN if f"server_{m}" in rows},
                "gradient_steps": int(rows["gradient_steps"][-1]),
                "mb_up": number(rows["bytes_up"][-1] / 1e6),
                **{f"target_{what}": number(values[i]) for what, values in zip(spent._fields, spent, strict=True)},
            }


def tunings(name: str, runs: Path) -> Iterator[dict[str, Any]]:
    """Every tuning run."""
    for row in read(runs / f"{name}.tuning" / "tuning.csv"):
        yield tuning_row(name, row)


def tuning_row(name: str, row: dict[str, str]) -> dict[str, Any]:
    """Without columns that are the same for all."""
    kept = ("links", "algorithm", "learning_rate", "schedule", "options", "rounds", "value", "goes_on", "chosen")
    value = {**row, "value": "" if row["value"] == "diverged" else number(float(row["value"]))}
    return {"name": name, **{key: value[key] for key in kept}}


def spent(name: str, runs: Path) -> dict[str, Any]:
    """Seconds of both cores, from what every run took by itself."""
    file = runs / f"{name}.tuning" / "tuning.json"
    tuning = json.loads(file.read_text(encoding="utf-8"))["cost"]["seconds"] if file.exists() else 0.0
    cells = json.loads((runs / name / "manifest.json").read_text(encoding="utf-8"))["cells"]
    reported = sum(cell["compile_s"] + cell["run_s"] for cell in cells)
    return {"name": name, "tuning": round(tuning / 2), "reported": round(reported / 2)}


def minima(path: Path) -> list[dict[str, Any]]:
    """min F of each seed of a convex problem."""
    experiment = load_experiment(str(path / "experiment.toml"))
    return [{"seed": seed, "minimum": number(smallest_loss(experiment, seed))} for seed in experiment.seeds]


def number(value: float) -> str:
    """With ``PLACES`` significant digits; "" for NaN."""
    return "" if np.isnan(value) else f"{float(value):.{PLACES}g}"


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A CSV with every column that any row has."""
    path.parent.mkdir(exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    print(f"{path}: {len(rows)} rows", flush=True)


if __name__ == "__main__":
    main()
