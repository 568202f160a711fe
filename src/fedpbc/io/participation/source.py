"""Where a log comes from: a file, a folder, or standard input; text may be compressed with gzip."""

from __future__ import annotations

import gzip
import io
import shutil
import sys
import tempfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import IO, cast

GZIP = b"\x1f\x8b"
HEAD = 1 << 16
"""Bytes of the content that are looked at to tell the format."""
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a gzip file that is cut off or damaged raises."""

STANDARD_INPUT = "standard input"
"""What ``-`` is called."""


class Source:
    """A file or folder, which messages call by its path; ``-`` is standard input, copied into a temporary file."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        self.is_input = self.shown == "-"
        self.path = path
        if self.is_input:
            with tempfile.NamedTemporaryFile(prefix="fedpbc-", suffix=".log", delete=False) as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            self.path = Path(file.name)

    def close(self) -> None:
        """Remove the copy of standard input."""
        if self.is_input:
            self.path.unlink(missing_ok=True)

    def __str__(self) -> str:
        return STANDARD_INPUT if self.is_input else self.shown

    @property
    def name(self) -> str:
        """The file's name, as the audit shows it."""
        return STANDARD_INPUT if self.is_input else self.path.name

    @cached_property
    def size(self) -> int:
        """Bytes on the disk."""
        return self.path.stat().st_size

    @cached_property
    def compressed(self) -> bool:
        """The content is gzip."""
        if self.path.is_dir():
            return False
        with open(self.path, "rb") as file:
            return file.read(2) == GZIP

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the content."""
        if self.path.is_dir():
            return b""
        with self.open() as stream:
            return stream.read(HEAD)

    @cached_property
    def text(self) -> str:
        """The head as text, without what cannot be read as such."""
        return self.head.decode("utf-8", "ignore").lstrip("\ufeff")

    def lines(self, most: int) -> list[str]:
        """The first lines of the head that are whole, not blank and no comments (#)."""
        lines = self.text.split("\n")
        lines = lines if len(self.head) < HEAD else lines[:-1]
        return [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#")][:most]

    def open(self) -> IO[bytes]:
        """The content, from its begin."""
        if self.compressed:
            return cast("IO[bytes]", gzip.open(self.path, "rb"))
        return open(self.path, "rb")

    def position(self, stream: IO[bytes]) -> int:
        """How many of ``size`` bytes are read."""
        if isinstance(stream, gzip.GzipFile):
            return cast("io.BufferedReader", stream.fileobj).tell()
        return stream.tell()

    def read(self) -> bytes:
        """All of the content."""
        with self.open() as stream:
            return stream.read()

    @property
    def suffix(self) -> str:
        """The ending of the name in lower case, without that of gzip."""
        name = self.path.name.lower().removesuffix(".gz")
        return "" if self.is_input else Path(name).suffix
