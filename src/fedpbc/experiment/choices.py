"""Settings of an algorithm beside its options, and the choices of ``fedpbc tune``: others of them for some links."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpbc.core.registry import SETTINGS
from fedpbc.core.schema import Component, check, options_of
from fedpbc.errors import ConfigError, shorten, suggest, unknown_key
from fedpbc.experiment.keys import settings


@dataclass(frozen=True)
class Choice:
    """One of ``tuned.choices``: an algorithm with other settings, under some links."""

    links: str | None
    """The label of the link setting it is for; None: all."""
    algorithm: Component[Any]
    """With the label of the algorithm it stands for."""
    changed: tuple[str, ...]
    """The settings and options that were chosen."""

    def fits(self, links: Component[Any]) -> bool:
        """Whether it is for these links."""
        return self.links in (None, links.label)

    def table(self, written: Callable[[Any], str]) -> dict[str, Any]:
        """As TOML; ``bind_choices`` reads it back."""
        where = {} if self.links is None else {"links": self.links}
        return {**where, "algorithm": self.algorithm.label, **values_table(self.algorithm, self.changed, written)}


def values_table(
    algorithm: Component[Any], names: Sequence[str], written: Callable[[Any], str] = str
) -> dict[str, Any]:
    """Some settings and options of an algorithm as TOML."""
    options = algorithm.table(written)
    own = {k: rate_table(v, written) if isinstance(v, Component) else v for k, v in algorithm.settings.items()}
    return {name: own[name] if name in own else options[name] for name in names}


def with_values(algorithm: Component[Any], values: Mapping[str, Any], key: str, base: Path) -> Component[Any]:
    """An algorithm with other settings and options, checked. Raises ConfigError."""
    options = options_of(algorithm.factory)
    own, rest = dict(algorithm.settings), dict(algorithm.options)
    for name, value in values.items():
        if name in SETTINGS:
            own[name] = setting_of(name, value, f"{key}.{name}", base)
        elif name in options:
            rest[name] = check(options[name].annotation, value, f"{key}.{name}", base)
        else:
            raise unknown_key(f"{key}.{name}", name, [*SETTINGS, *options])
    return dataclasses.replace(algorithm, options=rest, settings=own)


def bind_choices(
    given: Sequence[Any], links: Sequence[str], algorithms: Sequence[Component[Any]], key: str, base: Path
) -> list[Choice]:
    """Check ``tuned.choices``: one for each algorithm under each of the links. Raises ConfigError."""
    known = {algorithm.label: algorithm for algorithm in algorithms}
    choices: list[Choice] = []
    for i, table in enumerate(given):
        here = f"{key}[{i}]"
        if isinstance(table, Choice):  # of an experiment that is changed
            live = {**table.algorithm.settings, **table.algorithm.options}
            values = {name: live[name] for name in table.changed}
            table = {"links": table.links, "algorithm": table.algorithm.label, **values}
        if not isinstance(table, Mapping):
            raise ConfigError(f"{here} = {shorten(table)}: must be a table")
        label, where = table.get("algorithm"), table.get("links")
        for name, value, labels in (("algorithm", label, known), ("links", where, links)):
            if not (value in labels if isinstance(value, str) else value is None and name == "links"):
                hint = suggest(value, labels) if isinstance(value, str) else ""
                there = f"one of the labels {', '.join(map(shorten, labels))}"
                raise ConfigError(f"{here}.{name} = {shorten(value)}: must be {there}{hint}")
        values = {k: v for k, v in table.items() if k not in ("algorithm", "links")}
        choices.append(Choice(where, with_values(known[str(label)], values, here, base), tuple(values)))
    for one in links:
        for label in known:
            count = sum(c.links in (None, one) and c.algorithm.label == label for c in choices)
            if count != 1:
                what = "there is none" if not count else f"there are {count}"
                raise ConfigError(f"{key}: {what} for {label} under {one}; needs one, tune again")
    return choices


def refuse_reported(seeds: Sequence[int], reported: Sequence[int], key: str) -> None:
    """Raise ConfigError when a seed that settings are chosen on is reported too."""
    both = sorted(set(seeds) & set(reported))
    if both:
        raise ConfigError(f"{key} = {shorten(list(seeds))}: {both[0]} is in seeds, those reported; must be others")


def setting_of(name: str, value: Any, key: str, base: Path) -> Any:
    """learning_rate, local_steps or batch_size of an algorithm, checked. Raises ConfigError."""
    if name not in SETTINGS:
        raise unknown_key(key, name, SETTINGS)
    return check(options_of(settings)[name].annotation, value, key, base)


def rate_table(rate: Component[Any], written: Callable[[Any], str] = str) -> Any:
    """A learning rate as TOML: a number where it is one."""
    return rate.options["value"] if rate.name == "constant" else rate.table(written)


def point_text(point: Mapping[str, Any]) -> str:
    """A point of a sweep, for a label."""
    return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={shorten(v, 30)}" for k, v in point.items())
