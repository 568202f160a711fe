"""Compiled programs kept on disk between processes, in the user's cache directory.

JAX's own persistent cache does the work, with everything kept: a simulation consists of a few programs that take
seconds each. ``FEDPBC_CACHE`` names another folder, or switches it off ("off"). A cache that the user has set for JAX
(``JAX_COMPILATION_CACHE_DIR``) is left as it is. Whoever can write there can run code here, so that the folder is the
user's alone; entries of another processor or version of JAX stand in a folder of their own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

import jax
import jaxlib.version

MOST_BYTES = 1_000_000_000
"""Beyond this, the entries that were used the longest time ago go."""


def use_cache() -> Path | None:
    """Switch the cache on for this process; its folder, or None when it is off, JAX's own, or cannot be written."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return None
    folder = cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK) or _of_somebody_else(folder):
            return None
        _tidy(folder)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def cache_folder() -> Path | None:
    """Where entries of this processor and version of JAX are kept; None when ``FEDPBC_CACHE`` says off."""
    said = os.environ.get("FEDPBC_CACHE", "").strip()
    if said.lower() in ("off", "0", "no", "false"):
        return None
    base = Path(said).expanduser() if said else _user_cache() / "fedpbc"
    return base / f"jax-{jaxlib.version.__version__}-{_processor()}"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """Stands for the instructions that compiled code may use: a home directory may be shared by unlike machines."""
    known = platform.machine() + platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        known += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return hashlib.sha256(known.encode()).hexdigest()[:8]


def _of_somebody_else(folder: Path) -> bool:
    """Others could have put code there."""
    if not hasattr(os, "getuid"):
        return False
    status = folder.stat()
    return status.st_uid != os.getuid() or bool(status.st_mode & 0o022)


def _tidy(folder: Path) -> None:
    """Remove entries that are damaged (a process was killed while it wrote), and the oldest of too many.

    An entry is looked at once after it was written: one that JAX cannot read would else be in its way for ever.
    """
    stamp = folder / "looked-at"
    began = time.time()
    since = stamp.stat().st_mtime - 2.0 if stamp.exists() else 0.0
    entries = []
    for path in folder.glob("*-cache"):
        with suppress(OSError):  # another process tidies too
            status = path.stat()
            if status.st_mtime >= since and not _whole(path):
                path.unlink(missing_ok=True)
            else:
                entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= MOST_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
    stamp.touch()
    os.utime(stamp, (began, began))


def _whole(path: Path) -> bool:
    """Compressed by zlib, which has a check sum; or by zstd, of which only the beginning is known here."""
    content = path.read_bytes()
    if content.startswith(b"\x28\xb5\x2f\xfd"):
        return True
    try:
        zlib.decompress(content)
    except zlib.error:
        return False
    return True
