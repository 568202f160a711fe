"""What a run was made with: versions, machine, memory, code from outside."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpbc import __version__
from fedpbc.experiment.grid import Experiment


def made_with(device: Any, experiment: Experiment) -> dict[str, Any]:
    """The part of the manifest that does not depend on how the cells were run."""
    sources = {key: file for key, file in experiment.files().items() if hasattr(file, "qualname")}
    return {
        "fedpbc": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": f"{device.platform}: {device.device_kind}",
        "peak_memory_mb": _peak_memory_mb(device),
        "outside_code": {key: f"{s.module}:{s.qualname} #{s.digest()}" for key, s in sources.items()},
    }


def _commit() -> str | None:
    """The commit of the source tree this runs from, or None when it is installed elsewhere."""
    here = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in here.parents[:4]):
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _peak_memory_mb(device: Any) -> dict[str, float]:
    """Of this process on the host, and of the accelerator where it says so."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"host": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)}
    statistics = device.memory_stats() if device.platform != "cpu" else None
    if statistics:
        peak["device"] = round(statistics["peak_bytes_in_use"] / 1e6, 1)
    return peak
