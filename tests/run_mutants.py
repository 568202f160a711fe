"""Shows that the tests notice mistakes: each mutant of tests/mutants/*.toml in turn, and the tests that must fail.

    python tests/run_mutants.py [--room flower] [--only 'core/cooldown*'] [-j 2]

A mutant is a change of one place of the package, as somebody could make it by mistake. It is applied to a copy of the
tree in a temporary folder, never to the tree itself. Its tests are run once without it, so that a failure means
something, and once with it. One line each:

    caught            a test failed; the line names the first one
    SURVIVED          all of them passed: a test is missing
    does not apply    its text is not there exactly once (tests/test_mutants.py says so in every test run)
    no verdict        no test ran to its end, or the tests fail without the mutant too

The exit status is 0 when every mutant was caught. Not part of the tests, as it takes about half an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import queue
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "mutants"
PACKAGE = "src/fedpbc"
COPIED = (
    "src", "tests", "docs", "examples", "benchmarks", "pyproject.toml", "constraints.txt", "mkdocs.yml", "Makefile",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
)  # fmt: skip
"""What the tests read."""
CAUGHT, SURVIVED, NOT_THERE, NO_VERDICT = "caught", "SURVIVED", "does not apply", "no verdict"
MEMORY = 8 << 30
"""Bytes that the tests of one mutant may take: some mistakes have no end."""
LONGEST = 300.0
"""Seconds that the tests of one mutant may take; a loaded machine is slow."""


@dataclass(frozen=True)
class Mutant:
    """A mistake, and the tests that must notice it."""

    name: str
    """``room/what``."""
    file: str
    """Below src/fedpbc."""
    old: str
    """The text that is replaced; it occurs once in the file."""
    new: str
    why: str
    """What would go wrong."""
    tests: str
    """Arguments of pytest, as in a shell."""

    @property
    def room(self) -> str:
        """Which part of the package it is about."""
        return self.name.partition("/")[0]

    def of(self, text: str) -> str | None:
        """The file with the mistake; None when its text is not there exactly once."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def read_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants, those of a file after one another; a file is a room, and gives what its mutants do not say."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, entry in table.items():
            found.append(Mutant(f"{path.stem}/{name}", **{key: text.strip("\n") for key, text in entry.items()}))
    return found


@dataclass(frozen=True)
class Outcome:
    """How the tests ended."""

    status: int | None
    """Of pytest; None: they took too long."""
    said: str
    """The test that failed first, or what pytest said last."""
    seconds: float


NURSERY = """
import importlib, json, os, resource, sys, warnings
sys.path.insert(0, os.getcwd())
warnings.simplefilter("ignore")
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
warnings.resetwarnings()
import pytest
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(file, stream)
        status = int(pytest.main(order["arguments"]))
        sys.stdout.flush()
        os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that has imported what is slow and not ours, and forks for each run of tests."""
IMPORTED = (
    "numpy", "scipy.stats", "scipy.special", "scipy.sparse.csgraph", "jax", "jax.numpy", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "hypothesis.extra.numpy", "pyarrow.parquet", "pandas", "rich.console",
    "rich.progress", "click", "tomli_w", "flwr.app", "flwr.clientapp", "flwr.serverapp.strategy",
)  # fmt: skip


