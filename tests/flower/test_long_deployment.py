"""Before a release: ten clients on loopback that die, lag, restart and lie, an hour under the supervisor.

Whatever A^t comes about, every x^t is that of Algorithm 2 on the participation log. FEDPBC_LONG_MINUTES says for how
long (default 60), FEDPBC_LONG_SEED in which order faults come.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_deployment import APP, Deployed, algorithm_2, local_deployment, name  # noqa: F401
from waiting import PATIENCE, wait_until

import fedpbc
from fedpbc.audit import audit, read_log

CLIENTS, MIN_REPLIES, AT_START = 10, 0.7, 6
MINUTES = float(os.environ.get("FEDPBC_LONG_MINUTES", "60"))
SEED = int(os.environ.get("FEDPBC_LONG_SEED", "1"))
MOST_AT_ONCE = 3
"""Clients with a fault at a time, and faults that begin while a round is open."""
AGAIN = 15.0
"""Seconds until a SuperNode that was refused is started again: to start takes seconds of processor time."""


PATIENT = Path(__file__).parent / "patient"
"""Flower waits longer for processes that start slowly."""


class Chaos:
    """Faults by chance; each is undone after a while."""

    def __init__(self, deployed: Deployed, rng: random.Random) -> None:
        self.deployed, self.deployment, self.rng = deployed, deployed.deployment, rng
        self.hit: Counter[str] = Counter()
        self.at_server = 0
        """Rounds that were closed when a server was killed last: the next one may close two, however slow it is."""
        self.round, self.begun = -1, 0
        """Rounds that are closed, and faults since the last was: so rounds close, however slow the machine is."""
        self.undo: list[tuple[float, int, object]] = []
        """(when, client, how)."""

    def mark(self, what: str, client: int) -> Path:
        return self.deployed.marks / f"{what}-{name(client)}"

    def begin(self) -> None:
        """One more fault of a client that has none, or of the server."""
        if self.deployed.closed() > self.round:
            self.round, self.begun = self.deployed.closed(), 0
        if self.begun >= MOST_AT_ONCE:
            return
        free = sorted(set(range(CLIENTS)) - {client for _, client, _ in self.undo})
        if len(free) <= CLIENTS - MOST_AT_ONCE:
            return
        client = self.rng.choice(free)
        fault = self.rng.choice(["die", "pause", "cut", "lag", "lie", "lie", "server"])
        undo, deployment = lambda: None, self.deployment
        if fault == "die":
            deployment.kill_supernode(client)
            undo = lambda: deployment.start_supernode(client)  # noqa: E731
        elif fault == "pause":
            deployment.pause_supernode(client)
            undo = lambda: deployment.continue_supernode(client)  # noqa: E731
        elif fault == "cut":
            deployment.proxy(client).cut()
            undo = deployment.proxy(client).restore
        elif fault in ("lag", "lie"):
            mark = self.mark("hold" if fault == "lag" else "lie", client)
            mark.touch()
            undo = mark.unlink
        elif self.deployed.closed() < self.at_server + 2:
            return
        elif self.rng.random() < 0.3:
            fault = "superlink"
            deployment.kill_superlink()
            deployment.start_superlink()
        elif not deployment.kill_serverapp():
            return
        self.hit[fault] += 1
        self.begun += 1
        if fault in ("server", "superlink"):
            self.at_server = self.deployed.closed()
        self.undo.append((time.monotonic() + self.rng.uniform(5, 40), client, undo))

    def end(self, everything: bool = False) -> None:
        """Undo what lasted long enough."""
        for entry in list(self.undo):
            if everything or time.monotonic() > entry[0]:
                entry[2]()
                self.undo.remove(entry)


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes and sockets through /proc")
def test_an_hour_under_the_supervisor_is_algorithm_2(local_deployment, tmp_path):  # noqa: F811
    nodes = [f'client-id="{name(i)}"' for i in range(CLIENTS)]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, (PATIENT, Path(fedpbc.__file__).parent.parent)))}
    with local_deployment.LocalDeployment(
        tmp_path / "deployment", nodes, environment=environment, restart_delay=AGAIN
    ) as deployment:
        deployed = Deployed(deployment, tmp_path)
        deployment.start_superlink()
        for node in range(CLIENTS):
            deployment.start_supernode(node)
        deployment.wait_until_connected()
        config = f"clients={CLIENTS} marks='{deployed.marks}' min-replies={MIN_REPLIES} at-start={AT_START}"
        command = [sys.executable, "-m", "fedpbc", "flower", "run", str(APP), local_deployment.CONNECTION]
        with open(tmp_path / "supervisor.log", "w") as log:
            supervisor = subprocess.Popen(
                [*command, "--directory", str(deployed.directory), "--run-config", config, "--every", "30"],
                env=deployment._environment("cli"), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            try:
                deployed.wait_closed(2)
                chaos, until = Chaos(deployed, random.Random(SEED)), time.monotonic() + 60 * MINUTES
                while time.monotonic() < until:
                    chaos.begin()
                    chaos.end()
                    assert supervisor.poll() is None, (tmp_path / "supervisor.log").read_text()
                    time.sleep(chaos.rng.uniform(2, 15))
                chaos.end(everything=True)
                rounds = deployed.closed()
                wait_until(lambda: deployed.closed() > rounds, "no round closes after the last fault")
                deployed.stop()
                assert supervisor.wait(PATIENCE) == 0
            finally:
                supervisor.kill()
                supervisor.wait()
    assert deployment.processes() == []
    said = (tmp_path / "supervisor.log").read_text()
    print(f"{dict(chaos.hit)}\n{said}")

    participation, lines = deployed.lines("participation"), deployed.lines("metrics")
    rounds = len(participation)
    links = np.array([[name(i) in line["clients"] for i in range(CLIENTS)] for line in participation])
    expected = algorithm_2(links)
    models = {line["round"] + 1: line["server"]["x"] for line in deployed.lines("evaluation")}
    models[rounds] = np.load(deployed.directory / "final.npy")
    servers = chaos.hit["server"] + chaos.hit["superlink"]
    assert len(models) >= rounds + 1 - servers
    for t, model in models.items():
        np.testing.assert_allclose(model, expected[t], rtol=0, atol=1e-9, err_msg=f"x^{t}")
    farthest = max(float(np.abs(model - expected[t]).max()) for t, model in models.items())

    assert links.any(axis=0).all()
    assert sum(line["closed_early"] for line in lines) > 0
    lies = [entry["reason"] for line in lines for entry in line["refused"] if "was not asked" in entry["reason"]]
    assert chaos.hit["lie"] or not lies  # a liar may be late for as long as it lies
    submitted = said.count("is submitted;")
    assert submitted >= 1 + (servers > 0)
    verdict = audit(read_log(deployed.directory / "participation.jsonl"))
    assert any("rounds closed early" in note for note in verdict.log.notes)
    early, heard = sum(line["closed_early"] for line in lines), links.mean(axis=0).round(2).tolist()
    late, caught_up = sum(len(line["late"]) for line in lines), sum(line["caught_up"] for line in lines)
    print(f"{rounds} rounds in {MINUTES:g} min, {early} closed early; {len(lies)} lies refused, {late} replies late")
    print(f"{caught_up} missed rounds replayed; {servers} servers killed, {submitted} runs submitted; heard {heard}")
    print(f"{len(models)} models compared, farthest from the oracle by {farthest:.1e}")
    print("\n".join(f"audit: {each.advice}" for each in verdict.advice))
