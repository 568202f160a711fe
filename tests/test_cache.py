"""Programs are compiled once for all processes of a user; a cache that is damaged or not trusted changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from fedpbc.runs import cache

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
RUN = """
import hashlib, json, jax, fedpbc
said = []
jax.monitoring.register_event_listener(lambda name, **_: said.append(name.rpartition("/")[2]))
run = fedpbc.simulate(
    problem=fedpbc.problems.quadratic(num_clients=6, dim=4), links=fedpbc.links.bernoulli(prob=0.5),
    algorithm=fedpbc.algorithms.fedavg(), rounds=5, local_steps=2, learning_rate=0.1, devices=1, progress=False,
)
cell, bits = next(iter(run.cells.values())), hashlib.sha256()
for arrays in (cell.rows, cell.models):
    for name in sorted(arrays):
        bits.update(arrays[name].tobytes())
print(json.dumps([bits.hexdigest(), said.count("cache_misses"), said.count("cache_hits")]))
"""


def run(**environment: Any) -> tuple[str, int, int]:
    """A small run in a process of its own: (hash of its results, programs compiled, programs found)."""
    kept = {name: value for name, value in os.environ.items() if name.lower() not in SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=kept | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    bits, compiled, found = json.loads(done.stdout)
    return bits, compiled, found


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/*-cache"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """A folder that one process has filled, the hash of that process's results, and how many programs they are."""
    folder = tmp_path_factory.mktemp("cache") / "fedpbc"
    bits, compiled, found = run(FEDPBC_CACHE=folder)
    assert found == 0
    assert compiled == len(entries(folder)) >= 4
    shutil.copytree(folder, folder.with_name("copy"))
    return folder, bits, compiled


