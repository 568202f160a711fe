"""What `make test-newest-flwr` installs, and what it says; the run itself needs the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import newest_flwr
import pytest

SCRIPT = Path(newest_flwr.__file__)


def test_requirements_are_those_of_the_extra_with_all_it_includes():
    found = newest_flwr.requirements("dev")
    names = [newest_flwr.name_of(line) for line in found]
    assert {"numpy", "jax", "openpyxl", "scikit-learn", "pytest", "flwr"} <= set(names)
    assert not any(name.startswith("fedpbc") for name in names)
    assert newest_flwr.name_of("Ruamel.Yaml_x[extra]>=1") == "ruamel-yaml-x"


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """An environment whose pytest ends with a given status: (set it, what pytest was told)."""

    def set_status(status: int) -> Path:
        python, told = tmp_path / "python", tmp_path / "told"
        python.write_text(f'#!/bin/sh\necho "$@" > {told}\nexit {status}\n')
        python.chmod(0o755)
        monkeypatch.setattr(newest_flwr, "make", lambda folder, package, wanted: (python, "1.99.0"))
        return told

    return set_status


@pytest.mark.parametrize(("status", "verdict"), [(0, "passed"), (1, "FAILED"), (5, "FAILED")])
def test_the_last_line_says_the_version_and_the_verdict(stub, capfd, status, verdict):
    told = stub(status)
    assert newest_flwr.main([]) == status
    assert capfd.readouterr().out.splitlines()[-1] == f"flwr 1.99.0 (fedpbc asks for >=1.42,<1.43): {verdict}"
    arguments = told.read_text().split()
    assert set(newest_flwr.TESTS) <= set(arguments)
    assert f"--ignore={newest_flwr.HOUR}" in arguments


def test_what_is_run_is_there():
    assert all((newest_flwr.ROOT / path).exists() for path in [*newest_flwr.TESTS, newest_flwr.HOUR])


@pytest.mark.release
def test_without_an_index_it_fails_in_plain_sight(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    command = [sys.executable, str(SCRIPT), "--environment", str(tmp_path / "environment")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "flwr newest: NOT INSTALLED"
    assert "No matching distribution found for flwr" in done.stdout
