"""How fast the simulator is, beside batched NumPy and a plain PyTorch loop. Prints Markdown tables.

    python benchmarks/bench.py                      # everything, about six minutes on two cores
    python benchmarks/bench.py w1 w2 --out out.md   # some parts

Every part runs in a process of its own, so that peak memory and threads of one do not show in another. This
process imports nothing big: a child's peak memory, as the kernel counts it, starts at its parent's.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any


@dataclass
class Table:
    """One table of results."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        cells = [self.header, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.header))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
            for row in cells
        ]
        lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"### {self.title}\n", *lines, *notes]) + "\n"


@dataclass(frozen=True)
class Options:
    """What the parts are given."""

    repetitions: int
    devices: int


def _start(devices: int) -> Any:
    """The package, with as many JAX devices as the command line would use."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import fedpbc

    return fedpbc


def _run(fedpbc: Any, name: str, overrides: dict[str, Any], programs: Any = None) -> Any:
    """The result of an experiment of one cell, and that cell."""
    result = fedpbc.run(fedpbc.load_experiment(name, overrides), programs=programs)
    (cell,) = result.cells.values()
    return result, cell


def _programs() -> Any:
    """Compiled programs, to be shared between repetitions: what is timed is the steady state."""
    import jax

    from fedpbc.core.programs import Programs

    return Programs(jax.devices())


def _verdict(value: float, target: float, unit: str, at_least: bool = False) -> str:
    met = value >= target if at_least else value <= target
    return f"{'>=' if at_least else '<='} {target:g}{unit}: {'met' if met else 'MISSED'}"


def _median_and_range(values: list[float], digits: int = 2) -> list[str]:
    return [f"{statistics.median(values):.{digits}f}", f"{min(values):.{digits}f} to {max(values):.{digits}f}"]


COUNTEREXAMPLE = {
    "seeds": [0],
    "compute": ["all"],
    "algorithms": [{"name": "fedpbc"}],
    "links": [{"name": "bernoulli", "prob": {"name": "two_groups", "p0": 0.1, "p1": 0.9}}],
}
SYNTHETIC = {"seeds": [0], "algorithms": [{"name": "fedpbc"}]}


def counterexample(options: Options) -> list[Table]:
    """W1: one run of the counterexample, 2000 rounds, evaluated every round."""
    fedpbc = _start(options.devices)
    programs = _programs()
    cells = [_run(fedpbc, "counterexample", COUNTEREXAMPLE, programs)[1] for _ in range(1 + options.repetitions)]
    seconds = [cell.info["run_s"] for cell in cells[1:]]
    compile_s, used = cells[0].info["compile_s"], cells[0].info["num_devices"]
    row = [*_median_and_range(seconds, 3), f"{compile_s:.2f}", str(used)]
    return [
        Table(
            "W1: counterexample, FedPBC, everybody computes, float64, 2000 rounds, p0 = 0.1, p1 = 0.9, seed 0",
            ["run, s (median)", "range", "compile, s", "devices", "target"],
            [[*row, _verdict(statistics.median(seconds), 0.15, " s")]],
            [f"{options.repetitions} repetitions after one that compiles and is not counted."],
        )
    ]


ROUNDS_CHECKED = 100
ROUNDS_TIMED = {"fedpbc": 500, "NumPy": 100, "PyTorch": 20}
"""Rounds of one repetition: multiples of the experiment's eval_every."""
TARGETS = {"NumPy": 3.0, "PyTorch": 40.0}


