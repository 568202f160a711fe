"""The server: a strategy by name, the rounds, and the final metrics."""

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord, UserConfig
from flwr.serverapp import Grid, ServerApp

from fedpbc.flower import STRATEGIES, UnreliableClients
from numpy_quadratic.task import DIM, learning_rate, optimum

app = ServerApp()


def make_strategy(config: UserConfig) -> UnreliableClients:
    """The strategy that the run config names. Raises ValueError for an unknown name."""
    name, first = str(config["strategy"]), float(config["learning-rate"])
    if name not in STRATEGIES:
        raise ValueError(f"strategy = {name!r}: must be one of {', '.join(STRATEGIES)}")
    options = {} if name != "mifa" else {"learning_rate": lambda t: learning_rate(first, t + 1)}
    return STRATEGIES[name](
        round_deadline=float(config["round-deadline"]),
        num_clients=int(config["num-clients"]),
        min_available_nodes=int(config["num-clients"]),
        directory=str(config["directory"]) or None,
        cooldown=int(config["cooldown"]),
        pin_names=bool(config["pin-names"]),
        fraction_evaluate=0.0,
        **options,
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, or those that the checkpoint in ``directory`` left to do."""
    config = context.run_config
    rounds = int(config["num-server-rounds"])
    best = optimum(int(config["num-clients"]))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        (x,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"distance": float(np.linalg.norm(x - best))})

    initial = ArrayRecord([np.zeros(DIM)])
    result = make_strategy(config).start(grid, initial, num_rounds=rounds, evaluate_fn=evaluate)
    print(f"after round {rounds}: {dict(result.evaluate_metrics_serverapp[rounds])}")
