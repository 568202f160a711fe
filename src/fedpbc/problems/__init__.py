"""Problems: data, model, loss and metrics. A new one is one file and one line here."""

from __future__ import annotations

from fedpbc.core.schema import Kind
from fedpbc.core.types import Problem
from fedpbc.problems.classification import classification
from fedpbc.problems.loss import loss
from fedpbc.problems.quadratic import quadratic
from fedpbc.problems.regression import regression
from fedpbc.problems.synthetic import synthetic

PROBLEMS: Kind = Kind(
    "problem",
    {
        "quadratic": quadratic,
        "synthetic": synthetic,
        "classification": classification,
        "regression": regression,
        "loss": loss,
    },
    gives=Problem,
)

__all__ = ["PROBLEMS", "classification", "loss", "quadratic", "regression", "synthetic"]
