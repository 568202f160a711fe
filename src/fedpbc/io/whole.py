"""Files written whole or not at all, and archives of arrays read back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedpbc.errors import ConfigError, FedpbcError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path, which replaces ``path`` if all goes well: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """With all above it. Raises ConfigError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be created: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An .npz that NumPy reads without pickle; the same arrays give the same bytes."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


AGAIN = "delete it to do that run again"


def read_arrays(path: Path, remedy: str = AGAIN) -> dict[str, np.ndarray]:
    """The arrays of an .npz. Raises FedpbcError, which ends with the ``remedy``, when the file is damaged or gone."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # one flipped bit asks for another compression, a password, a dtype that is none, ...
        raise damaged(path, error, remedy) from None


def damaged(path: Path, error: Exception, remedy: str = AGAIN) -> FedpbcError:
    """The error for a damaged file."""
    return FedpbcError(f"{path}: is damaged ({error}); {remedy}")
