"""Runs the Flower tests against the newest flwr that the package index has, whatever pyproject.toml pins.

    python tests/newest_flwr.py [--nightly | --version 1.43.0] [--environment .venv-newest-flwr] [pytest arguments]

It has an environment of its own: flwr with its own requirements, all else of the extra ``dev`` in the versions of
constraints.txt, and fedpbc itself without its requirements, so that the pin does not count. Then come the tests in one
process and those of deployments on this machine, but for the hour-long one. The last line says which version it was:

    flwr 1.43.0 (fedpbc asks for >=1.42,<1.43): FAILED

The exit status is that of pytest, or 3 where the environment could not be made: no network, or requirements of flwr and
of fedpbc that exclude each other. ``--nightly`` takes flwr-nightly, what the next version will be.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ["tests/flower", "tests/test_local_deployment.py", "tests/test_examples.py", "tests/test_operation.py"]
HOUR = "tests/flower/test_long_deployment.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


class NotMade(Exception):
    """No environment, and why."""


def name_of(requirement: str) -> str:
    """Of a package, as indices compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def requirements(extra: str) -> list[str]:
    """Of fedpbc with an extra, those that it names included."""
    found = list(PROJECT["dependencies"])
    for line in EXTRAS[extra]:
        inner = re.fullmatch(r"fedpbc\[(.*)\]", line)
        found += [each for name in inner[1].split(",") for each in requirements(name)] if inner else [line]
    return list(dict.fromkeys(found))


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMade(f"pip install {' '.join(arguments)}\n{done.stdout}{done.stderr}")


def ask(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMade(done.stderr)
    return done.stdout.strip()


def make(folder: Path, package: str, wanted: str) -> tuple[Path, str]:
    """(its Python, version of flwr in it). An environment that is there is brought up to date. Raises NotMade."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    other = {"flwr": "flwr-nightly", "flwr-nightly": "flwr"}[package]  # both are the module flwr
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", other], capture_output=True, check=False)
    pre = ["--pre"] if package == "flwr-nightly" else []
    pip(python, "--upgrade", "--no-deps", *pre, f"{package}=={wanted}" if wanted else package)
    version = ask(python, f"from importlib.metadata import version; print(version({package!r}))")
    needs = ask(python, f"from importlib.metadata import requires; print(*requires({package!r}), sep='\\n')")
    free = {name_of(line) for line in needs.splitlines()} | {"flwr"}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = folder / "constraints.txt"
    kept = [line for line in pinned if line[:1].isalnum() and name_of(line) not in free]
    constraints.write_text("\n".join(kept) + "\n")
    ours = [line for line in requirements("dev") if name_of(line) != "flwr"]
    pip(python, "--upgrade", "-c", str(constraints), f"{package}[simulation]=={version}", *ours)
    pip(python, "--no-deps", "--editable", ".")
    where = ask(python, "import flwr; print(flwr.__file__)")
    if folder.resolve() not in Path(where).resolve().parents:
        raise NotMade(f"flwr is that of {where}")
    return python, version


def main(arguments: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nightly", action="store_true", help="flwr-nightly in place of flwr")
    parser.add_argument("--version", default="", help="this version, not the newest")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-newest-flwr")
    options, rest = parser.parse_known_args(arguments)
    package = "flwr-nightly" if options.nightly else "flwr"
    pin = next(line for line in EXTRAS["flower"] if name_of(line) == "flwr").removeprefix("flwr")
    try:
        python, version = make(options.environment, package, options.version)
    except NotMade as failure:
        print(f"{failure}\n{package} {options.version or 'newest'}: NOT INSTALLED", flush=True)
        return 3
    print(f"{package} {version}", flush=True)
    command = [str(python), "-m", "pytest", "-m", "", "-p", "no:cacheprovider", f"--ignore={HOUR}", *(rest or TESTS)]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"{package} {version} (fedpbc asks for {pin}): {'FAILED' if status else 'passed'}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
