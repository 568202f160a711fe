"""What a client keeps for a method (c_i of SCAFFOLD, a latest update), and the correction of its local steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedpbc.algorithms.scaffold import renew_own
from fedpbc.flower.arrays import Layout, Model, models_of
from fedpbc.flower.protocol import CONTROL, RECORD, SHIFT, Order

SCALE = "fedpbc.scale"
"""The ArrayRecord of one number that asks for differences: what Delta_i is divided by before it is kept."""


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
    """A model kept by the client for the method, committed only when the server says that it counted its round.

    The client cannot know that its reply arrived in time. It keeps the valid model and the pending one; the next order
    says which of its rounds counted last. If that is neither, the state was lost: the client takes this round's steps
    with zeros, keeps nothing of it, and says so until the server has heard it and begins a new epoch, in which
    everybody starts from 0 again. This class keeps nothing, for methods that need nothing.
    """

    state = ""
    """Names in the context's state: NAME, the model as the server last accepted it; NAME-pending, that of the last
    round, until the server says that it counted; NAME-of, a ConfigRecord: epoch, rounds of both (-1: zeros, none)."""

    @classmethod
    def of(cls, order: Order, message: Message, context: Context) -> ClientControl:
        """What this order wants kept: a control variate, the latest update, or nothing."""
        for record, kind in ((CONTROL, ControlVariate), (SCALE, LatestUpdate)):
            sent = message.content.get(record)
            if isinstance(sent, ArrayRecord):
                return kind(order, message, context, models_of(sent))
        return cls(order, message, context)

    def __init__(self, order: Order, message: Message, context: Context) -> None:
        self.order, self.context, self.lost = order, context, False

    def prepare(self, content: RecordDict) -> None:
        """What the train function finds in its message."""

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """After the last round of the order: what becomes pending, and what of it the server is told."""


class _Keeps(ClientControl):
    """Base of those that keep something."""

    def __init__(self, order: Order, message: Message, context: Context, sent: Model) -> None:
        super().__init__(order, message, context)
        self.sent = sent
        self.start = models_of(cast(ArrayRecord, message.content[order.arrays_key]))
        self.layout = Layout.of(self.start)
        self.own = self._committed()

    def _keep(self, renewed: Model) -> None:
        """``renewed``, flattened, is pending."""
        state, order = self.context.state, self.order
        state[self.state], state[f"{self.state}-pending"] = map(self.layout.companion().record, (self.own, renewed))
        of = {"epoch": order.epoch, "kept": order.accepted, "pending": order.round}
        state[f"{self.state}-of"] = ConfigRecord(of)  # type: ignore[arg-type]

    def _committed(self) -> Model:
        """What the server believes to be here, flattened; zeros, and ``lost``, when it is not."""
        state, accepted = self.context.state, self.order.accepted
        of = state.get(f"{self.state}-of")
        if accepted >= 0:
            known = of if isinstance(of, ConfigRecord) and of["epoch"] == self.order.epoch else ConfigRecord()
            for suffix, key in (("-pending", "pending"), ("", "kept")):
                record = state.get(self.state + suffix)
                if known.get(key) == accepted and isinstance(record, ArrayRecord):
                    return self.layout.flatten(models_of(record))
            self.lost = True
        return self.layout.empty()


class ControlVariate(_Keeps):
    """c_i of SCAFFOLD; ``sent``: c."""

    state = "fedpbc.control"

    def prepare(self, content: RecordDict) -> None:
        """Put c - c_i where ``drift_correction`` finds it."""
        del content[CONTROL]
        control = self.layout.flatten(self.sent)
        content[SHIFT] = self.layout.companion().record({name: control[name] - self.own[name] for name in control})

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """c_i+ becomes pending. The server finds its change by itself, from the model."""
        if length <= 0 or self.lost:
            return
        flat = self.layout.flatten
        start, stop, control = flat(self.start), flat(models_of(end)), flat(self.sent)
        reported, renewed = np.array([True]), {}
        for name, own in self.own.items():
            update = (stop[name] - start[name])[None]
            (renewed[name],) = renew_own(control[name], own[None], update, start[name].dtype.type(length), reported)
        self._keep(renewed)


class LatestUpdate(_Keeps):
    """h_i = Delta_i / scale of MIFA (scale eta_t) and FedVARP (1); ``sent``: the scale."""

    state = "fedpbc.update"

    def prepare(self, content: RecordDict) -> None:
        """Nothing that the train function should see."""
        del content[SCALE]

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """x^t + Delta_i - scale h_i goes up in place of the model; h_i + (what arrives - x^t) / scale is pending.

        What arrives is rounded to the model's own types; the new h_i is made of that: what the server counts.
        """
        flat = self.layout.flatten
        start, stop, scale = flat(self.start), flat(models_of(end)), float(self.sent["scale"])
        sent = {name: stop[name] - stop[name].dtype.type(scale) * own for name, own in self.own.items()}
        record = self.layout.record(sent)
        content[self.order.arrays_key] = record
        if not self.lost:
            told = flat(models_of(record))
            self._keep({n: own + (told[n] - start[n]) / own.dtype.type(scale) for n, own in self.own.items()})
