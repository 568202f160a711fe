"""How fast the simulator is, beside NumPy, C, PyTorch and other frameworks. Prints Markdown tables.

    python benchmarks/bench.py                        # everything
    python benchmarks/bench.py w1 w2 --out results    # some parts; each also as results/PART.json
    python benchmarks/bench.py --short                # ratios beside expected.toml, under five minutes

Every part runs in a process of its own, so that peak memory and threads of one do not show in another. This
process imports nothing big: a child's peak memory, as the kernel counts it, starts at its parent's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from commands import commands, results
from expected import SHORT, compare
from goals import goals_table
from machine import cores, environment
from paper import SYNTHETIC, counterexample, only, programs, run, start, synthetic
from process import measure
from tables import Options, Table, median_and_range, verdict


def whole_process(options: Options) -> list[Table]:
    """The command as a user types it: start, data, compile, 3000 rounds, figure and files."""
    arguments = ["run", "synthetic", "--set", 'algorithms=[{name="fedpbc"}]', "--seeds", "0"]
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "fedpbc.cli", *arguments, "--devices", str(options.devices), "--out"]
        found = [measure([*command, f"{folder}/run{number}"]) for number in range(min(3, options.repetitions))]
    seconds, megabytes = [each.wall for each in found], [each.megabytes for each in found]
    wall, peak = statistics.median(seconds), max(megabytes)
    rows = [
        ["wall, s (median)", *median_and_range(seconds, 1), verdict(wall, 20, " s")],
        ["peak memory, MB (largest)", f"{peak:.0f}", f"{min(megabytes):.0f} to {peak:.0f}", verdict(peak, 600, " MB")],
    ]
    title = f"Whole process: fedpbc {' '.join(arguments[:2])}, FedPBC, 3000 rounds, one seed"
    return [Table(title, ["", "value", "range", "target"], rows, [f"{len(seconds)} repetitions."])]


def compile_sharing(options: Options) -> list[Table]:
    """How many programs a grid needs: settings, seeds and data are arguments, not programs."""
    fedpbc = start(options.devices)
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
    fedpbc = start(devices)
    shared = programs()
    overrides = SYNTHETIC | {"rounds": rounds, "problem.num_clients": num_clients}
    often, once = [], []
    for _ in range(repetitions):
        often.append(only(run(fedpbc, "synthetic", overrides | {"eval_every": 10}, shared)).info["run_s"])
        result = run(fedpbc, "synthetic", overrides | {"eval_every": rounds}, shared)
        cell = only(result)
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
    fedpbc = start(options.devices)
    shared = programs()
    times: dict[int, list[float]] = {size: [] for size in CHUNKS}
    used: dict[int, int] = {}
    for _ in range(1 + options.repetitions):
        for size in CHUNKS:
            cell = only(run(fedpbc, "synthetic", SYNTHETIC | {"rounds": 300, "chunk_size": size}, shared))
            times[size].append(cell.info["ms_per_round"])
            used[size] = cell.info["num_devices"]
    rows = [[str(size), str(used[size]), *median_and_range(times[size][1:])] for size in CHUNKS]
    title = "chunk_size: synthetic, 150 clients, FedPBC, evaluated every 10 rounds"
    return [Table(title, ["chunk_size", "devices", "ms per round (median)", "range"], rows)]


def fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def flower(options: Options) -> list[Table]:
    """The Flower strategies: rounds in one process, and the server's work beside a plain sum."""
    import flower_server as server

    ten = _flower_rounds("flower.round", 10, 100, options.repetitions, 5, 2)
    work: list[list[str]] = []
    ratios: dict[str, list[float]] = {"mean": [], "memory": []}
    for name, make in server.strategies(100).items():
        got = server.server_work(make, 100, 1_000_000, options.repetitions + 1)
        ratio = statistics.median(got["ratios"])
        kind, bound = ("mean", 1.5) if name in ("FedPBC", "FedAvg") else ("memory", 2.5)
        ratios[kind].append(ratio)
        judged = verdict(ratio, bound, "")
        row = [f"{got[key]:.0f}" for key in ("own", "sum", "decoded")]
        cpu = statistics.median(got["cpu_ratios"])
        row = [name, *row, *median_and_range(got["ratios"]), f"{cpu:.2f}"]
        work.append([*row, f"{got['peak_models']:.1f}", judged])
    header = ["strategy", "own work, ms", "in-place sum, ms", "sum with Flower's decoding, ms"]
    header += ["own work / sum", "range", "in CPU time", "peak beside the replies, models", "target"]
    note = "Peak: allocated while the round is closed, beside the replies and what was there before."
    figures = {f"flower.{kind}": max(found) for kind, found in ratios.items()}
    thousand = _flower_rounds("flower.thousand", 1000, 3, min(3, options.repetitions), 200, 0)
    return [ten, thousand, Table("Flower: 100 clients, 1 000 000 float32 parameters", header, work, [note], figures)]


