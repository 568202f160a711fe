"""A Flower deployment on this machine that loses a SuperNode in mid-run and gets it back, watched line by line.

    python examples/deploy_demo.py [--out runs/deploy-demo]      (or: make deploy-demo)

Starts one SuperLink and four SuperNodes on 127.0.0.1, with TLS and authenticated keys, and runs FedPBC on the app
``examples/numpy_quadratic``. Two rounds show how long this machine takes; a second run goes on from their checkpoint,
with a deadline that suits. Then one SuperNode is killed, and started again; the SuperLink takes it back a minute after
its last sign of life. Then draws the figure and the audit of the log. About three minutes, more on a busy machine.

The folder is begun afresh each time: what an earlier demo left in it is deleted. Ctrl-C ends every process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_deployment import PATIENCE, LocalDeployment

APP = Path(__file__).resolve().parent / "numpy_quadratic"
CLIENTS, ROUNDS = 4, 18
FIRST_ROUNDS, FIRST_DEADLINE = 2, 300.0
"""How many rounds show what the machine needs, and the seconds they may take: they wait for everybody."""
LEAST_DEADLINE, MARGIN = 10.0, 2.0
"""The other rounds wait for a multiple of the slowest of these, at least for so many seconds."""
VICTIM, KILLED_AFTER = 2, 3
OWN = {"deployment", "federation", "audit"}

began = time.monotonic()


def say(line: str) -> None:
    """One line, with minutes and seconds since the start."""
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    print(f"{minutes}:{seconds:02d}  {line}", flush=True)


def empty_folder(out: Path) -> Path:
    """The folder, without what an earlier demo left there. Exits if it holds anything else."""
    other = {path.name for path in out.iterdir()} - OWN if out.is_dir() else {"it"} if out.exists() else set()
    if other:
        sys.exit(f"--out {out}: must be new, empty, or the folder of an earlier demo; there is also {min(other)}")
    for name in OWN:
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    return out.resolve()


def rounds_of(
    deployment: LocalDeployment, federation: Path, first: int, end: int
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Rounds first, ..., end - 1 as they close: numbers, and who was heard. RuntimeError when the run ends before."""
    seen, last, running = first, time.monotonic(), False
    while seen < end:
        alive = bool(deployment.processes("superlink", "flwr-serverapp"))
        lines = [_lines(federation / f"{name}.jsonl") for name in ("metrics", "participation")]
        for numbers, who in list(zip(*lines, strict=False))[seen:]:
            seen, last = seen + 1, time.monotonic()
            yield numbers, sorted(who["clients"])
        if seen < end and ((running and not alive) or time.monotonic() - last > PATIENCE):
            raise RuntimeError("the run ended too early" if running and not alive else "no round closes any more")
        running = running or alive
        time.sleep(0.3)


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def describe(numbers: dict[str, Any], heard: list[str]) -> str:
    """A round in one line."""
    silent = sorted({str(i) for i in range(CLIENTS)} - set(heard))
    parts = [f"round {numbers['round'] + 1:2d} of {ROUNDS}: heard {' '.join(heard) or 'nobody'}"]
    if silent:
        parts.append(f"silent {' '.join(silent)}")
    if numbers["caught_up"]:
        parts.append(f"{numbers['caught_up']} missed rounds caught up")
    return ", ".join([*parts, f"{numbers['seconds']:.0f} s"])


def measure(deployment: LocalDeployment, federation: Path) -> float:
    """Watch the first rounds, and return the seconds that the others should wait."""
    slowest = 0.0
    for numbers, heard in rounds_of(deployment, federation, 0, FIRST_ROUNDS):
        say(describe(numbers, heard))
        slowest = max(slowest, numbers["seconds"])
    return max(LEAST_DEADLINE, float(round(MARGIN * slowest)))


def watch(deployment: LocalDeployment, federation: Path, deadline: float) -> None:
    """Say what happens, round by round; kill a SuperNode and bring it back."""
    killed = back = False
    for numbers, heard in rounds_of(deployment, federation, FIRST_ROUNDS, ROUNDS):
        say(describe(numbers, heard))
        if not killed and numbers["round"] + 1 >= KILLED_AFTER:
            killed = True
            say(f"killing SuperNode {VICTIM} (SIGKILL); rounds now wait {deadline:g} s for it, in vain")
            deployment.kill_supernode(VICTIM)
            deployment.start_supernode(VICTIM)
            say(f"starting SuperNode {VICTIM} again; refused until the SuperLink believes the old one dead, about 60 s")
        elif killed and not back and str(VICTIM) in heard:
            back = True
            say(f"SuperNode {VICTIM} is back: it began anew from the last model it had helped to form")
    if not back:
        say(f"SuperNode {VICTIM} did not come back within {ROUNDS} rounds")


def run(out: Path) -> None:
    """The deployment from its start to its end."""
    federation = out / "federation"
    config = {
        "strategy": "fedpbc", "num-clients": CLIENTS, "learning-rate": 0.05, "local-steps": 5,
        "directory": str(federation), "cooldown": 0, "trace": "", "pin-names": True,
    }  # fmt: skip
    with LocalDeployment(out / "deployment", [f"partition-id={i}" for i in range(CLIENTS)]) as deployment:

        def submit(rounds: int, deadline: float) -> int:
            return deployment.submit(APP, config | {"num-server-rounds": rounds, "round-deadline": deadline})

        say(f"starting a SuperLink and {CLIENTS} SuperNodes on 127.0.0.1 (TLS, authenticated); Ctrl-C ends them")
        deployment.start_superlink()
        for node in range(CLIENTS):
            deployment.start_supernode(node)
        deployment.wait_until_connected()
        say(f"all are connected; submitting {APP.name}")
        run_id = submit(FIRST_ROUNDS, FIRST_DEADLINE)
        say(f"run {run_id}: FedPBC, {FIRST_ROUNDS} rounds that wait for everybody; the first takes a little")
        deadline = measure(deployment, federation)
        deployment.wait(run_id)
        run_id = submit(ROUNDS, deadline)
        say(f"run {run_id}: goes on from the checkpoint, up to {ROUNDS} rounds of at most {deadline:g} s")
        watch(deployment, federation, deadline)
        say(f"the run is over: {deployment.wait(run_id).replace(':', ', ')}")
    say("every process has ended")


def show(out: Path) -> None:
    """Figure and audit of the log."""
    log, audit = out / "federation" / "participation.jsonl", out / "audit"
    command = [sys.executable, "-m", "fedpbc"]
    subprocess.run([*command, "report", str(out / "federation")], check=True)
    subprocess.run([*command, "audit", str(log), "--out", str(audit)], check=True, stdout=subprocess.DEVNULL)
    say(f"the figure:  {out / 'federation' / 'figure.png'}")
    say(f"the audit:   {audit / 'audit.html'}")
    say(f"the log:     {log}")


def main() -> None:
    """Parse the command line and run the demo."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/deploy-demo"), help="folder [default: %(default)s]")
    out = empty_folder(parser.parse_args().out)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        run(out)
        show(out)
    except KeyboardInterrupt:
        sys.exit("\nended; no process is left")
    except (RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
        sys.exit(f"{error}\nwhat the parts said: {out / 'deployment' / 'logs'}")


if __name__ == "__main__":
    main()
