"""What a run rests on: copies of small files, hashes of large ones and of folders, and how two experiments differ."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from fedpbc.data.arrays import Arrays
from fedpbc.errors import ConfigError, FedpbcError, shorten
from fedpbc.experiment.grid import Experiment
from fedpbc.io.content import COPIED_UP_TO, digest_of, size_of
from fedpbc.io.whole import read_arrays, replacing, write_text

HASHES = "inputs/hashes.json"
"""Path of an input that is not copied -> its hash and size."""
CONTENT = "content with SHA-256"


def write_experiment(experiment: Experiment, path: Path) -> None:
    """The resolved experiment, with what it rests on beside it in ``inputs/``."""
    written = _write_inputs(experiment, path.parent)
    write_text(path, tomli_w.dumps(experiment.table(written)))


def _write_inputs(experiment: Experiment, folder: Path) -> Callable[[Any], str]:
    """Copy every file, array and source that an experiment rests on to ``inputs/``, and hash what is too large for it.

    What it gives names each of them as experiment.toml does: the copy, or the path of what was not copied.
    """
    names: dict[Any, str] = {}
    hashes: dict[str, Any] = {}
    inputs = folder / "inputs"
    for key, file in experiment.files().items():
        name = _copy_name(key, file)
        if _identity(file) in names or name is None or str(file) in hashes:
            continue
        inputs.mkdir(exist_ok=True)
        if isinstance(file, Path) and is_only_hashed(file):
            hashes[str(file)] = {"sha256": _digest(file).removeprefix(f"{CONTENT} "), "bytes": size_of(file)}
            continue
        taken = name in names.values()
        name = re.sub(r"[^A-Za-z0-9]+", "-", key) + Path(name).suffix if taken else name
        names[_identity(file)] = name
        with replacing(inputs / name) as temporary:
            if isinstance(file, Path):
                shutil.copyfile(file, temporary)
            else:
                file.write(temporary)
    if hashes:
        write_text(folder / HASHES, json.dumps(hashes, indent=1))

    def written(file: Any) -> str:
        return f"inputs/{names[_identity(file)]}" if _identity(file) in names else str(file)

    return written


def is_only_hashed(path: Path) -> bool:
    """A folder, or a file too large to be copied with every run."""
    return path.is_dir() or (path.is_file() and path.stat().st_size > COPIED_UP_TO)


def refuse_inside(out: Path, experiment: Experiment) -> None:
    """A run must not write into a folder that it reads, whose content would change. Raises ConfigError."""
    for key, file in experiment.files().items():
        if isinstance(file, Path) and file.is_dir() and out.resolve().is_relative_to(file):
            what = f"lies inside {key} = {shorten(file)}, whose content would change"
            raise ConfigError(f"{out}: {what}; choose another --out")


def _identity(file: Any) -> Any:
    """Functions of one file, and the file itself, have one copy."""
    return file.path if getattr(file, "path", None) is not None and hasattr(file, "qualname") else file


def _copy_name(key: str, file: Any) -> str | None:
    """The name of a copy under ``inputs/``; None for code in a package, which has no copy."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", key)
    if isinstance(file, Path):
        return file.name if file.suffix == ".py" else plain + file.suffix
    if hasattr(file, "qualname"):
        return file.path.name if file.path is not None and file.found_by_name else None
    return plain + str(file.suffix)


def content_of(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a table, with hashes of the files' contents instead of their names."""
    return experiment.table(_digest)


def _digest(file: Any) -> str:
    """What stands for a file, data or source when two experiments are compared; the same arrays are the same data."""
    if not isinstance(file, Path):
        return f"{CONTENT} {file.digest()}" if _copy_name("", file) else str(file)
    if file.suffix == ".npz":  # arrays given in Python are compared with the copy of them
        with suppress(FedpbcError):
            return f"{CONTENT} {Arrays(read_arrays(file)).digest()}"
    try:
        digest = digest_of(file)[:12]
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    return f"{CONTENT} {digest}"


def stored_content(stored: dict[str, Any], base: Path) -> dict[str, Any]:
    """The same of a run directory, without building components that only Python can make."""
    made_in_python = "made in Python" in json.dumps(stored)
    if not made_in_python:
        kept = kept_hashes(base)
        return Experiment.from_table(stored, base).table(lambda file: kept.get(str(file)) or _digest(file))
    return content_as_written(stored, base)


def content_as_written(stored: dict[str, Any], base: Path) -> dict[str, Any]:
    """The stored experiment, with hashes of the files in ``inputs/`` instead of their names. Runs no code."""
    kept = kept_hashes(base)

    def content(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: content(item) for key, item in value.items()}
        if isinstance(value, list):
            return [content(item) for item in value]
        if isinstance(value, str) and value.startswith("inputs/"):
            name, colon, attribute = value.partition(":")
            return _digest(base / name) + colon + attribute
        return kept.get(value, value) if isinstance(value, str) else value

    table: dict[str, Any] = content(stored)
    return table


def kept_hashes(base: Path) -> dict[str, str]:
    """Of a run directory: the path of each input that was not copied -> what its content was. Raises ConfigError."""
    file = base / HASHES
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return {path: f"{CONTENT} {about['sha256']}" for path, about in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: is damaged: {error}") from None


def difference(before: Any, now: Any, key: str = "") -> list[str]:
    """The differences between two tables, one line per key."""
    if isinstance(before, dict) and isinstance(now, dict):
        lines = []
        for name in dict.fromkeys([*before, *now]):
            lines += difference(before.get(name), now.get(name), f"{key}.{name}" if key else name)
        return lines
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            line for i, pair in enumerate(zip(before, now, strict=True)) for line in difference(*pair, f"{key}[{i}]")
        ]
    return [] if before == now else [f"{key} was {_shown(before)}, is {_shown(now)}"]


def _shown(value: Any) -> str:
    return "absent" if value is None else shorten(value, 80)
