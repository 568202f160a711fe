"""The correction of local steps: what a method adds to the gradients of a client that takes its steps through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedpbc.flower.wire.arrays import Model, models_of
from fedpbc.flower.wire.protocol import CORRECTION, RECORD


def drift_correction(message: Message) -> DriftCorrection:
    """The correction for the local steps of this message; nothing under strategies that send none.

    Call it once at the beginning of the train function, and take every local step through it.
    """
    return DriftCorrection(message)


class DriftCorrection:
    """Local steps x <- x - eta (g + z): adds the correction z that the method sends, and counts eta.

    z = c - c_i under SCAFFOLD (arXiv 1910.06378), z_i under drift-corrected FedPBC.

    The steps must be plain SGD: momentum or Adam make another method of it. Works the same, and does nothing, under
    strategies that send no correction, so one client serves all of them.
    """

    def __init__(self, message: Message) -> None:
        sent = message.content.get(CORRECTION)
        self._correction: Model = models_of(sent) if isinstance(sent, ArrayRecord) else {}
        self._record = message.content.get(RECORD)

    def gradient(self, gradient: Any, learning_rate: float) -> Any:
        """g + z, and eta is counted: for NumPy.

        ``gradient``: a list or tuple of arrays in the order of the ArrayRecord without its buffers, a mapping by name,
        or the array itself where the model is one array. Returned alike; the input is left as it is.
        """
        self._count(learning_rate)
        if not self._correction:
            return gradient
        if isinstance(gradient, Mapping):
            return {name: g + self._correction[name] for name, g in gradient.items()}
        if isinstance(gradient, Sequence):
            return type(gradient)(g + c for g, c in zip(gradient, self._correction.values(), strict=True))  # type: ignore
        (correction,) = self._correction.values()
        return gradient + correction

    def add_to_grads(self, named_parameters: Iterable[tuple[str, Any]], learning_rate: float) -> None:
        """p.grad += z, and eta is counted: for PyTorch, between ``backward`` and ``step``.

        ``named_parameters``: ``model.named_parameters()``, whose names are those of ``model.state_dict()``.
        """
        self._count(learning_rate)
        for name, parameter in named_parameters:
            if self._correction and parameter.grad is not None:
                added = self._correction[name]
                parameter.grad.add_(parameter.grad.new_tensor(added.tolist() if added.ndim == 0 else np.array(added)))

    def _count(self, learning_rate: float) -> None:
        if isinstance(self._record, ConfigRecord) and "length" in self._record:
            self._record["length"] = float(self._record["length"]) + float(learning_rate)  # type: ignore[arg-type]
