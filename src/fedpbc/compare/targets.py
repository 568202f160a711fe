"""What it takes until the server's model reaches a target: rounds, local steps, bytes, simulated seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedpbc.core.types import Measure
from fedpbc.errors import ConfigError, shorten, unknown_name
from fedpbc.runs.run import CellResult, Group, Run


class Target(NamedTuple):
    """A value of one of the server's metrics."""

    metric: str
    value: float

    @classmethod
    def parse(cls, text: str, runs: list[Run]) -> Target:
        """``test_accuracy=0.8``. Raises ConfigError."""
        name, equals, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not equals or not np.isfinite(value):
            raise ConfigError(f"--target {shorten(text)}: must be METRIC=NUMBER, like test_accuracy=0.8")
        known = [m for m in runs[0].measures if all(f"server_{m}" in run.columns for run in runs)]
        if name.strip() not in known:
            raise unknown_name("metric", name.strip(), known)
        return cls(name.strip(), value)


@dataclass(frozen=True)
class Clock:
    """How long a round takes: ``deadline`` seconds; or local_steps x ``step_seconds`` + upload / ``upload_rate``.

    All clients compute and send at the same rates, side by side; the server waits for them, and sends in no time. The
    rounds of the cool-down have no local steps.
    """

    deadline: float | None = None
    """Seconds."""
    step_seconds: float = 0.0
    upload_rate: float | None = None
    """bit/s; None: sending takes no time."""

    def seconds(self, run: Run, group: Group, cell: CellResult, round_: int) -> float:
        """After so many rounds of a cell."""
        if self.deadline is not None:
            return self.deadline * round_
        training = min(round_, run.table["rounds"] - run.table["cooldown_rounds"])
        sending = 8 * upload_bytes(run, cell) / self.upload_rate if self.upload_rate else 0.0
        return training * local_steps(run.table, group) * self.step_seconds + round_ * sending


def upload_bytes(run: Run, cell: CellResult) -> int:
    """What one client sends in a round."""
    cost = cell.info["cost"]
    return int(
        np.dtype(run.table["precision"]).itemsize * (cost["up"] * len(cell.models["server"]) + cost["scalars"][0])
    )


def local_steps(table: Mapping[str, Any], group: Group) -> int:
    """Of one method, under one link setting."""
    entry = next(entry for entry in table["algorithms"] if entry["label"] == group.algorithm)
    choices = table.get("tuned", {}).get("choices", ())
    chosen = [c for c in choices if c["algorithm"] == group.algorithm and c.get("links") in (None, group.links)]
    return int({**table, **entry, **(chosen[0] if chosen else {})}["local_steps"])


class Reached(NamedTuple):
    """Until a target, of each seed; infinite where it was not reached."""

    rounds: np.ndarray
    gradient_steps: np.ndarray
    bytes_up: np.ndarray
    seconds: np.ndarray


def reached(run: Run, group: Group, target: Target, clock: Clock | None = None) -> Reached:
    """The first evaluated round whose server model is at least as good as the target, and what was spent by then."""
    found: list[tuple[float, ...]] = []
    for key in run.select(**group._asdict()):
        cell = run.cells[key]
        place = first_reached(cell.rows[f"server_{target.metric}"], target.value, run.measures[target.metric])
        if place is None:
            found.append((np.inf,) * 4)
            continue
        round_ = int(cell.rows["round"][place])
        spent = [float(cell.rows[name][place]) for name in ("gradient_steps", "bytes_up")]
        found.append((round_, *spent, clock.seconds(run, group, cell, round_) if clock else np.nan))
    return Reached(*np.array(found, np.float64).T)


def first_reached(values: np.ndarray, target: float, measure: Measure) -> int | None:
    """Position of the first value that is as good as the target, or None.

    >>> first_reached(np.array([0.1, 0.7, 0.6, 0.9]), 0.65, Measure("accuracy", better="higher"))
    1
    """
    good = values >= target if measure.better == "higher" else values <= target
    places = np.flatnonzero(good)
    return int(places[0]) if len(places) else None


@dataclass(frozen=True)
class Comparison:
    """What ``fedpbc report --compare`` adds to a table."""

    targets: tuple[Target, ...] = ()
    clock: Clock | None = None