def synthetic(options: Options) -> list[Table]:
    """W2: the simulator, batched NumPy and a PyTorch loop take turns on the same data."""
    # two threads gain NumPy nothing, its products are small, and cost it a factor of ten when a core is taken
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    fedpbc = _start(options.devices)
    from numpy_fedpbc import NumpyFedPBC
    from setting import check_evaluation, check_training, setting_of

    notes = []
    contestants: dict[str, Any] = {"NumPy": NumpyFedPBC}
    try:
        from torch_fedpbc import TorchFedPBC

        contestants["PyTorch"] = TorchFedPBC
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        notes.append("PyTorch is not installed: its part is left out (pip install -r benchmarks/requirements.txt).")

    experiment = fedpbc.load_experiment("synthetic", SYNTHETIC | {"rounds": ROUNDS_CHECKED})
    setting = setting_of(experiment)
    _, cell = _run(fedpbc, "synthetic", SYNTHETIC | {"rounds": ROUNDS_CHECKED})
    rivals = {}
    for name, build in contestants.items():
        rivals[name] = build(setting)
        check_evaluation(name, rivals[name], cell)
        check_training(name, rivals[name].advance(ROUNDS_CHECKED), cell)

    programs = _programs()
    overrides = SYNTHETIC | {"rounds": ROUNDS_TIMED["fedpbc"]}
    _run(fedpbc, "synthetic", overrides, programs)
    times: dict[str, list[float]] = {name: [] for name in ("fedpbc", *rivals)}
    for _ in range(options.repetitions):
        _, cell = _run(fedpbc, "synthetic", overrides, programs)
        times["fedpbc"].append(cell.info["ms_per_round"])
        for name, rival in rivals.items():
            rounds = ROUNDS_TIMED[name]
            began = time.perf_counter()
            rival.advance(rounds)
            times[name].append(1e3 * (time.perf_counter() - began) / rounds)

    rows = [["fedpbc", *_median_and_range(times["fedpbc"]), "1", "", ""]]
    for name in rivals:
        ratio = statistics.median(times[name]) / statistics.median(times["fedpbc"])
        ratios = [rival / own for rival, own in zip(times[name], times["fedpbc"], strict=True)]
        verdict = _verdict(ratio, TARGETS[name], "x", at_least=True)
        rows.append([name, *_median_and_range(times[name]), f"{ratio:.1f}", _median_and_range(ratios, 1)[1], verdict])
    rounds = ", ".join(f"{name} {ROUNDS_TIMED[name]}" for name in times)
    notes += [
        f"{options.repetitions} repetitions, taking turns; rounds per repetition: {rounds}. Ratio: of the medians; its "
        f"range: over repetitions. fedpbc shares each round between {cell.info['num_devices']} devices; NumPy's BLAS "
        f"has {os.environ['OPENBLAS_NUM_THREADS']} thread (OPENBLAS_NUM_THREADS), PyTorch 1.",
        f"Before timing, each rival's metrics of given models and its state after {ROUNDS_CHECKED} rounds were found "
        "to be the simulator's.",
    ]
    links = experiment.links[0].label
    title = f"W2: synthetic, {setting.num_clients} clients, FedPBC, links {links}, seed 0, evaluated every 10 rounds"
    return [Table(title, ["", "ms per round (median)", "range", "ratio", "range of ratio", "target"], rows, notes)]


def whole_process(options: Options) -> list[Table]:
    """The command as a user types it: start, data, compile, 3000 rounds, figure and files."""
    arguments = ["run", "synthetic", "--set", 'algorithms=[{name="fedpbc"}]', "--seeds", "0"]
    seconds, megabytes = [], []
    for _ in range(min(3, options.repetitions)):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "fedpbc.cli", *arguments, "--devices", str(options.devices)]
            began = time.perf_counter()
            with open(Path(folder) / "log", "w+") as log:
                process = subprocess.Popen([*command, "--out", f"{folder}/run"], stdout=log, stderr=log)
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                seconds.append(time.perf_counter() - began)
                if process.returncode:
                    log.seek(0)
                    raise RuntimeError(log.read())
            megabytes.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)
    wall, peak = statistics.median(seconds), max(megabytes)
    rows = [
        ["wall, s (median)", *_median_and_range(seconds, 1), _verdict(wall, 20, " s")],
        ["peak memory, MB (largest)", f"{peak:.0f}", f"{min(megabytes):.0f} to {peak:.0f}", _verdict(peak, 600, " MB")],
    ]
    title = f"Whole process: fedpbc {' '.join(arguments[:2])}, FedPBC, 3000 rounds, one seed"
    return [Table(title, ["", "value", "range", "target"], rows, [f"{len(seconds)} repetitions."])]


def compile_sharing(options: Options) -> list[Table]:
    """How many programs a grid needs: settings, seeds and data are arguments, not programs."""
    fedpbc = _start(options.devices)
    rows = []
    for name in ("counterexample", "synthetic"):
        experiment = fedpbc.load_experiment(name, {"rounds": 20, "seeds": [0, 1, 2]})
        result = fedpbc.run(experiment)
        e, infos = experiment, [cell.info for cell in result.cells.values()]
        grid = (
            f"{len(e.links)} links x {len(e.algorithms)} algorithms x {len(e.compute)} compute x {len(e.seeds)} seeds"
        )
        compiled = sum(info["compile_s"] for info in infos)
        rows.append([name, grid, str(len(infos)), str(result.manifest["programs_compiled"]), f"{compiled:.1f}"])
    return [Table("Compile sharing", ["experiment", "grid", "runs", "programs compiled", "compile, s (sum)"], rows)]


