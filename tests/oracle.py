"""The paper's Algorithms 1 (FedAvg) and 2 (FedPBC) in plain NumPy float64, to compare the simulator with.

Written from the paper and the list of its corrections, not from the code of ``fedpbc``; nothing of the package is
used here. Loops over rounds, clients and local steps, in the paper's order and with its names: x^t is the server's
model, x_i^t that of client i, A^t the clients with an active link in round t, s local steps, step size eta_t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

Gradient = Callable[[int, np.ndarray, object], np.ndarray]  # (client i, x, sample xi) -> grad l_i(x; xi)
Sampler = Callable[[int, int, int], object]  # (round t, client i, draw k of the round) -> sample xi


@dataclass
class State:
    """The models after some rounds."""

    server: np.ndarray  # x^t
    clients: list[np.ndarray]  # x_i^t

    @property
    def mean(self) -> np.ndarray:
        """The mean of ALL client models, which the paper's theorem is about and no server sees."""
        total = np.zeros_like(self.server)
        for model in self.clients:
            total = total + model
        return total / len(self.clients)

    @property
    def consensus_distance(self) -> float:
        """(1/m) sum_i ||x_i - xbar||^2."""
        return consensus_distance(self.clients)


class FedAvg:
    """Algorithm 1: broadcast x^t before the local steps; x^{t+1} is the mean over A^t."""

    def start(self, i: int, state: State, active: set[int]) -> np.ndarray:
        """x_i^(t,0): who hears the broadcast starts from x^t, the others from their own model."""
        return state.server if i in active else state.clients[i]

    def server(self, state: State, reported: list[np.ndarray], active: set[int]) -> np.ndarray:
        """x^{t+1} from the reported x_i^{t+1}; an empty A^t leaves x^t."""
        if not active:
            return state.server
        total = np.zeros_like(state.server)
        for i in sorted(active):
            total = total + reported[i]
        return total / len(active)

    def receivers(self, clients: int, active: set[int]) -> set[int]:
        """Who gets x^{t+1} at the end of the round: nobody, the broadcast is at the start of the next one."""
        return set()


class FedAvgAll(FedAvg):
    """FedAvg over all clients: absent ones count as zero updates, x^{t+1} = x^t + (1/m) sum_A (x_i^{t+1} - x^t)."""

    def server(self, state: State, reported: list[np.ndarray], active: set[int]) -> np.ndarray:
        """x^{t+1}; an empty A^t leaves x^t without a special case."""
        update = np.zeros_like(state.server)
        for i in sorted(active):
            update = update + (reported[i] - state.server)
        return state.server + update / len(reported)


class FedPBC(FedAvg):
    """Algorithm 2: everybody starts from its own model; x^{t+1} goes to A^t at the end of the round."""

    def start(self, i: int, state: State, active: set[int]) -> np.ndarray:
        """x_i^(t,0) = x_i^t."""
        return state.clients[i]

    def receivers(self, clients: int, active: set[int]) -> set[int]:
        """The multicast goes to A^t only."""
        return active


def run(
    algorithm: FedAvg,
    gradient: Gradient,
    links: np.ndarray,
    x0: np.ndarray,
    *,
    steps: int,
    rate: Callable[[int], float],
    compute: str = "all",
    sample: Sampler = lambda t, i, k: None,
    minibatch: str = "round",
    cooldown: int = 0,
) -> list[State]:
    """The states at t = 0, ..., T on the links ``links[t, i]`` (True: i is in A^t).

    compute: "all" clients do the local steps, or only the "active" ones (the others keep x_i^t). minibatch: one
    sample a "round" for all local steps (as printed) or a fresh one per "step". In the last ``cooldown`` rounds
    nobody does local steps; the links and the server go on.
    """
    rounds, m = links.shape
    x0 = np.asarray(x0, np.float64)
    states = [State(x0, [x0] * m)]
    for t in range(rounds):
        state = states[-1]
        active = {i for i in range(m) if links[t, i]}
        eta = rate(t)
        reported = []
        for i in range(m):
            x = algorithm.start(i, state, active)
            computes = (compute == "all" or i in active) and t < rounds - cooldown
            for k in range(steps if computes else 0):
                xi = sample(t, i, k if minibatch == "step" else 0)
                x = x - eta * gradient(i, x, xi)
            reported.append(x)
        server = algorithm.server(state, reported, active)
        receivers = algorithm.receivers(m, active)
        states.append(State(server, [server if i in receivers else reported[i] for i in range(m)]))
    return states


def constant(eta: float) -> Callable[[int], float]:
    """eta_t = eta."""
    return lambda t: eta


def inverse_sqrt(eta0: float, period: float) -> Callable[[int], float]:
    """eta_t = eta_0 / sqrt(t / period + 1)."""
    return lambda t: eta0 / (t / period + 1) ** 0.5


