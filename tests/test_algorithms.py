"""The rules of the methods: their examples run, with NumPy alone, and every method has one."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

from fedpbc.algorithms import ALGORITHMS
from fedpbc.algorithms.common.server import SERVERS
from fedpbc.algorithms.common.weighting import weighted
from fedpbc.algorithms.fedavg import WEIGHTING
from fedpbc.core.schema import Context
from fedpbc.core.types import Link, Round

CONTEXT = Context(0, np.dtype(np.float64), 10)


@pytest.mark.parametrize("name", ALGORITHMS.registry)
def test_examples_of_the_rules(name):
    result = doctest.testmod(importlib.import_module(f"fedpbc.algorithms.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", ALGORITHMS.registry)
def test_every_method_names_its_source(name):
    summary = ALGORITHMS.registry[name].__doc__.split("\n\n")[0]
    assert any(source in summary for source in ("arXiv", "et al.", "Algorithm 1", "ours"))


@pytest.mark.parametrize("name", ALGORITHMS.registry)
def test_a_round_runs_on_numpy_arrays(name):
    """What a server on real machines would call."""
    algorithm = ALGORITHMS.registry[name].function(CONTEXT)
    m, d = 4, 3
    state = algorithm.init(algorithm.params, np.zeros(d), m)
    link = Link(np.array([True, False, True, True]), np.full(m, 0.5))
    updates = np.random.default_rng(0).standard_normal((m, d))

    def train(models, shift=None, proximal=None):
        return models + updates

    round_ = Round(np.int32(0), link, np.float64(0.1), np.int32(2), np.ones(m, bool), train)
    after = algorithm.models(algorithm.round(algorithm.params, state, round_))
    assert isinstance(after.server, np.ndarray)
    assert after.server.dtype == np.float64
    assert np.all(np.isfinite(after.server))
    if name in ("fedavg", "fedpbc", "fedvarp", "fedawe"):
        np.testing.assert_allclose(after.server, updates[link.active].mean(axis=0))


@pytest.mark.parametrize("name", SERVERS.registry)
def test_a_server_optimiser_rests_when_nothing_arrives(name):
    algorithm = weighted(WEIGHTING, SERVERS.registry[name].function(CONTEXT))
    state = algorithm.init(algorithm.params, np.zeros(2), 3)

    def after(state, active, steps):
        link = Link(np.array(active), np.ones(3))
        computes = np.full(3, steps > 0)
        round_ = Round(
            np.int32(0), link, 0.1, np.int32(steps), computes, lambda x, shift=None, proximal=None: x + (steps > 0)
        )
        return algorithm.round(algorithm.params, state, round_)

    moved = after(state, [True, False, True], 1)
    assert np.all(moved.server > 0)
    for quiet in (after(moved, [False] * 3, 1), after(moved, [True] * 3, 0)):
        np.testing.assert_array_equal(quiet.server, moved.server)
        for new, old in zip(quiet.optimizer, moved.optimizer, strict=True):
            np.testing.assert_array_equal(new, old)