SCALES = {150: 200, 1000: 50, 10_000: 20}
"""Number of clients -> rounds."""


def scaling(options: Options) -> list[Table]:
    """Cost of a round and of a local step of one client as clients become more."""
    repetitions = min(2, options.repetitions)
    rows = [fresh(_scale, options.devices, repetitions, *scale) for scale in SCALES.items()]
    header = ["clients", "training samples", "devices", "ms per round, evaluated every 10", "without evaluation"]
    header += ["us per client and local step", "peak memory, MB"]
    note = f"Best of {repetitions}. A local step is without evaluation, whose cost goes with the samples."
    return [Table("Scaling: synthetic, FedPBC, 10 local steps, minibatches of 32", header, rows, [note])]


def _scale(devices: int, repetitions: int, num_clients: int, rounds: int) -> list[str]:
    fedpbc = _start(devices)
    programs = _programs()
    overrides = SYNTHETIC | {"rounds": rounds, "problem.num_clients": num_clients}
    often, once = [], []
    for _ in range(repetitions):
        often.append(_run(fedpbc, "synthetic", overrides | {"eval_every": 10}, programs)[1].info["run_s"])
        result, cell = _run(fedpbc, "synthetic", overrides | {"eval_every": rounds}, programs)
        once.append(cell.info["run_s"])
    experiment = result.experiment
    problem = experiment.problem.build(experiment.context(0))
    # both ran all rounds, one with rounds / 10 evaluations, the other with one
    evaluation = (min(often) - min(once)) / (rounds // 10 - 1)
    training = (min(once) - evaluation) / rounds
    per_step = 1e6 * training / (num_clients * experiment.local_steps)
    return [
        f"{num_clients:,}",
        f"{int(problem.params['sizes'].sum()):,}",
        str(cell.info["num_devices"]),
        f"{1e3 * min(often) / rounds:.2f}",
        f"{1e3 * training:.2f}",
        f"{per_step:.2f}",
        f"{result.manifest['peak_memory_mb']['host']:,.0f}",
    ]


CHUNKS = [10, 25, 50, 100]


def chunks(options: Options) -> list[Table]:
    """How many clients are computed side by side, for the default experiment."""
    fedpbc = _start(options.devices)
    programs = _programs()
    times: dict[int, list[float]] = {size: [] for size in CHUNKS}
    used: dict[int, int] = {}
    for _ in range(1 + options.repetitions):
        for size in CHUNKS:
            _, cell = _run(fedpbc, "synthetic", SYNTHETIC | {"rounds": 300, "chunk_size": size}, programs)
            times[size].append(cell.info["ms_per_round"])
            used[size] = cell.info["num_devices"]
    rows = [[str(size), str(used[size]), *_median_and_range(times[size][1:])] for size in CHUNKS]
    title = "chunk_size: synthetic, 150 clients, FedPBC, evaluated every 10 rounds"
    return [Table(title, ["chunk_size", "devices", "ms per round (median)", "range"], rows)]


def environment(options: Options) -> list[Table]:
    """What it was measured with."""
    from importlib.metadata import PackageNotFoundError, version

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    versions = {package: version_of(package) for package in ("jax", "numpy", "torch")}
    import fedpbc

    rows = [
        ["fedpbc", fedpbc.__version__],
        ["Python", platform.python_version()],
        *([name, text] for name, text in versions.items()),
        ["CPU", f"{_cpu()}, {_cores()} cores"],
        ["JAX devices", str(options.devices)],
        ["load average at the start", f"{os.getloadavg()[0]:.1f}"],
    ]
    return [Table("Measured with", ["", ""], rows)]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def flower(options: Options) -> list[Table]:
    """The Flower strategies: rounds in one process, and the server's work beside a plain sum."""
    import flower_server as server

    rounds, work = [], []
    for name, make in server.strategies(10).items():
        milliseconds = [server.round_ms(make, 10, 100) for _ in range(options.repetitions)]
        row = _median_and_range(milliseconds)
        rounds.append([name, *row, _verdict(statistics.median(milliseconds), 5, " ms")])
    for name, make in server.strategies(100).items():
        got = server.server_work(make, 100, 1_000_000, options.repetitions + 1)
        ratio = statistics.median(got["ratios"])
        verdict = _verdict(ratio, 1.5 if name in ("FedPBC", "FedAvg") else 2.5, "")
        row = [f"{got[key]:.0f}" for key in ("own", "sum", "decoded")]
        cpu = statistics.median(got["cpu_ratios"])
        row = [name, *row, *_median_and_range(got["ratios"]), f"{cpu:.2f}"]
        work.append([*row, f"{got['peak_models']:.1f}", verdict])
    one = Table(
        "Flower: a round in one process, 10 tiny clients, ms", ["strategy", "median", "range", "target"], rounds
    )
    many = []
    for name, make in server.strategies(1000).items():
        milliseconds = [server.round_ms(make, 1000, 3) for _ in range(min(3, options.repetitions))]
        many.append([name, *_median_and_range(milliseconds, 0), _verdict(statistics.median(milliseconds), 200, " ms")])
    title = "Flower: a round in one process, 1000 tiny clients, ms"
    crowd = Table(title, ["strategy", "median", "range", "target"], many)
    header = ["strategy", "own work, ms", "in-place sum, ms", "sum with Flower's decoding, ms"]
    header += ["own work / sum", "range", "in CPU time", "peak beside the replies, models", "target"]
    note = "Peak: allocated while the round is closed, beside the replies and what was there before."
    return [one, crowd, Table("Flower: 100 clients, 1 000 000 float32 parameters", header, work, [note])]


def audit(options: Options) -> list[Table]:
    """``fedpbc audit`` as a user types it, with its page."""
    import audit as logs

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (path, arguments)) in enumerate(fresh(logs.write_logs, Path(folder)).items()):
            out = Path(folder) / f"out{number}"
            found = [logs.measure(path, arguments, out) for _ in range(min(3, options.repetitions))]
            wall, peak = statistics.median(each.wall for each in found), max(each.megabytes for each in found)
            dense = path.stem not in ("sparse", "bursts")
            rows.append([
                name, *_median_and_range([each.wall for each in found], 1),
                f"{statistics.median(each.cpu for each in found):.1f}", f"{peak:.0f}",
                _verdict(wall, 8 if dense else 10, " s"), _verdict(peak, 500, " MB") if dense else "",
            ])  # fmt: skip
    header = ["log", "wall, s (median)", "range", "CPU, s", "peak memory, MB", "target", "target of memory"]
    return [Table("fedpbc audit, from start to page", header, rows)]


