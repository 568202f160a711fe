"""The local objectives F_i(x) = ||x - u_i||^2 / 2, u_i ~ N(i 1, 0.1^2 I), and local gradient descent."""

import numpy as np

from fedpbc.flower import DriftCorrection

DIM = 5


def center(client: int) -> np.ndarray:
    """u_i, the minimum of client i."""
    return np.random.default_rng(client).normal(client, 0.1, DIM)


def optimum(num_clients: int) -> np.ndarray:
    """The minimum of the mean of all F_i: the mean of all u_i."""
    return np.mean([center(i) for i in range(num_clients)], axis=0)


def learning_rate(first: float, server_round: int) -> float:
    """eta of a round, counted from 1."""
    return first / (1 + (server_round - 1) / 100) ** 0.5


def train(x: np.ndarray, client: int, eta: float, steps: int, drift: DriftCorrection) -> np.ndarray:
    """The model after the local steps x <- x - eta (x - u_i)."""
    for _ in range(steps):
        x = x - eta * drift.gradient(x - center(client), eta)
    return x


def loss(x: np.ndarray, client: int) -> float:
    """F_i(x)."""
    return float(((x - center(client)) ** 2).sum() / 2)
