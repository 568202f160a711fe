"""The client's side: a mod around the train function, which stays as it is."""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import replace
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedpbc.errors import shorten
from fedpbc.flower.client.kept import Kept
from fedpbc.flower.wire.arrays import models_of, sane
from fedpbc.flower.wire.protocol import (
    CORRECTION,
    IDENTIFY,
    RECORD,
    SERVER_ROUND,
    SKIP,
    Answer,
    Order,
    bundle,
    one_line,
    only_arrays,
)
from fedpbc.flower.wire.schedule import Schedule

log = logging.getLogger("flwr")

PROGRESS = "fedpbc.progress"
"""ArrayRecord of the context's state: the model after the rounds that are done."""
PROGRESS_OF = "fedpbc.progress-of"
"""ConfigRecord of the context's state: of which base, from which round, how far, under which configs and orders."""
SLOW = 0.5
"""A client that needs more than this share of its deadline is catching up in pieces: its reply may come too late."""


class NotFinite(ValueError):
    """The train function returned numbers that nothing can be computed with."""


def fedpbc_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower mod for ``@app.train(mods=[fedpbc_mod])``: needed with every strategy of ``fedpbc.flower``.

    It says who the client is, calls the train function once for every round since the client was last heard (with
    that round's ``server-round`` and the config that held in it), and sends the last result. The train function must
    therefore take its learning rate and its samples from its config, start any momentum anew each call, and return
    one ArrayRecord with all arrays it was given, of the same shapes and types. Messages of other strategies pass
    through untouched.

    What it keeps in ``context.state`` is a cache: a client that loses it computes more, and nothing else changes
    (SCAFFOLD and FedFade with ``controls = "client"``, MIFA and FedVARP with ``memory = "client"`` excepted, see
    there; and where ``max_catchup`` takes longer than a deadline the rounds begun with are lost, so that the client
    replays the latest).

    A train function that raises an exception, or returns a model that is not finite, is reported to the server with
    the round it was called for; what the rounds before made is kept.
    """
    order = Order.of(message)
    if order is None:
        return call_next(message, context)
    if order.kind == IDENTIFY:
        return Message(RecordDict({RECORD: ConfigRecord({"client-id": client_id(context)})}), reply_to=message)
    return _Replay(order, message, context, call_next).reply()


def client_id(context: Context) -> str:
    """The name of this client: ``client-id`` of the node config, else its ``partition-id``, else "" (the node's id)."""
    for key in ("client-id", "partition-id"):
        if key in context.node_config:
            return str(context.node_config[key])
    return ""


def _layout(record: ArrayRecord) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (array.dtype, tuple(array.shape)) for name, array in record.items()}


class _Replay:
    """The rounds of one order."""

    def __init__(self, order: Order, message: Message, context: Context, call_next: ClientAppCallable) -> None:
        self.order, self.message, self.context, self.call_next = order, message, context, call_next
        self.started = time.monotonic()
        record = cast(ConfigRecord, message.content[RECORD])
        self.skip = cast(list[int], record.get(SKIP, []))
        self.schedule = Schedule.of(message, order.config_key)
        self.first, self.slow = order.first, False
        self.done, self.length, self.arrays = self._resume()
        self.trained = 0
        self.kept = Kept.of(order, message, context)
        self.last: Message | None = None

    def reply(self) -> Message:
        """The reply to the order: the model after round t, or how far it got."""
        for round in range(self.done, min(self.order.round + 1, self.order.train_rounds)):
            if round in self.skip:
                self.done = round + 1
                continue
            if self.trained and self._elapsed() > self.order.budget:
                return self._unfinished(self._answer(finished=False))
            try:
                self.last = self._train(round)
            except Exception as error:
                log.exception("the local steps of round %d failed", round + 1)
                return self._failed(round, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            if self.last.has_error():
                return self._failed(round, self.last.error.reason)
        self.done = self.order.round + 1
        return self._finished()

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _train(self, round: int) -> Message:
        """One call of the train function, as if the server had asked in that round."""
        message = copy.copy(self.message)
        config = message.content.get(self.order.config_key)
        config = config.copy() if isinstance(config, ConfigRecord) else ConfigRecord()
        config[SERVER_ROUND] = round + 1
        self.schedule.apply(config, self.order.round, round)
        told = ConfigRecord({"length": 0.0})
        own = {self.order.config_key: config, self.order.arrays_key: self.arrays, RECORD: told}
        content = bundle(dict(message.content.items()) | own)
        self.kept.prepare(content)
        if CORRECTION not in content:  # Flower's mods for privacy take one ArrayRecord and one ConfigRecord
            del content[RECORD]
        message.content = content
        reply = self.call_next(message, self.context)
        if not reply.has_error():
            self._take(reply, self.arrays)
            self.done, self.trained = round + 1, self.trained + 1
            self.length += float(cast(float, told["length"]))
        return reply

    def _take(self, reply: Message, given: ArrayRecord) -> None:
        """Keep the model that the train function returned. Raises ValueError unless it is one, and can be used."""
        found = only_arrays(reply)
        if found is None:
            raise ValueError("the train function must return exactly one ArrayRecord, with all arrays of the model")
        if _layout(given) != _layout(found[1]):
            was, now = ({n: f"{a.dtype} of shape {a.shape}" for n, a in record.items()} for record in (given, found[1]))
            name = next(name for name in [*was, *now] if was.get(name) != now.get(name))
            change = f"array {shorten(name)} was {was.get(name, 'not there')}, is {now.get(name, 'not there')}"
            raise ValueError(f"the train function changed the model's layout: {change}")
        if not sane(models_of(found[1])):
            raise NotFinite("the train function returned a value that is not finite, or huge")
        self.arrays = found[1]

    def _resume(self) -> tuple[int, float, ArrayRecord]:
        """(round to do next, length of the steps so far, model): kept progress of this order, else the base."""
        kept, model = self.context.state.get(PROGRESS_OF), self.context.state.get(PROGRESS)
        if self.order.keep_progress and isinstance(kept, ConfigRecord) and isinstance(model, ArrayRecord):
            first, done = cast(int, kept["first"]), cast(int, kept["done"])
            if self._goes_on(kept, first, done):
                self.first, self.slow = first, cast(bool, kept["slow"])
                return max(done, self.order.first), cast(float, kept["length"]), model
        return self.order.first, 0.0, cast(ArrayRecord, self.message.content[self.order.arrays_key])

    def _goes_on(self, kept: ConfigRecord, first: int, done: int) -> bool:
        """Whether the order asks for what was begun: this base, these configs, these rounds without steps.

        Under ``max_catchup`` the first round to replay moves with every order. A client that needs several orders for
        one catch-up would never end it if it began anew each time: what it began with stays.
        """
        return (
            kept["base"] == self.order.base
            and done <= self.order.round + 1
            and (first == self.order.first or (first < self.order.first and bool(kept["slow"])))
            and kept["configs"] == self.schedule.digest(first, done)
            and kept["skip"] == [round for round in self.skip if round < done]
        )

    def _keep(self) -> None:
        """Keep the model for the next order."""
        if self.order.keep_progress:
            slow = self.slow or self._elapsed() > SLOW * self.order.budget
            self.context.state[PROGRESS] = self.arrays
            self.context.state[PROGRESS_OF] = ConfigRecord(
                {
                    "base": self.order.base, "first": self.first, "done": self.done, "length": self.length,
                    "slow": slow, "configs": self.schedule.digest(self.first, self.done),
                    "skip": [round for round in self.skip if round < self.done],
                }
            )  # fmt: skip

    def _answer(self, finished: bool) -> Answer:
        waiting = self.order.round + 1 - self.done
        order = self.order
        return Answer(order.client, order.round, order.base, finished, self.trained, waiting, self.length)

    def _unfinished(self, answer: Answer) -> Message:
        self._keep()
        return Message(RecordDict({RECORD: answer.record()}), reply_to=self.message)

    def _failed(self, round: int, error: str | None) -> Message:
        return self._unfinished(
            replace(self._answer(finished=False), failed=round, error=one_line(error or "") or "no reason given")
        )

    def _finished(self) -> Message:
        self._keep()
        said = {} if self.last is None else dict(self.last.content.items())
        others = {key: record for key, record in said.items() if not isinstance(record, ArrayRecord)}
        answer = replace(self._answer(finished=True), lost=self.kept.lost)
        content = bundle({**others, self.order.arrays_key: self.arrays, RECORD: answer.record()})
        self.kept.finish(content, self.arrays, self.length)
        if self.kept.told:
            content[RECORD] = replace(answer, **self.kept.told).record()
        return Message(content, reply_to=self.message)
