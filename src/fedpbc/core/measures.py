"""What the columns of a run are: those every run has, and how a column finds its measure."""

from __future__ import annotations

from collections.abc import Mapping

from fedpbc.core.types import Measure

OF_EVERY_RUN = {
    "consensus_distance": Measure("consensus distance", scale="log"),
    "num_active": Measure("active clients", better="neither"),
    "empty_rounds": Measure("empty rounds", better="neither"),
    "gradient_steps": Measure("gradient steps", better="neither"),
    "bytes_up": Measure("bytes up", "B", better="neither"),
    "bytes_down": Measure("bytes down", "B", better="neither"),
}
"""(1/m) sum_i ||x_i - xbar||^2, and counts."""

BEFORE_THE_CONTRACT = {
    "grad_norm": Measure("gradient norm of F", scale="log", shown=True),
    "distance": Measure("distance to the minimiser", scale="log"),
    "train_loss": Measure("train loss", shown=True),
    "test_accuracy": Measure("test accuracy", better="higher", shown=True),
    "test_accuracy_by_client": Measure("test accuracy, mean over clients", better="higher"),
}
"""Of run directories that do not say what their metrics are: all that could be measured then."""


WORST, ACTIVE = "worst_", "active_"
"""How the names of metrics by client begin."""


def by_client(name: str, measures: Mapping[str, Measure]) -> Measure:
    """The measure of ``worst_NAME`` or ``active_NAME``."""
    base = measure_of(name.removeprefix(WORST).removeprefix(ACTIVE), measures)
    which = ", worst tenth of clients" if name.startswith(WORST) else ", active clients alone"
    return Measure(base.title + which, base.unit, base.scale, base.better)


def base_of(column: str) -> str:
    """The metric of a column, whichever model it is of: ``server_train_loss`` -> ``train_loss``."""
    return column.removeprefix("server_") if column.startswith("server_") else column.removeprefix("mean_")


def measure_of(column: str, measures: Mapping[str, Measure]) -> Measure:
    """The measure of a column; one nobody describes goes by its name."""
    name = base_of(column)
    return measures.get(name) or OF_EVERY_RUN.get(column) or Measure(name.replace("_", " "))
