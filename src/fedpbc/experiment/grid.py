"""An experiment, checked, with every default filled in: one problem x links x algorithms x who computes x seeds.

Its tables come from a TOML file or, with components instead of tables, from Python. What a problem, a link process or
an algorithm takes is its factory's; the other keys are those of ``keys.settings``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpbc.algorithms import ALGORITHMS
from fedpbc.core.descent import Descent
from fedpbc.core.memory import require_memory
from fedpbc.core.outside import import_file
from fedpbc.core.registry import SETTINGS
from fedpbc.core.schema import Component, Context, Kind, bind, bind_component, find, is_scalar, options_of
from fedpbc.core.types import Problem
from fedpbc.errors import ConfigError, shorten, unknown_key
from fedpbc.experiment.choices import bind_choices, point_text, rate_table, refuse_reported, setting_of
from fedpbc.experiment.keys import TABLES, figure, settings, state_loss, tune, tuned
from fedpbc.experiment.part import Part
from fedpbc.links import LINKS
from fedpbc.problems import PROBLEMS


class CellKey(NamedTuple):
    """Which run of the grid: the first columns of metrics.csv."""

    links: str
    algorithm: str
    compute: str
    seed: int


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    links: Component[Any]
    algorithm: Component[Any]
    compute: str
    seed: int
    learning_rate: Component[Any]
    local_steps: int
    batch_size: int

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
    learning_rate: Component[Any]
    seeds: list[int]
    batch_size: int
    minibatch: str
    weight_decay: float
    clip_norm: float | None
    momentum: float
    compute: list[str]
    cooldown_rounds: int
    eval_every: int
    chunk_size: int | None
    precision: str
    metrics: list[str]
    imports: list[Path] | None
    problem: Component[Any]
    links: list[Component[Any]]
    algorithms: list[Component[Any]]
    figure: dict[str, Any]
    state_loss: dict[str, Any] | None = None
    tune: dict[str, Any] | None = None
    """How ``fedpbc tune`` goes about it, where the file says so."""
    tuned: dict[str, Any] | None = None
    """What ``fedpbc tune`` found; its choices stand before the settings of the algorithms."""
    part: Part | None = None
    """Which cells are run here; None: all. What the experiment is does not depend on it."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any], base: Path | str = ".") -> Experiment:
        """Check a table as tomllib reads it; components may be given instead of their tables.

        Relative paths start from ``base``. Files that the table imports are run. Raises ConfigError.
        """
        base = Path(base)
        plain = {key: value for key, value in table.items() if key not in TABLES}
        known = [*options_of(settings), *TABLES]
        for key in plain:
            if key not in known:
                raise unknown_key(key, key, known)
        _refuse_lost(table)
        values = bind(settings, plain, "", base)
        for path in values["imports"] or []:
            import_file(path, "imports")
        for key in ("problem", "links", "algorithms"):
            if key not in table:
                heading = f"[{key}]" if key == "problem" else f"[[{key}]]"
                raise ConfigError(f"missing key {key}: needs a table {heading}")
        optional: dict[str, Callable[..., Any]] = {
            "figure": figure,
            "state_loss": state_loss,
            "tune": tune,
            "tuned": tuned,
        }
        for key, schema in optional.items():
            if not isinstance(table.get(key, {}), Mapping):
                raise ConfigError(f"{key} = {shorten(table[key])}: must be a table")
            _refuse_misplaced(table.get(key, {}), key, schema)
        given: dict[str, Any] = {
            key: bind(schema, table[key], key, base) for key, schema in optional.items() if key in table
        }
        experiment = cls(
            **values,
            problem=_component(PROBLEMS, table["problem"], "problem", base),
            links=_labelled(LINKS, table["links"], "links", base),
            algorithms=_labelled(ALGORITHMS, table["algorithms"], "algorithms", base),
            **({"figure": bind(figure, {}, "figure", base)} | given),
        )
        if experiment.tuned is not None:
            labels = ([c.label for c in experiment.links], experiment.algorithms)
            choices = bind_choices(experiment.tuned["choices"], *labels, "tuned.choices", base)
            experiment = dataclasses.replace(experiment, tuned={**experiment.tuned, "choices": choices})
        experiment._check()
        return experiment

    def _check(self) -> None:
        tuning: dict[str, Any] = {
            f"{key}.seeds": (getattr(self, key) or {}).get("seeds") or () for key in ("tune", "tuned")
        }
        lists = {key: getattr(self, key) for key in ("seeds", "compute", "metrics")}
        for key, values in (lists | tuning).items():
            twice = [value for value, count in Counter(values).items() if count > 1]
            if twice:
                raise ConfigError(f"{key} = {shorten(values)}: {shorten(twice[0])} is given twice")
        for key, seeds in tuning.items():
            refuse_reported(seeds, self.seeds, key)
        if "server" not in self.metrics:
            raise ConfigError(f'metrics = {shorten(self.metrics)}: must hold "server"')
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

    @property
    def descent(self) -> Descent:
        """What local steps have beside the gradient."""
        return Descent(self.weight_decay, self.clip_norm, self.momentum)

    def cells(self) -> list[Cell]:
        """Every run of the grid, or of its part, in the order of metrics.csv."""
        chosen = self.chosen
        cells = [
            Cell(links, algorithm, compute, seed, **{key: self.setting(algorithm, key) for key in SETTINGS})
            for links in self.links
            for algorithm in (chosen.get((links.label, entry.label), entry) for entry in self.algorithms)
            for compute in self.compute
            for seed in self.seeds
        ]
        if self.part is None:
            return cells
        return [cells[i] for i in self.part.positions([cell.seed for cell in cells])]

    @property
    def chosen(self) -> dict[tuple[str, str], Component[Any]]:
        """(label of links, label of an algorithm) -> the algorithm as it was tuned there."""
        choices = self.tuned["choices"] if self.tuned else []
        return {(links.label, c.algorithm.label): c.algorithm for links in self.links for c in choices if c.fits(links)}

    @property
    def variants(self) -> list[Component[Any]]:
        """The algorithms, and each as it was tuned."""
        return [*self.algorithms, *(choice.algorithm for choice in (self.tuned or {}).get("choices", ()))]

    def only(self, part: str | Part, key: str = "cells =") -> Experiment:
        """Part ``"2/8"`` of the grid, to run on one of several machines; ``fedpbc.merge`` puts the parts together.

        Raises ConfigError, which names ``key``.
        """
        part = Part.parse(str(part) if isinstance(part, Part) else part, key)
        whole = dataclasses.replace(self, part=None)
        if part.count > len(whole.cells()):
            raise ConfigError(f"{key} {part}: {self.name} has {len(whole.cells())} runs, not more parts than that")
        return dataclasses.replace(whole, part=part)

    def setting(self, algorithm: Component[Any], key: str) -> Any:
        """learning_rate, local_steps or batch_size of an algorithm: its own, or else the experiment's."""
        return algorithm.settings.get(key, getattr(self, key))

    def table(self, written: Callable[[Any], str] = str) -> dict[str, Any]:
        """The experiment as a TOML table with every default filled in; ``from_table`` reads it back.

        ``written`` names the files it reads, the data and the sources it was given in Python.
        """
        plain = {key: getattr(self, key) for key in options_of(settings) if getattr(self, key) is not None}
        plain["learning_rate"] = rate_table(self.learning_rate, written)
        if self.imports:
            plain["imports"] = [written(path) for path in self.imports]
        look = {key: value for key, value in self.figure.items() if value is not None}
        components = {key: [_entry(c, written) for c in getattr(self, key)] for key in ("links", "algorithms")}
        rest: dict[str, Any] = {"state_loss": self.state_loss} if self.state_loss else {}
        if self.tune is not None:
            rest["tune"] = {key: value for key, value in self.tune.items() if value is not None}
            rates = {"learning_rate": [rate_table(rate, written) for rate in self.tune["learning_rate"] or ()]}
            rest["tune"] |= {key: value for key, value in rates.items() if value}
        if self.tuned is not None:
            rest["tuned"] = {**self.tuned, "choices": [choice.table(written) for choice in self.tuned["choices"]]}
        return {**plain, "problem": self.problem.table(written), **components, "figure": look, **rest}

    def files(self) -> dict[str, Any]:
        """Every file (Path), data in memory and source code that the experiment rests on, by its full key."""
        rates = [a.settings["learning_rate"] for a in self.variants if "learning_rate" in a.settings]
        rates += (self.tune or {}).get("learning_rate") or []
        parts = [self.problem, *self.links, *self.variants, self.learning_rate, *rates]
        found = {key: file for part in parts for key, file in part.files().items()}
        return found | {f"imports[{i}]": path for i, path in enumerate(self.imports or [])}

    def replace(self, **changes: Any) -> Experiment:
        """A copy with other values for some keys, checked again (seeds=[...], rounds=..., ...)."""
        live = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "part"}
        changed = Experiment.from_table({key: v for key, v in (live | changes).items() if v is not None})
        return changed if self.part is None else changed.only(self.part)


