"""SCAFFOLD on the client: the correction that a training step adds to its gradient, and control variates kept there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedpbc.algorithms.scaffold import renew_own
from fedpbc.flower.arrays import Layout, Model, models_of
from fedpbc.flower.protocol import CHANGE, CONTROL, RECORD, SHIFT, Order

KEPT = "fedpbc.control"
"""ArrayRecord of the context's state: c_i as the server last accepted it."""
PENDING = "fedpbc.control-pending"
"""ArrayRecord of the context's state: c_i+ of the last round, until the server says that it counted."""
KEPT_OF = "fedpbc.control-of"
"""ConfigRecord of the context's state: epoch, round of KEPT (-1: zeros), round of PENDING (-1: none)."""


def drift_correction(message: Message) -> DriftCorrection:
    """The correction c - c_i for the local steps of this message; nothing under strategies other than SCAFFOLD.

    Call it once at the beginning of the train function, and take every local step through it.
    """
    return DriftCorrection(message)


class DriftCorrection:
    """Local steps x <- x - eta (g + c - c_i) (SCAFFOLD, arXiv 1910.06378): adds c - c_i and counts eta.

    The steps must be plain SGD: momentum or Adam make another method of it. Works the same, and does nothing, under
    strategies that send no correction, so one client serves all of them.
    """

    def __init__(self, message: Message) -> None:
        shift = message.content.get(SHIFT)
        self._shift: Model = models_of(shift) if isinstance(shift, ArrayRecord) else {}
        self._record = message.content.get(RECORD)

    def gradient(self, gradient: Any, learning_rate: float) -> Any:
        """g + c - c_i, and eta is counted: for NumPy.

        ``gradient``: a list or tuple of arrays in the order of the ArrayRecord, a mapping by name, or the array
        itself where the model is one array. Returned alike; the input is left as it is.
        """
        self._count(learning_rate)
        if not self._shift:
            return gradient
        if isinstance(gradient, Mapping):
            return {name: g + self._shift[name] for name, g in gradient.items()}
        if isinstance(gradient, Sequence):
            return type(gradient)(g + c for g, c in zip(gradient, self._shift.values(), strict=True))  # type: ignore
        (shift,) = self._shift.values()
        return gradient + shift

    def add_to_grads(self, named_parameters: Iterable[tuple[str, Any]], learning_rate: float) -> None:
        """p.grad += c - c_i, and eta is counted: for PyTorch, between ``backward`` and ``step``.

        ``named_parameters``: ``model.named_parameters()``, whose names are those of ``model.state_dict()``.
        """
        self._count(learning_rate)
        for name, parameter in named_parameters:
            if self._shift and parameter.grad is not None:
                shift = self._shift[name]
                parameter.grad.add_(parameter.grad.new_tensor(shift.tolist() if shift.ndim == 0 else np.array(shift)))

    def _count(self, learning_rate: float) -> None:
        if isinstance(self._record, ConfigRecord) and "length" in self._record:
            self._record["length"] = float(self._record["length"]) + float(learning_rate)  # type: ignore[arg-type]


class ClientControl:
    """c_i kept by the client, committed only when the server says that it counted the round that made it.

    The client cannot know that its reply arrived in time. It keeps c_i and the pending c_i+; the next order says
    which of its rounds counted last. If that is neither, the state was lost: c_i starts from 0, the answer says so,
    and the server begins a new epoch, in which everybody's c_i and c start from 0 again.
    """

    @classmethod
    def of(cls, order: Order, message: Message, context: Context) -> ClientControl:
        """For this order: does nothing unless the server sent its control variate."""
        control = message.content.get(CONTROL)
        return cls(order, control if isinstance(control, ArrayRecord) else None, message, context)

    def __init__(self, order: Order, control: ArrayRecord | None, message: Message, context: Context) -> None:
        self.order, self.context = order, context
        self.lost = False
        self.control: Model = {}
        if control is not None:
            self.start = models_of(message.content.array_records[order.arrays_key])
            self.layout = Layout.of(self.start)
            self.control = models_of(control)
            self.own = self._committed()

    def prepare(self, content: RecordDict) -> None:
        """Put c - c_i where ``drift_correction`` finds it."""
        if self.control:
            del content[CONTROL]
            content[SHIFT] = _record({name: c - self.own[name] for name, c in self.control.items()})

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """c_i+ becomes pending, its change goes to the server."""
        if not self.control or length <= 0:
            return
        flat = self.layout.flatten
        start, stop, control, own = flat(self.start), flat(models_of(end)), flat(self.control), flat(self.own)
        reported = np.array([True])
        renewed = {}
        for name in start:
            update = (stop[name] - start[name])[None]
            new = renew_own(control[name], own[name][None], update, start[name].dtype.type(length), reported)
            renewed[name] = new[0].reshape(self.own[name].shape)
        content[CHANGE] = _record({name: new - self.own[name] for name, new in renewed.items()})
        state = self.context.state
        state[KEPT], state[PENDING] = _record(self.own), _record(renewed)
        state[KEPT_OF] = self._of(-1 if self.lost else self.order.accepted, self.order.round)

    def _of(self, kept: int, pending: int) -> ConfigRecord:
        return ConfigRecord({"epoch": self.order.epoch, "kept": kept, "pending": pending})

    def _committed(self) -> Model:
        """c_i as the server knows it; zeros, and ``lost``, when that is not here."""
        state, accepted = self.context.state, self.order.accepted
        of = state.get(KEPT_OF)
        if accepted >= 0:
            known = of if isinstance(of, ConfigRecord) and of["epoch"] == self.order.epoch else ConfigRecord()
            for name, key in ((PENDING, "pending"), (KEPT, "kept")):
                record = state.get(name)
                if known.get(key) == accepted and isinstance(record, ArrayRecord):
                    return models_of(record)
            self.lost = True
        return {name: np.zeros(c.shape, c.dtype) for name, c in self.control.items()}


def _record(model: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(a) if a.ndim else np.asarray(a)) for name, a in model.items()})
