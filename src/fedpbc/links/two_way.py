"""A downlink that fails by itself: an extension outside the paper, where both directions fail together."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, cast

from fedpbc.core.lazy import jax
from fedpbc.core.schema import Component, Context, component
from fedpbc.core.types import Array, Link, LinkProcess
from fedpbc.links.one_way import ONE_WAY

OneWay = Annotated[LinkProcess | Component[LinkProcess], ONE_WAY]


class _Params(NamedTuple):
    up: LinkProcess
    down: LinkProcess


@component
def two_way(context: Context, *, up: OneWay, down: OneWay) -> LinkProcess:
    """Two link processes: the server hears from A^t of ``up`` and reaches A^t of ``down``. Not in the paper.

    The two draw independently. What the seed says of a client (its distance, time zone, speed, orbit) is the same in
    both. The reported probability is that of ``up``.
    """
    return LinkProcess(_Params(cast(LinkProcess, up), cast(LinkProcess, down)), _init, _step)


def _init(params: _Params, key: Array) -> tuple[Any, ...]:
    keys = jax.random.split(key)
    return tuple(link.init(link.params, key) for link, key in zip(params, keys, strict=True))


def _step(params: _Params, key: Array, state: Any, t: Array) -> tuple[tuple[Any, ...], Link]:
    keys = jax.random.split(key)
    stepped = [link.step(link.params, k, s, t) for link, k, s in zip(params, keys, state, strict=True)]
    (state_up, up), (state_down, down) = stepped
    return (state_up, state_down), Link(up.active, up.prob, down.active)
