"""fedpbc: federated learning over links that fail non-uniformly, change over time, and are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedpbc import algorithms, audit, data, flower, links, models, problems, testing, theory
    from fedpbc.algorithms.common import server as servers
    from fedpbc.core import schedules
    from fedpbc.core.registry import register
    from fedpbc.core.schema import Component, Context, Factory, component
    from fedpbc.core.types import Algorithm, LinkProcess, Measure, Problem
    from fedpbc.errors import ConfigError, FedpbcError
    from fedpbc.experiment.grid import Experiment
    from fedpbc.experiment.load import load_experiment
    from fedpbc.links.common import probability as probabilities
    from fedpbc.links.common import variation as variations
    from fedpbc.runs.callbacks import Callback, EarlyStop
    from fedpbc.runs.directory import read_run
    from fedpbc.runs.exported import load_model
    from fedpbc.runs.merge import merge
    from fedpbc.runs.run import Run
    from fedpbc.simulation import run, simulate
    from fedpbc.tuning.record import Tuning
    from fedpbc.tuning.tune import tune

_HOME = {
    "Algorithm": "core.types",
    "Callback": "runs.callbacks",
    "Component": "core.schema",
    "ConfigError": "errors",
    "Context": "core.schema",
    "EarlyStop": "runs.callbacks",
    "Experiment": "experiment.grid",
    "Factory": "core.schema",
    "FedpbcError": "errors",
    "LinkProcess": "core.types",
    "Measure": "core.types",
    "Problem": "core.types",
    "Run": "runs.run",
    "Tuning": "tuning.record",
    "component": "core.schema",
    "load_experiment": "experiment.load",
    "load_model": "runs.exported",
    "merge": "runs.merge",
    "read_run": "runs.directory",
    "register": "core.registry",
    "run": "simulation",
    "simulate": "simulation",
    "tune": "tuning.tune",
}
_MODULES = {
    **{
        name: name
        for name in ("algorithms", "audit", "data", "flower", "links", "models", "problems", "testing", "theory")
    },
    "probabilities": "links.common.probability",
    "schedules": "core.schedules",
    "servers": "algorithms.common.server",
    "variations": "links.common.variation",
}
__all__ = [
    "Algorithm",
    "Callback",
    "Component",
    "ConfigError",
    "Context",
    "EarlyStop",
    "Experiment",
    "Factory",
    "FedpbcError",
    "LinkProcess",
    "Measure",
    "Problem",
    "Run",
    "Tuning",
    "__version__",
    "algorithms",
    "audit",
    "component",
    "data",
    "flower",
    "links",
    "load_experiment",
    "load_model",
    "merge",
    "models",
    "probabilities",
    "problems",
    "read_run",
    "register",
    "run",
    "schedules",
    "servers",
    "simulate",
    "testing",
    "theory",
    "tune",
    "variations",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import on first use: an edge device that only needs part of the package never imports JAX."""
    import importlib

    if name not in _MODULES and name not in _HOME:
        raise AttributeError(f"module 'fedpbc' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"fedpbc.{_MODULES.get(name) or _HOME[name]}")
    except ModuleNotFoundError as error:
        from fedpbc.errors import EXTRAS, MissingPackage

        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingPackage(f"fedpbc.{name}", package) from None
    return module if name in _MODULES else getattr(module, name)
