"""FedAvg in Flower's simulation: its message API, strategy and Ray backend, one core for a client."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
import common
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

FILE = os.environ.setdefault("PEER_DATA", sys.argv[1])
client, server = ClientApp(), ServerApp()
clock = common.Clock()
cache: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
model = common.logistic()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Ten steps of SGD on ten minibatches."""
    torch.set_num_threads(1)
    if "data" not in cache:
        sys.argv = ["", FILE]
        cache["data"] = common.data()
    features, labels = (array[int(context.node_config["partition-id"])] for array in cache["data"])
    local = torch.nn.Linear(common.FEATURES, common.CLASSES)
    local.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(local.parameters(), common.RATE)
    for rows in torch.randperm(len(labels)).split(common.BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(local(features[rows]), labels[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(local.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """Ticks at the end of a round."""

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        clock.tick()
        return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    strategy = Timed(
        fraction_train=(common.ACTIVE + 0.5) / common.CLIENTS, fraction_evaluate=0.0, min_available_nodes=common.CLIENTS
    )
    found = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=sum(common.rounds()))
    model.load_state_dict(found.arrays.to_torch_state_dict())


run_simulation(server, client, common.CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
clock.report("flwr", model, cpu=False)
