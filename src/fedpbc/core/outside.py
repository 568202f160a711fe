"""Code from outside the package: where a function stands, how an experiment file names it, and how it is found again.

A name is ``module:function`` or ``file.py:function``; naming one in an experiment runs its module.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpbc.errors import ConfigError, first_line, shorten, suggest

importing: ContextVar[Path | None] = ContextVar("importing", default=None)
"""The file from outside that is being imported, if one is."""

_loaded: dict[tuple[Path, str], ModuleType] = {}


@dataclass(frozen=True)
class Source:
    """Where a function from outside stands."""

    module: str
    qualname: str
    path: Path | None
    """Its file, where a copy of that file alone can be imported; None in packages, notebooks and interactive use."""
    text: str
    """What tells one version from another: the file, or else the function."""

    def digest(self) -> str:
        """A hash of ``text``."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def write(self, path: Path) -> None:
        """A copy of the file."""
        path.write_text(self.text, encoding="utf-8")

    @property
    def found_by_name(self) -> bool:
        """A file can name it; a function made inside another, or typed into a session, cannot be named."""
        return self.qualname.isidentifier() and (self.path is not None or self.module != "__main__")

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else self.module


def source_of(function: Any) -> Source:
    """Where ``function`` (or the class of an object that is callable) stands."""
    function = inspect.unwrap(getattr(function, "function", function))
    if not hasattr(function, "__qualname__"):
        function = type(function)
    module, qualname = function.__module__ or "?", function.__qualname__
    try:
        path: Path | None = Path(inspect.getfile(function)).resolve()
    except (TypeError, OSError):
        path = None
    if path is not None and (not path.is_file() or _in_package(module)):
        path = None
    try:
        text = path.read_text(encoding="utf-8") if path and qualname.isidentifier() else inspect.getsource(function)
    except (OSError, TypeError, UnicodeDecodeError):
        text = qualname
    return Source(module, qualname, path, text)


def _in_package(module: str) -> bool:
    return "." in module or bool(getattr(sys.modules.get(module), "__path__", None))


def name_of(function: Any, written: Callable[[Any], str]) -> str:
    """``module:function``, or the file that ``written`` names; what has no name says so."""
    source = source_of(function)
    if not source.found_by_name:
        return f"made in Python: {source.qualname} #{source.digest()}"
    return f"{written(source)}:{source.qualname}"


def load_name(name: str, key: str, base: Path) -> Any:
    """What ``module:attribute`` or ``file.py:attribute`` (relative to ``base``) names. Raises ConfigError."""
    where, _, attribute = name.rpartition(":")
    if where.startswith("made in Python"):
        raise ConfigError(f"{key} = {shorten(name)}: no file can name it; run the Python script that made it again")
    module = import_file(base / where, key) if where.endswith(".py") else _import_module(where, name, key)
    try:
        return getattr(module, attribute)
    except AttributeError:
        there = [n for n in vars(module) if not n.startswith("_")]
        hint = suggest(attribute, there)
        raise ConfigError(f"{key} = {shorten(name)}: {where} has no {shorten(attribute)}{hint}") from None


def _import_module(where: str, name: str, key: str) -> ModuleType:
    try:
        with _announced(Path(where)):
            return importlib.import_module(where)
    except ModuleNotFoundError as error:
        missing = error.name or where
        if where == missing or where.startswith(f"{missing}."):
            raise ConfigError(f"{key} = {shorten(name)}: there is no module {shorten(missing)} to import") from None
        raise ConfigError(f"{key} = {shorten(name)}: {where} needs {missing}, which is not installed") from None
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{key} = {shorten(name)}: importing it failed: {first_line(error)}") from error


def import_file(path: Path, key: str) -> ModuleType:
    """The module of a file, imported once per content. Raises ConfigError."""
    path = path.resolve()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not a text file"
        raise ConfigError(f"{key} = {shorten(path)}: {reason}") from None
    if importing.get() == path:
        raise ConfigError(f"{key} = {shorten(path)}: imports itself, by an experiment that names it")
    content = (path, hashlib.sha256(text.encode()).hexdigest())
    if content in _loaded:
        return _loaded[content]
    name = f"{path.stem}_{content[1][:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{key} = {shorten(path)}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pytrees of the file look their module up there
    sys.path.insert(0, str(path.parent))  # what lies beside the file, as for a script
    try:
        with _announced(path):
            spec.loader.exec_module(module)
    except ConfigError:
        sys.modules.pop(name, None)
        raise
    except ModuleNotFoundError as error:
        sys.modules.pop(name, None)
        raise ConfigError(f"{key} = {shorten(path)}: needs {error.name}, which is not installed") from None
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise ConfigError(f"{key} = {shorten(path)}: importing it failed: {first_line(error)}") from error
    finally:
        sys.path.remove(str(path.parent))
    _loaded[content] = module
    return module


@contextmanager
def _announced(path: Path) -> Iterator[None]:
    token = importing.set(path)
    try:
        yield
    finally:
        importing.reset(token)


def refuse_while_importing(what: str) -> None:
    """A file from outside must only define things. Raises ConfigError when it is being imported."""
    path = importing.get()
    if path is not None:
        raise ConfigError(f'{path.name} calls {what} when it is imported: put that under if __name__ == "__main__":')
