"""The server: FedPBC, resumed from its directory, until it is told to stop.

x^t goes to evaluation.jsonl, the last one to final.npy, too.
"""

import json
from itertools import takewhile
from pathlib import Path
from statistics import median

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from fedpbc.flower import FedPBC

FOREVER = 1_000_000
MARGIN = 3.0
app = ServerApp()


class Stopped(Exception):
    """There is a file ``stop``."""


@app.main()
def main(grid, context):
    config = context.run_config
    directory, stop = Path(config["directory"]), Path(config["marks"]) / "stop"
    strategy = FedPBC(
        round_deadline=config["first-deadline"],
        num_clients=config["clients"],
        min_available_nodes=config["at-start"] or config["clients"],
        directory=directory,
        fraction_evaluate=0.0,
        min_replies=config["min-replies"] or None,
    )
    before, models = len(rounds_of(directory)), {}

    def after(server_round, arrays):
        if server_round > before:  # the first round of a server may take as long as it likes
            strategy.round_deadline = deadline(rounds_of(directory), config)
        (models["last"],) = arrays.to_numpy_ndarrays()
        if server_round and stop.exists():
            raise Stopped
        return MetricRecord({"x": models["last"].tolist()})

    try:
        strategy.start(grid, ArrayRecord([np.zeros(5)]), num_rounds=FOREVER, evaluate_fn=after)
    except Stopped:
        np.save(directory / "final.npy", models["last"])


def rounds_of(directory):
    log = directory / "metrics.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def deadline(rounds, config):
    """A multiple of what this machine usually needs for a round, and twice as long for each round with silent clients.

    So every client that works is heard in the end, however slow the machine is or becomes; the first silence is free.
    """
    whole = [line["seconds"] for line in rounds if line["active"] == config["clients"]]
    silent = sum(1 for _ in takewhile(lambda line: line["active"] < line["asked"], reversed(rounds)))
    patient = max(config["least-deadline"], MARGIN * median(whole or [0.0])) * 2 ** max(0, silent - 1)
    return min(patient, config["first-deadline"])
