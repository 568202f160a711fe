"""W1 and W2, the paper's two experiments, beside NumPy, a PyTorch loop and a C kernel that do the same work."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tables import Options, Table, Times, compared, median_and_range, take_turns, verdict

COUNTEREXAMPLE = {
    "seeds": [0],
    "compute": ["all"],
    "algorithms": [{"name": "fedpbc"}],
    "links": [{"name": "bernoulli", "prob": {"name": "two_groups", "p0": 0.1, "p1": 0.9}}],
}
SYNTHETIC = {"seeds": [0], "algorithms": [{"name": "fedpbc"}]}
OWN = "fedpbc"


def start(devices: int) -> Any:
    """The package, with as many JAX devices as the command line would use."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import fedpbc
    from fedpbc.runs.cache import use_cache

    use_cache()
    return fedpbc


def programs() -> Any:
    """Compiled programs, to be shared between repetitions: what is timed is the steady state."""
    import jax

    from fedpbc.core.programs import Programs

    return Programs(jax.devices())


def run(fedpbc: Any, name: str, overrides: dict[str, Any], shared: Any = None, devices: int | None = None) -> Any:
    """The result of an experiment."""
    from fedpbc.runs.runner import run as run_cells

    return run_cells(fedpbc.load_experiment(name, overrides), programs=shared, devices=devices)


def only(result: Any) -> Any:
    """The one cell of a result."""
    (cell,) = result.cells.values()
    return cell


def advancing(experiment: Any, shared: Any, rounds: int, devices: int | None = None) -> Callable[[], int]:
    """A function that makes so many more rounds of the experiment's one cell, from the start again when it is over."""
    from fedpbc.runs.runner import Grid, settings_of

    with settings_of(experiment):
        grid = Grid(experiment, devices, programs=shared)
        (cell,) = experiment.cells()
        simulation = grid.simulation(cell)
        simulation.start()

    def advance() -> int:
        with settings_of(experiment):
            if simulation.next_round + rounds > simulation.num_rounds:
                simulation.start()
            simulation.advance(rounds)
            return rounds

    return advance


def counterexample(options: Options) -> list[Table]:
    """W1: one run of the counterexample, and 20 cells side by side, beside NumPy; float64, evaluated every round."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    fedpbc = start(options.devices)
    from numpy_quadratic import NumpyQuadratic, check

    shared = programs()
    tables = []
    if not options.short:
        cells = [only(run(fedpbc, "counterexample", COUNTEREXAMPLE, shared)) for _ in range(1 + options.repetitions)]
        seconds = [cell.info["run_s"] for cell in cells[1:]]
        row = [*median_and_range(seconds, 3), str(cells[0].info["num_devices"])]
        title = "W1: counterexample, FedPBC, everybody computes, float64, 2000 rounds, p0 = 0.1, p1 = 0.9, seed 0"
        tables = [Table(title, ["run, s (median)", "range", "devices"], [row], [], {"w1.seconds": min(seconds)})]
    rounds, seeds = (500 if options.short else 2000), [0, 1, 2, 3]
    overrides = {"seeds": seeds, "compute": ["all"], "algorithms": [{"name": "fedpbc"}], "rounds": rounds}
    experiment = fedpbc.load_experiment("counterexample", overrides)
    rival = NumpyQuadratic(experiment)
    check(rival, run(fedpbc, "counterexample", overrides, shared))
    count = len(experiment.cells())

    def ours() -> int:
        run(fedpbc, "counterexample", overrides, shared)
        return rounds * count

    times = take_turns({OWN: ours, "NumPy": partial(rival.advance, 200)}, options.repetitions)
    notes = [
        f"{count} cells ({len(seeds)} seeds, {count // len(seeds)} settings of links) of {rounds} rounds, ms per round "
        "of one cell; ours from the call to the result, compiled before. NumPy: in place, two passes over [100, 100] "
        "a step, one thread. Before timing its gradient norms were found to be the simulator's, given the same links.",
    ]
    title = f"W1, {count} cells: counterexample, FedPBC, 100 clients, 30 local steps, float64, evaluated every round"
    return [*tables, compared(title, times, OWN, "w1", notes)]


CHECKED = 100
"""Rounds after which a rival must be where the simulator is."""
ROUNDS = {OWN: 200, "NumPy": 50, "PyTorch": 10, "C": 200}
"""Rounds of one turn: multiples of the experiment's eval_every."""


