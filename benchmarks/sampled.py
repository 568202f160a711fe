"""FedAvg with 16 of 150 clients active, who alone compute: the simulator, a PyTorch loop and other frameworks.

Everybody does the same work: multinomial logistic regression on 60 features and 10 classes, 16 clients a round, ten
steps of SGD on ten minibatches of 32, no evaluation. Frameworks go through 320 samples once, in random order; the
simulator and the loop draw each minibatch with replacement. A framework runs in an environment of its own,
``.venv-bench-NAME``, made from ``peers/NAME.txt``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from paper import advancing, programs, start
from tables import Options, Table, Times, median_and_range, ratio, take_turns

HERE = Path(__file__).resolve().parent
PEERS = ("fluke", "pfl", "flgo", "flower")
CLIENTS, ACTIVE, STEPS, BATCH, ROWS, FEATURES, CLASSES, RATE = 150, 16, 10, 32, 320, 60, 10, 0.005
OWN, PER_ROUND = "fedpbc", "fedpbc, one minibatch a round"
MINUTES = 15
"""For an installation; a run has five."""


class Unusable(Exception):
    """A framework that does not install or run here, and why."""


def data() -> tuple[np.ndarray, np.ndarray]:
    """Features float32[150, 320, 60] and labels [150, 320], by a matrix of each client."""
    rng = np.random.default_rng(0)
    features = (
        rng.standard_normal((CLIENTS, ROWS, FEATURES), np.float32)
        * np.arange(1, FEATURES + 1, dtype=np.float32) ** -0.6
    )
    labels = np.argmax(features @ rng.standard_normal((CLIENTS, FEATURES, CLASSES), np.float32), axis=-1)
    return features, labels


def sampled(options: Options) -> list[Table]:
    """Times per round, and how many times as long as ours."""
    fedpbc = start(options.devices)
    features, labels = data()
    shared = programs()
    turns: dict[str, Callable[[], int]] = {}
    for name, minibatch in ((OWN, "step"), (PER_ROUND, "round")):
        turns[name] = advancing(_experiment(fedpbc, features, labels, minibatch), shared, 400, 1)
    notes = [
        "fedpbc has one device; PyTorch one thread; Flower gives each client a core, and its CPU time is that of many "
        f"processes and was not taken. Medians of {options.repetitions} turns, of each round of a framework after "
        "three that are not counted. Ratios: to the first row, with a fresh minibatch a step as the others have; the "
        "second draws one a round, as the paper's algorithms do.",
    ]
    try:
        turns["PyTorch loop"] = _loop(features, labels)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        notes.append("PyTorch is not installed: its loop is left out.")
    times = take_turns(turns, options.repetitions)
    versions: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, features=features, labels=labels)
        for name in () if options.short else PEERS:
            try:
                found = peer(name, path)
            except Unusable as error:
                notes.append(f"{name} is left out: {error}")
                continue
            versions[name] = found["versions"]
            times[name] = Times(found["wall"], found["cpu"])
    again = take_turns({name: turns[name] for name in (OWN, PER_ROUND)}, options.repetitions)
    for name, taken in again.items():  # after the frameworks as before them
        times[name].wall += taken.wall
        times[name].cpu += taken.cpu
    rows, figures = [], {}
    for name, taken in times.items():
        wall = ratio(taken.wall, times[OWN].wall)
        cpu = ratio(taken.cpu, times[OWN].cpu) if taken.cpu else None
        made = ", ".join(f"{package} {version}" for package, version in versions.get(name, {}).items())
        used = f"{statistics.median(taken.cpu):.2f}" if taken.cpu else ""
        rows.append(
            [name, made, *median_and_range(taken.wall), used, f"{wall:.1f}", "" if cpu is None else f"{cpu:.1f}"]
        )
        if name not in (OWN, PER_ROUND):
            figures[f"active.{name}"] = wall
            if cpu is not None:
                figures[f"active.{name}.cpu"] = cpu
    header = ["", "versions", "ms per round (median)", "range", "CPU, ms", "ratio", "ratio of CPU"]
    return [Table(f"FedAvg, {ACTIVE} of {CLIENTS} active, only they compute", header, rows, notes, figures)]


def _experiment(fedpbc: Any, features: np.ndarray, labels: np.ndarray, minibatch: str) -> Any:
    from fedpbc.experiment.grid import Experiment

    client = np.repeat(np.arange(CLIENTS), ROWS)
    of = fedpbc.data.from_arrays(features.reshape(-1, FEATURES), labels.reshape(-1), client=client)
    return Experiment.from_table({
        "name": "active", "rounds": 4000, "local_steps": STEPS, "learning_rate": RATE, "batch_size": BATCH,
        "minibatch": minibatch, "seeds": [0], "eval_every": 4000, "metrics": ["server"], "compute": ["active"],
        "chunk_size": ACTIVE, "problem": fedpbc.problems.classification(of), "algorithms": [fedpbc.algorithms.fedavg()],
        "links": [sixteen],
    })  # fmt: skip


def sixteen(context: Any) -> Any:
    """Links under which 16 clients are active in every round, drawn afresh."""
    from fedpbc.links.trace import replay

    rng = np.random.default_rng(1)
    return replay(np.argsort(rng.random((context.num_rounds, CLIENTS)), axis=1) < ACTIVE, context.dtype)


def _loop(features: np.ndarray, labels: np.ndarray) -> Callable[[], int]:
    """The loop one would write: client after client, autograd, minibatches by indexing, one thread."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(1)
    x, y = torch.tensor(features), torch.tensor(labels)
    server = [torch.zeros(CLASSES, FEATURES), torch.zeros(CLASSES)]

    def run(rounds: int = 10) -> int:
        for _ in range(rounds):
            models = []
            for i in torch.randperm(CLIENTS)[:ACTIVE].tolist():
                weights, bias = (a.clone().requires_grad_() for a in server)
                for _ in range(STEPS):
                    rows = torch.randint(ROWS, (BATCH,))
                    loss = cross_entropy(x[i][rows] @ weights.T + bias, y[i][rows])
                    gradients = torch.autograd.grad(loss, (weights, bias))
                    with torch.no_grad():
                        for a, gradient in zip((weights, bias), gradients, strict=True):
                            a.sub_(gradient, alpha=RATE)
                models.append((weights.detach(), bias.detach()))
            for k, a in enumerate(server):
                a.copy_(torch.stack([model[k] for model in models]).mean(dim=0))
        return rounds

    return run


def peer(name: str, path: Path, skipped: int = 3, counted: int = 20) -> dict[str, Any]:
    """What a framework reports. Raises Unusable."""
    command = [str(environment_of(name)), str(HERE / "peers" / f"run_{name}.py"), str(path), str(skipped), str(counted)]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=clean)
    except subprocess.TimeoutExpired:
        raise Unusable("its rounds took more than five minutes") from None
    if done.returncode:
        raise Unusable(f"it fails: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def environment_of(name: str) -> Path:
    """The Python of a framework's environment, made when it is not there or outdated. Raises Unusable."""
    folder, wanted = HERE.parent / f".venv-bench-{name}", (HERE / "peers" / f"{name}.txt").read_text()
    python, made = folder / "bin" / "python", folder / "made-from.txt"
    if made.is_file() and made.read_text() == wanted:
        return python
    print(f"[installing {name} into {folder.name}]", file=sys.stderr, flush=True)
    try:
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True, text=True
        )
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "-r", str(HERE / "peers" / f"{name}.txt")],
            check=True,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"its installation took more than {MINUTES} minutes") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "no message").strip().splitlines()[-1]
        raise Unusable(f"it does not install: {last}") from None
    made.write_text(wanted)
    return python
