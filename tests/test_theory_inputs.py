"""What the functions of ``fedpbc.theory`` are given: read alike everywhere, refused by name where it makes no sense."""

from __future__ import annotations

import inspect
import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from fedpbc import theory
from fedpbc.theory import Constants

VECTORS = [
    theory.fedavg_weights,
    theory.expected_mixing_matrix,
    theory.mixing_gap_bound,
    theory.quadrature_error,
    lambda p: theory.fedavg_limit(p, CENTERS),
    lambda p: theory.fedavg_bias(p, CENTERS),
    lambda p: theory.fedavg_expected_model(p, CENTERS, 0.1, 2, 3),
    lambda p: theory.markov_contraction(p, 0.5, 3, 10),
]
"""Functions of p [m]."""
ROUNDS = [
    theory.mixing_gap,
    theory.mixing_gaps,
    theory.mixing_rate,
    lambda p: theory.cooldown_rounds(p, 0.1),
]
"""Functions of p [m] or [rounds, m]."""
CENTERS = [[1.0, 2.0], [0.0, 1.0], [2.0, -1.0]]
P = [0.25, 0.5, 1.0]


@pytest.mark.parametrize("function", VECTORS + ROUNDS)
def test_lists_series_and_arrays_are_the_same_to_every_function(function):
    expected = function(np.array(P))
    for given in (
        P,
        tuple(P),
        np.array(P, np.float32),
        np.array(P, object),
        [Fraction(1, 4), Fraction(1, 2), 1],
        pd.Series(P, index=[7, 3, 5]),
        pd.Series(P, dtype="Float64"),
    ):
        np.testing.assert_array_equal(function(given), expected)


@pytest.mark.parametrize("function", VECTORS + ROUNDS)
@pytest.mark.parametrize(
    ("p", "message"),
    [
        (np.full((5, 1), 0.5), r"p has shape \(5, 1\), one column: for 5 clients give shape \(5,\), as np.ravel\(p\)"),
        ([[0.5], [0.25], [1.0]], r"p has shape \(3, 1\), one column: for 3 clients give shape \(3,\)"),
        (pd.DataFrame({"p": P}), r"p has shape \(3, 1\), one column"),
        (["0.25", "0.5", "1"], "p must be an array of real numbers, holds <U4"),
        (pd.Series(["0.25", "0.5", "1"]), r'p\[0\] = "0.25": must be a real number'),
        (np.ma.array(P, mask=[0, 1, 0]), "p is a masked array and its mask would be ignored"),
        ([np.ma.array(P, mask=[0, 1, 0])], "p is a masked array"),
        (np.array(P) + 0j, "p must be an array of real numbers, holds complex128"),
        ([0.25, None, 1.0], r"p\[1\] = None: must be a real number"),
        (pd.Series([0.25, pd.NA, 1.0], dtype=object), r"p\[1\] = <NA>: must be a real number"),
        (pd.Series([0.25, None, 1.0], dtype="Float64"), r"p\[1\] = nan: must be a probability in"),
        ([0.25, np.nan, 1.0], r"p\[1\] = nan: must be a probability in \[0, 1\]$"),
        ([0.25, 0.5, np.inf], r"p\[2\] = inf: must be a probability in \[0, 1\]"),
        ([0.25, -0.125, 1.0], r"p\[1\] = -0.125: must be a probability"),
        ([25.0, 50.0, 100.0], r"p\[0\] = 25: .*in percent\? divide by 100\) \(3 entries in all\)"),
        ([[0.5, 0.5], [0.5]], "p must be an array of numbers: its rows differ in length"),
        ({0: 0.5, 1: 0.25}, r"p = \{0: 0.5, 1: 0.25\}: must be a real number"),
        (0.5, r"p must have shape \(m,\).*, has \(\)"),
        ([], r"p must have shape \(m,\).*, has \(0,\)"),
        (np.full((2, 2, 2), 0.5), r"has \(2, 2, 2\)"),
        ([0.0, 0.0, 0.0], "p: every probability is 0: no client is ever active"),
    ],
)
def test_what_is_no_probability_is_refused_by_every_function(function, p, message):
    with pytest.raises(ValueError, match=message):
        function(p)


