"""Every registered component passes the conformance kit; and every option that takes another path through its code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from components import LINK_SETTINGS, PROBLEM_SETTINGS, TRACE, VARIANTS, label, own, write_inputs

from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.common.server import SERVERS
from fedpbc.core.schema import bind_component
from fedpbc.links import LINKS
from fedpbc.problems import PROBLEMS
from fedpbc.testing import check_algorithm, check_links, check_problem
from fedpbc.testing.common import experiment_of, run_small

LIKE_FEDAVG = {"fedavg_all", "fedavg_known", "debiased_fedavg", "area", "fedau", "f3ast"}
LIKE_FEDAVG |= {"mifa", "fedvarp", "fedstale", "fedawe", "fedpbc"}
LIKE_SCAFFOLD = {"scaffold", "fedfade", "fedpbc_corrected"}


def test_every_registered_component_is_tested_here():
    assert set(LINK_SETTINGS) == own(LINKS)
    assert set(PROBLEM_SETTINGS) == own(PROBLEMS)
    assert {variant["name"] for variant in VARIANTS} == own(ALGORITHMS)
    servers = {variant["server"]["name"] for variant in VARIANTS if "server" in variant}
    assert servers == own(SERVERS)


def like(variant: dict[str, Any]) -> str | None:
    """What a method is when everybody is active: by the papers, FedAvg or SCAFFOLD, or neither."""
    if {"slots", "server", "norm_limit"} & variant.keys() or type(variant.get("fading")) is float:
        return None
    if variant["name"] in LIKE_SCAFFOLD:
        return "scaffold" if variant.get("apply") != "around" else None
    return "fedavg" if variant["name"] in LIKE_FEDAVG else None


def first_of_its_name(variant: dict[str, Any]) -> bool:
    return variant is next(other for other in VARIANTS if other["name"] == variant["name"])


QUICK = {"fedpbc", "scaffold", "markov", "quadratic"}
"""What continuous integration checks, one of each kind; all else, of which it has oracles, before a release."""


def quick(name: str, first: bool = True) -> Any:
    """The mark of a case."""
    return () if name in QUICK and first else pytest.mark.release


def names(found: Any) -> list[Any]:
    """All names of a registry, with their marks."""
    return [pytest.param(name, marks=quick(name)) for name in found]


METHODS = [pytest.param(v, marks=quick(v["name"], first_of_its_name(v))) for v in VARIANTS]


@pytest.mark.parametrize("variant", METHODS, ids=lambda variant: label(variant))
def test_an_algorithm_conforms(tmp_path, variant):
    component = bind_component(ALGORITHMS, variant, "algorithm", tmp_path)
    other = like(variant)
    check_algorithm(
        component,
        full_participation=ALGORITHMS.registry[other] if other else None,
        oracle=variant["name"] == "fedavg_known",
        numbered="slots" in variant,  # F3AST settles ties
    )


@pytest.mark.parametrize("name", names(LINKS.registry))
def test_links_conform(tmp_path, name):
    write_inputs(tmp_path)
    component = bind_component(LINKS, LINK_SETTINGS[name], "links", tmp_path)
    m, rounds = TRACE.shape[1], TRACE.shape[0]
    check_links(component, num_clients=m, num_rounds=rounds, random=name not in ("trace", "fedscale"))


@pytest.mark.parametrize("name", names(PROBLEMS.registry))
def test_a_problem_conforms(tmp_path, name):
    write_inputs(tmp_path)
    check_problem(bind_component(PROBLEMS, PROBLEM_SETTINGS[name], "problem", tmp_path))


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "amplified_fedavg"])
def test_what_changes_local_training_or_the_server_is_not_fedavg(name):
    """The comparison with FedAvg can fail."""
    from fedpbc.testing import ConformanceError

    options = {"fedprox": {"mu": 2.0}, "amplified_fedavg": {"window": 2}}.get(name, {})
    with pytest.raises(ConformanceError, match="with everybody active it is not fedavg"):
        check_algorithm(ALGORITHMS.registry[name](**options), full_participation=ALGORITHMS.registry["fedavg"])


def test_a_recorded_round_is_the_round_of_the_run(tmp_path):
    """What is counted of a trace, by hand."""
    write_inputs(tmp_path)
    links = bind_component(LINKS, LINK_SETTINGS["trace"], "links", tmp_path)
    problem = PROBLEMS.registry["quadratic"](num_clients=TRACE.shape[1], dim=3)
    experiment = experiment_of(problem, links, ALGORITHMS.registry["fedpbc"], rounds=len(TRACE))
    for cell in run_small(experiment).cells.values():
        assert cell.rows["num_active"].tolist() == [0, *TRACE.sum(axis=1)]
        assert cell.rows["empty_rounds"][-1] == np.sum(TRACE.sum(axis=1) == 0) > 0
        assert json.dumps(cell.info["cost"])


@pytest.mark.release
def test_bits_do_not_depend_on_devices_where_models_are_evaluated_side_by_side():
    """The order in which a block's losses are added up is the program's, not the compiler's."""
    from pages import DOCS

    from fedpbc.core.outside import import_file

    module = import_file(DOCS / "skeletons" / "problem.py", "skeleton")
    make = module.objective_problem
    module.objective_problem = lambda *given, **options: make(*given, **{**options, "one_by_one": False})
    try:
        check_problem(module.example())
    finally:
        module.objective_problem = make
