"""What a client keeps for a method: its control variate c_i (SCAFFOLD, FedFade), or its latest update (MIFA, ...)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedpbc.algorithms.fedfade import overlap
from fedpbc.algorithms.scaffold import renew_own
from fedpbc.flower.wire.arrays import Layout, Model, models_of
from fedpbc.flower.wire.protocol import (
    AROUND,
    BUFFERS,
    CONTROL_VARIATE,
    CORRECTION,
    FADING,
    RECORD,
    UPDATE_SCALE,
    Order,
)


class Kept:
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
    def of(cls, order: Order, message: Message, context: Context) -> Kept:
        """What this order wants kept: a control variate, the latest update, or nothing."""
        numbers = message.content.get(FADING)
        if isinstance(numbers, ArrayRecord):
            return FadingControlVariate(order, message, context, models_of(numbers))
        for record, kind in ((CONTROL_VARIATE, KeptControlVariate), (UPDATE_SCALE, KeptUpdate)):
            sent = message.content.get(record)
            if isinstance(sent, ArrayRecord):
                return kind(order, message, context, models_of(sent))
        return cls(order, message, context)

    def __init__(self, order: Order, message: Message, context: Context) -> None:
        self.order, self.context, self.lost = order, context, False
        self.told: dict[str, Any] = {}
        """Fields of the answer, after ``finish``."""

    def prepare(self, content: RecordDict) -> None:
        """What the train function finds in its message."""

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """After the last round of the order: what becomes pending, and what of it the server is told."""


class _Model(Kept):
    """Base of those that keep something."""

    def __init__(self, order: Order, message: Message, context: Context, sent: Model) -> None:
        super().__init__(order, message, context)
        self.sent = sent
        asked = message.content.get(RECORD)
        buffers = asked.get(BUFFERS, []) if isinstance(asked, ConfigRecord) else []
        self.begun = cast(ArrayRecord, message.content[order.arrays_key])
        self.start = {name: x for name, x in models_of(self.begun).items() if name not in cast(list[str], buffers)}
        self.layout = Layout.of(self.start)
        self.own = self._committed()

    def _whole(self, model: Model, of: ArrayRecord) -> ArrayRecord:
        """A flattened model as it is sent, with the buffers of ``of``."""
        record = self.layout.record(model)
        return record if len(record) == len(of) else ArrayRecord({name: record.get(name, of[name]) for name in of})

    def _keep(self, renewed: Model) -> None:
        """``renewed``, flattened, is pending."""
        state, order = self.context.state, self.order
        state[self.state], state[f"{self.state}-pending"] = map(self.layout.computing().record, (self.own, renewed))
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


class KeptControlVariate(_Model):
    """c_i of SCAFFOLD; ``sent``: c."""

    state = "fedpbc.control"

    def prepare(self, content: RecordDict) -> None:
        """Put c - c_i where ``drift_correction`` finds it."""
        del content[CONTROL_VARIATE]
        c = self.layout.flatten(self.sent)
        content[CORRECTION] = self.layout.computing().record({name: c[name] - self.own[name] for name in c})

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """c_i+ becomes pending. The server finds its change by itself, from the model."""
        if length <= 0 or self.lost:
            return
        flat = self.layout.flatten
        start, stop, c = flat(self.start), flat(models_of(end)), flat(self.sent)
        reported, renewed = np.array([True]), {}
        for name, own in self.own.items():
            update = (stop[name] - start[name])[None]
            (renewed[name],) = renew_own(c[name], own[None], update, start[name].dtype.type(length), reported)
        self._keep(renewed)


class FadingControlVariate(_Model):
    """c_i of FedFade, where the client keeps it; ``sent``: the numbers.

    One that is lost is 0, and this client a newcomer: nobody else has to know; what was lost fades from c as controls
    do.
    """

    state = "fedpbc.control"

    def __init__(self, order: Order, message: Message, context: Context, sent: Model) -> None:
        super().__init__(order, message, context, sent)
        record = message.content.get(CONTROL_VARIATE)
        self.keeps = isinstance(record, ArrayRecord)
        self.c = self.layout.flatten(models_of(record)) if isinstance(record, ArrayRecord) else {}
        self.left = {name: own * own.dtype.type(float(sent["left"])) for name, own in self.own.items()}
        self.before, self.length = float(sent["before"]), float(sent["length"])
        sent_shift = message.content.get(AROUND)
        if self.keeps:
            self.shift = {name: self.c[name] - self.left[name] for name in self.c}
        else:
            self.shift = self.layout.flatten(models_of(cast(ArrayRecord, sent_shift)))

    def prepare(self, content: RecordDict) -> None:
        """Put c - u_i where ``drift_correction`` finds it, or part of it into the model that training begins with."""
        del content[FADING], content[CONTROL_VARIATE if self.keeps else AROUND]
        if self.length <= 0:
            content[CORRECTION] = self.layout.computing().record(self.shift)
        else:
            content[self.order.arrays_key] = self._moved(self.begun, self.before)

    def _moved(self, model: ArrayRecord, length: float) -> ArrayRecord:
        """A model, ``length`` along the correction."""
        flat = self.layout.flatten(models_of(model))
        return self._whole({n: x - x.dtype.type(length) * self.shift[n] for n, x in flat.items()}, model)

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """The rest of the correction; g_i becomes pending, and how much of c_i is in it is told."""
        if self.length > 0:
            end = content[self.order.arrays_key] = self._moved(end, self.length - self.before)
            length = self.length
        if length <= 0 or not self.keeps:
            return
        flat = self.layout.flatten
        start, stop = flat(self.start), flat(models_of(end))
        reported, renewed, product, square = np.array([True]), {}, 0.0, 0.0
        for name, own in self.left.items():
            update = (stop[name] - start[name])[None]
            gradient = renew_own(self.c[name], own[None], update, start[name].dtype.type(length), reported)
            (renewed[name],) = gradient
            found = overlap(gradient.astype(np.float64), self.own[name][None].astype(np.float64))
            product, square = product + float(found[0][0]), square + float(found[1][0])
        self.told = {"product": product, "square": square}
        self._keep(renewed)


class KeptUpdate(_Model):
    """h_i = Delta_i / scale of MIFA (scale eta_t) and FedVARP (1); ``sent``: the scale."""

    state = "fedpbc.update"

    def prepare(self, content: RecordDict) -> None:
        """Nothing that the train function should see."""
        del content[UPDATE_SCALE]

    def finish(self, content: RecordDict, end: ArrayRecord, length: float) -> None:
        """x^t + Delta_i - scale h_i goes up in place of the model; h_i + (what arrives - x^t) / scale is pending.

        What arrives is rounded to the model's own types; the new h_i is made of that: what the server counts.
        """
        flat = self.layout.flatten
        start, stop, scale = flat(self.start), flat(models_of(end)), float(self.sent["scale"])
        sent = {name: stop[name] - stop[name].dtype.type(scale) * own for name, own in self.own.items()}
        record = self._whole(sent, end)
        content[self.order.arrays_key] = record
        if not self.lost:
            told = flat(models_of(record))
            self._keep({n: own + (told[n] - start[n]) / own.dtype.type(scale) for n, own in self.own.items()})
