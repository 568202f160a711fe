"""A model of Flax (NNX) under unreliable links: ``python examples/own_model_flax.py`` (pip install flax)."""

from __future__ import annotations

import jax
import numpy as np
from flax import nnx

import fedpbc


class Network(nnx.Module):
    """Any NNX module."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(2, 16, rngs=rngs)
        self.out = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, features):
        """Logits."""
        return self.out(nnx.relu(self.hidden(features)))


GRAPH = nnx.split(Network(nnx.Rngs(0)))[0]
"""Layers and sizes: everything that is not learnt."""


def init(key):
    """The parameters: nested dicts of arrays."""
    return nnx.to_pure_dict(nnx.split(Network(nnx.Rngs(key)))[1])


def logits(params, features):
    """The module with its parameters, over a batch."""
    return nnx.merge(GRAPH, nnx.State(params))(features)


def loss(params, batch):
    """Cross-entropy of each sample."""
    features, labels = batch
    return -jax.nn.log_softmax(logits(params, features))[np.arange(len(labels)), labels]


def accuracy(params, batch):
    """1 where a sample is classified right."""
    return (logits(params, batch[0]).argmax(axis=1) == batch[1]).astype(float)


def main(rounds: int = 100) -> fedpbc.Run:
    """Two rings among 20 clients, most of which are rarely heard."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 2000)
    angle = rng.uniform(0, 2 * np.pi, 2000)
    radius = (1 + labels + 0.2 * rng.standard_normal(2000))[:, None]
    data = fedpbc.data.from_arrays(radius * np.column_stack([np.cos(angle), np.sin(angle)]), labels, test=0.2)
    problem = fedpbc.problems.loss(
        data.dirichlet(num_clients=20, alpha=0.3),
        loss=loss,
        init=init,
        metrics={"accuracy": accuracy},
        measures={"accuracy": fedpbc.Measure("accuracy", better="higher")},
    )
    return fedpbc.simulate(
        problem,
        links=fedpbc.links.markov(prob=fedpbc.probabilities.two_groups(p0=0.1, p1=0.8), memory=0.5),
        algorithm=[fedpbc.algorithms.fedavg(), fedpbc.algorithms.fedpbc()],
        rounds=rounds,
        local_steps=5,
        learning_rate=0.1,
    )


if __name__ == "__main__":
    run = main()
    print(run.to_markdown(["test_accuracy"]))
    print(run.model(algorithm="fedpbc"))
