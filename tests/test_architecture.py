"""Import direction, documented names, and what must not import JAX."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedpbc

SOURCE = Path(fedpbc.__file__).parent
MODULES = sorted(name for _, name, _ in pkgutil.walk_packages([str(SOURCE)], "fedpbc."))
LAYERS = [
    {"errors", "core.types", "core.lazy"},
    {"core.descent"},
    {"core.aggregation", "core.measures", "core.options", "core.outside", "core.flat", "core.memory", "theory"},
    {"io"},
    {"core.schema", "core.local", "core.buffers"},
    {"core.registry", "core.schedules"},
    {"data", "models", "algorithms", "links"},
    {"problems", "core.contract", "core.engine"},
    {"core.programs", "experiment", "flower"},
    {"runs"},
    {"compare", "testing"},
    {"plots"},
    {"audit", "simulation"},
    {"tuning", "operation"},
    {"cli"},
    {"__main__"},
]
"""A module imports from its own part, or from parts in layers above its own in this list."""
ON_FIRST_USE = {
    ("core.schema", "core.registry"),  # names of installed packages are looked up when a name is unknown
    ("core.registry", "models"),
    ("core.options", "core.schema"),  # an annotation
    ("runs", "plots"),  # a run that is never drawn needs no matplotlib
}
"""Imports inside a function, against the order."""


def part_of(module: str) -> str:
    """``fedpbc.core.types`` -> ``core.types``; other packages are one part each."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] == "core" else parts[0]


def imports_of(module: str) -> set[str]:
    path = SOURCE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedpbc."):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {part_of(name if name in MODULES else node.module) for name in names}
    return found


def layer(part: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "fedpbc.core"])
def test_imports_go_one_way(module):
    part = part_of(module)
    for other in imports_of(module) - {part}:
        assert layer(other) < layer(part) or (part, other) in ON_FIRST_USE, f"{module} must not import fedpbc.{other}"


def test_every_part_has_a_layer():
    assert {part_of(module) for module in MODULES if module != "fedpbc.core"} == set.union(*LAYERS)


@pytest.mark.parametrize(
    "modules",
    ["fedpbc", "fedpbc.theory", "fedpbc.flower", "fedpbc.core.aggregation, fedpbc.algorithms, fedpbc.core.types"],
)
def test_an_edge_device_needs_no_jax(modules):
    heavy = "('jax', 'matplotlib', 'scipy', 'torch', 'ray', 'pandas')"
    code = f"import {modules}, sys; assert not [m for m in sys.modules if m.split('.')[0] in {heavy}]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_documented(module):
    loaded = importlib.import_module(module)
    assert loaded.__doc__, module
    for name, value in vars(loaded).items():
        own = getattr(value, "__module__", None) == module
        if own and not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
            assert value.__doc__, f"{module}.{name}"


def test_every_promised_name_is_there():
    for name in fedpbc.__all__:
        assert getattr(fedpbc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fedpbc.nonsense


def test_files_can_be_read_in_one_sitting():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


def test_nothing_is_pickled():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text, path
        assert "allow_pickle=True" not in text, path
