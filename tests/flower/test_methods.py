"""What every method is to the package: its options, its rule, its place; and the skeleton that one begins with."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rivals
from apps import CASES, OPTIONS, centers, expected, grid_of, play, quadratic_app, trace
from stepwise import random_trace

import fedpbc.flower
from fedpbc.errors import ConfigError
from fedpbc.flower import STRATEGIES, UnreliableClients
from fedpbc.flower.methods.common.tables import Tables

M, ROUNDS = 5, 24
U, UP, DOWN = centers(M), trace(ROUNDS, M), random_trace(7, ROUNDS, M, 0.7)
ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(fedpbc.flower.__file__).parent
SKELETON = ROOT / "docs" / "skeletons" / "flower_method.py"


def test_every_strategy_has_a_name_a_case_and_a_row_in_the_documentation():
    made = {type(case.make(M)) for case in CASES.values()}
    rows = re.findall(r"^\| `(\w+)", (ROOT / "docs" / "deployment.md").read_text(), re.MULTILINE)
    for name, kind in STRATEGIES.items():
        assert kind.method == name
        assert kind in made, f"no case in apps.py plays {name}"
        assert kind.__name__ in rows, f"docs/deployment.md says nothing of {kind.__name__}"
        assert getattr(fedpbc.flower, kind.__name__) is kind
    assert set(STRATEGIES) >= {"fedpbc", "fedavg", "fedau", "mifa", "fedvarp", "scaffold", "fedpbc_corrected"}


def test_every_method_is_one_file_of_its_name():
    assert {path.stem for path in (SOURCE / "methods").glob("*.py")} == {"__init__", *STRATEGIES}


@pytest.mark.parametrize("kind", [*STRATEGIES.values(), UnreliableClients])
def test_options_are_real_parameters_and_documented(kind):
    parameters = inspect.signature(kind).parameters
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters.keys() == {field.name for field in fields(kind) if field.init}
    documented = re.findall(r"^([a-z_]+(?:, [a-z_]+)*): ", inspect.getdoc(kind), re.MULTILINE)
    documented = {name for names in documented for name in names.split(", ")}
    assert parameters.keys() <= documented, parameters.keys() - documented
    assert all(name in parameters or name == "Raises" for name in documented), documented - parameters.keys()


@pytest.mark.parametrize("kind", STRATEGIES.values())
def test_an_unknown_option_is_refused(kind):
    with pytest.raises(TypeError, match="unexpected keyword argument 'server_momentum'"):
        kind(round_deadline=1, num_clients=3, server_momentum=0.9)


@pytest.mark.parametrize("case", CASES)
def test_a_step_that_does_not_count_leaves_no_trace(case, monkeypatch):
    """Every step is made three times, and committed once."""
    strategy = CASES[case].make(M)
    inner = type(strategy.rule).step

    def thrice(self: Any, round: Any, replies: list[Any]) -> Any:
        inner(self, round, replies[:1])
        inner(self, round, replies)
        return inner(self, round, replies)

    monkeypatch.setattr(type(strategy.rule), "step", thrice)
    models = play(strategy, grid_of(quadratic_app(U), UP, DOWN), ROUNDS)
    np.testing.assert_allclose(models, expected(CASES[case].method, U, UP & DOWN), atol=1e-9, rtol=0)


def skeleton() -> type[UnreliableClients]:
    spec = importlib.util.spec_from_file_location("flower_method", SKELETON)
    module = sys.modules["flower_method"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FedAvgM


@pytest.mark.parametrize("cut", [(), (9,), (5, 13)])
def test_the_skeleton_is_a_method(cut, tmp_path):
    """From a file outside the package: the oracle's models, also when the server is started again."""
    options, models = OPTIONS | {"min_available_nodes": M, "directory": tmp_path, "beta": 0.6}, []
    grid = grid_of(quadratic_app(U), UP, DOWN)
    for rounds in (*cut, ROUNDS):
        models = [*models, *play(skeleton()(**options), grid, rounds)]
    reference = expected(rivals.FedAvg(rivals.Momentum(0.6)), U, UP & DOWN)
    np.testing.assert_allclose(models, reference, atol=1e-9, rtol=0)
    assert np.abs(reference - expected(rivals.FedAvg(), U, UP & DOWN)).max() > 0.1


def test_the_skeleton_says_what_is_allowed(tmp_path):
    make = skeleton()
    with pytest.raises(ConfigError, match=r"beta = 2: must be a number in \[0, 1\]"):
        make(round_deadline=1, beta=2)
    grid = grid_of(quadratic_app(U), UP, DOWN)
    play(make(**OPTIONS, directory=tmp_path), grid, 2)
    with pytest.raises(ConfigError, match=r"belongs to another federation: beta was 0\.9, is 0\.5"):
        play(make(**OPTIONS, directory=tmp_path, beta=0.5), grid, 3)


def test_tables_have_names_that_the_checkpoint_knows():
    with pytest.raises(ValueError, match="kind = 'velocity': must be one of row, mean, control"):
        Tables(None, {"velocity": 1})


MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
ROOMS = {
    "wire": {"wire"},
    "client": {"client", "wire"},
    "rehearsal": {"rehearsal", "client", "wire"},
    "server": {"server", "wire"},
    "strategy": {"server", "wire"},
    "methods": {"methods", "strategy", "server", "wire"},
    "__init__": {"methods", "strategy", "client", "rehearsal", "server", "wire"},
}
"""Which rooms a room of fedpbc.flower imports from."""


def imports_of(module: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedpbc.flower"):
            name = node.module.removeprefix("fedpbc.flower").removeprefix(".") or "__init__"
            found.add(name if name in MODULES else f"{name}.__init__")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_rooms_import_one_way(module):
    room = module.split(".")[0]
    others = {other.split(".")[0] for other in imports_of(module)}
    assert others <= ROOMS[room], f"{module} must not import from {others - ROOMS[room]}"


def test_no_import_is_circular():
    left = {module: imports_of(module) for module in MODULES}
    while left:
        free = {module for module, others in left.items() if not others & left.keys()}
        assert free, f"circular: {left}"
        left = {module: others for module, others in left.items() if module not in free}


def test_files_are_short():
    for path in MODULES.values():
        assert len(path.read_text().splitlines()) <= 400, path
