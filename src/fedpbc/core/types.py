"""The contract: what a link process, a problem and an algorithm are.

Every component is ``params`` (a pytree of arrays) and functions that take those params first. The functions
are module-level, so two components of the same kind have *equal* functions. The engine makes components
pytrees whose functions are static: it compiles one program per set of functions and array shapes, and
settings, seeds and data are its arguments. Nothing here imports JAX.

Symbols (paper): client i of m, round t of T, model x in R^d, local steps s, learning rate eta, active set
A^t, probability p_i^t. Shapes are written [m], [d], [m, d]; a model is always one flat vector [d].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

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


@dataclass(frozen=True)
class Measure:
    """How a metric is shown and ranked: figures, tables and rankings read this, and know no metric by name."""

    title: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    better: Literal["lower", "higher", "neither"] = "lower"
    shown: bool = False
    """Among those that figures and tables show when nothing else is asked for."""


class Steps(Protocol):
    """All local steps of one client on one minibatch at once."""

    def __call__(self, batch: Any, x: Array, eta: Array, shift: Array | None, proximal: Array | None) -> Array:
        """What as many steps x <- x - eta (grad l_i(x; xi) + shift + proximal (x - x_start)) give, [d] -> [d]."""


@dataclass(frozen=True)
class Pieces:
    """An array of which each device has a piece of its own, [n, ...] each: a leaf of ``Problem.shard``'s params."""

    arrays: tuple[Any, ...]


class Shard(Protocol):
    """The data of a problem for several devices, each of which trains some clients and evaluates some blocks."""

    def __call__(self, params: Params, first: Sequence[int]) -> tuple[Params, np.ndarray]:
        """(params with ``Pieces`` among its leaves, blocks int32[devices, b]).

        Device k has to be able to sample clients first[k]..first[k+1]-1, and evaluates blocks[k]: every block stands
        there once, the rest is filled with ``num_blocks``. ``sample`` and ``block_sums`` are given the params of the
        device they run on, and the client and block numbers of the whole.
        """


