"""The contract: what a link process, a problem and an algorithm are.

Every component is ``params`` (a pytree of arrays) and functions that take those params first. The functions
are module-level, so two components of the same kind have *equal* functions. The engine makes components
pytrees whose functions are static: it compiles one program per set of functions and array shapes, and
settings, seeds and data are its arguments. Nothing here imports JAX.

Symbols (paper): client i of m, round t of T, model x in R^d, local steps s, learning rate eta, active set
A^t, probability p_i^t. Shapes are written [m], [d], [m, d]; a model is always one flat vector [d].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Array = Any
"""A NumPy or JAX array."""

Params = Any
"""A pytree of arrays: the settings or the data of a component."""


class Link(NamedTuple):
    """What the network does in one round."""

    active: Array
    """bool[m]: client i is in A^t, i.e. the server hears from it this round."""
    prob: Array
    """f[m]: p_i^t, the probability that client i is active in round t as the setting states it, not given the past of a
    process with memory. Only oracle methods may read it."""
    downlink: Array | None = None
    """bool[m]: the server reaches client i this round; None: exactly the active ones, as in the paper."""

    @property
    def receives(self) -> Array:
        """bool[m]: whom a message of the server reaches."""
        return self.active if self.downlink is None else self.downlink


@dataclass(frozen=True, eq=False)
class LinkProcess:
    """How links behave over time."""

    params: Params
    init: Callable[[Params, Array], Any]
    """``init(params, key) -> state`` before round 0."""
    step: Callable[[Params, Array, Any, Array], tuple[Any, Link]]
    """``step(params, key, state, t) -> (state, Link)``; ``key`` belongs to round t alone."""


@dataclass(frozen=True, eq=False)
class TimeFunction:
    """A quantity that is a function of the round: a probability vector f[m] or a scalar learning rate."""

    params: Params
    at: Callable[[Params, Array], Array]
    """``at(params, t) -> value`` in round t."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The objective F(x) = (1/m) sum_i F_i(x), its data and what can be measured about a model."""

    params: Params
    """The data. Ragged client data is one flat array plus an offset and a size per client."""
    num_clients: int
    init: np.ndarray
    """x^0, [d]: every client and the server start from it."""
    sample: Callable[[Params, Array, Array, int], Any]
    """``sample(params, client, key, batch_size) -> batch``: what ``gradient`` needs; drawn with replacement."""
    gradient: Callable[[Any, Array], Array]
    """``gradient(batch, x[d]) -> [d]``: grad l_i(x; xi)."""
    num_blocks: int
    """Evaluation goes through the data in this many blocks."""
    block_sums: Callable[[Params, Array, Array], Any]
    """``block_sums(params, models[k, d], block) -> pytree``: added up over the blocks, in order."""
    metrics: Callable[[Params, Array, Any], dict[str, Array]]
    """``metrics(params, models[k, d], sums) -> {name: [k]}``."""
    work: float
    """Floating-point operations of one local step of one client, roughly: decides how many devices pay off."""
    unroll: int = 1
    """Local steps the compiler sees at once; more than 1 pays where the gradient is elementwise and fuses."""
    client_traits: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Facts about clients that link probabilities may depend on: numbers [m] (``mean_label``, ...), and where samples
    have labels ``label_distribution`` [m, classes]. Host only."""


class Round(NamedTuple):
    """What an algorithm is given in round t."""

    index: Array
    """t."""
    link: Link
    learning_rate: Array
    """eta_t."""
    train: Callable[[Array], Array]
    """``train(models[m, d]) -> [m, d]``: s local steps of every client that computes, from its row."""


class Models(NamedTuple):
    """The models an algorithm holds between rounds."""

    server: Array
    """x^t, [d]."""
    clients: Array
    """x_i^t, [m, d]."""


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A federated method: local training is given to it, what happens around it is its own."""

    params: Params
    init: Callable[[Params, Array, int], Any]
    """``init(params, x0[d], m) -> state``."""
    round: Callable[[Params, Any, Round], Any]
    """``round(params, state, round) -> state`` after the round."""
    models: Callable[[Any], Models]
    """``models(state)``: what is evaluated."""
