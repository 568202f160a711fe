"""FedPBC in batched NumPy: all clients at once, matrix products by BLAS, no temporary arrays in the local steps."""

from __future__ import annotations

import numpy as np
from setting import Part, Setting

BLOCK = 2048
"""Samples that are evaluated at once: their logits stay in the cache."""


class NumpyFedPBC:
    """All models in one array [m, classes, features]."""

    def __init__(self, setting: Setting, seed: int = 0) -> None:
        self.setting, self.rng, self.round = setting, np.random.default_rng(seed), 0
        m, n = setting.num_clients, setting.batch_size
        classes, features = setting.num_classes, setting.num_features
        self.clients = np.zeros((m, classes, features), np.float32)
        self.server = np.zeros((classes, features), np.float32)
        self._classes = np.arange(classes)[:, None]
        self._batch = np.empty((m, n, features), np.float32)
        self._logits, self._labels = np.empty((2, m, classes, n), np.float32)
        self._over_classes = np.empty((m, 1, n), np.float32)
        self._gradient = np.empty_like(self.clients)

    def advance(self, rounds: int) -> list[dict[str, float]]:
        """``rounds`` more rounds; a row of metrics every ``eval_every``."""
        rows = []
        for _ in range(rounds):
            prob = self.setting.prob[self.round % len(self.setting.prob)]
            active = self.rng.random(len(prob), np.float32) < prob
            self._train()
            if active.any():
                self.server = self.clients[active].mean(axis=0)
                self.clients[active] = self.server
            self.round += 1
            if self.round % self.setting.eval_every == 0:
                mean = self.clients.mean(axis=0)
                distance = ((self.clients - mean) ** 2).sum(axis=(1, 2)).mean()
                rows.append(self.evaluate(self.server, mean) | {"consensus_distance": float(distance)})
        return rows

    def _train(self) -> None:
        """Local steps of every client on one minibatch each; the rate is folded into the residuals."""
        s, batch, logits, over_classes = self.setting, self._batch, self._logits, self._over_classes
        rate = np.float32(s.learning_rate / s.batch_size)
        draws = self.rng.random((s.num_clients, s.batch_size)) * s.sizes[:, None]
        rows = s.offsets[:, None] + draws.astype(np.int64)
        # mode="clip" writes straight into the buffer; "raise" would go through a copy
        np.take(s.train.features, rows, axis=0, out=batch, mode="clip")
        np.multiply(s.train.labels[rows][:, None, :] == self._classes, rate, out=self._labels)
        transposed = batch.transpose(0, 2, 1)
        for _ in range(s.local_steps):
            np.matmul(self.clients, transposed, out=logits)
            logits -= np.max(logits, axis=1, keepdims=True, out=over_classes)
            np.exp(logits, out=logits)
            np.sum(logits, axis=1, keepdims=True, out=over_classes)
            logits *= np.divide(rate, over_classes, out=over_classes)
            logits -= self._labels
            np.matmul(logits, batch, out=self._gradient)
            self.clients -= self._gradient

    def evaluate(self, server: np.ndarray, mean: np.ndarray) -> dict[str, float]:
        """Both models side by side, over blocks of the training and of the test set."""
        s = self.setting
        weights = np.stack([server, mean]).reshape(2 * s.num_classes, s.num_features)
        loss, gradient = np.zeros(2), np.zeros_like(weights)
        for first in range(0, len(s.train.labels), BLOCK):
            block_loss, block_gradient = self._loss_and_gradient(weights, _rows(s.train, first))
            loss += block_loss
            gradient += block_gradient
        by_client, pooled = np.zeros(2), np.zeros(2)
        for first in range(0, len(s.test.labels), BLOCK):
            block = _rows(s.test, first)
            logits = (weights @ block.features.T).reshape(2, s.num_classes, -1)
            right = np.argmax(logits, axis=1) == block.labels
            by_client += right @ block.by_client
            pooled += right.sum(axis=1) / len(s.test.labels)
        norms = np.linalg.norm(gradient.reshape(2, -1), axis=1)
        values = {"train_loss": loss, "grad_norm": norms, "test_accuracy": pooled, "test_accuracy_by_client": by_client}
        return {f"{model}_{k}": float(v[i]) for k, v in values.items() for i, model in enumerate(("server", "mean"))}

    def _loss_and_gradient(self, weights: np.ndarray, block: Part) -> tuple[np.ndarray, np.ndarray]:
        """Weighted sums over a block for both models: [2] and [2 classes, features]."""
        count = len(block.labels)
        flat = weights @ block.features.T
        logits = flat.reshape(2, -1, count)
        logits -= logits.max(axis=1, keepdims=True)
        at_label = logits[:, block.labels, np.arange(count)]
        np.exp(logits, out=logits)
        total = logits.sum(axis=1)
        logits *= (block.by_client / total)[:, None]
        logits[:, block.labels, np.arange(count)] -= block.by_client
        return (np.log(total) - at_label) @ block.by_client, flat @ block.features


def _rows(part: Part, first: int) -> Part:
    last = first + BLOCK
    return Part(part.features[first:last], part.labels[first:last], part.by_client[first:last])