class ByClient(NamedTuple):
    """Metrics that need the clients' own values: of the worst of them, of those that were active."""

    sums: Callable[[Params, Array, Array], Any]
    """``sums(params, models[k, d], block) -> pytree``, added up over the blocks, as ``block_sums``."""
    finish: Callable[[Params, Any, Array], dict[str, Array]]
    """``finish(params, sums, active bool[m]) -> {name: [k]}``; active: of the latest round in which anybody was."""


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
    gradient: Callable[..., Any]
    """``gradient(batch, x[d]) -> [d]``: grad l_i(x; xi)."""
    num_blocks: int
    """Evaluation goes through the data in this many blocks."""
    block_sums: Callable[..., Any]
    """``block_sums(params, models[k, d], block) -> pytree``: added up over the blocks, in order."""
    metrics: Callable[[Params, Array, Any], dict[str, Array]]
    """``metrics(params, models[k, d], sums) -> {name: [k]}``."""
    work: float
    """Floating-point operations of one local step of one client, roughly: decides how many devices pay off."""
    unroll: int = 1
    """Local steps the compiler sees at once; more than 1 pays where the gradient is elementwise and fuses."""
    several: Callable[[int, int], Steps | None] | None = None
    """``several(steps, batch_size)``: a faster way to take so many steps on one minibatch, or None where there is none;
    equal to the steps one by one but for rounding."""
    by_client: ByClient | None = None
    """What is measured with ``metrics = [..., "clients"]``; None: nothing can be."""
    buffers: Any = None
    """What local training changes without a gradient, a pytree of arrays as everybody begins with it; None: nothing.
    Else ``gradient(batch, x[d], buffers) -> ([d], buffers)``, and ``block_sums`` is given buffers, each leaf [k, ...],
    as its last argument. See ``core.buffers`` for what becomes of them."""
    owned: Array | None = None
    """Which blocks each device evaluates, int32[devices, b], where each holds a part of ``params``; None: all of it."""
    client_traits: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Facts about clients that link probabilities may depend on: numbers [m] (``mean_label``, ...), and where samples
    have labels ``label_distribution`` [m, classes]. Host only."""
    measures: Mapping[str, Measure] = field(default_factory=dict)
    """What each of ``metrics`` is; one that is missing is shown under its name, lower taken for better. Host only."""
    tree: Callable[[Array], Any] | None = None
    """``tree(x[d])``: the model as the pytree it was given as; None: it is one vector. Host only."""
    shard: Shard | None = None
    """Divides ``params`` between devices; None: each holds all of it. Host only."""


class Train(Protocol):
    """Local training, given to an algorithm."""

    def __call__(
        self,
        models: Array,
        shift: Array | None = None,
        proximal: Array | None = None,
        last_gradient: bool = False,
    ) -> Array:
        """s local steps of every client that computes, from its row of ``models``; [m, d] -> [m, d].

        x <- x - eta_t (grad l_i(x; xi) + shift_i + proximal (x - models_i)), shift [m, d], proximal a number; with the
        options of ``core.descent``, where the experiment sets them. ``last_gradient``: grad l_i of the last of the s
        steps in place of the model that it leads to, which is not made. Clients that do not compute keep their row of
        ``models`` either way.
        """


class Round(NamedTuple):
    """What an algorithm is given in round t."""

    index: Array
    """t."""
    link: Link
    learning_rate: Array
    """eta_t."""
    num_steps: Array
    """s, or 0 in the consensus cool-down."""
    computes: Array
    """bool[m]: who does local steps this round; nobody in the cool-down."""
    train: Train
    way: tuple[Array, Array] | None = None
    """(S, M) of ``Descent.way`` where clients have momentum."""

    def steps(self, dtype: Any) -> Array:
        """S: how many plain steps the local steps are worth; s without momentum, 0 in the cool-down."""
        return self.num_steps.astype(dtype) if self.way is None else self.way[0].astype(dtype)

    def steps_before(self, dtype: Any) -> Array:
        """M: how many of them are behind where a gradient is taken, on average; (s - 1) / 2 without momentum."""
        return (self.num_steps.astype(dtype) - 1) / 2 if self.way is None else self.way[1].astype(dtype)


class Models(NamedTuple):
    """The models an algorithm holds between rounds."""

    server: Array
    """x^t, [d]."""
    clients: Array
    """x_i^t, [m, d]."""


@dataclass(frozen=True)
class Cost:
    """What a method costs, in models of size d and in scalars; m is the number of clients."""

    up: int = 1
    """Models that an active client sends in a round."""
    down: int = 1
    """Models that a client it is sent to receives in a round."""
    scalars: tuple[int, int] = (0, 0)
    """Numbers beside them, up and down."""
    server: int = 1
    """Models the server holds between rounds, whatever m."""
    server_per_client: int = 0
    """Models the server holds for each client."""
    client: int = 0
    """Models a client holds between rounds that it cannot do without."""
    broadcast: bool = True
    """The server sends before the round, to all it reaches; else after it, to those it heard from."""
    uses_all: bool = False
    """Local steps of clients that are not heard are used later; else they are for nothing, and not counted."""
    needs: str = ""
    """What must be known or possible, beside the number of clients."""


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
    forget: Callable[[Params, Any, Array, Array, Array], Any]
    """``forget(params, state, lost bool[m], x0[d], t) -> state``: these clients lose all they keep before round t."""
    cost: Cost


@dataclass(frozen=True, eq=False)
class Weighting:
    """How much the update of each client counts: vectors [m] only, no models."""

    params: Params
    init: Callable[[Params, int, Any], Any]
    """``init(params, m, dtype) -> state``."""
    step: Callable[[Params, Any, Link, Array], tuple[Any, Array]]
    """``step(params, state, link, t) -> (state, weights f[m])``; weights of clients outside A^t are never used."""


@dataclass(frozen=True, eq=False)
class ServerOptimizer:
    """What the server does with u^t = sum_i w_i Delta_i, which it takes for a step against the gradient."""

    params: Params
    init: Callable[[Params, Array], tuple[Array, ...]]
    """``init(params, x0[d]) -> memories``, each [d]."""
    step: Callable[[Params, tuple[Array, ...], Array], tuple[tuple[Array, ...], Array]]
    """``step(params, memories, u[d]) -> (memories, x^(t+1) - x^t [d])``; only rounds with an update count."""
    num_memories: int = 0
    """Models of memory, for the costs."""