def _entry(component: Component[Any], written: Callable[[Any], str]) -> dict[str, Any]:
    """A [[links]] or [[algorithms]] table."""
    own = {k: rate_table(v, written) if isinstance(v, Component) else v for k, v in component.settings.items()}
    table = component.table(written)
    return {"label": component.label, "name": table.pop("name"), **own, **table}


def _component(kind: Kind, value: Any, key: str, base: Path) -> Component[Any]:
    if isinstance(value, Mapping) and "name" in value:
        _refuse_misplaced(value, key, find(kind, value["name"], f"{key}.name", base))
    return bind_component(kind, value, key, base)


def _refuse_lost(table: Mapping[str, Any]) -> None:
    """A key that is missing above and stands below a table is not missing for who wrote it."""
    needed = [
        name for name, option in options_of(settings).items() if option.default is option.empty and name != "name"
    ]
    for key in (key for key in needed if key not in table):
        for where in TABLES:
            entries = table.get(where)
            several = isinstance(entries, list)
            for entry in entries if isinstance(entries, list) else [entries]:
                if isinstance(entry, Mapping) and key in entry and not (where == "algorithms" and key in SETTINGS):
                    heading = f"[[{where}]]" if several else f"[{where}]"
                    raise ConfigError(
                        f"missing key {key}: it stands below {heading} and so belongs to that table; in a TOML file it "
                        f"must stand above {heading} and every other table"
                    )


