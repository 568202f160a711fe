"""What an audit finds, typed: attributes for Python, which are the keys of audit.json (docs/audit.md describes them).

Arrays have an entry per client, in the order of ``Findings.clients``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What a JSON file holds."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class About:
    """What was read."""

    source: str
    """The file's name."""
    format: str
    num_clients: int | None
    """None when the log holds counts only and nobody said."""
    num_rounds: int
    """From the first to the last."""
    unknown_rounds: int
    first_round: int
    num_active_pairs: int
    dropped_duplicates: int
    skipped: dict[str, int]
    """What was skipped -> how many lines."""
    notes: tuple[str, ...]
    """What was assumed while reading."""
    counts_only: bool
    options: dict[str, str | float | bool]
    """The options it was read with (``read_log``), without files beside it."""

    @property
    def known_rounds(self) -> int:
        """How many of the rounds are known."""
        return self.num_rounds - self.unknown_rounds


@dataclass(frozen=True, eq=False)
class Rounds:
    """How many took part; of a log of counts only that is all."""

    empty_rounds: int
    single_rounds: int
    mean_active: float
    mean_rate: float | None


@dataclass(frozen=True, eq=False)
class Absences:
    """A histogram of the absences of all clients."""

    edges: Ints
    counts: Ints
    """Absences of edges[k] <= rounds < edges[k+1]."""
    censored: int
    """How many are left out, because they touch unknown rounds."""


@dataclass(frozen=True, eq=False)
class Participation(Rounds):
    """Who took part how often."""

    rate: Floats
    rate_low: Floats
    rate_high: Floats
    confidence: float
    intervals_widened: bool
    """For memory between rounds."""
    gini: float
    longest_absence: Ints
    absence_histogram: Absences
    never_seen: tuple[str, ...]
    components: tuple[tuple[str, ...], ...]
    """Groups of clients seen that never meet."""
    meets_all: bool


@dataclass(frozen=True)
class ClientWeight:
    """A client's weight in FedAvg, and its ratio to 1/m."""

    client: str
    weight: float
    ratio: float


@dataclass(frozen=True)
class GroupWeight:
    """A group's share of the clients and of FedAvg's weight, and their ratio."""

    group: str
    share_of_clients: float
    weight: float
    ratio: float
    share_of_samples: float | None


@dataclass(frozen=True, eq=False)
class Bias:
    """FedAvg's weights on this log, and their total variation distances from equal weights."""

    realised_weight: Floats
    theoretical_weight: Floats
    uniform: float
    total_variation: float
    total_variation_theoretical: float
    total_variation_by_chance: float
    more_rounds_to_tell: int
    """Rounds like these until clients that are all alike would give no more than what is harmless; 0: they do now."""
    rarest_half: float
    """The weight of the floor(m/2) clients with the smallest weights, .5 if all are alike."""
    total_variation_to_sizes: float | None
    most_over: tuple[ClientWeight, ...]
    most_under: tuple[ClientWeight, ...]
    by_group: tuple[GroupWeight, ...] | None


@dataclass(frozen=True)
class Drift:
    """Do rates change over the log?"""

    p_value: float | None
    """None when nothing could be tested."""
    drifting: tuple[str, ...]
    tested: int
    counts_drift: bool
    alpha: float
    method: str

    @property
    def found(self) -> bool:
        """Whether a drift was found."""
        return self.p_value is not None and self.p_value < self.alpha


@dataclass(frozen=True, eq=False)
class Autocorrelation:
    """Does a round depend on the one before? Lag 1; quantiles .05, .5 and .95 over the clients, and pooled."""

    median: float | None
    low: float | None
    high: float | None
    pooled: float
    p_value: float
    significant: bool
    alpha: float
    per_client: Floats
    """nan (null in JSON) where a client is always or never active."""


@dataclass(frozen=True)
class Period:
    """A cycle, if there is one."""

    rounds: float | None
    strength: float
    """Share of the variation at this frequency, in [0, 1]."""
    p_value: float


@dataclass(frozen=True, eq=False)
class Stationarity:
    """Is participation steady?"""

    drift: Drift
    autocorrelation: Autocorrelation | None
    period: Period


@dataclass(frozen=True)
class Mixing:
    """What FedPBC's averaging would have done to the distance of the clients' models."""

    squared_distance_left_per_round: float | None
    distance_left_per_round: float | None
    distance_half_life_rounds: float | None
    distance_cooldown_rounds_1e3: float | None
    distance_halved_after: float | None
    """Rounds in which this log did halve the distance, the median over its windows; the first ones take most."""
    distance_tenth_after: float | None
    extrapolated: bool
    squared_distance_left_for_good: float
    windows: int
    clients_seen: int
    local_work_ratio: float


@dataclass(frozen=True)
class Advice:
    """What to use, why, and what supports it."""

    rule: str
    advice: str
    reason: str
    evidence: str
    code: str
    """The line that follows it."""
    link: str | None
    """Where the evidence can be read; None where the documentation is not published."""


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything an audit computes. A log of counts only has plain ``Rounds``, and no bias, mixing and clients."""

    log: About
    participation: Rounds
    """``Participation`` when the log names its clients."""
    bias: Bias | None
    stationarity: Stationarity
    mixing: Mixing | None
    advice: tuple[Advice, ...]
    clients: tuple[str, ...]

    def to_dict(self) -> dict[str, Json]:
        """What audit.json holds: dicts, lists, numbers, strings and None."""
        return {field.name: to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}


def to_json(value: object) -> Json:
    """``value`` as JSON: dataclasses by their fields, arrays as lists with null for nan."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        items: list[Json] = value.tolist()
        return [None if isinstance(item, float) and math.isnan(item) else item for item in items]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        return [to_json(item) for item in value]
    raise TypeError(f"findings hold {type(value).__name__}, which JSON does not know")
