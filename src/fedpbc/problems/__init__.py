"""Problems: data, model, loss and metrics. A new one is one file and one line here."""

from __future__ import annotations

from fedpbc.problems.quadratic import quadratic
from fedpbc.problems.synthetic import synthetic
from fedpbc.schema import Kind

PROBLEMS = Kind("problem", {"quadratic": quadratic, "synthetic": synthetic})
