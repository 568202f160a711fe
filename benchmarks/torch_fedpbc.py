"""FedPBC as a plain PyTorch loop: client after client, autograd, minibatches by indexing, one thread."""

from __future__ import annotations

import numpy as np
import torch
from setting import Part, Setting
from torch.nn.functional import cross_entropy


class TorchFedPBC:
    """One weight tensor per client; no DataLoader, no optimizer object, no hooks: only what a step needs."""

    def __init__(self, setting: Setting, seed: int = 0) -> None:
        torch.set_num_threads(1)
        self.setting, self.round = setting, 0
        self.random = torch.Generator().manual_seed(seed)
        self.train, self.test = _tensors(setting.train), _tensors(setting.test)
        self.sizes, self.offsets = setting.sizes.tolist(), setting.offsets.tolist()
        self.prob = torch.tensor(setting.prob)
        self.server = torch.zeros(setting.num_classes, setting.num_features)
        self.clients = [torch.zeros_like(self.server).requires_grad_() for _ in self.sizes]

    def advance(self, rounds: int) -> list[dict[str, float]]:
        """``rounds`` more rounds; a row of metrics every ``eval_every``."""
        rows = []
        for _ in range(rounds):
            prob = self.prob[self.round % len(self.prob)]
            active = torch.nonzero(torch.rand(len(prob), generator=self.random) < prob).flatten().tolist()
            for client in range(self.setting.num_clients):
                self._local_steps(client)
            with torch.no_grad():
                if active:
                    self.server = torch.stack([self.clients[i] for i in active]).mean(dim=0)
                    for i in active:
                        self.clients[i].copy_(self.server)
            self.round += 1
            if self.round % self.setting.eval_every == 0:
                clients = torch.stack(self.clients).detach()
                mean = clients.mean(dim=0)
                distance = ((clients - mean) ** 2).sum(dim=(1, 2)).mean()
                rows.append(self._evaluate(self.server, mean) | {"consensus_distance": distance.item()})
        return rows

    def _local_steps(self, client: int) -> None:
        features, labels, _ = self.train
        weights = self.clients[client]
        rows = torch.randint(self.sizes[client], (self.setting.batch_size,), generator=self.random)
        rows += self.offsets[client]
        x, y = features[rows], labels[rows]
        for _ in range(self.setting.local_steps):
            (gradient,) = torch.autograd.grad(cross_entropy(x @ weights.T, y), weights)
            with torch.no_grad():
                weights.sub_(gradient, alpha=self.setting.learning_rate)

    def evaluate(self, server: np.ndarray, mean: np.ndarray) -> dict[str, float]:
        """The metrics of two models, each [classes, features]."""
        return self._evaluate(torch.tensor(server), torch.tensor(mean))

    def _evaluate(self, server: torch.Tensor, mean: torch.Tensor) -> dict[str, float]:
        metrics = {}
        for name, model in (("server", server), ("mean", mean)):
            weights = model.detach().clone().requires_grad_()
            features, labels, by_client = self.train
            loss = cross_entropy(features @ weights.T, labels, reduction="none") @ by_client
            (gradient,) = torch.autograd.grad(loss, weights)
            features, labels, by_client = self.test
            with torch.no_grad():
                right = ((features @ weights.T).argmax(dim=1) == labels).float()
            metrics[f"{name}_train_loss"] = loss.item()
            metrics[f"{name}_grad_norm"] = gradient.norm().item()
            metrics[f"{name}_test_accuracy"] = right.mean().item()
            metrics[f"{name}_test_accuracy_by_client"] = (right @ by_client).item()
        return metrics


def _tensors(part: Part) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(part.features), torch.tensor(part.labels, dtype=torch.int64), torch.tensor(part.by_client)
