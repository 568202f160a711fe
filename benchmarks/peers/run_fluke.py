"""FedAvg in fluke: its own clients, server, loaders and loop."""

from __future__ import annotations

import common
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver


class Rounds(FederationObserver):
    """Ticks at the end of a round."""

    def end_round(self, round: int) -> None:
        clock.tick()


clock = common.Clock()
FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
FlukeENV().set_inmemory(True)
features, labels = common.data()
config = OptimizerConfigurator(
    optimizer_cfg=DDict(name="SGD", lr=common.RATE), scheduler_cfg=DDict(name="StepLR", step_size=1, gamma=1.0)
)
clients = [
    Client(
        index=i,
        train_set=FastDataLoader(features[i], labels[i], num_labels=10, batch_size=common.BATCH, shuffle=True),
        test_set=None,
        optimizer_cfg=config,
        loss_fn=torch.nn.CrossEntropyLoss(),
        local_epochs=1,
    )
    for i in range(common.CLIENTS)
]
server = Server(model=common.logistic(), test_set=None, clients=clients)
federation = FedAVG(common.CLIENTS, None, None, clients=clients, server=server)
federation.set_callbacks(Rounds())
federation.finalize = lambda: None
federation.run(sum(common.rounds()), (common.ACTIVE + 0.5) / common.CLIENTS)
clock.report("fluke-fl", server.model)
