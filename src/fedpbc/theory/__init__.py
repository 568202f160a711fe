"""What the paper proves, as exact numbers. NumPy only, float64: nothing here imports JAX. See docs/theory.md."""

from __future__ import annotations

from fedpbc.theory.bias import fedavg_bias, fedavg_expected_model, fedavg_limit, fedavg_weights
from fedpbc.theory.bounds import (
    Condition,
    Constants,
    ConvergenceBound,
    average_gradient_bound,
    consensus_bound,
    convergence_bound,
    convergence_bound_printed,
    descent_bound,
    kappa,
    step_size_conditions,
)
from fedpbc.theory.constants import logistic_constants, quadratic_constants
from fedpbc.theory.memory import Contraction, markov_contraction
from fedpbc.theory.mixing import (
    cooldown_rounds,
    expected_mixing_matrix,
    mixing_gap,
    mixing_gap_bound,
    mixing_gaps,
    mixing_matrix,
    mixing_product,
    mixing_rate,
    mixing_rate_bound,
    mixing_rate_bound_square,
)
from fedpbc.theory.probabilities import quadrature_error

__all__ = [
    "Condition",
    "Constants",
    "Contraction",
    "ConvergenceBound",
    "average_gradient_bound",
    "consensus_bound",
    "convergence_bound",
    "convergence_bound_printed",
    "cooldown_rounds",
    "descent_bound",
    "expected_mixing_matrix",
    "fedavg_bias",
    "fedavg_expected_model",
    "fedavg_limit",
    "fedavg_weights",
    "kappa",
    "logistic_constants",
    "markov_contraction",
    "mixing_gap",
    "mixing_gap_bound",
    "mixing_gaps",
    "mixing_matrix",
    "mixing_product",
    "mixing_rate",
    "mixing_rate_bound",
    "mixing_rate_bound_square",
    "quadratic_constants",
    "quadrature_error",
    "step_size_conditions",
]
