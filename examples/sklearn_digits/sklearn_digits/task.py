"""The digits of scikit-learn, split by label, and a multinomial logistic model trained by SGD."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits

from fedpbc.flower import DriftCorrection

CLASSES, PIXELS, TEST_SIZE, BATCH_SIZE = 10, 64, 397, 32
Data = tuple[np.ndarray, np.ndarray]
Model = list[np.ndarray]


@cache
def load_data() -> tuple[Data, Data]:
    """(train, test), each (images [n, 64] in 0..1, labels [n]); the training images sorted by label."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[TEST_SIZE:], order[:TEST_SIZE]
    train = train[np.argsort(labels[train], kind="stable")]
    return (images[train] / 16, labels[train]), (images[test] / 16, labels[test])


def load_client(client: int, num_clients: int) -> Data:
    """The images and labels of one client: one or two labels where there are ten clients."""
    images, labels = load_data()[0]
    return np.array_split(images, num_clients)[client], np.array_split(labels, num_clients)[client]


def init_model() -> Model:
    """[weight, bias], zeros."""
    return [np.zeros((PIXELS, CLASSES)), np.zeros(CLASSES)]


def learning_rate(first: float, server_round: int) -> float:
    """eta of a round, counted from 1."""
    return first / (1 + (server_round - 1) / 100) ** 0.5


def probabilities(model: Model, images: np.ndarray) -> np.ndarray:
    """Class probabilities [n, 10]."""
    logits = images @ model[0] + model[1]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def train(model: Model, data: Data, batches: np.random.Generator, eta: float, steps: int, drift: DriftCorrection):
    """The model after ``steps`` of SGD on cross-entropy, and the mean loss on the way."""
    losses = []
    for _ in range(steps):
        batch = batches.choice(len(data[1]), BATCH_SIZE, replace=False)
        images, labels = data[0][batch], data[1][batch]
        error = probabilities(model, images)
        losses.append(-np.log(error[np.arange(len(labels)), labels]).mean())
        error[np.arange(len(labels)), labels] -= 1
        gradient = drift.gradient([images.T @ error / len(labels), error.mean(axis=0)], eta)
        model = [x - eta * g for x, g in zip(model, gradient, strict=True)]
    return model, float(np.mean(losses))


def accuracy(model: Model) -> float:
    """Share of the test images that are classified correctly."""
    images, labels = load_data()[1]
    return float((probabilities(model, images).argmax(axis=1) == labels).mean())
