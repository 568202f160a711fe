"""What every test may use: a small experiment table, and eight host devices for the sharding tests."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, settings

from fedpbc import cli

# The first example of a test compiles, and a busy machine is no fault.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# XLA complains of devices that wait for each other for long, and aborts after 40 seconds; eight share the cores here.
STUCK = " ".join(f"--xla_cpu_collective_call_{what}_timeout_seconds=3600" for what in ("warn_stuck", "terminate"))
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {STUCK}"
jax.config.update("jax_num_cpu_devices", 8)
# Nearly all of a test's time is compiling: workers, and the next run, share what was compiled. Commands that tests
# start find it through the environment. Entries are keyed by the program itself, so that none can be stale.
HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(HOME / "fedpbc" / "tests"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
for name, value in CACHE.items():
    value = os.environ.setdefault(name, value)
    jax.config.update(name.lower(), value if name.endswith("DIR") else int(value))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``first(n)``, ``every(k)``: these cases in continuous integration, all others of the test before a release."""
    seen: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        first, every = item.get_closest_marker("first"), item.get_closest_marker("every")
        if (first and seen[function] >= first.args[0]) or (every and seen[function] % every.args[0]):
            item.add_marker(pytest.mark.release)
        seen[function] += 1


@pytest.fixture
def table() -> dict[str, Any]:
    """A small experiment that runs in a moment."""
    return {
        "name": "small",
        "rounds": 12,
        "local_steps": 3,
        "learning_rate": 0.1,
        "seeds": [0, 1],
        "precision": "float64",
        "problem": {"name": "quadratic", "num_clients": 6, "dim": 4},
        "links": [{"label": "half", "name": "bernoulli", "prob": 0.5}],
        "algorithms": [{"name": "fedavg"}, {"name": "fedpbc"}],
    }


@pytest.fixture
def write_toml(tmp_path: Path) -> Any:
    import tomli_w

    def write(table: dict[str, Any], name: str = "experiment.toml") -> Path:
        path = tmp_path / name
        path.write_text(tomli_w.dumps(table))
        return path

    return write


@pytest.fixture
def fedpbc(monkeypatch, capsys, tmp_path) -> Any:
    """Call the command line in this process: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedpbc.simulation.use_every_core", lambda devices: None)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedpbc", *arguments])
        status = 0
        try:
            cli.main()
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else 1
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