@pytest.fixture
def filled(first: tuple[Path, str, int]) -> tuple[Path, str, int]:
    """The same as it was at first, to be damaged: JAX finds programs in the folder they were made for alone."""
    shutil.rmtree(first[0])
    shutil.copytree(first[0].with_name("copy"), first[0])
    return first


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """JAX without a cache of its own, as it is for users; a folder for ours."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    jax.config.update(SETTINGS[0], None)
    jax.config.update(SETTINGS[1], 1.0)
    jax.config.update(SETTINGS[2], 0)
    monkeypatch.setenv("FEDPBC_CACHE", str(tmp_path / "ours"))
    yield tmp_path / "ours"
    for name, value in before.items():
        jax.config.update(name, value)


def settings() -> list[Any]:
    return [getattr(jax.config, name) for name in SETTINGS]


def test_a_second_process_compiles_nothing(filled):
    folder, bits, programs = filled
    assert run(FEDPBC_CACHE=folder) == (bits, 0, programs)


def test_switched_off_nothing_is_kept(tmp_path, first):
    home = {"HOME": tmp_path, "XDG_CACHE_HOME": tmp_path, "LOCALAPPDATA": tmp_path}
    assert run(FEDPBC_CACHE="off", **home) == (first[1], 0, 0)
    assert not entries(tmp_path)


def test_without_a_word_it_is_in_the_users_cache_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDPBC_CACHE", raising=False)
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    folder = cache.cache_folder()
    assert folder is not None
    assert folder.is_relative_to(tmp_path)
    assert folder.parent.name == "fedpbc"
    assert f"jax-{jax.lib.__version__}" in folder.name
    monkeypatch.setattr(cache.platform, "machine", lambda: "another")
    assert cache.cache_folder() != folder, "unlike processors may share a home directory"


@pytest.mark.parametrize("word", ["off", "OFF", " off ", "0", "no", "false"])
def test_words_that_switch_it_off(unset, monkeypatch, word):
    before = settings()
    monkeypatch.setenv("FEDPBC_CACHE", word)
    assert cache.cache_folder() is None
    assert cache.use_cache() is None
    assert settings() == before


def test_everything_is_kept_in_a_folder_for_the_user_alone(unset):
    folder = cache.use_cache()
    assert folder is not None
    assert folder.parent == unset
    assert settings() == [str(folder), 0.0, -1]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_cache_that_is_set_for_jax_is_left_as_it_is(unset, tmp_path):
    jax.config.update(SETTINGS[0], str(tmp_path / "jax"))
    before = settings()
    assert cache.use_cache() is None
    assert settings() == before
    assert not unset.exists()


def test_the_variable_of_jax_comes_first(first, tmp_path):
    theirs, ours = tmp_path / "jax", tmp_path / "ours"
    theirs.mkdir()
    every = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0, "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1}
    bits, compiled, _ = run(JAX_COMPILATION_CACHE_DIR=theirs, FEDPBC_CACHE=ours, **every)
    assert (bits, compiled) == first[1:]
    assert len(entries(theirs)) == compiled
    assert not ours.exists()


def test_damaged_entries_are_ignored_and_replaced(filled):
    """Half of one, one with a bit that is not its own, and a file that is none."""
    folder, bits, programs = filled
    half, flipped, foreign = sorted(entries(folder), key=lambda path: -path.stat().st_size)[:3]
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 16
    flipped.write_bytes(content)
    foreign.write_text("not a program\n")
    assert run(FEDPBC_CACHE=folder) == (bits, 3, programs - 3)
    for path in (half, flipped, foreign):
        assert zlib.decompress(path.read_bytes())
    assert run(FEDPBC_CACHE=folder) == (bits, 0, programs)


def test_what_is_damaged_later_is_ignored_too(filled):
    """After it was looked at, or in a way that no check sum shows: JAX cannot read it, and compiles."""
    folder, bits, programs = filled
    largest, other = sorted(entries(folder), key=lambda path: -path.stat().st_size)[:2]
    for path, content in ((largest, largest.read_bytes()[:-9]), (other, zlib.compress(b"not a program" * 99))):
        path.write_bytes(content)
        os.utime(path, (time.time() - 3600,) * 2)
    (stamp,) = folder.glob("**/looked-at")
    os.utime(stamp)
    assert run(FEDPBC_CACHE=folder) == (bits, 2, programs - 2)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no such modes there")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_not_used(unset, mode):
    folder = cache.cache_folder()
    folder.mkdir(parents=True)
    folder.chmod(mode)
    before = settings()
    assert cache.use_cache() is None
    assert settings() == before
    folder.chmod(0o755)
    assert cache.use_cache() == folder


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no such owners there")
def test_a_folder_of_somebody_else_is_not_used(unset, monkeypatch):
    cache.cache_folder().mkdir(parents=True)
    monkeypatch.setattr(os, "getuid", lambda: unset.parent.stat().st_uid + 1)
    assert cache.use_cache() is None
    assert settings()[0] is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no such modes there")
def test_programs_that_others_put_there_are_not_loaded(filled):
    folder, bits, _ = filled
    (inner,) = folder.iterdir()
    inner.chmod(0o777)
    assert run(FEDPBC_CACHE=folder) == (bits, 0, 0)


def test_a_place_that_cannot_be_written_is_no_error(unset, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDPBC_CACHE", str(tmp_path / "file" / "below"))
    assert cache.use_cache() is None
    monkeypatch.setenv("FEDPBC_CACHE", str(unset))
    cache.cache_folder().mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # the superuser may write anywhere
    assert cache.use_cache() is None
    assert settings()[0] is None
    monkeypatch.undo()
    assert run(FEDPBC_CACHE=tmp_path / "file" / "below")[1:] == (0, 0)


def test_the_entries_used_the_longest_time_ago_go(unset, monkeypatch):
    folder = cache.cache_folder()
    folder.mkdir(parents=True)
    now = time.time()
    for name, used, written in (("a", 900, 900), ("b", 100, 950), ("c", 500, 500), ("d", 300, 700), ("e", 50, 50)):
        path = folder / f"{name}-cache"
        path.write_bytes(zlib.compress(os.urandom(1000), 0))
        os.utime(path, (now - used, now - written))
    size = path.stat().st_size
    monkeypatch.setattr(cache, "MOST_BYTES", 3 * size)
    cache.use_cache()
    assert [path.name[0] for path in entries(folder)] == ["b", "d", "e"]
    monkeypatch.setattr(cache, "MOST_BYTES", 3 * size - 1)
    jax.config.update(SETTINGS[0], None)
    (folder / "mine.txt").write_text("x" * size)
    cache.use_cache()
    assert len(entries(folder)) == 2
    assert (folder / "mine.txt").exists()
