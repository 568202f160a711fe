"""Units, the compose file and the certificates of the guide: as far as can be told without systemd and Docker."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from fedpbc.cli.flower import run, watch

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "operation"
UNITS = sorted(FOLDER.glob("*.service"))


def commands() -> dict[str, list[str]]:
    """Where -> the words of every command of the units and the compose file."""
    found = {}
    for unit in UNITS:
        text = re.sub(r"\\\n\s*", " ", unit.read_text())
        (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        found[unit.name] = shlex.split(line)
    for name, service in yaml.safe_load((FOLDER / "compose.yml").read_text())["services"].items():
        found[name] = shlex.split(service["command"])
    return found


@pytest.mark.parametrize("where", commands())
def test_every_command_is_one_that_there_is(where):
    """Its options are parsed by the program that would be started."""
    program, *words = commands()[where]
    program = Path(program).name
    if program == "flower-superlink":
        assert _parse_args_run_superlink().parse_args(words).enable_supernode_auth
    elif program == "flower-supernode":
        arguments = _parse_args_run_supernode().parse_args(words)
        assert arguments.superlink.endswith(":8000")
        assert re.fullmatch(r'client-id="\d" partition-id=\d', arguments.node_config)
    else:
        assert (program, words[0]) == ("fedpbc", "flower")
        command = {"run": run, "watch": watch}[words[1]]
        context = command.make_context(words[1], words[2:])
        if words[1] == "run":
            known = tomllib.loads((ROOT / "examples/numpy_quadratic/pyproject.toml").read_text())
            given = tomllib.loads("\n".join(context.params["run_config"][0].split()))
            assert given.keys() <= known["tool"]["flwr"]["app"]["config"].keys()
            assert given["pin-names"] is True


def test_the_clients_of_the_compose_file_differ():
    words = [command for where, command in commands().items() if where.startswith("client-")]
    assert len({command[-1] for command in words}) == len(words) == 3


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units():
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, UNITS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    own = [line for line in done.stderr.splitlines() if any(unit.name in line for unit in UNITS)]
    assert [line for line in own if "is not executable: No such file" not in line] == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize(
    ("name", "check", "good"),
    [
        ("DNS:fl.example", ["-verify_hostname", "fl.example"], True),
        ("IP:192.0.2.7", ["-verify_ip", "192.0.2.7"], True),
        ("DNS:192.0.2.7", ["-verify_ip", "192.0.2.7"], False),
    ],
)
def test_the_certificates_of_the_guide(name, check, good, tmp_path):
    """By a name, and by an address; a name that looks like an address is none."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    block = re.search(r"\*\*1\. Certificates\*\*.*?```sh\n(.*?)```", text, re.DOTALL)[1]
    assert "DNS:SERVER" in block
    script = block.replace("DNS:SERVER", name).replace("SERVER", name.split(":")[1])
    subprocess.run(["bash", "-e"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    keys = tmp_path / "keys"
    command = ["openssl", "verify", "-CAfile", str(keys / "ca.crt"), *check, str(keys / "server.crt")]
    assert (subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0) is good