def synthetic(options: Options) -> list[Table]:
    """W2: the simulator, batched NumPy, a PyTorch loop and a C kernel take turns on the same data."""
    # two threads gain NumPy nothing, its products are small, and cost it a factor of ten when a core is taken
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "numpy" in sys.modules:
        raise RuntimeError("NumPy is imported already: its BLAS would have several threads")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # CPU time of threads that wait is no work
    fedpbc = start(options.devices)
    from setting import check_evaluation, check_training, setting_of

    experiment = fedpbc.load_experiment("synthetic", SYNTHETIC | {"rounds": 3000})
    setting = setting_of(experiment)
    builds, notes = _rivals(setting)
    cell = only(run(fedpbc, "synthetic", SYNTHETIC | {"rounds": CHECKED}))
    turns: dict[str, Callable[[], int]] = {}
    shared = programs()
    for name, devices in ((OWN, None), ("fedpbc, one device", 1)):
        turns[name] = advancing(experiment, shared, ROUNDS[OWN], devices)
    for name, build in builds.items():
        rival = build()
        check_evaluation(name, rival, cell)
        check_training(name, getattr(rival, "advance_and_evaluate", rival.advance)(CHECKED), cell)
        turns[name] = partial(_advance, rival, ROUNDS[name.split(",")[0]])
    times = take_turns(turns, options.repetitions)
    notes += [
        f"{options.repetitions} turns; rounds of a turn: {', '.join(f'{k} {v}' for k, v in ROUNDS.items())}. fedpbc "
        f"shares a round between {options.devices} devices. NumPy's BLAS, PyTorch and C have one thread where none is "
        "said. The C kernel neither evaluates nor keeps anything.",
        f"Before timing, each rival's metrics of given models and its state after {CHECKED} rounds were found "
        "to be the simulator's.",
    ]
    title = f"W2: synthetic, {setting.num_clients} clients, FedPBC, Zipf links, seed 0, evaluated every 10 rounds"
    table = compared(title, times, OWN, "w2", notes)
    cpu = compared("", times, "fedpbc, one device", "w2.one", []).figures
    table.figures |= {name: value for name, value in cpu.items() if name.endswith(".cpu")}
    if "C, one thread" in times:
        table.figures["w2.C"] = 1 / table.figures["w2.C, one thread"]
        table.figures["w2.C, all cores"] = 1 / table.figures[f"w2.C, {options.devices} threads"]
    return [table] if options.short else [table, _five_seeds(fedpbc, options, shared, turns["NumPy"])]


def _advance(rival: Any, rounds: int) -> int:
    rival.advance(rounds)
    return rounds


def _rivals(setting: Any) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Those that can run here, by name, and why others cannot."""
    from c_fedpbc import CFedPBC, NoCompiler
    from numpy_fedpbc import NumpyFedPBC

    found: dict[str, Callable[[], Any]] = {"NumPy": partial(NumpyFedPBC, setting)}
    notes = []
    try:
        from torch_fedpbc import TorchFedPBC

        found["PyTorch"] = partial(TorchFedPBC, setting)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        notes.append("PyTorch is not installed: its part is left out (pip install -r benchmarks/requirements.txt).")
    try:
        CFedPBC(setting)
        found["C, one thread"] = partial(CFedPBC, setting)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if cores > 1:
            found[f"C, {cores} threads"] = partial(CFedPBC, setting, threads=cores)
    except NoCompiler as error:
        notes.append(f"The C kernel is left out: {error}")
    return found, notes


def _five_seeds(fedpbc: Any, options: Options, shared: Any, numpy: Callable[[], int]) -> Table:
    """Cells side by side: what one more round of five cells takes, the building of their data left out."""
    overrides = {"seeds": [0, 1, 2, 3, 4], "algorithms": [{"name": "fedpbc"}]}
    few, many = 100, 300

    def wall_and_cpu(rounds: int) -> tuple[float, float]:
        began = time.perf_counter(), time.process_time()
        run(fedpbc, "synthetic", overrides | {"rounds": rounds}, shared)
        return time.perf_counter() - began[0], time.process_time() - began[1]

    wall_and_cpu(few)
    times = {OWN: Times(), "NumPy": Times()}
    for _ in range(min(3, options.repetitions)):
        short, long = wall_and_cpu(few), wall_and_cpu(many)
        for values, a, b in zip((times[OWN].wall, times[OWN].cpu), short, long, strict=True):
            values.append(1e3 * (b - a) / (5 * (many - few)))
        taken = take_turns({"NumPy": numpy}, 1)["NumPy"]
        times["NumPy"].wall += taken.wall
        times["NumPy"].cpu += taken.cpu
    note = (
        f"Runs of {many} and of {few} rounds, the difference per round and cell: without what it takes to build data. "
        "Five cells on two cores leave one core idle at the end, which counts here."
    )
    return compared("W2 with five seeds, per round of one cell", times, OWN, "w2x5", [note])


__all__ = ["COUNTEREXAMPLE", "SYNTHETIC", "counterexample", "only", "programs", "run", "start", "synthetic", "verdict"]