class Copy:
    """A copy of the tree, in which one mutant at a time is tried."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.tree, self.limit = folder, limit
        folder.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder)
        self.nursery = subprocess.Popen(
            [sys.executable, "-c", NURSERY.replace("MEMORY", str(MEMORY)), *IMPORTED],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what is heard is waited for with select, which knows of no buffer
        )

    def close(self) -> None:
        """End the nursery."""
        self.nursery.kill()
        self.nursery.communicate()

    def run(self, tests: str) -> Outcome:
        """Run these tests as they are, until the first that fails."""
        began, file = time.monotonic(), self.tree / "output.txt"
        plain = [
            "-x",
            "--tb=no",
            "-r",
            "fE",
            "-p",
            "no:cacheprovider",
            "--assert=plain",
            "--hypothesis-seed=0",
            "-m",
            "",
        ]
        self._say({"output": str(file), "arguments": [*plain, *shlex.split(tests)]})
        child, status = int(self._heard()), None
        try:
            if select.select([self.nursery.stdout], [], [], self.limit)[0]:
                status = int(self._heard())
        finally:
            _end(child)
        if status is None:
            self._heard()
        output = file.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in output.splitlines() if line.strip()]
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        said = failed[1] if failed else lines[-1] if lines else ""
        said = f"nothing within {self.limit:g} s" if status is None else said
        return Outcome(status, said, time.monotonic() - began)

    def _say(self, order: dict[str, object]) -> None:
        assert self.nursery.stdin is not None
        self.nursery.stdin.write(json.dumps(order).encode() + b"\n")

    def _heard(self) -> bytes:
        assert self.nursery.stdout is not None
        return self.nursery.stdout.readline()

    def attempt(self, mutant: Mutant) -> tuple[str, Outcome]:
        """The verdict on a mutant whose tests pass without it."""
        path = self.tree / PACKAGE / mutant.file
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        after = mutant.of(before)
        if after is None:
            return NOT_THERE, Outcome(None, f"{before.count(mutant.old)} times in {mutant.file}", 0.0)
        try:
            self._write(path, after)
            outcome = self.run(mutant.tests)
        finally:
            self._write(path, before)
        return {0: SURVIVED, 1: CAUGHT}.get(outcome.status, NO_VERDICT), outcome  # type: ignore[arg-type]

    def _write(self, path: Path, text: str) -> None:
        """And forget what was compiled of it: two versions of one second and size would be taken for the same."""
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def _end(leader: int) -> None:
    """End what a run of tests started and left: all of its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def chosen(mutants: list[Mutant], only: list[str], rooms: list[str]) -> list[Mutant]:
    """Those whose name fits one of the patterns, and whose room is one of the rooms."""
    return [
        mutant
        for mutant in mutants
        if (not only or any(fnmatch.fnmatch(mutant.name, pattern) for pattern in only))
        and (not rooms or mutant.room in rooms)
    ]


def try_all(mutants: list[Mutant], jobs: int, limit: float, trust: bool = False) -> Counter[str]:
    """Print a line for each mutant; how many ended how. ``trust``: the tests pass without mutants, nobody looks."""
    verdicts: Counter[str] = Counter()
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    lock = threading.Lock()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
        for i in range(jobs):
            copy = Copy(Path(folder) / str(i), limit)
            stack.callback(copy.close)
            copies.put(copy)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))

        def plain(tests: str) -> Outcome:
            copy = copies.get()
            try:
                return copy.run(tests)
            finally:
                copies.put(copy)

        selections = [] if trust else list(dict.fromkeys(mutant.tests for mutant in mutants))
        unmutated = dict(zip(selections, pool.map(plain, selections), strict=True))

        def one(mutant: Mutant) -> None:
            before = unmutated.get(mutant.tests)
            if before is not None and before.status != 0:
                verdict, outcome = NO_VERDICT, Outcome(None, f"without the mutant: {before.said}", before.seconds)
            else:
                copy = copies.get()
                try:
                    verdict, outcome = copy.attempt(mutant)
                finally:
                    copies.put(copy)
            with lock:
                verdicts[verdict] += 1
                said = f"{mutant.tests}: {outcome.said}" if verdict == SURVIVED else outcome.said
                print(f"{verdict:14} {mutant.name:44} {outcome.seconds:5.1f} s  {said}", flush=True)

        try:
            list(pool.map(one, mutants))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return verdicts


def main() -> int:
    """0 when every mutant was caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="names, as core/mask*")
    parser.add_argument("--room", action="append", default=[], help="all mutants of a room")
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="so many at a time [default: 1]")
    parser.add_argument("--limit", type=float, default=LONGEST, metavar="S", help="seconds for the tests of one")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without mutants first")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies go
    mutants = chosen(read_mutants(), options.only, options.room)
    if not mutants:
        print("no such mutant", file=sys.stderr)
        return 2
    verdicts = try_all(mutants, max(1, options.jobs), options.limit, options.trust)
    print(f"{len(mutants)} mutants: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    return 0 if set(verdicts) == {CAUGHT} else 1


if __name__ == "__main__":
    sys.exit(main())