def mixing_matrix(m: int, active: Iterable[int]) -> np.ndarray:
    """W(A): 1/|A| between members of A, 1 on the diagonal of the others, else 0."""
    members = set(active)
    w = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if i in members and j in members:
                w[i, j] = 1 / len(members)
            elif i == j:
                w[i, j] = 1
    return w


def consensus_distance(clients: list[np.ndarray]) -> float:
    """(1/m) sum_i ||x_i - xbar||^2."""
    mean = sum(clients) / len(clients)
    return sum(float(((x - mean) ** 2).sum()) for x in clients) / len(clients)


def row_from_bits(bits: int, n: int) -> int:
    """The row floor(bits * n / 2^32) of n rows that 32 random bits choose, in integers of any size."""
    return (int(bits) * int(n)) // 2**32


class Quadratic:
    """F_i(x) = ||x - u_i||^2 / 2 with exact gradients."""

    def __init__(self, centers: np.ndarray):
        self.centers = np.asarray(centers, np.float64)
        self.solution = self.centers.mean(axis=0)

    def gradient(self, i: int, x: np.ndarray, xi: object = None) -> np.ndarray:
        """x - u_i."""
        return x - self.centers[i]

    def loss(self, x: np.ndarray) -> float:
        """F(x) = sum_i ||x - u_i||^2 / (2m)."""
        return sum(float(((x - u) ** 2).sum()) for u in self.centers) / (2 * len(self.centers))

    def grad_norm(self, x: np.ndarray) -> float:
        """||grad F(x)|| = ||x - ubar||."""
        return float(np.linalg.norm(x - self.solution))


def with_bias(features: np.ndarray) -> np.ndarray:
    """The features with a last one that equals 1."""
    features = np.asarray(features, np.float64)
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the class probabilities, row by row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def cross_entropy(x: np.ndarray, features: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """Mean of -log p(label) for x = W.ravel(), W (classes, features + 1)."""
    inputs = with_bias(features)
    logp = log_softmax(inputs @ x.reshape(classes, inputs.shape[1]).T)
    return -float(logp[np.arange(len(labels)), labels].mean())


def cross_entropy_gradient(x: np.ndarray, features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The gradient of ``cross_entropy``: mean of (p - onehot(label)) features^T."""
    inputs = with_bias(features)
    p = np.exp(log_softmax(inputs @ x.reshape(classes, inputs.shape[1]).T))
    p[np.arange(len(labels)), labels] -= 1
    return (p.T @ inputs / len(inputs)).ravel()


class Logistic:
    """Multinomial logistic regression; lists of one array per client; a sample is an array of training rows."""

    def __init__(self, train: list[tuple[np.ndarray, np.ndarray]], test: list[tuple[np.ndarray, np.ndarray]], classes):
        self.train, self.test, self.classes = train, test, classes

    def gradient(self, i: int, x: np.ndarray, xi: object) -> np.ndarray:
        """The mean gradient over the minibatch ``xi`` of client i."""
        features, labels = self.train[i]
        return cross_entropy_gradient(x, features[xi], labels[xi], self.classes)

    def loss(self, x: np.ndarray) -> float:
        """Train loss, uniform over the clients whatever their sizes."""
        return sum(cross_entropy(x, f, y, self.classes) for f, y in self.train) / len(self.train)

    def grad_norm(self, x: np.ndarray) -> float:
        """Norm of the gradient of ``loss``."""
        total = np.zeros_like(x)
        for features, labels in self.train:
            total = total + cross_entropy_gradient(x, features, labels, self.classes)
        return float(np.linalg.norm(total / len(self.train)))

    def _correct(self, x: np.ndarray) -> list[int]:
        counts = []
        for features, labels in self.test:
            inputs = with_bias(features)
            predicted = (inputs @ x.reshape(self.classes, inputs.shape[1]).T).argmax(axis=1)
            counts.append(int((predicted == labels).sum()))
        return counts

    def accuracy_pooled(self, x: np.ndarray) -> float:
        """Share of all test samples that are classified correctly."""
        return sum(self._correct(x)) / sum(len(labels) for _, labels in self.test)

    def accuracy_per_client(self, x: np.ndarray) -> float:
        """Mean over the clients of their own test accuracies."""
        shares = [correct / len(labels) for correct, (_, labels) in zip(self._correct(x), self.test, strict=True)]
        return sum(shares) / len(shares)


def fedavg_weights(prob: np.ndarray) -> np.ndarray:
    """Proposition 1's weights w_i = E[1{i in A}/|A|] / (1 - P(A empty)) for independent links.

    The distribution of the number of other active clients is built up client by client: sums of positive terms.
    """
    weights = []
    for i, p in enumerate(prob):
        count = np.array([1.0])  # count[k] = P(k of the clients seen so far, without i, are active)
        for j, q in enumerate(prob):
            if j != i:
                count = np.append(count * (1 - q), 0) + np.append(0, count * q)
        weights.append(p * sum(c / (k + 1) for k, c in enumerate(count)))
    return np.array(weights) / (1 - np.prod(1 - np.asarray(prob)))