def many_clients(options: Options) -> list[Table]:
    """Memory and time of 1,000 to 1,000,000 clients, each setting in a process of its own."""
    from many_clients import GOALS, HEADER, SETTINGS, measure, row_of

    rows, per_step = [], {}
    for setting in SETTINGS:
        found = fresh(measure, setting)
        per_step[setting.label] = found["per_step"]
        rows.append(row_of(setting, found))
    notes = [*GOALS, "Times are CPU time of one JAX device, summed over threads; a client-step is without evaluation."]
    stored = [per_step[s.label] for s in SETTINGS if s.stored]
    notes.append(f"Client-step of the stored settings, largest / smallest: {max(stored) / min(stored):.2f}")
    return [Table("Many clients: FedPBC, 10 local steps, minibatches of 32, one device", HEADER, rows, notes)]


PARTS: dict[str, Callable[[Options], list[Table]]] = {
    "w1": counterexample,
    "w2": synthetic,
    "process": whole_process,
    "programs": compile_sharing,
    "scaling": scaling,
    "scale": many_clients,
    "chunks": chunks,
    "flower": flower,
    "audit": audit,
}
STAY_HERE = ("process", "scaling", "scale", "audit")
"""Parts that start their own processes."""


def main() -> None:
    """Run the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} [default: all]")
    parser.add_argument("--repetitions", type=int, default=7, metavar="N", help="default: 7")
    parser.add_argument(
        "--devices", type=int, default=_cores(), metavar="N", help="JAX devices [default: one per core]"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there too")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown or arguments.repetitions < 1 or arguments.devices < 1:
        parser.error(f"unknown part {unknown[0]}" if unknown else "--repetitions and --devices must be at least 1")
    options = Options(arguments.repetitions, arguments.devices)
    tables = environment(options)
    print(tables[0].markdown(), flush=True)
    for name in arguments.parts or PARTS:
        began = time.perf_counter()
        part = PARTS[name]
        new = part(options) if name in STAY_HERE else fresh(part, options)
        print(f"[{name}: {time.perf_counter() - began:.0f} s]", file=sys.stderr, flush=True)
        print("\n".join(table.markdown() for table in new), flush=True)
        tables += new
    if arguments.out:
        arguments.out.write_text("\n".join(table.markdown() for table in tables), encoding="utf-8")


if __name__ == "__main__":
    main()