def test_rounds_are_refused_where_one_round_is_meant_and_the_other_way_round():
    for function in VECTORS:
        with pytest.raises(ValueError, match=r"p must have shape \(m,\), has \(4, 3\); a single round is p\[t\]"):
            function(np.tile(P, (4, 1)))
    for function in ROUNDS[:3]:
        np.testing.assert_array_equal(np.unique(function(np.tile(P, (4, 1)))), function(P))
    with pytest.raises(
        ValueError, match=r"p must have shape \(rounds, m\), has \(3,\); .* np.tile\(p, \(rounds, 1\)\)"
    ):
        theory.mixing_product(P)
    with pytest.raises(ValueError, match="p: every probability is 0 of round 1"):
        theory.mixing_gaps([[0.5, 0.5], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"p\[1, 0\] = nan"):
        theory.mixing_product([[0.5, 0.5], [np.nan, 0.5]])
    with pytest.raises(ValueError, match=r"p has shape \(3, 1\), one column"):
        theory.mixing_product(np.full((3, 1), 0.5))


STEP = {
    "learning_rate": (1e-3, [0, -1e-3, np.nan, np.inf, "0.1", True]),
    "local_steps": (2, [0, -1, 1.5, np.nan, None]),
}
RHO = {"rho": (0.25, [-0.1, 1.0, 1.5, np.nan, "0.5"])}
CLIENTS = {"num_clients": (5, [0, -5, 2.5, np.inf])}
SQUARES = {name: (1.0, [-1.0, np.nan, np.inf]) for name in ("consensus_distance", "gradient_norm2")}
ASSUMPTIONS = {"independent": (True, [False, "yes", 1]), "compute": ("all", ["active", "some", None])}
RUN = STEP | {"rounds": (10, [0, -1, 0.5])} | CLIENTS | RHO | {"initial_gap": (1.0, [-1.0, np.nan])} | ASSUMPTIONS
PROBABILITY = {"p": (np.array(P), [[0.5, 2.0]])}
POINTS = {"centers": (CENTERS, [[[1.0], [2.0]], [[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0]], [1.0, 2.0, 3.0], "abc"])}
CALLS = {
    theory.Constants: {
        "smoothness": (1.0, [-1, 0, np.nan, np.inf]),
        **{name: (0.5, [-1, np.nan, np.inf, "1"]) for name in ("sigma2", "beta", "zeta2")},
    },
    theory.average_gradient_bound: SQUARES,
    theory.consensus_bound: STEP | RHO | {"mean_gradient_norm2": SQUARES["gradient_norm2"]} | ASSUMPTIONS,
    theory.convergence_bound: RUN,
    theory.convergence_bound_printed: {name: value for name, value in RUN.items() if name != "learning_rate"},
    theory.cooldown_rounds: PROBABILITY | {"tolerance": (0.1, [0, 1, -1, 2, np.nan, None])},
    theory.descent_bound: STEP | CLIENTS | SQUARES | ASSUMPTIONS,
    theory.expected_mixing_matrix: PROBABILITY,
    theory.fedavg_bias: PROBABILITY | POINTS,
    theory.fedavg_expected_model: PROBABILITY
    | POINTS
    | {
        "learning_rate": (0.1, [0, 1, -0.1, np.nan]),
        "local_steps": (2, [0, 1.5]),
        "rounds": (3, [-1, 0.5, np.nan]),
    },
    theory.fedavg_limit: PROBABILITY | POINTS,
    theory.fedavg_weights: PROBABILITY,
    theory.kappa: STEP | {"smoothness": (1.0, [0, -1, np.inf])},
    theory.logistic_constants: {
        "features": ([[1.0, 0.0], [0.0, 2.0]], [[1.0, 2.0], [[np.inf, 0.0], [0.0, 1.0]], [["a"]], [[1.0, 0.0]]]),
        "sizes": ([1, 1], [[1, 0], [1, -1], [0.5, 1], [[1, 1]], [1, np.nan], [2, 2], []]),
        "batch_size": (4, [0, -1, 1.5]),
    },
    theory.markov_contraction: PROBABILITY
    | {
        "memory": (0.5, [-0.1, 1.0, np.nan]),
        "window": (3, [0, 1.5]),
        "repetitions": (10, [1, 0, 2.5]),
        "seed": (0, [-1, 0.5]),
        "confidence": (0.9, [0, 1, 1.5, np.nan]),
    },
    theory.mixing_gap: PROBABILITY,
    theory.mixing_gap_bound: PROBABILITY | {"p": (P, [[0.5, 2.0], [0.5]])},
    theory.mixing_gaps: PROBABILITY,
    theory.mixing_matrix: {
        "active": ([True, False], [[1, 0], [[True], [False]], [], ["a"], np.ma.array([True, False], mask=[0, 1])])
    },
    theory.mixing_product: {"p": ([P, P], [[[0.5, 2.0]]])},
    theory.mixing_rate: PROBABILITY,
    theory.mixing_rate_bound: {"p_min": (0.1, [0, -0.1, 1.1, np.nan])} | {"num_clients": (5, [2.5, 0, -1])},
    theory.mixing_rate_bound_square: {"p_min": (0.1, [0, -0.1, 1.1, np.nan, "0.1"])},
    theory.quadratic_constants: {"centers": (CENTERS, [[1.0], [[np.nan]], [["a"]], []])},
    theory.quadrature_error: PROBABILITY,
    theory.step_size_conditions: STEP | RHO | ASSUMPTIONS,
}
"""Every public function with, for each argument, a good value and values that must be refused."""
RESULTS = {"Condition", "Contraction", "ConvergenceBound"}


@pytest.mark.parametrize(("function", "arguments"), CALLS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_what_makes_no_sense_is_refused_with_the_arguments_name(function, arguments):
    good = {name: value for name, (value, _) in arguments.items()}
    parameters = inspect.signature(function).parameters
    if "constants" in parameters:
        good["constants"] = Constants(1.0, 1.0, 0.5, 1.0)
        arguments = arguments | {"constants": (None, [(1.0, 1.0, 0.5, 1.0), None])}
    assert set(good) == set(parameters), "every argument has its line above"
    function(**good)
    for name, (_, bad) in arguments.items():
        for value in bad:
            with pytest.raises(ValueError, match=rf"(^|\b){name}\b"):
                function(**good | {name: value})
    assert all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    with pytest.raises(TypeError, match="unexpected keyword argument 'typo'"):
        function(**good, typo=7)


def test_the_table_above_leaves_nobody_out():
    assert {function.__name__ for function in CALLS} | RESULTS == set(theory.__all__)


def test_messages_name_value_and_what_is_allowed():
    constants = Constants(1, 0, 0, 1)
    for call, message in (
        (lambda: Constants(-1, 0, 0, 1), "smoothness = -1: must be a number in (0, inf)"),
        (lambda: theory.mixing_rate_bound(0.1, 2.5), "num_clients = 2.5: must be a whole number >= 1"),
        (lambda: theory.mixing_rate_bound(np.float64(1.5), 2), "p_min = 1.5: must be a number in (0, 1]"),
        (
            lambda: theory.convergence_bound(1e-3, 2, 10, 5, 0.5, constants, -1),
            "initial_gap = -1: must be a number in [0, inf)",
        ),
        (
            lambda: theory.convergence_bound(1e-3, 2, 10, 5, 0.5, constants, 1, independent=False),
            "independent = false: this bound rests on links that are independent over rounds (Lemma 2)",
        ),
        (
            lambda: theory.convergence_bound(1e-3, 2, 10, 5, 0.5, constants, 1, compute="active"),
            'compute = "active": must be "all", this bound rests on everybody computing',
        ),
        (
            lambda: theory.descent_bound(0.5, 2, 5, constants, 1, 1),
            "learning_rate = 0.5: Lemma 4 needs at most 0.25 (half step)",
        ),
        (
            lambda: theory.logistic_constants(np.eye(2), [1, 2], 4),
            "sizes add up to 3: features has only 2 rows",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            call()


def test_whole_numbers_of_other_types_are_taken():
    constants = Constants(np.float32(1.0), 0, 0, np.int64(1))
    expected = theory.convergence_bound(1e-3, 2, 10, 5, 0.5, constants, 1.0)
    assert theory.convergence_bound(np.float64(1e-3), np.int32(2), 10.0, 5, 0.5, constants, np.array(1)) == expected
    assert constants == Constants(1.0, 0.0, 0.0, 1.0)
