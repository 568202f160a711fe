"""What tells one version of a file, or of a folder with everything in it, from another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

COPIED_UP_TO = 64 * 2**20
"""Bytes of a file that a run copies; of larger ones, and of folders, it keeps the hash."""

Stamp = tuple[tuple[str, int, int, int, int], ...]


def files_of(path: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file below a folder but hidden ones, by its name from there, in order."""
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from ((f"{entry.name}/{name}", file) for name, file in files_of(Path(entry.path)))
            elif entry.is_file():
                yield entry.name, entry


def stamp_of(path: Path) -> Stamp:
    """What changes when a file, or one below a folder, is written to: sizes, times and inodes. Raises OSError."""
    found = [(name, entry.stat()) for name, entry in files_of(path)] if path.is_dir() else [("", path.stat())]
    return tuple((name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in found)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or over the names and hashes of all files of a folder. Raises OSError."""
    return _digest_of(path, stamp_of(path))


@lru_cache(maxsize=64)
def _digest_of(path: Path, stamp: Stamp) -> str:
    if not path.is_dir():
        return _of_file(path)
    hashed = hashlib.sha256()
    for name, *_ in stamp:
        hashed.update(f"{name}\0{_of_file(path / name)}\n".encode(errors="surrogateescape"))
    return hashed.hexdigest()


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder. Raises OSError."""
    return sum(size for _, size, *_ in stamp_of(path))