def _flower_rounds(figure: str, clients: int, rounds: int, repetitions: int, target: float, digits: int) -> Table:
    """Milliseconds a round of tiny clients in one process; the figure is the slowest strategy's."""
    import flower_server as server

    rows, medians = [], []
    for name, make in server.strategies(clients).items():
        milliseconds = [server.round_ms(make, clients, rounds) for _ in range(repetitions)]
        medians.append(statistics.median(milliseconds))
        rows.append([name, *median_and_range(milliseconds, digits), verdict(medians[-1], target, " ms")])
    title = f"Flower: a round in one process, {clients} tiny clients, ms"
    return Table(title, ["strategy", "median", "range", "target"], rows, [], {figure: max(medians)})


def audit(options: Options) -> list[Table]:
    """``fedpbc audit`` as a user types it, with its page."""
    import audit as logs

    rows, taken = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (path, arguments)) in enumerate(fresh(logs.write_logs, Path(folder)).items()):
            command = ["-m", "fedpbc.cli", "audit", str(path), *arguments, "--out", f"{folder}/out{number}"]
            found = [measure(command) for _ in range(min(3, options.repetitions))]
            wall, peak = statistics.median(each.wall for each in found), max(each.megabytes for each in found)
            dense = path.stem not in ("sparse", "bursts")
            taken.append((dense, wall, peak))
            rows.append([
                name, *median_and_range([each.wall for each in found], 1),
                f"{statistics.median(each.cpu for each in found):.1f}", f"{peak:.0f}",
                verdict(wall, 8 if dense else 10, " s"), verdict(peak, 500, " MB") if dense else "",
            ])  # fmt: skip
    figures = {
        "audit.rows, s": max(wall for dense, wall, _ in taken if dense),
        "audit.rows, MB": max(peak for dense, _, peak in taken if dense),
        "audit.sparse, s": max(wall for dense, wall, _ in taken if not dense),
    }
    header = ["log", "wall, s (median)", "range", "CPU, s", "peak memory, MB", "target", "target of memory"]
    return [Table("fedpbc audit, from start to page", header, rows, [], figures)]


def many_clients(options: Options) -> list[Table]:
    """Memory and time of 1,000 to 1,000,000 clients, each setting in a process of its own."""
    from many_clients import HEADER, NOTE, SETTINGS, figures_of, measure, row_of

    found = {setting.label: fresh(measure, setting) for setting in SETTINGS}
    rows = [row_of(setting, found[setting.label]) for setting in SETTINGS]
    title = "Many clients: FedPBC, 10 local steps, minibatches of 32, one device"
    return [Table(title, HEADER, rows, [NOTE], figures_of(found))]


def _sampled(options: Options) -> list[Table]:
    from sampled import sampled  # not above: who imports NumPy has chosen the threads of its BLAS

    return sampled(options)


def _networks(options: Options) -> list[Table]:
    from networks import networks

    return networks(options)


def _outside(options: Options) -> list[Table]:
    from networks import outside_cnn

    return outside_cnn(options)


PARTS: dict[str, Callable[[Options], list[Table]]] = {
    "machine": environment,
    "w1": counterexample,
    "w2": synthetic,
    "active": _sampled,
    "networks": _networks,
    "outside": _outside,
    "process": whole_process,
    "programs": compile_sharing,
    "scaling": scaling,
    "scale": many_clients,
    "chunks": chunks,
    "flower": flower,
    "audit": audit,
    "commands": commands,
    "results": results,
}
STAY_HERE = ("process", "scaling", "scale", "audit", "commands", "results")
"""Parts that start their own processes."""


def written(path: Path, name: str, tables: list[Table]) -> None:
    """A part's tables and figures, with the load beside which they were measured."""
    load = os.getloadavg()
    found = {
        "part": name,
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load": [round(load[0], 1), round(load[2], 1)],
        "niceness": os.nice(0),
        "markdown": [table.markdown() for table in tables],
        "figures": {name: value for table in tables for name, value in table.figures.items()},
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} [default: all]")
    parser.add_argument("--repetitions", type=int, default=7, metavar="N", help="default: 7")
    parser.add_argument("--devices", type=int, default=cores(), metavar="N", help="JAX devices [default: one per core]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write DIR/PART.json for each part too")
    parser.add_argument(
        "--short", action="store_true", help="a few ratios beside expected.toml; exit status 1 if worse"
    )
    parser.add_argument("--write-expected", action="store_true", help="with --short: write what was measured there")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown or arguments.repetitions < 1 or arguments.devices < 1:
        parser.error(f"unknown part {unknown[0]}" if unknown else "--repetitions and --devices must be at least 1")
    options = Options(arguments.repetitions, arguments.devices, arguments.short)
    figures: dict[str, float] = {}
    for name in arguments.parts or (SHORT if arguments.short else PARTS):
        began = time.perf_counter()
        part = PARTS[name]
        tables = part(options) if name in STAY_HERE else fresh(part, options)
        print(f"[{name}: {time.perf_counter() - began:.0f} s]", file=sys.stderr, flush=True)
        print("\n".join(table.markdown() for table in tables), flush=True)
        for table in tables:
            figures |= table.figures
        if arguments.out:
            written(arguments.out, name, tables)
    if arguments.short:
        table, worse = compare(figures, write=arguments.write_expected)
    else:
        table, worse = goals_table(figures), []
    print(table.markdown(), flush=True)
    if worse:
        sys.exit(f"worse than expected: {', '.join(worse)}")


if __name__ == "__main__":
    main()
