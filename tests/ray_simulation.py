"""``flwr run`` in Flower's simulation, which runs clients in Ray, as examples/README.md has it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import PATIENCE, wait_until


def wait_for(url: str, process: subprocess.Popen) -> None:
    def answers() -> bool:
        assert process.poll() is None, "the SuperLink ended"
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except OSError:
            return False
        return True

    wait_until(answers, f"no answer from {url}")


def processes_with(text: str) -> set[int]:
    """Those whose environment holds ``text``: what was started with it, and what that started, Ray included."""
    found = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text.encode() in environ.read_bytes():
                found.add(int(environ.parent.name))
        except OSError:
            continue
    return found


@contextmanager
def superlink(folder: Path) -> Iterator[Callable[[Path, Mapping[str, Any], int], str]]:
    """Gives run(app, run config, clients), which says what the run printed; the SuperLink is gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    command = ["flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation"]
    with open(folder / "superlink.log", "w") as log:
        process = subprocess.Popen([*command, "--port", port], env=environment, stdout=log, stderr=log)

    def run(app: Path, config: Mapping[str, Any], clients: int) -> str:
        changes = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = ["flwr", "run", str(app), "--stream", "--federation-config", f"num-supernodes={clients}"]
        command += ["--run-config", changes]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield run
    finally:
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 300
        while (left := processes_with(environment["FLWR_HOME"])) and time.monotonic() < deadline:
            time.sleep(0.2)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        assert not left
