"""Experiments from TOML files and from the package."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedpbc.errors import ConfigError, shorten, suggest
from fedpbc.experiment.grid import Experiment
from fedpbc.experiment.overrides import drop_stale_label, set_key


def shipped_experiments() -> dict[str, Path]:
    """Name -> file of every experiment that comes with the package."""
    folder = Path(str(resources.files("fedpbc.experiment") / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_experiment(
    source: str | Path, overrides: Mapping[str, Any] | None = None, imports: Sequence[str | Path] = ()
) -> Experiment:
    """A shipped experiment by name, or a TOML file by path, with ``overrides`` (dotted key -> value).

    ``imports``: Python files to run beside those the file names, which register components. Raises ConfigError.
    ``load_experiment("counterexample", {"rounds": 50, "links.0.prob": 0.5})``
    """
    path, base = _locate(source)
    table = _read_toml(path)
    if imports:
        table["imports"] = [*table.get("imports", []), *(str(Path(file).resolve()) for file in imports)]
    for key, value in (overrides or {}).items():
        set_key(table, key, value)
    for key in overrides or {}:
        drop_stale_label(table, key, overrides or {})
    return Experiment.from_table(table, base)


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
