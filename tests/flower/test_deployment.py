"""FedPBC in a real deployment under every fault at once: what comes out is Algorithm 2 on the A^t that came about.

One SuperLink and four SuperNodes, TLS and authenticated keys, each link through a proxy, all on the loopback
interface. The faults hit while the clients compute.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import oracle
import pytest

import fedpbc
from fedpbc.audit import read_log

pytest.importorskip("flwr", reason="needs flwr")

ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).parent / "deployed_app"
CLIENTS, ROUNDS, DEADLINE = 4, 12, 12.0
STEPS, RATE, PERIOD = 3, 0.1, 5.0
CUT, PAUSED, STEADY, KILLED = range(CLIENTS)
"""Which client meets which fault; the steady one meets none of its own."""


def name(client):
    return f"client-{client}"


@pytest.fixture
def local_deployment():
    spec = importlib.util.spec_from_file_location("local_deployment", ROOT / "examples" / "local_deployment.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["local_deployment"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["local_deployment"]


def sockets_of(pids):
    """Inodes of the sockets that processes hold."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(f"/proc/{pid}/fd/{descriptor}")))
    return found


def address(hexadecimal):
    """The address in a line of /proc/net/tcp or tcp6: 32-bit words in the byte order of the machine."""
    host, port = hexadecimal.split(":")
    words = [int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found, int(port, 16)


class Deployed:
    """The deployment while it runs: what its logs say, and every address its processes were seen to use."""

    def __init__(self, deployment, folder):
        self.deployment, self.directory, self.marks = deployment, folder / "federation", folder / "marks"
        self.marks.mkdir()
        self.peers, self.listeners, self.commands = set(), set(), set()

    def submit(self):
        config = {"rounds": ROUNDS, "clients": CLIENTS, "round-deadline": DEADLINE, "learning-rate": RATE}
        return self.deployment.submit(
            APP, config | {"local-steps": STEPS, "directory": str(self.directory), "marks": str(self.marks)}
        )

    def lines(self, log):
        path = self.directory / f"{log}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def closed(self):
        """How many rounds are closed: the number of the one that is open."""
        return len(self.lines("participation"))

    def wait_closed(self, rounds, timeout):
        self.wait(lambda: self.closed() >= rounds, timeout, f"{rounds} rounds are not closed")

    def wait_computing(self, client, timeout=60):
        """Wait until a client begins to compute."""
        mark = self.marks / name(client)
        mark.unlink(missing_ok=True)
        self.wait(mark.exists, timeout, f"client {client} does not compute")

    def wait(self, condition, timeout, failure):
        deadline, looked = time.monotonic() + timeout, 0.0
        while not condition():
            assert time.monotonic() < deadline, f"{failure} within {timeout} s\n{self.deployment.logs('superlink')}"
            if time.monotonic() > looked + 1:
                looked = time.monotonic()
                self.look_at_addresses()
            time.sleep(0.05)

    def look_at_addresses(self):
        pids = self.deployment.processes()
        self.commands |= {Path(f"/proc/{pid}/cmdline").read_text() for pid in pids if Path(f"/proc/{pid}").exists()}
        inodes = sockets_of(pids)
        for table in ("tcp", "tcp6", "udp", "udp6"):
            path = Path(f"/proc/net/{table}")
            for line in path.read_text().splitlines()[1:] if path.exists() else []:
                fields = line.split()
                if fields[9] in inodes:
                    (local, _), (remote, port) = address(fields[1]), address(fields[2])
                    (self.peers if port else self.listeners).add(remote if port else local)


def go_through_faults(deployed):
    """Run all rounds through all faults: (what round was open at each fault, run ids)."""
    deployment, hit = deployed.deployment, {}
    runs = [deployed.submit()]
    deployed.wait_closed(2, 120)

    deployed.wait_computing(KILLED)
    hit[KILLED] = deployed.closed()
    assert deployment.kill_supernode(KILLED)
    deployment.start_supernode(KILLED)  # refused until the SuperLink takes the old one for dead, a minute later
    deployed.wait_computing(CUT)
    hit[CUT], began = deployed.closed(), time.monotonic()
    deployment.proxy(CUT).cut()
    deployed.wait(lambda: time.monotonic() > began + DEADLINE + 1, 60, "time stands still")
    deployed.wait_closed(hit[CUT] + 1, 30)
    deployment.proxy(CUT).restore()

    deployed.wait_computing(PAUSED)
    hit[PAUSED], began = deployed.closed(), time.monotonic()
    deployment.pause_supernode(PAUSED)
    deployed.wait(lambda: time.monotonic() > began + DEADLINE + 1, 60, "time stands still")
    deployed.wait_closed(hit[PAUSED] + 1, 30)
    deployment.continue_supernode(PAUSED)

    deployed.wait_computing(STEADY)
    hit["superlink"] = deployed.closed()
    assert deployment.kill_superlink()
    deployment.start_superlink()
    runs.append(deployed.submit())
    deployed.wait_closed(hit["superlink"] + 1, 150)

    deployed.wait_computing(STEADY)
    hit["serverapp"] = deployed.closed()
    assert deployment.kill_serverapp()
    runs.append(deployed.submit())
    deployed.wait((deployed.directory / "final.npy").exists, 180, "the last run does not end")
    assert deployment.wait(runs[-1], 30) == "finished:completed"
    return hit, runs


def gradient(i, x, sample=None):
    """Of F_i(x) = a_i ||x - u_i||^2 / 2, a_i = 1 + i / 2; u_i as the app has it."""
    return (1 + i / 2) * (x - np.random.default_rng(i).normal(i, 1.0, 5))


def algorithm_2(links):
    """x^0, ..., x^T of Algorithm 2 in plain NumPy on links[t, i]."""
    rate = oracle.inverse_sqrt(RATE, PERIOD)
    states = oracle.run(oracle.FedPBC(), gradient, links, np.zeros(5), steps=STEPS, rate=rate)
    return np.array([state.server for state in states])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes and sockets through /proc")
def test_a_deployment_under_every_fault_is_algorithm_2_on_the_links_that_came_about(local_deployment, tmp_path):
    nodes = [f'client-id="{name(i)}"' for i in range(CLIENTS)]
    environment = {"PYTHONPATH": str(Path(fedpbc.__file__).parent.parent)}
    with local_deployment.LocalDeployment(tmp_path / "deployment", nodes, environment=environment) as deployment:
        deployed = Deployed(deployment, tmp_path)
        deployment.start_superlink()
        for node in range(CLIENTS):
            deployment.start_supernode(node)
        deployment.wait_until_connected(timeout=90)
        hit, runs = go_through_faults(deployed)
        logs = [deployment.run_log(run) for run in runs]
    assert deployment.processes() == []

    participation = deployed.lines("participation")
    assert [line["round"] for line in participation] == list(range(ROUNDS))
    links = np.array([[name(i) in line["clients"] for i in range(CLIENTS)] for line in participation])
    assert links.sum() == sum(len(line["clients"]) for line in participation)
    expected = algorithm_2(links)
    np.testing.assert_allclose(np.load(deployed.directory / "final.npy"), expected[-1], rtol=0, atol=1e-9)
    models = {line["round"] + 1: line["server"]["x"] for line in deployed.lines("evaluation")}
    assert len(models) >= ROUNDS - 1  # x^0, ..., x^T but those of rounds closed at the moment the server was killed
    for t, model in models.items():
        np.testing.assert_allclose(model, expected[t], rtol=0, atol=1e-9, err_msg=f"x^{t}")

    for client in (CUT, PAUSED, KILLED):
        assert not links[hit[client], client], f"{name(client)} was heard in spite of its fault"
        assert links[hit[client] + 1 :, client].any(), f"{name(client)} never came back"
    for log, fault in zip(logs[1:], ("superlink", "serverapp"), strict=True):
        done = int(re.search(rf"going on after round (\d+) of {ROUNDS}", log)[1])
        assert done in (hit[fault], hit[fault] + 1)  # the open round could still close before the signal came

    log = read_log(deployed.directory / "participation.jsonl")
    assert (log.num_rounds, sorted(log.clients)) == (ROUNDS, [name(i) for i in range(CLIENTS)])
    assert log.active_counts().tolist() == links.sum(axis=1).tolist()

    addresses = set(re.findall(r"\d+\.\d+\.\d+\.\d+", " ".join(deployed.commands)))
    assert addresses == {"127.0.0.1"}
    assert deployed.peers == {ipaddress.ip_address("127.0.0.1")}
    assert all(listener.is_loopback for listener in deployed.listeners), deployed.listeners
