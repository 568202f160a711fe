"""A model of Equinox under unreliable links: ``python examples/own_model_equinox.py`` (pip install equinox)."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np

import fedpbc


def network(key):
    """Any Equinox module."""
    return eqx.nn.MLP(in_size=2, out_size=2, width_size=16, depth=2, key=key)


STATIC = eqx.partition(network(jax.random.key(0)), eqx.is_inexact_array)[1]
"""Activations and sizes: everything that is not learnt."""


def init(key):
    """The parameters: the module with its arrays alone."""
    return eqx.filter(network(key), eqx.is_inexact_array)


def logits(params, features):
    """The module with its parameters, over a batch."""
    return jax.vmap(eqx.combine(params, STATIC))(features)


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
