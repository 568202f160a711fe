"""FedAvg in pfl-research: its simulated backend, one process."""

from __future__ import annotations

import common
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset, get_user_sampler
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Logistic(torch.nn.Module):
    """With the two functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = common.logistic()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict:
        return {}


class Rounds(TrainingProcessCallback):
    """Ticks at the end of a round."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.tick()
        return False, Metrics()


clock = common.Clock()
features, labels = common.data()
users = {i: Dataset((features[i], labels[i]), user_id=str(i)) for i in range(common.CLIENTS)}
sampler = get_user_sampler("minimize_reuse", list(users))
network = Logistic()
model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
total = sum(common.rounds())
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=total, evaluation_frequency=10**9, train_cohort_size=common.ACTIVE, val_cohort_size=None
    ),
    SimulatedBackend(training_data=FederatedDataset(users.__getitem__, sampler), val_data=None),
    model,
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=common.RATE, local_batch_size=common.BATCH),
    NNEvalHyperParams(local_batch_size=None),
    [Rounds()],
)
clock.report("pfl", network)
