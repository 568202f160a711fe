"""A new Flower app from the template: NumPy, a strategy by name, every option in the run config."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path

from fedpbc.errors import ConfigError, shorten
from fedpbc.io.whole import make_folder, write_text

OUTSIDE = ("pyproject.toml", "README.md")
"""Beside the module; the other files are in it."""
TAKEN = {*sys.stdlib_module_names, "flwr", "fedpbc", "numpy"}
"""Modules that the app could not import beside one of the same name."""
LONGEST = 100


def new_app(path: Path) -> list[Path]:
    """Write the app into ``path``, a folder that is new or empty; its last part is the name. Raises ConfigError."""
    name = path.absolute().name
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise ConfigError(f"APP {path}: its name must be small letters, digits, - and _, and begin with a letter")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in TAKEN:
        raise ConfigError(f"APP {path}: {module} is a name that Python or the app itself needs; choose another")
    if len(name) > LONGEST:
        raise ConfigError(f"APP {shorten(path.name)}: its name must be of at most {LONGEST} letters")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"APP {path}: must be new, or an empty folder")
    written = []
    for template in sorted(files("fedpbc.operation").joinpath("template").iterdir(), key=lambda each: each.name):
        kind = template.name.removesuffix(".in")
        target = path / kind if kind in OUTSIDE else path / module / kind
        make_folder(target.parent)
        write_text(target, template.read_text(encoding="utf-8").replace("@NAME@", name).replace("@MODULE@", module))
        written.append(target)
    return written
