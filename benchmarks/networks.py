"""Networks: 100 clients, minibatches of 32, five local steps, beside PyTorch and the machine's matrix product."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import gemm_gflops
from paper import advancing, programs, start
from tables import Options, Table, Times, median_and_range, ratio, take_turns

CLIENTS, BATCH, STEPS, ROWS, SIDE, CLASSES, RATE = 100, 32, 5, 60, 28, 10, 0.01
SAMPLED = 10
"""Clients of one turn of PyTorch, whose time is that of all, divided."""


def flops(name: str) -> float:
    """Of the products of one round, multiplication and addition counted apart; no gradient of the images."""
    pixels = SIDE * SIDE
    if name.startswith("mlp"):
        hidden = int(name.split()[1])
        per_sample = 4 * pixels * hidden + 6 * hidden * CLASSES
    else:
        first, second = 2 * pixels * 9 * 16, 2 * pixels // 4 * 9 * 16 * 32
        dense = 2 * (pixels // 16 * 32 * 64 + 64 * CLASSES)
        per_sample = 2 * first + 3 * second + 3 * dense
    return float(per_sample * BATCH * STEPS * CLIENTS)


def images() -> tuple[np.ndarray, np.ndarray]:
    """Noise in the shape of MNIST: what is timed does not depend on values."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((CLIENTS * ROWS, SIDE, SIDE), np.float32), rng.integers(CLASSES, size=CLIENTS * ROWS)


def networks(options: Options) -> list[Table]:
    """Milliseconds per round, the ratio to PyTorch, and the share of the product's rate."""
    fedpbc = start(options.devices)
    x, y = images()
    made = {
        "mlp 128": fedpbc.models.mlp(hidden=[128]),
        "mlp 512": fedpbc.models.mlp(hidden=[512]),
        "cnn": fedpbc.models.cnn(),
    }
    if options.short:
        del made["mlp 512"]
    rows, figures = [], {}
    notes = [
        "Ours on all devices; PyTorch client after client with 1 and with all threads, whichever takes "
        f"less on the clock; {SAMPLED} clients are timed and stand for {CLIENTS}; it averages nothing. "
        "Share: of the rate of products of "
        "1024 x 1024 matrices measured beside it, on all cores.",
    ]
    repetitions = min(3, options.repetitions)
    for name, model in made.items():
        shared = programs()
        turns: dict[str, Callable[[], int]] = {"fedpbc": advancing(_experiment(fedpbc, x, y, model), shared, 1)}
        try:
            for threads in sorted({1, options.devices}):
                turns[f"PyTorch, {threads}"] = _torch(name, x, y, threads)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            notes.append("PyTorch is not installed: left out.")
        times = take_turns(turns, repetitions)
        rate = gemm_gflops(10)
        own = times.pop("fedpbc")
        reached = flops(name) / statistics.median(own.wall) / 1e6
        row = [name, f"{flops(name) / 1e9:.0f}", *median_and_range(own.wall, 0), f"{statistics.median(own.cpu):.0f}"]
        figures[f"{name}.share"] = 100 * reached / rate
        row += [f"{reached:.0f} of {rate:.0f}", f"{100 * reached / rate:.0f} %"]
        if times:
            best = min(times, key=lambda key: statistics.median(times[key].wall))
            taken = _scaled(times[best])
            wall, cpu = ratio(taken.wall, own.wall), ratio(taken.cpu, own.cpu)
            row += [
                f"{statistics.median(taken.wall):.0f} ({best.split(', ')[1]})",
                f"{statistics.median(taken.cpu):.0f}",
            ]
            row += [f"{wall:.2f}", f"{cpu:.2f}"]
            figures |= {f"{name}.PyTorch": wall, f"{name}.PyTorch.cpu": cpu}
        rows.append(row)
    header = ["", "Gflop a round", "ms per round (median)", "range", "CPU, ms", "Gflop/s of the product's", "share"]
    header += ["PyTorch, ms (threads)", "CPU, ms", "ratio", "ratio of CPU"] if len(rows[0]) > len(header) else []
    return [
        Table(
            "Networks: m = 100, minibatches of 32, 5 local steps, FedPBC, no evaluation", header, rows, notes, figures
        )
    ]


def _scaled(times: Times) -> Times:
    share = CLIENTS / SAMPLED
    return Times([share * t for t in times.wall], [share * t for t in times.cpu])


def _experiment(fedpbc: Any, x: np.ndarray, y: np.ndarray, model: Any, **changes: Any) -> Any:
    from fedpbc.experiment.grid import Experiment

    data = fedpbc.data.from_arrays(x, y, client=np.repeat(np.arange(CLIENTS), ROWS))
    return Experiment.from_table({
        "name": "networks", "rounds": 10_000, "local_steps": STEPS, "learning_rate": RATE, "batch_size": BATCH,
        "seeds": [0], "eval_every": 10_000, "metrics": ["server"],
        "problem": fedpbc.problems.classification(data, model=model), "algorithms": [fedpbc.algorithms.fedpbc()],
        "links": [fedpbc.links.bernoulli(prob=0.5)],
        **changes,
    })  # fmt: skip


