"""What it is measured with: processor, load, versions, and how fast it multiplies and copies right now."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tables import Options, Table

SIZE, COPIED = 1024, 2**28


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu() -> str:
    """Its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def vectors() -> str:
    """The widest vectors the processor says it has."""
    try:
        flags = next(
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")
        ).split()
    except (OSError, StopIteration):
        return "unknown"
    return next((name for name in ("avx512f", "avx2", "avx", "sse2") if name in flags), "none")


def gemm_gflops(times: int = 5) -> float:
    """The best of float32 products of 1024 x 1024 matrices, by XLA on all cores, in Gflop/s."""
    import jax
    import jax.numpy as jnp

    a = jnp.ones((SIZE, SIZE), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(a))
    return 2 * SIZE**3 / _best(lambda: jax.block_until_ready(product(a)), times) / 1e9


def copy_gigabytes(times: int = 5) -> float:
    """The best of copies of an array beyond every cache, by one thread, GB/s read and written together."""
    import numpy as np

    source, target = np.ones(COPIED // 4, np.float32), np.empty(COPIED // 4, np.float32)
    np.copyto(target, source)
    return 2 * COPIED / _best(lambda: np.copyto(target, source), times) / 1e9


def _best(function: object, times: int) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        function()  # type: ignore[operator]
        best = min(best, time.perf_counter() - began)
    return best


def environment(options: Options) -> list[Table]:
    """Who, with what, beside which other work."""
    import fedpbc

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    load = os.getloadavg()
    rows = [
        ["fedpbc", fedpbc.__version__],
        ["Python", platform.python_version()],
        *([name, version_of(name)] for name in ("jax", "numpy", "torch")),
        ["CPU", f"{cpu()}, {cores()} cores, {vectors()}"],
        ["JAX devices", str(options.devices)],
        ["product of 1024 x 1024 float32 matrices, all cores (best)", f"{gemm_gflops():.0f} Gflop/s"],
        ["copy beyond the caches, one thread (best)", f"{copy_gigabytes():.1f} GB/s"],
        ["load average at the start, 1 and 15 minutes", f"{load[0]:.1f}, {load[2]:.1f}"],
        ["niceness", str(os.nice(0))],
    ]
    return [Table("Measured with", ["", ""], rows)]
