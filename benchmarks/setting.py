"""What the rivals of the simulator are given, and the check that they compute the same thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import fedpbc


@dataclass(frozen=True)
class Part:
    """The training or the test samples of all clients, without filling."""

    features: np.ndarray
    """float32[n, features], the last feature is 1."""
    labels: np.ndarray
    """int[n]."""
    by_client: np.ndarray
    """1 / (m n_i) for every sample of client i, float32[n]."""


@dataclass(frozen=True)
class Setting:
    """An experiment of one cell as plain NumPy arrays: what FedPBC needs and nothing of the simulator."""

    train: Part
    test: Part
    offsets: np.ndarray
    """First training row of each client, int[m]."""
    sizes: np.ndarray
    """Training rows of each client, int[m]."""
    prob: np.ndarray
    """p_i^t, [T, m], or [1, m] where they do not change."""
    num_classes: int
    learning_rate: float
    local_steps: int
    batch_size: int
    eval_every: int

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    @property
    def num_features(self) -> int:
        """The constant one included."""
        return self.train.features.shape[1]

    def weights(self, model: np.ndarray) -> np.ndarray:
        """A model of the simulator, [d], as float32[classes, features]."""
        return model.reshape(self.num_classes, -1)[:, : self.num_features]


class Rival(Protocol):
    """Another implementation of FedPBC on the same setting."""

    setting: Setting

    def advance(self, rounds: int) -> list[dict[str, float]]:
        """That many more rounds; returns a row of metrics every ``eval_every``, named as in metrics.csv."""

    def evaluate(self, server: np.ndarray, mean: np.ndarray) -> dict[str, float]:
        """The metrics of two models, each [classes, features]."""


def setting_of(experiment: fedpbc.Experiment) -> Setting:
    """The setting of the first seed and the first link process of an experiment."""
    problem = experiment.problem.build(experiment.context(experiment.seeds[0]))
    links = experiment.links[0].build(experiment.context(experiment.seeds[0], problem))
    params = problem.params
    train = _part(params["train"])
    return Setting(
        train=train,
        test=_part(params["test"]),
        offsets=np.asarray(params["offsets"]).astype(np.int64),
        sizes=np.asarray(params["sizes"]).astype(np.int64),
        prob=_probabilities(links, experiment.rounds),
        num_classes=len(problem.init) // params["train"]["data"][0].shape[1],
        learning_rate=experiment.learning_rate.options["value"],
        local_steps=experiment.local_steps,
        batch_size=experiment.batch_size,
        eval_every=experiment.eval_every,
    )


def _part(samples: dict[str, Any]) -> Part:
    """Without filling: rows that weigh nothing, and columns that are 0 in every sample."""
    rows = int(np.count_nonzero(samples["by_client"]))
    features, labels = (np.asarray(array)[:rows] for array in samples["data"])
    columns = int(np.flatnonzero(features.any(axis=0))[-1]) + 1
    return Part(np.ascontiguousarray(features[:, :columns]), labels.copy(), samples["by_client"][:rows].copy())


def _probabilities(links: Any, rounds: int) -> np.ndarray:
    """p_i^t of every round, through the contract of link processes."""
    import jax

    import fedpbc.core.engine  # noqa: F401  (makes components pytrees)

    key = jax.random.key(0)
    params = jax.device_put(links.params)
    state = links.init(params, key)
    return np.asarray(jax.lax.map(lambda t: links.step(params, key, state, t)[1].prob, np.arange(rounds)))


class WrongResult(Exception):
    """A rival does not compute what the simulator computes."""


def check_evaluation(name: str, rival: Rival, cell: Any) -> None:
    """The rival's metrics of the simulator's last models are the simulator's. Raises WrongResult."""
    models = (rival.setting.weights(cell.models[which]) for which in ("server", "mean"))
    metrics = rival.evaluate(*models)
    for metric, value in metrics.items():
        _compare(name, metric, value, float(cell.rows[metric][-1]), 1e-3)


def check_training(name: str, rows: list[dict[str, float]], cell: Any) -> None:
    """From x^0, after as many rounds, the rival is where the simulator is. Raises WrongResult.

    Random numbers differ. The mean model hardly depends on A^t and averages the minibatches of all clients, so its
    loss must agree closely; the consensus distance fluctuates, but shows that clients drift and are overwritten.
    """
    _compare(name, "mean_train_loss", rows[-1]["mean_train_loss"], float(cell.rows["mean_train_loss"][-1]), 0.01)
    average = float(np.mean([row["consensus_distance"] for row in rows]))
    _compare(name, "consensus_distance", average, float(np.mean(cell.rows["consensus_distance"][1:])), 0.1)


def _compare(name: str, metric: str, value: float, expected: float, tolerance: float) -> None:
    if not abs(value - expected) <= tolerance * abs(expected):
        raise WrongResult(f"{name}: {metric} is {value:.6g}, the simulator's is {expected:.6g}")
