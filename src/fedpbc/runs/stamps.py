"""Whether the files that a run read are still what they were, without reading them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpbc.experiment.grid import Experiment
from fedpbc.io.content import stamp_of


def stamps_of(experiment: Experiment) -> dict[str, Any]:
    """Full key -> what changes when its file is written to: size, times and inode, or the hash of source code.

    Arrays in memory are copies that nobody can change, and have none.
    """
    return {
        key: _stamp(file)
        for key, file in experiment.files().items()
        if isinstance(file, Path) or hasattr(file, "qualname")
    }


def changed_since(stamps: dict[str, Any], experiment: Experiment) -> list[str]:
    """The keys whose files were written to, or are gone, since ``stamps``; each with its file."""
    now, files = stamps_of(experiment), experiment.files()
    return [f"{key} ({files[key]})" for key in stamps if key in files and stamps[key] != now.get(key)]


def _stamp(file: Any) -> Any:
    if not isinstance(file, Path):
        return file.digest()
    try:
        return stamp_of(file)
    except OSError:
        return None
