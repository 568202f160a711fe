"""On a GPU: are results a CPU's within tolerances, and how long does a round take? Runs on any GPU that JAX sees.

    python benchmarks/gpu.py [--out gpu.json]

Results are compared in three precisions of matrix products: float64, float32 in full (what runs use), and TF32 (what
JAX would choose by itself on such cards), whose tolerance is its own and said in the table. Without a GPU it prints so.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from networks import _experiment, images
from paper import SYNTHETIC
from tables import Table, median_and_range

TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "TF32": 5e-2}
"""Relative, of the loss of both models after 20 rounds."""


def main() -> None:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there too")
    arguments = parser.parse_args()
    import jax

    try:
        devices = jax.devices("gpu")
    except RuntimeError:
        print("no GPU: not measured")
        return
    name = devices[0].device_kind
    tables = [checked(name), measured(name)]
    for table in tables:
        print(table.markdown(), flush=True)
    if arguments.out:
        found = {"part": "gpu", "device": name, "jax": jax.__version__, "markdown": [t.markdown() for t in tables]}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if any("NO" in row for row in tables[0].rows):
        raise SystemExit("results differ from the CPU's by more than their tolerance")


def _cases() -> dict[str, Any]:
    """Experiments of one cell: W2, the CNN, W1."""
    import fedpbc

    one = {"seeds": [0], "compute": ["all"], "algorithms": [{"name": "fedpbc"}]}
    x, y = images()
    return {
        "W2, synthetic": fedpbc.load_experiment("synthetic", SYNTHETIC | {"rounds": 20}),
        "W1, counterexample": fedpbc.load_experiment(
            "counterexample", one | {"rounds": 20, "links": [{"name": "bernoulli", "prob": 0.5}]}
        ),
        "cnn, m = 100": _experiment(fedpbc, x, y, fedpbc.models.cnn(), chunk_size=10, rounds=20, eval_every=20),
    }


def _losses(experiment: Any, platform: str, precision: str) -> np.ndarray:
    """Train losses of the server's and the mean model, on CPU or GPU."""
    import dataclasses

    import jax

    import fedpbc.runs.runner as runner
    from fedpbc.core.programs import Programs

    kind = "float64" if precision == "float64" else "float32"
    experiment = dataclasses.replace(experiment, precision=kind, metrics=["server", "mean"])
    full = runner.settings_of

    def settings(of: Any) -> Any:
        stack = full(of)
        if precision == "TF32":
            stack.enter_context(jax.default_matmul_precision("default"))
        return stack

    runner.settings_of = settings
    try:
        with jax.default_device(jax.devices(platform)[0]):
            result = runner.run(experiment, programs=Programs(jax.devices(platform)[:1]), side_by_side=False)
    finally:
        runner.settings_of = full
    (cell,) = result.cells.values()
    return np.array([cell.rows[f"{model}_train_loss"][-1] for model in ("server", "mean")])


def checked(name: str) -> Table:
    """Every case in every precision beside the CPU's float64 or float32."""
    rows = []
    for case, experiment in _cases().items():
        for precision, tolerance in TOLERANCES.items():
            expected = _losses(experiment, "cpu", "float64" if precision == "float64" else "float32")
            found = _losses(experiment, "gpu", precision)
            error = float(np.max(np.abs(found - expected) / np.abs(expected)))
            rows.append([case, precision, f"{error:.1e}", f"{tolerance:g}", "yes" if error <= tolerance else "NO"])
    header = ["", "products in", "largest relative difference of losses", "tolerance", "within"]
    return Table(f"{name}: results beside the CPU's, after 20 rounds", header, rows)


def measured(name: str) -> Table:
    """Milliseconds per round in steady state."""
    import jax

    import fedpbc
    from fedpbc.core.programs import Programs
    from fedpbc.runs.runner import Grid, settings_of

    x, y = images()
    many = SYNTHETIC | {"problem.num_clients": 100_000, "problem.max_rows": 200, "rounds": 1000, "eval_every": 1000}
    load = fedpbc.load_experiment
    cases = [
        ("W2, 150 clients, evaluated every 10 rounds", load("synthetic", SYNTHETIC | {"chunk_size": 150}), 200),
        ("cnn, m = 100", _experiment(fedpbc, x, y, fedpbc.models.cnn(), chunk_size=100), 10),
        ("synthetic, m = 100,000, rows up to 200", load("synthetic", many | {"chunk_size": 10_000}), 3),
    ]  # fmt: skip
    rows = []
    for label, experiment, rounds in cases:
        with settings_of(experiment):
            grid = Grid(experiment, 1, programs=Programs(jax.devices("gpu")[:1]))
            (cell,) = experiment.cells()
            simulation = grid.simulation(cell)
            simulation.start()
            simulation.advance(rounds)
            times = []
            for _ in range(5):
                began = time.perf_counter()
                simulation.advance(rounds)
                times.append(1e3 * (time.perf_counter() - began) / rounds)
        memory = (jax.devices("gpu")[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6
        rows.append([label, str(experiment.chunk_size), *median_and_range(times), f"{memory:,.0f}"])
    header = ["", "chunk_size", "ms per round (median)", "range", "peak so far, MB"]
    return Table(f"{name}, JAX {jax.__version__}, float32 in full precision", header, rows)


if __name__ == "__main__":
    main()