def _refuse_misplaced(table: Mapping[str, Any], where: str, factory: Callable[..., Any]) -> None:
    """A key of the experiment that stands below a table belongs to that table, for TOML."""
    for key in table:
        if key in options_of(settings) and key not in options_of(factory) and key not in ("name", "label"):
            heading = f"[{where}]" if "[" not in where else f"[[{where.partition('[')[0]}]]"
            raise ConfigError(
                f"unknown key {where}.{key}: {key} is a key of the experiment; in a TOML file it must stand above "
                f"{heading} and every other table"
            )


def _labelled(kind: Kind, value: Any, key: str, base: Path) -> list[Component[Any]]:
    """A list of components with unique labels; a missing label is made from the settings, a sweep becomes several."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{key} = {shorten(value)}: must be one or more tables [[{key}]]")
    components, given = [], []
    for i, item in enumerate(value):
        here = f"{key}[{i}]"
        label = item.get("label") if isinstance(item, Mapping) else None
        if label is not None and not (isinstance(label, str) and label.strip() and label.isprintable()):
            raise ConfigError(f"{here}.label = {shorten(label)}: must be a non-empty string of printable characters")
        for one, point in _points(kind, item, here, base):
            if label is not None and point:
                one = dataclasses.replace(one, label=f"{label}, {point_text(point)}")
            elif label is not None:
                one = dataclasses.replace(one, label=label)
            if one.label and not (isinstance(one.label, str) and one.label.strip() and one.label.isprintable()):
                what = "must be a non-empty string of printable characters"
                raise ConfigError(f"{here}.label = {shorten(one.label)}: {what}")
            given.append(bool(one.label))
            components.append(one if one.label else dataclasses.replace(one, label=one.describe(list(point))))
    return [_unique(components, i, given[i]) for i in range(len(components))]


def _points(kind: Kind, item: Any, key: str, base: Path) -> list[tuple[Component[Any], dict[str, Any]]]:
    """The components of one entry, and the values of a sweep that each has; sweeps are of algorithms alone."""
    if kind is not ALGORITHMS:
        table = {k: v for k, v in item.items() if k != "label"} if isinstance(item, Mapping) else item
        component = _component(kind, table, key, base)
        if component.settings:
            raise ConfigError(f"{key}.{next(iter(component.settings))}: only algorithms have settings of their own")
        return [(component, {})]
    if isinstance(item, Mapping):
        table = {k: v for k, v in item.items() if k not in ("label", *SETTINGS)}
        own = {k: item[k] for k in SETTINGS if k in item}
        options = options_of(find(kind, table["name"], f"{key}.name", base)) if "name" in table else {}
        swept = {k: v for k, v in table.items() if isinstance(v, list) and k in options}
        swept = {k: v for k, v in swept.items() if is_scalar(options[k].annotation)}
    else:
        table, swept = bind_component(kind, item, key, base), {}
        own = table.settings
    swept |= {k: list(v) for k, v in own.items() if isinstance(v, list | tuple | np.ndarray)}
    for k, values in swept.items():
        if len(values) == 0:
            raise ConfigError(f"{key}.{k} = []: a sweep needs at least one value")
    found = []
    for chosen in itertools.product(*swept.values()):
        point = dict(zip(swept, chosen, strict=True))
        options = {k: v for k, v in point.items() if k not in SETTINGS}
        one = _component(kind, {**table, **options}, key, base) if isinstance(table, Mapping) else table
        settled = own | {k: v for k, v in point.items() if k in SETTINGS}
        checked = {k: setting_of(k, v, f"{key}.{k}", base) for k, v in settled.items()}
        label = f"{one.label}, {point_text(point)}" if one.label and point else one.label
        found.append((dataclasses.replace(one, settings=checked, label=label), point))
    return found


def _unique(components: list[Component[Any]], i: int, given: bool) -> Component[Any]:
    """Component i with a label that no earlier one has; only a made label may change."""
    component = components[i]
    same = [c for c in components[:i] if c.label == component.label]
    if same and (given or same[0] == component):
        raise ConfigError(f"{component.key}.label = {shorten(component.label)}: is also the label of {same[0].key}")
    return dataclasses.replace(component, label=f"{component.label} #{len(same) + 1}") if same else component
