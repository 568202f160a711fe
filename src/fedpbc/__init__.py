"""fedpbc: federated learning over links that fail non-uniformly, change over time, and are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedpbc.errors import ConfigError, FedpbcError
    from fedpbc.experiment import Experiment, load_experiment
    from fedpbc.results import RunDirectory, read_run
    from fedpbc.runner import RunResult, run

_HOME = {
    "ConfigError": "errors",
    "FedpbcError": "errors",
    "Experiment": "experiment",
    "load_experiment": "experiment",
    "RunDirectory": "results",
    "read_run": "results",
    "RunResult": "runner",
    "run": "runner",
}
__all__ = [
    "ConfigError",
    "Experiment",
    "FedpbcError",
    "RunDirectory",
    "RunResult",
    "__version__",
    "load_experiment",
    "read_run",
    "run",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import on first use: an edge device that only needs part of the package never imports JAX."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedpbc' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"fedpbc.{_HOME[name]}"), name)
