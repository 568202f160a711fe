"""An experiment: a TOML file, checked, with every default filled in.

A grid: one problem x several link settings x several algorithms x who computes x seeds. The keyword arguments of
``settings`` are the keys; what a problem, a link process or an algorithm takes is its factory's.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from fedpbc.algorithms import ALGORITHMS
from fedpbc.errors import ConfigError, require_memory, shorten, suggest, unknown_key
from fedpbc.links import LINKS
from fedpbc.problems import PROBLEMS
from fedpbc.schedules import Schedule
from fedpbc.schema import (
    Component,
    Context,
    Kind,
    LocatedStr,
    NonNegativeInt,
    PositiveInt,
    Range,
    bind,
    bind_component,
    options_of,
)
from fedpbc.types import Problem


def figure(
    *,
    metrics: list[str] | None = None,
    models: list[Literal["server", "mean"]] = ["server", "mean"],  # noqa: B006
    from_round: NonNegativeInt = 0,
) -> dict[str, Any]:
    """What the figure of a run shows: metric names without their model, which models, the first round drawn."""
    return {"metrics": metrics, "models": models, "from_round": from_round}


def state_loss(*, round: NonNegativeInt, share: Annotated[float, Range(high=1, above=0)] = 0.1) -> dict[str, Any]:
    """A random share of the clients (at least one) loses all it keeps, before the local steps of a round."""
    return {"round": round, "share": share}


def settings(
    *,
    name: str,
    rounds: PositiveInt,
    local_steps: PositiveInt,
    learning_rate: Schedule,
    seeds: list[NonNegativeInt],
    batch_size: PositiveInt = 32,
    minibatch: Literal["round", "step"] = "round",
    compute: list[Literal["all", "active"]] = ["all"],  # noqa: B006
    cooldown_rounds: NonNegativeInt = 0,
    eval_every: PositiveInt = 1,
    chunk_size: PositiveInt = 25,
    precision: Literal["float32", "float64"] = "float32",
) -> None:
    """The keys of an experiment file, beside [problem], [[links]], [[algorithms]], [state_loss] and [figure].

    rounds: T, the cool-down included. local_steps: s. minibatch: "round" reuses one minibatch for all local
    steps of a round, "step" draws a fresh one each. compute: who computes, "all" or only the "active" clients.
    cooldown_rounds: the last rounds, without local steps. eval_every: rounds between two rows of metrics.
    chunk_size: clients that are computed side by side; other sizes change results by rounding only.
    """


_TABLES = ("problem", "links", "algorithms", "figure", "state_loss")


class CellKey(NamedTuple):
    """Which run of the grid: the first columns of metrics.csv."""

    links: str
    algorithm: str
    compute: str
    seed: int


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    links: Component
    algorithm: Component
    compute: str
    seed: int

    @property
    def key(self) -> CellKey:
        """Its labels."""
        return CellKey(self.links.label, self.algorithm.label, self.compute, self.seed)


@dataclass(frozen=True)
class Experiment:
    """A checked experiment. Build one with ``load_experiment`` or ``Experiment.from_table``."""

    name: str
    rounds: int
    local_steps: int
    learning_rate: Component
    seeds: list[int]
    batch_size: int
    minibatch: str
    compute: list[str]
    cooldown_rounds: int
    eval_every: int
    chunk_size: int
    precision: str
    problem: Component
    links: list[Component]
    algorithms: list[Component]
    figure: dict[str, Any]
    state_loss: dict[str, Any] | None = None

    @classmethod
    def from_table(cls, table: Mapping[str, Any], base: Path | str = ".") -> Experiment:
        """Check a table as tomllib reads it. Relative paths start from ``base``. Raises ConfigError."""
        base = Path(base)
        plain = {key: value for key, value in table.items() if key not in _TABLES}
        known = [*options_of(settings), *_TABLES]
        for key in plain:
            if key not in known:
                raise unknown_key(key, key, known)
        values = bind(settings, plain, "", base)
        for key in ("problem", "links", "algorithms"):
            if key not in table:
                heading = f"[{key}]" if key == "problem" else f"[[{key}]]"
                raise ConfigError(f"missing key {key}: needs a table {heading}")
        for key in ("figure", "state_loss"):
            if not isinstance(table.get(key, {}), Mapping):
                raise ConfigError(f"{key} = {shorten(table[key])}: must be a table")
        experiment = cls(
            **values,
            problem=bind_component(PROBLEMS, table["problem"], "problem", base),
            links=_labelled(LINKS, table["links"], "links", base),
            algorithms=_labelled(ALGORITHMS, table["algorithms"], "algorithms", base),
            figure=bind(figure, table.get("figure", {}), "figure", base),
            state_loss=bind(state_loss, table["state_loss"], "state_loss", base) if "state_loss" in table else None,
        )
        experiment._check()
        return experiment

    def _check(self) -> None:
        for key in ("seeds", "compute"):
            values = getattr(self, key)
            twice = [value for value, count in Counter(values).items() if count > 1]
            if twice:
                raise ConfigError(f"{key} = {shorten(values)}: {shorten(twice[0])} stands there twice")
        usable = self.name.strip() and self.name.isprintable() and len(self.name) <= 100
        usable = usable and len(self.name.encode(errors="replace")) <= 200
        if not usable or re.search(r"[/\\]", self.name) or self.name in (".", ".."):
            raise ConfigError(f"name = {shorten(self.name)}: must be usable as the name of a folder")
        if self.state_loss and self.state_loss["round"] >= self.rounds:
            raise ConfigError(f"state_loss.round = {self.state_loss['round']}: must be below rounds, {self.rounds}")
        if self.cooldown_rounds > self.rounds:
            raise ConfigError(f"cooldown_rounds = {self.cooldown_rounds}: must be at most rounds, {self.rounds}")
        rows = len(self.cells()) * (self.rounds // self.eval_every + 2)
        require_memory("rounds", self.rounds, rows * 600, f"{rows:,} rows of metrics (see eval_every)")

    @property
    def dtype(self) -> np.dtype:
        """Of every floating-point array of the run."""
        return np.dtype(self.precision)

    def context(self, seed: int, problem: Problem | None = None) -> Context:
        """What the factories of this experiment are given."""
        return Context(seed, self.dtype, self.rounds, tuple(self.seeds), problem)

    def cells(self) -> list[Cell]:
        """Every run of the grid, in the order of metrics.csv."""
        return [
            Cell(links, algorithm, compute, seed)
            for links in self.links
            for algorithm in self.algorithms
            for compute in self.compute
            for seed in self.seeds
        ]

    def table(self) -> dict[str, Any]:
        """The experiment as a TOML table with every default filled in; ``from_table`` reads it back."""
        plain = {key: getattr(self, key) for key in options_of(settings)}
        rate = self.learning_rate
        plain["learning_rate"] = rate.options["value"] if rate.name == "constant" else rate.table()
        look = {key: value for key, value in self.figure.items() if value is not None}
        components = {
            key: [{"label": c.label, **c.table()} for c in getattr(self, key)] for key in ("links", "algorithms")
        }
        loss = {"state_loss": self.state_loss} if self.state_loss else {}
        return {**plain, "problem": self.problem.table(), **components, "figure": look, **loss}

    def paths(self) -> dict[str, Path]:
        """Every file the experiment reads: full key -> path."""
        parts = [self.problem, *self.links, *self.algorithms, self.learning_rate]
        return {key: path for part in parts for key, path in part.paths().items()}

    def replace(self, **changes: Any) -> Experiment:
        """A copy with other values for some keys, checked again (seeds=[...], rounds=..., ...)."""
        return Experiment.from_table({**self.table(), **changes})


def _labelled(kind: Kind, value: Any, key: str, base: Path) -> list[Component]:
    """A list of components with unique labels; a missing label is made from the settings."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{key} = {shorten(value)}: must be one or more tables [[{key}]]")
    components = []
    for i, item in enumerate(value):
        here = f"{key}[{i}]"
        label = item.get("label") if isinstance(item, Mapping) else None
        if label is not None and not (isinstance(label, str) and label.strip() and label.isprintable()):
            raise ConfigError(f"{here}.label = {shorten(label)}: must be a non-empty string of printable characters")
        table = {k: v for k, v in item.items() if k != "label"} if isinstance(item, Mapping) else item
        component = bind_component(kind, table, here, base)
        components.append(dataclasses.replace(component, label=label or component.describe()))
    return [_unique(components, i, isinstance(value[i], Mapping) and "label" in value[i]) for i in range(len(value))]


