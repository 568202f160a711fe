"""The list of mutants fits the code: ``tests/run_mutants.py``, which is not part of the tests, can try each of them."""

from __future__ import annotations

import shlex
from collections import Counter
from functools import cache
from pathlib import Path

from run_mutants import PACKAGE, ROOT, Mutant, read_mutants

ROOMS = {path.stem for path in (ROOT / PACKAGE).iterdir() if path.name[0] not in "._" and path.suffix in ("", ".py")}
WITHOUT_ARITHMETIC = {"errors", "simulation"}
"""Parts of the package that need no mutants of their own."""


@cache
def text_of(file: str) -> str:
    return (ROOT / PACKAGE / file).read_text(encoding="utf-8")


def test_every_mutant_applies_once_and_is_another_program():
    for mutant in read_mutants():
        changed = mutant.of(text_of(mutant.file))
        assert changed is not None, f"{mutant.name}: its text must be in {mutant.file} exactly once"
        assert changed != text_of(mutant.file), mutant.name
        assert mutant.why.strip(), mutant.name


def test_the_tests_of_every_mutant_are_there():
    for mutant in read_mutants():
        files = [word.partition("::")[0] for word in shlex.split(mutant.tests) if word.startswith("tests/")]
        assert files, mutant.name
        for file in files:
            assert Path(ROOT / file).is_file(), f"{mutant.name}: there is no {file}"


def test_every_room_has_mutants():
    mutants = read_mutants()
    rooms = Counter(mutant.file.partition("/")[0] for mutant in mutants)
    assert set(rooms) | WITHOUT_ARITHMETIC >= ROOMS
    assert min(rooms.values()) >= 2
    assert len(mutants) >= 65
    assert len({mutant.old + mutant.new + mutant.file for mutant in mutants}) == len(mutants)


def test_a_text_that_is_not_there_once_does_not_apply():
    mutant = Mutant("core/none", "core/none.py", "a", "b", "shows it", "tests/test_mutants.py")
    assert mutant.of("cat") == "cbt"
    assert mutant.of("dog") is None
    assert mutant.of("banana") is None
