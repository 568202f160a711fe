"""Documentation pages as programs: titled blocks are files, Python blocks a script, ``sh`` blocks commands.

Blocks of one title are parts of one file; Python without a title belongs to ``page.py``. The script (``page.py`` or
``tutorial.py``) is run first, then the commands.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import fedpbc

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([\w./-]+)")?[^\n]*\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SCRIPTS = ("page.py", "tutorial.py")


def blocks(page: Path) -> tuple[dict[str, str], list[str]]:
    """(file name -> text, commands) of a page."""
    files: dict[str, str] = {}
    commands: list[str] = []
    for language, title, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "sh":
            commands += [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        elif title or language == "python":
            name = title or "page.py"
            files[name] = files.get(name, "") + text
    return files, commands


def environment() -> dict[str, str]:
    """Two devices, no display, and this package."""
    source = str(Path(fedpbc.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join(paths),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
    }


def execute(folder: Path, command: list[str]) -> str:
    """Run a command in ``folder``; its output, or an AssertionError with both streams."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_page(page: Path, folder: Path) -> str:
    """Do what a reader of the page does; the output of its script and commands."""
    files, commands = blocks(page)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
        if name.endswith(".py"):
            compile(text, f"{page.name}: {name}", "exec")
    said = [execute(folder, [sys.executable, name]) for name in SCRIPTS if name in files]
    programs = {"fedpbc": [sys.executable, "-m", "fedpbc"], "python": [sys.executable]}
    for command in commands:
        program, *arguments = shlex.split(command, comments=True)
        assert program in programs, f"{page.name}: {command}"
        said.append(execute(folder, [*programs[program], *arguments]))
    return "\n".join(said)