def _torch(name: str, x: np.ndarray, y: np.ndarray, threads: int) -> Callable[[], int]:
    """Five steps of some clients, each with a network of its own."""
    import torch
    from torch import nn

    def network() -> nn.Module:
        pixels = SIDE * SIDE
        if name.startswith("mlp"):
            hidden = int(name.split()[1])
            return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
        return nn.Sequential(
            nn.Unflatten(1, (1, SIDE)),
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(pixels // 16 * 32, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
        )

    images, labels = torch.tensor(x), torch.tensor(y)
    clients = [network() for _ in range(SAMPLED)]

    def run() -> int:
        torch.set_num_threads(threads)
        for i, model in enumerate(clients):
            parameters = list(model.parameters())
            rows = torch.randint(ROWS, (BATCH,)) + i * ROWS
            batch, targets = images[rows], labels[rows]
            for _ in range(STEPS):
                gradients = torch.autograd.grad(nn.functional.cross_entropy(model(batch), targets), parameters)
                with torch.no_grad():
                    torch._foreach_sub_(parameters, gradients, alpha=RATE)
        return 1

    return run


def outside_cnn(options: Options) -> list[Table]:
    """A CNN of somebody else, by lax.conv, eight clients: what evaluation costs one by one and side by side."""
    fedpbc = start(options.devices)
    from fedpbc.experiment.grid import Experiment

    x, y = images()
    x, y = x[: 8 * ROWS], y[: 8 * ROWS]
    rows, figures = [], {}
    shared = programs()
    every = {}
    for one_by_one in (True, False):
        for grad_norm in (False, True):
            problem = fedpbc.problems.loss(
                fedpbc.data.from_arrays(x, y, client=np.repeat(np.arange(8), ROWS)),
                loss=conv_loss, init=conv_init, one_by_one=one_by_one, grad_norm=grad_norm,
            )  # fmt: skip
            for eval_every in (1, 1000):
                experiment = Experiment.from_table({
                    "name": "outside", "rounds": 1000, "local_steps": STEPS, "learning_rate": RATE, "batch_size": BATCH,
                    "seeds": [0], "eval_every": eval_every, "problem": problem,
                    "links": [fedpbc.links.bernoulli(prob=0.5)],
                    "algorithms": [fedpbc.algorithms.fedpbc()], "chunk_size": 1,
                })  # fmt: skip
                every[one_by_one, grad_norm, eval_every] = advancing(experiment, shared, 1, 1)
    times = take_turns({str(key): run for key, run in every.items()}, min(3, options.repetitions))
    for one_by_one, grad_norm in ((True, False), (False, False), (True, True), (False, True)):
        with_, without = (times[str((one_by_one, grad_norm, n))] for n in (1, 1000))
        wall, plain = statistics.median(with_.wall), statistics.median(without.wall)
        cpu = statistics.median(with_.cpu) - statistics.median(without.cpu)
        name = "one by one" if one_by_one else "side by side"
        rows.append([name, "on" if grad_norm else "off", f"{plain:.0f}", f"{wall - plain:.0f}", f"{cpu:.0f}"])
        figures[f"outside.{name}.{'on' if grad_norm else 'off'}"] = cpu
    header = ["server and mean model", "grad_norm", "a round, ms", "one evaluation, ms", "CPU, ms"]
    note = f"Two 3x3 convolutions (16, 32 channels), eight clients of {ROWS} images, chunk_size 1, one device. "
    note += "The default is the first row."
    return [Table("A CNN from outside, by lax.conv", header, rows, [note], figures)]


def conv_init(key: Any) -> Any:
    """Two convolutions and a dense layer."""
    import jax

    a, b, c = jax.random.split(key, 3)
    normal = jax.random.normal
    return {
        "a": 0.3 * normal(a, (3, 3, 1, 16)), "b": 0.1 * normal(b, (3, 3, 16, 32)),
        "c": 0.03 * normal(c, (SIDE * SIDE // 16 * 32, CLASSES)),
    }  # fmt: skip


def conv_loss(params: Any, batch: Any) -> Any:
    """Cross-entropy of each sample."""
    import jax
    import jax.numpy as jnp

    values, labels = batch[0][..., None], batch[1]
    for name in ("a", "b"):
        values = jax.lax.conv_general_dilated(
            values, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        values = jax.lax.reduce_window(jax.nn.relu(values), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    outputs = jax.nn.log_softmax(values.reshape(values.shape[0], -1) @ params["c"])
    return -jnp.take_along_axis(outputs, labels[:, None], axis=1)[:, 0]
