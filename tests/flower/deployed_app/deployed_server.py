"""The server: FedPBC, resumed from its directory; x^t goes to evaluation.jsonl, the last one to final.npy, too."""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from fedpbc.flower import FedPBC

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    strategy = FedPBC(
        round_deadline=config["round-deadline"],
        num_clients=config["clients"],
        min_available_nodes=config["clients"],
        directory=config["directory"],
        fraction_evaluate=0.0,
    )
    initial = ArrayRecord([np.zeros(5)])
    result = strategy.start(grid, initial, num_rounds=config["rounds"], evaluate_fn=model_of)
    (x,) = result.arrays.to_numpy_ndarrays()
    np.save(Path(config["directory"]) / "final.npy", x)


def model_of(server_round, arrays):
    (x,) = arrays.to_numpy_ndarrays()
    return MetricRecord({"x": x.tolist()})