def _unique(components: list[Component], i: int, given: bool) -> Component:
    """Component i with a label that no earlier one has; only a made label may change."""
    component = components[i]
    same = [c for c in components[:i] if c.label == component.label]
    if same and (given or same[0] == component):
        raise ConfigError(f"{component.key}.label = {shorten(component.label)}: is also the label of {same[0].key}")
    return dataclasses.replace(component, label=f"{component.label} #{len(same) + 1}") if same else component


def shipped_experiments() -> dict[str, Path]:
    """Name -> file of every experiment that comes with the package."""
    folder = Path(str(resources.files("fedpbc") / "experiments"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_experiment(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """A shipped experiment by name, or a TOML file by path, with ``overrides`` (dotted key -> value).

    Raises ConfigError. ``load_experiment("counterexample", {"rounds": 50, "links.0.prob": 0.5})``
    """
    path, base = _locate(source)
    table = _read_toml(path)
    for key, value in (overrides or {}).items():
        set_key(table, key, value)
    for key in overrides or {}:
        _drop_stale_label(table, key, overrides or {})
    return Experiment.from_table(table, base)


def _drop_stale_label(table: dict[str, Any], key: str, overrides: Mapping[str, Any]) -> None:
    """A label written for other settings must not stand for the overridden ones: one is made anew."""
    parts = _parts(key)
    if len(parts) < 3 or parts[0] not in ("links", "algorithms") or parts[2] == "label":
        return
    entries = table[parts[0]]
    here = isinstance(entries, list) and parts[1].isdecimal() and int(parts[1]) < len(entries)
    entry = entries[int(parts[1])] if here else None
    if isinstance(entry, dict) and not any(_parts(other) == [*parts[:2], "label"] for other in overrides):
        entry.pop("label", None)


def _locate(source: str | Path) -> tuple[Path, Path]:
    """(file, folder its relative paths start from)."""
    shipped = shipped_experiments()
    if str(source) in shipped:
        return shipped[str(source)], Path.cwd()
    path = Path(source)
    try:
        if path.is_file():
            return path, path.resolve().parent
        if path.is_dir():
            raise ConfigError(f"{source}: is a folder, not an experiment file")
    except OSError as error:
        raise ConfigError(f"{shorten(str(source))}: {error.strerror}") from None
    hint = suggest(str(source), shipped)
    raise ConfigError(f"{source}: no such file or shipped experiment{hint}; shipped: {', '.join(shipped)}")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not a text file" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(f"{path}: {reason}") from None
    if not text.strip():
        raise ConfigError(f"{path}: is empty")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: is not TOML that can be read") from None


def parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` of the command line, the value being TOML. Paths in it start from the current folder."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {shorten(text)}: must be key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        raise ConfigError(
            f"--set {shorten(text)}: the value is not TOML (strings need quotes: --set '{key.strip()}=\"...\"')"
        ) from None
    if set(parsed) != {"value"}:
        raise ConfigError(f"--set {shorten(text)}: must be one value")
    return key.strip(), _locate_strings(parsed["value"], Path.cwd())


def _locate_strings(value: Any, base: Path) -> Any:
    if isinstance(value, str):
        return LocatedStr(value, base)
    if isinstance(value, list):
        return [_locate_strings(item, base) for item in value]
    if isinstance(value, dict):
        return {key: _locate_strings(item, base) for key, item in value.items()}
    return value


def _parts(dotted: str) -> list[str]:
    """``links[0].prob`` or ``links.0.prob`` -> ["links", "0", "prob"]."""
    return [part for part in re.split(r"[.\[\]]+", dotted) if part]


def set_key(table: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``problem.num_clients`` or ``links.0.prob`` (``links[0].prob``) in place. Raises ConfigError."""
    parts = _parts(dotted)
    if not parts:
        raise ConfigError(f"{shorten(dotted)}: is not a key")
    place: Any = table
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(place, list):
            if not part.isdecimal() or len(part) > 9 or int(part) >= len(place):
                raise ConfigError(f"{dotted}: {part[:12]} must be a position from 0 to {len(place) - 1}")
            index: Any = int(part)
        elif isinstance(place, dict):
            index = part
            if not last and index not in place:
                place[index] = {}
        else:
            raise ConfigError(f"{dotted}: {'.'.join(parts[:depth])} = {shorten(place)} is not a table or list")
        if last:
            place[index] = value
        else:
            place = place[index]
