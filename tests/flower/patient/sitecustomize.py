"""On the path of a deployment's processes: Flower waits longer for a process that it has started.

It gives an app 30 s from its start to its first word, and then starts another beside it, which makes a busy machine
busier still: none ever gets there. How fast the machine is must decide nothing.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PATIENCE = 60
"""Seconds; twice as many from a heartbeat to the next."""
MODULES = [f"flwr.supercore.corestate.{name}" for name in ("in_memory_corestate", "sql_corestate")]


class Patient(Loader):
    """Loads a module as its own loader does, and changes one number in it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        assert module.HEARTBEAT_DEFAULT_INTERVAL == 30
        module.HEARTBEAT_DEFAULT_INTERVAL = PATIENCE


class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in MODULES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = Patient(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
