"""FedPBC in a real deployment under every fault at once: what comes out is Algorithm 2 on the A^t that came about.

One SuperLink and four SuperNodes, TLS and authenticated keys, each link through a proxy, all on the loopback
interface. The faults hit while the clients compute. The test waits for what it needs to see (a client computes, a round
is closed, a client is heard again); so how many rounds there are, how long they wait and A^t depend on the machine, and
what is checked does not.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import math
import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import oracle
import pytest
from waiting import PATIENCE

import fedpbc
from fedpbc.audit import read_log

pytest.importorskip("flwr", reason="needs flwr")

ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).parent / "deployed_app"
CLIENTS, STEPS, RATE, PERIOD = 4, 3, 0.1, 5.0
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
        config = {"clients": CLIENTS, "learning-rate": RATE, "local-steps": STEPS}
        self.run = self.deployment.submit(APP, config | {"directory": str(self.directory), "marks": str(self.marks)})
        return self.run

    def stop(self):
        """Tell the server to end after the round that is open."""
        (self.marks / "stop").touch()

    def lines(self, log):
        path = self.directory / f"{log}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def closed(self):
        """How many rounds are closed: the number of the one that is open."""
        return len(self.lines("participation"))

    def wait_closed(self, rounds):
        self.wait(lambda: self.closed() >= rounds, f"{rounds} rounds are not closed")

    def wait_heard(self, client, after):
        """Wait until a client was heard in a round after this one."""

        def heard():
            return any(name(client) in line["clients"] for line in self.lines("participation")[after + 1 :])

        self.wait(heard, f"{name(client)} is not heard after round {after}")

    @contextmanager
    def computing(self, client):
        """Within, a client computes and does not come to its end."""
        hold, mark = (self.marks / f"{what}-{name(client)}" for what in ("hold", "computing"))
        mark.unlink(missing_ok=True)
        hold.touch()
        self.wait(lambda: mark.exists() and mark.read_text() == str(self.run), f"{name(client)} does not compute")
        yield
        hold.unlink()

    def wait(self, condition, failure):
        deadline, looked = time.monotonic() + PATIENCE, -math.inf
        while not condition():
            assert time.monotonic() < deadline, f"{failure} within {PATIENCE} s\n{self.deployment.logs('superlink')}"
            if time.monotonic() > looked + 1:
                looked = time.monotonic()
                self.look_at_addresses()
            time.sleep(0.05)

    def look_at_addresses(self):
        pids = self.deployment.processes()
        for pid in pids:
            with suppress(OSError):  # it has ended
                self.commands.add(Path(f"/proc/{pid}/cmdline").read_text())
        inodes = sockets_of(pids)
        for table in ("tcp", "tcp6", "udp", "udp6"):
            path = Path(f"/proc/net/{table}")
            for line in path.read_text().splitlines()[1:] if path.exists() else []:
                fields = line.split()
                if fields[9] in inodes:
                    (local, _), (remote, port) = address(fields[1]), address(fields[2])
                    (self.peers if port else self.listeners).add(remote if port else local)


def go_through_faults(deployed):
    """Run through all faults: (what round was open at each, or for servers how many were closed; run ids)."""
    deployment, hit = deployed.deployment, {}
    runs = [deployed.submit()]
    deployed.wait_closed(2)

    with deployed.computing(KILLED):
        hit[KILLED] = deployed.closed()
        assert deployment.kill_supernode(KILLED)
    with deployed.computing(CUT):
        hit[CUT] = deployed.closed()
        deployment.proxy(CUT).cut()
    deployed.wait_closed(hit[CUT] + 1)
    deployment.proxy(CUT).restore()
    deployment.start_supernode(KILLED)  # refused until the SuperLink takes the old one for dead, a minute later
    deployed.wait_heard(CUT, hit[CUT])

    with deployed.computing(PAUSED):
        hit[PAUSED] = deployed.closed()
        deployment.pause_supernode(PAUSED)
    deployed.wait_closed(hit[PAUSED] + 1)
    deployment.continue_supernode(PAUSED)
    deployed.wait_heard(PAUSED, hit[PAUSED])
    deployed.wait_heard(KILLED, hit[KILLED])

    with deployed.computing(STEADY):
        assert deployment.kill_superlink()
        hit["superlink"] = deployed.closed()
    deployment.start_superlink()
    runs.append(deployed.submit())
    deployed.wait_closed(hit["superlink"] + 1)

    with deployed.computing(STEADY):
        assert deployment.kill_serverapp()
        hit["serverapp"] = deployed.closed()
    runs.append(deployed.submit())
    for client in range(CLIENTS):
        deployed.wait_heard(client, hit["serverapp"])
    deployed.stop()
    deployed.wait((deployed.directory / "final.npy").exists, "the last run does not end")
    assert deployment.wait(runs[-1]) == "finished:completed"
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
        deployment.wait_until_connected()
        hit, runs = go_through_faults(deployed)
        logs = [deployment.run_log(run) for run in runs]
    assert deployment.processes() == []

    participation = deployed.lines("participation")
    rounds = len(participation)
    assert [line["round"] for line in participation] == list(range(rounds))
    links = np.array([[name(i) in line["clients"] for i in range(CLIENTS)] for line in participation])
    assert links.sum() == sum(len(line["clients"]) for line in participation)
    expected = algorithm_2(links)
    models = {line["round"] + 1: line["server"]["x"] for line in deployed.lines("evaluation")}
    models[rounds] = np.load(deployed.directory / "final.npy")
    assert len(models) >= rounds - 1  # x^0, ..., x^T but those of rounds closed at the moment the server was killed
    for t, model in models.items():
        np.testing.assert_allclose(model, expected[t], rtol=0, atol=1e-9, err_msg=f"x^{t}")

    for client in (CUT, PAUSED, KILLED):
        assert not links[hit[client], client], f"{name(client)} was heard in spite of its fault"
        assert links[hit[client] + 1 :, client].any(), f"{name(client)} never came back"
    for log, fault in zip(logs[1:], ("superlink", "serverapp"), strict=True):
        done = int(re.search(r"going on after round (\d+) of ", log)[1])
        assert done in (hit[fault] - 1, hit[fault])  # a round counts when its checkpoint is written, after its log

    log = read_log(deployed.directory / "participation.jsonl")
    assert (log.num_rounds, sorted(log.clients)) == (rounds, [name(i) for i in range(CLIENTS)])
    assert log.active_counts().tolist() == links.sum(axis=1).tolist()

    addresses = set(re.findall(r"\d+\.\d+\.\d+\.\d+", " ".join(deployed.commands)))
    assert addresses == {"127.0.0.1"}
    assert deployed.peers == {ipaddress.ip_address("127.0.0.1")}
    assert all(listener.is_loopback for listener in deployed.listeners), deployed.listeners
