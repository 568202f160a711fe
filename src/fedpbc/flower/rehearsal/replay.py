"""Whether a train function may be replayed: a mod that calls it twice and compares."""

from __future__ import annotations

import copy

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedpbc.errors import shorten
from fedpbc.flower.wire.arrays import Model, models_of
from fedpbc.flower.wire.protocol import only_arrays


class NotRepeatable(ValueError):
    """Two calls with the same message gave two models."""


def replay_check(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower mod for rehearsals, inside of the other: ``mods=[fedpbc_mod, replay_check]``.

    The train function is called twice with the same message, each time with the context's state as it was before, and
    the second model counts. Where they differ in a bit, NotRepeatable is raised: the server's log and metrics.jsonl
    say in which round and by how much. Most often something is drawn that is not seeded with (client,
    ``server-round``), or kept from one call to the next. Twice the work: not for a deployment.
    """
    state = RecordDict({key: record.copy() for key, record in context.state.items()})
    first = call_next(_copy_of(message), context)
    context.state = state
    second = call_next(message, context)
    if not first.has_error() and not second.has_error():
        _compare(_model(first), _model(second))
    return second


def _copy_of(message: Message) -> Message:
    copied = copy.copy(message)
    copied.content = RecordDict({key: record.copy() for key, record in message.content.items()})
    return copied


def _model(reply: Message) -> Model:
    found = only_arrays(reply)
    return {} if found is None else models_of(found[1])


def _compare(first: Model, second: Model) -> None:
    """Raise NotRepeatable unless both hold the same bits; what is no model is for ``fedpbc_mod`` to say."""
    for name in first.keys() & second.keys():
        a, b = first[name], second[name]
        if a.shape == b.shape and a.tobytes() != b.tobytes():
            far = float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0.0))
            raise NotRepeatable(
                f"two calls of the train function with the same message differ, array {shorten(name)} by {far:.3g}: "
                "seed what it draws with (client, server-round), and keep nothing from one call to the next"
            )
